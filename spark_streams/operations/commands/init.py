"""`rstream init`: write the configuration of a job, a program, or alert rules or a dashboard for `rstream exporter`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.wire.address.server_url import redacted
from spark_streams.jobs.arguments import MONITORING, PROGRAMS, sample_argument
from spark_streams.operations.commands.names import named_streams
from spark_streams.operations.commands.shared import connect, output_option, url_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_streams.connector.source.batch.infer_schema import InferredColumn

_THEN = {
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

    The command never overwrites a file. Without --stream the file is an example. With --stream it takes field names
    and types from the oldest and newest entries of the stream: check the types before you use it. If some values do
    not fit a column's type, a comment beside the column says how many, and which.

    \b
    Examples:
      rstream init etl --stream orders
      rstream init query --stream orders
      rstream init etl --stream orders --null-value NA,null
      rstream init archive -o /etc/rstream/archive.toml
      rstream init alerts -o /etc/prometheus/rstream-alerts.yml
    """
    from spark_streams.jobs.settings.sample_config import config_for, file_name, sample_config

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
    if stream is None:
        text = sample_config(name)
    else:
        columns = _columns(url, stream, null_value, share)
        text = config_for(name, stream, columns, url if typed and is_plain else None, null_value)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None
    quoted = shlex.quote(str(path))
    then = f"  python {quoted}" if name in PROGRAMS else f"  rstream run {name} --config {quoted} --check"
    then = _THEN.get(name, then)
    click.echo(f"wrote {path}: check it, then\n{then}")
    if stream is not None and typed and not is_plain:
        click.echo("  set RSTREAM_URL before: the URL contains a login, so it was not written into the file")


def _columns(url: str, stream: str, null_value: str | None, share: float) -> Sequence[InferredColumn]:
    """Return the columns of a stream. Raises StreamStateError if there are none."""
    from spark_streams.connector.options.parsers import null_values
    from spark_streams.jobs.settings.sample_config import columns_of

    try:
        missing = () if null_value is None else null_values(null_value)
    except ValueError as error:
        raise click.UsageError(f"--null-value {null_value!r} {error}") from None
    with connect(url) as server:
        named_streams(server, [stream], exact=True)
        columns = columns_of(server, stream, missing, share)
    if not columns:
        raise StreamStateError(f"no entry of stream {stream!r} has fields that can become columns; leave out --stream")
    return columns
