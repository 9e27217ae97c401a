"""What all commands share: the options that name a server, its connection, tables and JSON."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import click
from click.core import ParameterSource

from spark_streams.errors import RStreamError, StreamStateError
from spark_streams.model.printable import json_text, printable, printable_lines

if TYPE_CHECKING:
    from rich.console import Console

    from spark_streams.wire.address.address import Address
    from spark_streams.wire.connection.server import Server

_WIDE = 240  # columns
# What was given beside --url, in click's context: as options; by variables.
_TYPED, _ENVIRONMENT = "rstream.typed", "rstream.environment"

F = TypeVar("F", bound=Callable[..., object])


# Commands that are no more, and what to use instead.
REMOVED = {
    "quicken": "rstream quicken was removed: the package changes no installation of PySpark. For a driver that starts "
    "faster pass a class archive to the JVM (docs/internals/performance.md, The first row). What quicken changed is "
    "undone by pip install --force-reinstall --no-deps pyspark==VERSION and by removing spark-*.jsa from "
    "~/.cache/rstream",
}


Resolved = tuple[str | None, click.Command | None, list[str]]  # name, command, the arguments that are left


class Group(click.Group):
    """Errors of ours become one line and exit code 1."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Resolved:
        if args[0] in REMOVED:
            ctx.fail(REMOVED[args[0]])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except RStreamError as error:
            raise click.ClickException(printable_lines(str(error))) from error


def milliseconds(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """An option's callback: a length of time with its unit, in milliseconds."""
    from spark_streams.options.values import duration

    try:
        return None if value is None else duration(value)
    except ValueError as error:
        raise click.BadParameter(f"{value}: {error}", ctx, param) from None


def url_option(command: F) -> F:
    """`--url`: the server; and beside it who connects, and how patiently, which `address_of` takes into account."""
    options = [
        click.option(
            "--url",
            envvar="RSTREAM_URL",
            default="embedded:",
            show_default=True,
            help="URL of the server (or $RSTREAM_URL).",
        ),
        _access("username", "TEXT", "User name, if the URL has none"),
        _access(
            "passwordFile",
            "FILE",
            "File whose first line is the password, or set $RSTREAM_PASSWORD: other users can read command lines",
        ),
        _access("credentialProvider", "MODULE:FUNCTION", "Function that returns a redis.CredentialProvider"),
        _access("replyTimeout", "DURATION", "Maximum time to wait for a reply, 5s by default"),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _access(name: str, metavar: str, text: str) -> Callable[[F], F]:
    """One of the options beside the url, kept for `address_of`: what is typed about a login replaces all that the
    environment says of one."""
    words = re.sub("[A-Z]", lambda found: f"-{found[0].lower()}", name)
    variable = f"RSTREAM_{words.replace('-', '_').upper()}"

    def keep(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is not None:
            typed = ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
            ctx.meta.setdefault(_TYPED if typed else _ENVIRONMENT, {})[name] = value

    return click.option(
        f"--{words}", metavar=metavar, envvar=variable, expose_value=False, callback=keep, help=f"{text} (${variable})."
    )


def _given_beside_the_url() -> dict[str, str]:
    from spark_streams.options.table import IDENTITY

    context = click.get_current_context(silent=True)
    typed, around = ({}, {}) if context is None else (context.meta.get(at, {}) for at in (_TYPED, _ENVIRONMENT))
    if secret := os.environ.get("RSTREAM_PASSWORD"):
        around = {**around, "password": secret}
    if not typed.keys().isdisjoint(IDENTITY):
        around = {name: value for name, value in around.items() if name not in IDENTITY}
    return {**around, **typed}


def output_option(text: str, default: str | None = None) -> Callable[[F], F]:
    """`-o`, `--output`: the file that a command writes. Its former name is refused with the one it has now."""

    def refuse(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise click.UsageError(f"--out is now -o or --output: give --output {value}")

    def options(command: F) -> F:
        command = click.option("--out", hidden=True, expose_value=False, callback=refuse)(command)
        shown = default is not None
        return click.option("-o", "--output", metavar="FILE", default=default, show_default=shown, help=text)(command)

    return options


def json_option(command: F) -> F:
    """`--json`: for programs."""
    return click.option("--json", "as_json", is_flag=True, help="For programs: JSON instead of a table.")(command)


def address_of(url: str, starts: bool = False) -> Address:
    """The server; starts: the bundled engine, too, where it does not run. Raises OptionError."""
    from spark_streams.options.access_options import server_of

    address = server_of({"url": url, **_given_beside_the_url()}, "server")
    return address if starts else address.without_starting()


def connect(url: str, starts: bool = False) -> Server:
    """A connection to the server; closes as a context manager. starts: as above. Raises ServerError, OptionError."""
    from spark_streams.wire.connect import connect as connected

    return connected(address_of(url, starts))


def named_streams(server: Server, names: Sequence[str], beside: bool = False) -> Sequence[str | bytes]:
    """These streams, in place of those that are in shards the shards. Without names all that the server has; beside:
    also those that queries keep beside a stream for another try. Raises StreamStateError if one is not there."""
    from spark_streams.shards.settling import fetch_shard_sets
    from spark_streams.wire.replies.scan import list_streams, without_beside

    if not names:
        found = list_streams(server)
        return found if beside else without_beside(found)
    sets = fetch_shard_sets(server, names)
    names = [name for stream in names for name in (sets[stream].names if stream in sets else (stream,))]
    from spark_streams.wire.replies.reply_errors import is_no_such_key

    # XINFO, because a user who may use streams may ask it.
    replies = server.pipeline([("XINFO", "STREAM", name) for name in names])
    missing = [name for name, reply in zip(names, replies, strict=True) if is_no_such_key(reply)]
    if missing:
        raise StreamStateError(
            f"no stream {', '.join(map(repr, missing))} at {server.address}; {_what_is_there(server, missing)}"
        )
    return names


def _what_is_there(server: Server, missing: Sequence[str]) -> str:
    """A hint for whoever named streams that are missing: the nearest ones."""
    from spark_streams.wire.replies.absent_streams import nearest

    near = [repr(one) for one in nearest(server, missing).values()]
    return f"did you mean {', '.join(near)}?" if near else "rstream streams lists what is there"


def say(text: str, err: bool = False) -> None:
    """Lines for people; what names and values of others hold is made printable."""
    click.echo(printable_lines(text), err=err)


def print_json(value: object) -> None:
    """One JSON document."""
    click.echo(json_text(value, indent=2))


def console() -> Console:
    """Standard output, as wide as the terminal; into a pipe or a file wide enough for whole rows."""
    from rich.console import Console

    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=_WIDE if wide else None)


def print_table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns of numbers, and those whose names end in a blank, stand to the right; None is `?`."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, name in enumerate(names):
        numeric = all(isinstance(row[at], int | None) for row in rows) and bool(rows)
        table.add_column(name.strip(), justify="right" if numeric or name.endswith(" ") else "left", overflow="fold")
    for row in rows:
        cells = ["?" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row]
        # Text: no markup either.
        table.add_row(*[Text(printable(cell)) for cell in cells])
    console().print(table if rows else "none")
