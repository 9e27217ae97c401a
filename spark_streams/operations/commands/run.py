"""`rstream run`: run a job of the package, in this Python process or with spark-submit."""

from __future__ import annotations

import click

from spark_streams.base.extras import lacks
from spark_streams.connector.errors import UnsupportedError
from spark_streams.jobs.arguments import job_argument, job_options


@click.command(short_help="Run a Spark job of the package.")
@job_argument
@job_options
@click.option("--submit", is_flag=True, help="Use spark-submit, like [spark] submit = true in the configuration.")
def run(
    job: str,
    config: str | None,
    settings: tuple[str, ...],
    check: bool,
    summary: str | None,
    traceback: bool,
    take_over: bool,
    submit: bool,
) -> None:
    """Run a job: load, etl, aggregate, archive, reprocess_dead_letters.

    By default Spark runs in this Python process on this machine. [spark] in the configuration sets another master and
    any Spark property. On Ctrl-C or SIGTERM the job finishes its running batch and stops. Exit codes: 0 finished, or
    stopped by a signal; 1 the job failed; 2 an argument or the configuration is wrong.

    \b
    Examples:
      rstream init etl --stream orders          write a configuration first
      rstream run etl --config etl.toml --check
      rstream run etl --config etl.toml --set source.maxEntriesPerTrigger=50000
      rstream run etl --config etl.toml --submit --set spark.master=spark://host:7077
    """
    from spark_streams.jobs.start import missing_package

    if package := missing_package():
        raise UnsupportedError(lacks("rstream run", package))
    from spark_streams.jobs.command import program, run_job

    run_job(program(job), config, settings, check, summary, traceback, take_over, submit=submit)
