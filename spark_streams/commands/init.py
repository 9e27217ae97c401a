"""`rstream init`: a job's configuration to begin with; alert rules and a dashboard for `rstream exporter`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from spark_streams.commands.shared import connect, named_streams, output_option, url_option
from spark_streams.errors import StreamStateError
from spark_streams.jobs.arguments import MONITORING, sample_argument
from spark_streams.wire.address.server_url import redacted

if TYPE_CHECKING:
    from collections.abc import Sequence

_THEN = {
    "alerts": "  name it in rule_files of prometheus.yml, and reload Prometheus",
    "grafana": "  import it in Grafana: Dashboards, New, Import",
}


@click.command(short_help="A job's configuration; alert rules; a dashboard.")
@sample_argument
@output_option("The file to write; default: NAME with its ending, in this folder.")
@click.option("--stream", metavar="STREAM", help="A stream that there is: its name and fields are put in.")
@url_option
def init(name: str, output: str | None, stream: str | None, url: str) -> None:
    """Write a commented configuration of a job: load, etl, aggregate, archive, reprocess_dead_letters; or what goes
    with `rstream exporter`: alerts (rules for Prometheus), grafana (a dashboard).

    It never overwrites a file. Without --stream a job's is the sample about flights; with it the names of fields and
    their types are found in entries of the stream, oldest and newest ones: look at them before you trust them.

    \b
    Examples:
      rstream init etl --stream orders
      rstream init archive -o /etc/rstream/archive.toml
      rstream init alerts -o /etc/prometheus/rstream-alerts.yml
    """
    from spark_streams.jobs.settings.sample_config import adapt_sample, file_name, sample_config

    if name in MONITORING and stream is not None:
        raise click.UsageError(f"--stream goes with a job: {file_name(name)} is for all streams")
    path = Path(output or file_name(name))
    if path.exists():
        raise click.UsageError(f"{path} exists, and is not overwritten: name another file with --output")
    text = sample_config(name)
    typed = click.get_current_context().get_parameter_source("url") is ParameterSource.COMMANDLINE
    is_plain = redacted(url) == url
    if stream is not None:
        text = adapt_sample(text, stream, _columns(url, stream), url if typed and is_plain else None)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None
    then = _THEN.get(name, f"  rstream run {name} --config {shlex.quote(str(path))} --check")
    click.echo(f"wrote {path}: look through it, then\n{then}")
    if stream is not None and typed and not is_plain:
        click.echo("  with RSTREAM_URL set: the url has a login, and is not written into the file")


def _columns(url: str, stream: str) -> Sequence[tuple[str, str]]:
    """The fields of a stream's entries, and their types. Raises StreamStateError where there is none, SchemaError."""
    from spark_streams.jobs.start import exit_if_packages_missing

    exit_if_packages_missing()
    from spark_streams.jobs.settings.sample_config import columns_of

    with connect(url) as server:
        named_streams(server, [stream])
        columns = columns_of(server, stream)
    if not columns:
        raise StreamStateError(f"stream {stream!r} has no entry whose fields could become columns; leave out --stream")
    return columns
