"""`rstream run` and `rstream init`: run a job; write its configuration, a program, or files for monitoring."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Unpack

import click
from click.core import ParameterSource

from spark_streams.base.extras import lacks
from spark_streams.connector.admin.streams import redacted
from spark_streams.connector.errors import StreamStateError, UnsupportedError
from spark_streams.jobs.arguments import MONITORING, PROGRAMS, JobArguments, job_argument, job_options, sample_argument
from spark_streams.operations.commands.shared import connect, output_option, url_option
from spark_streams.operations.commands.stream_names import named_streams


@click.command(short_help="Run a Spark job of the package.")
@job_argument
@job_options
@click.option("--submit", is_flag=True, help="Use spark-submit, like [spark] submit = true in the configuration.")
def run(job: str, submit: bool, **arguments: Unpack[JobArguments]) -> None:
    """Run a job: load, etl, aggregate, archive, reprocess_dead_letters.

    Spark runs in this Python process, unless [spark] in the configuration sets another master. On Ctrl-C or SIGTERM the
    job finishes its running batch and stops. Exit codes: 0 finished, or stopped by a signal; 1 the job failed; 2 an
    argument or the configuration is wrong.

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

    run_job(program(job), submit=submit, **arguments)


_NEXT = {
    "alerts": "  add it to rule_files in prometheus.yml, and reload Prometheus",
    "grafana": "  import it in Grafana: Dashboards, New, Import",
}


@click.command(short_help="Write a job's configuration, a program, alert rules or a dashboard.")
@sample_argument
@output_option("The file to write; default: NAME with its suffix, in the current folder.")
@click.option("--stream", metavar="STREAM", help="An existing stream: write its name and fields into the file.")
@click.option(
    "--null-value",
    metavar="TEXTS",
    help="With --stream: texts that stand for a missing value, such as NA,null,- (option nullValue).",
)
@click.option(
    "--share",
    type=click.FloatRange(0.5, 1),
    default=0.8,
    show_default=True,
    help="With --stream: how many of a field's values must fit the type of its column.",
)
@url_option
def init(name: str, output: str | None, stream: str | None, null_value: str | None, share: float, url: str) -> None:
    """Write a commented configuration of the job NAME: load, etl, aggregate, archive, reprocess_dead_letters. Or write
    a Python program to start from: query. Or a file for `rstream exporter`: alerts (rules for Prometheus), grafana (a
    dashboard).

    No file is overwritten. Without --stream the file is an example. With --stream it takes field names and types from
    the oldest and newest entries of the stream: check the types. A comment beside a column says how many values do not
    fit its type, and which.

    \b
    Examples:
      rstream init etl --stream orders
      rstream init etl --stream orders --null-value NA,null
      rstream init alerts -o /etc/prometheus/rstream-alerts.yml
    """
    from spark_streams.jobs.sample_config import file_name, sample_config

    if name in MONITORING and stream is not None:
        raise click.UsageError(
            f"--stream applies only to jobs and query: {file_name(name)} covers all streams; leave it out"
        )
    context = click.get_current_context()
    if stream is None and (
        null_value is not None or context.get_parameter_source("share") is ParameterSource.COMMANDLINE
    ):
        raise click.UsageError("--null-value and --share apply to the fields of a stream: name it with --stream")
    path = Path(output or file_name(name))
    if path.exists():
        raise click.UsageError(f"{path} exists and is not overwritten; name another file with --output")
    typed = context.get_parameter_source("url") is ParameterSource.COMMANDLINE
    is_plain = redacted(url) == url
    text = sample_config(name) if stream is None else _config(name, stream, url, typed and is_plain, null_value, share)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None
    quoted = shlex.quote(str(path))
    then = f"  python {quoted}" if name in PROGRAMS else f"  rstream run {name} --config {quoted} --check"
    then = _NEXT.get(name, then)
    click.echo(f"wrote {path}: check it, then\n{then}")
    if stream is not None and typed and not is_plain:
        click.echo("  set RSTREAM_URL before: the URL contains a login, so it was not written into the file")


def _config(name: str, stream: str, url: str, shows_url: bool, null_value: str | None, share: float) -> str:
    """Return the text with the columns of a stream. Raises StreamStateError if there are none."""
    from spark_streams.connector.admin.streams import null_values
    from spark_streams.jobs.sample_config import columns_of, config_for

    try:
        missing = () if null_value is None else null_values(null_value)
    except ValueError as error:
        raise click.UsageError(f"--null-value {null_value!r} {error}") from None
    with connect(url) as server:
        named_streams(server, [stream], exact=True)
        columns = columns_of(server, stream, missing, share)
    if not columns:
        raise StreamStateError(f"no entry of stream {stream!r} has fields that can become columns; leave out --stream")
    return config_for(name, stream, columns, url if shows_url else None, null_value)
