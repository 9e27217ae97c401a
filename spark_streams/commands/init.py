"""`rstream init`: a job's configuration to begin with."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spark_streams.commands.shared import connect, named_streams, url_option
from spark_streams.errors import StreamStateError
from spark_streams.jobs.arguments import job_argument

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command()
@job_argument
@click.option("--out", metavar="FILE", help="Where to; default: JOB.toml, in this folder.")
@click.option("--stream", metavar="STREAM", help="A stream that there is: its name and fields are put in.")
@url_option
def init(job: str, out: str | None, stream: str | None, url: str) -> None:
    """Write a commented configuration of a job: load, etl, aggregate, archive, reprocess_dead_letters.

    It never overwrites a file. Without --stream it is the sample about flights; with it the names of fields and their
    types are found in entries of the stream, oldest and newest ones: look at them before you trust them.

    \b
    Examples:
      rstream init etl --stream orders
      rstream init archive --out /etc/rstream/archive.toml
    """
    from spark_streams.jobs.sample_config import about, sample_config

    path = Path(out or f"{job}.toml")
    if path.exists():
        raise click.UsageError(f"{path} exists, and is not overwritten: name another file with --out")
    text = sample_config(job)
    if stream is not None:
        text = about(text, stream, _columns(url, stream))
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None
    click.echo(f"wrote {path}: look through it, then\n  rstream run {job} --config {shlex.quote(str(path))} --check")


def _columns(url: str, stream: str) -> Sequence[tuple[str, str]]:
    """The fields of a stream's entries, and their types. Raises StreamStateError where there is none, SchemaError."""
    from spark_streams.jobs.start import leave_if_lacking

    leave_if_lacking()
    from spark_streams.jobs.sample_config import columns_of

    with connect(url) as server:
        named_streams(server, [stream])
        columns = columns_of(server, stream)
    if not columns:
        raise StreamStateError(f"stream {stream!r} has no entry whose fields could become columns; leave out --stream")
    return columns
