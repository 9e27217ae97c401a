"""`rstream …`: look at streams and groups of any server, or serve the bundled engine.

Read-only commands never change a stream or a group. Exit codes: 0 fine, 1 the server or the engine said no, 2 usage.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

import click

from spark_streams import __version__
from spark_streams.errors import RStreamError

_URL = click.option(
    "--url", envvar="RSTREAM_URL", default="embedded:", show_default=True, help="The server (or $RSTREAM_URL)."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="For programs: JSON instead of a table.")


class _Group(click.Group):
    """Errors of ours become one line."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except RStreamError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rstream")
def main() -> None:
    """Redis Streams for Spark: what is in the streams, who reads them, and a stream engine for this machine."""


@main.command()
@_URL
@_JSON
def streams(url: str, as_json: bool) -> None:
    """All streams of the server: entries, last id, groups."""
    from spark_streams.monitor.groups import list_streams, view_streams
    from spark_streams.wire.address import Address
    from spark_streams.wire.connection import Connection

    with Connection(Address.parse(url)) as server:
        views = view_streams(server, list_streams(server))
    if as_json:
        click.echo(json.dumps([asdict(view) for view in views], indent=2))
        return
    _table(
        ("stream", "entries", "ever added", "last id", "groups"),
        [(v.stream, v.length, v.added, v.last, ", ".join(g.group for g in v.groups) or "-") for v in views],
    )


@main.command()
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@_URL
@_JSON
def groups(names: tuple[str, ...], url: str, as_json: bool) -> None:
    """The consumer groups of some streams (default: all): lag, pending, position.

    lag: entries that the group has yet to be given; pending: given, and not acknowledged.
    """
    from spark_streams.monitor.groups import list_streams, view_streams
    from spark_streams.wire.address import Address
    from spark_streams.wire.connection import Connection

    with Connection(Address.parse(url)) as server:
        views = view_streams(server, names or list_streams(server))
        where = str(server.address)
    missing = [name for name in names if name not in {view.stream for view in views}]
    if missing:
        raise click.ClickException(f"no stream {', '.join(missing)} at {where}; rstream streams lists what is there")
    found = [group for view in views for group in view.groups]
    if as_json:
        click.echo(json.dumps([asdict(group) for group in found], indent=2))
        return
    _table(
        ("stream", "group", "consumers", "lag", "pending", "last delivered"),
        [(g.stream, g.group, g.consumers, g.lag, g.pending, g.last_delivered) for g in found],
    )


@main.command(context_settings={"ignore_unknown_options": True, "help_option_names": []}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def serve(arguments: tuple[str, ...]) -> None:
    """Serve the bundled stream engine; options are named as in redis.conf (rstream serve --help)."""
    from spark_streams.engine.__main__ import main as engine_main

    sys.exit(engine_main(list(arguments), prog="rstream serve"))


def _table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, name in enumerate(names):
        numeric = all(isinstance(row[at], int | None) for row in rows) and bool(rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        cells = ["?" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row]
        # Names are data: no markup, no control characters for the terminal.
        table.add_row(*[Text("".join(c if c.isprintable() else repr(c)[1:-1] for c in cell)) for cell in cells])
    console = Console(highlight=False)
    console.print(table if rows else "none")


if __name__ == "__main__":
    main()
