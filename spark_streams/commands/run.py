"""`rstream run`: a job of the package, in this Python, or by spark-submit."""

from __future__ import annotations

import click

from spark_streams.jobs.arguments import job_argument, job_options


@click.command()
@job_argument
@job_options
@click.option("--submit", is_flag=True, help="By spark-submit, as [spark] submit = true in the configuration.")
def run(
    job: str,
    config: str | None,
    settings: tuple[str, ...],
    check: bool,
    summary: str | None,
    traceback: bool,
    submit: bool,
) -> None:
    """Run a job: load, etl, aggregate, archive, reprocess_dead_letters.

    Spark runs in this Python, on this machine, unless [spark] of the configuration says otherwise: master, and any key
    of Spark's. Ctrl-C and SIGTERM let the batch in flight finish. Exit codes: 0 done, or stopped by a signal; 1 the job
    failed; 2 the arguments or the configuration are wrong.

    \b
    Examples:
      rstream init etl --stream orders          a configuration to begin with
      rstream run etl --config etl.toml --check
      rstream run etl --config etl.toml --set source.maxEntriesPerTrigger=50000
      rstream run etl --config etl.toml --submit --set spark.master=spark://host:7077
    """
    from spark_streams.jobs.start import exit_if_packages_missing

    exit_if_packages_missing()
    from spark_streams.jobs.command import run_job

    run_job(job, config, settings, check, summary, traceback, submit=submit)
