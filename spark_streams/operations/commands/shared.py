"""Shared by all commands: the options that name a server, its connection, tables and JSON."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import click
from click.core import ParameterSource

from spark_streams.base.extras import lacks, missing_package
from spark_streams.base.printable import is_utf8, json_text, name_text, printable, printable_lines
from spark_streams.connector.errors import OptionError, RStreamError, UnsupportedError
from spark_streams.operations.commands import exit_codes

if TYPE_CHECKING:
    from rich.console import Console

    from spark_streams.connector.wire.address import Address
    from spark_streams.connector.wire.connection import Server

_WIDE = 240  # columns
# Keys of click's context: connection settings from the command line, and from the environment.
_TYPED, _ENVIRONMENT = "rstream.typed", "rstream.environment"

TARGET = "to-"  # prefix of the options for a second server

# A cell that is not broken: a number, a duration, an entry ID, a time, a checksum.
_WHOLE = re.compile(r"[?-]?|[-+~≥]?[\d,.]+( ?\w+)?|\d+-\d+|[\d-]{10} [\d:.]+Z?|[0-9a-f]{16,}")

F = TypeVar("F", bound=Callable[..., object])


class FailedCommandError(click.ClickException):
    """An RStreamError: one line, and the exit code of its class."""

    def __init__(self, error: RStreamError) -> None:
        super().__init__(printable_lines(str(error)))
        self.exit_code = exit_codes.code_of(error)  # type: ignore[misc]


class CommandGroup(click.Group):
    """A group of commands. An error is printed as one line (exit_codes.py), and so is a missing extra."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        if not isinstance(cmd, click.Group) and cmd.callback is not None:
            cmd.callback = _as_command(cmd.callback)
        super().add_command(cmd, name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            for typed in [word for word in args if word in self.commands][:1]:
                hint = f"Options stand behind the command: {ctx.command_path} {typed} {error.option_name} …"
                raise click.NoSuchOption(error.option_name, f"{error.message} {hint}", ctx=ctx) from None
            raise

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        exit_codes.begin()
        code = 0
        try:
            try:
                super().main(*args, **kwargs)
            finally:
                sys.stdout.flush()
        except SystemExit as stopped:
            code = exit_codes.end(stopped.code)
        except exit_codes.StandardStreamError as error:
            code = exit_codes.end(0, error)
        sys.exit(code)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except RStreamError as error:
            raise FailedCommandError(error) from error
        except ModuleNotFoundError as error:
            package = missing_package(error)
            if package is None:
                raise
            name = f"{ctx.command_path} {ctx.invoked_subcommand}"
            raise click.ClickException(str(UnsupportedError(lacks(name, package)))) from None


def _as_command(callback: Callable[..., object]) -> Callable[..., object]:
    """Return the callback of a command that refuses arguments which are not UTF-8, before it does anything."""

    @functools.wraps(callback)
    def checked(*args: object, **kwargs: object) -> object:
        context = click.get_current_context()
        for param in context.command.params:
            # Python passes bytes that are not UTF-8 as surrogates.
            takes_bytes = isinstance(param.type, click.Path | click.File) or _OF_BYTES & {param.metavar, param.name}
            if param.name in context.params and not takes_bytes:
                _require_text(context, param, context.params[param.name])
        try:
            return callback(*args, **kwargs)
        except RStreamError as error:
            raise FailedCommandError(error) from error  # here, the command's options are known

    return checked


# Files, values of fields, what dead letters are selected by, names of consumers: by metavar or by name.
_OF_BYTES = frozenset(("FILE", "TEXT", "NAME", "NAME=VALUE", "CONSUMER", "file", "fields", "consumer", "consumers"))


def _require_text(context: click.Context, param: click.Parameter, value: object) -> None:
    """Raise UsageError if the value, or one of several, is not UTF-8. Python passes its bytes as surrogates."""
    for text in value if isinstance(value, tuple) else (value,):
        if isinstance(text, tuple):
            _require_text(context, param, text)
        elif isinstance(text, str) and not is_utf8(text):
            shown = printable(name_text(text))
            raise click.BadParameter(
                f"'{shown:.200}' is not UTF-8. rstream takes only names and values in UTF-8. Set the shell's locale to "
                "UTF-8; for a key that has such a name, use redis-cli",
                context,
                param,
            )


def milliseconds(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Callback of an option: parse a duration with its unit into milliseconds."""
    from spark_streams.base.given_text import duration

    try:
        return None if value is None else duration(value)
    except ValueError as error:
        raise click.BadParameter(f"{value}: {error}", ctx, param) from None


class OptionSet:
    """A decorator that adds several options to a command, in their order."""

    def __init__(self, *options: Callable[[Any], Any]) -> None:
        self._options = options

    def __call__(self, command: F) -> F:
        for option in reversed(self._options):
            command = option(command)
        return command


def _access(name: str, metavar: str, text: str, side: str = "") -> Callable[[F], F]:
    """Return the decorator of a connection option. A login on the command line replaces the environment's login."""
    words, variable = side + _words(name), _variable(side + _words(name))

    def keep(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is not None:
            if metavar != "FILE":
                _require_text(ctx, param, value)
            typed = ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
            ctx.meta.setdefault(side + (_TYPED if typed else _ENVIRONMENT), {})[name] = value

    return click.option(
        f"--{words}", metavar=metavar, envvar=variable, expose_value=False, callback=keep, help=f"{text} (${variable})."
    )


def _words(name: str) -> str:
    return re.sub("[A-Z]", lambda capital: f"-{capital[0].lower()}", name)


def _variable(name: str) -> str:
    """Return the environment variable of a connection option."""
    return f"RSTREAM_{_words(name).replace('-', '_').upper()}"


# `--url`, and the options for the login and the reply timeout, which `address_of` reads.
url_option = OptionSet(
    click.option(
        "--url",
        envvar="RSTREAM_URL",
        default="embedded:",
        show_default=True,
        help="URL of the server ($RSTREAM_URL).",
    ),
    _access("username", "TEXT", "User name, if the URL has none"),
    _access(
        "passwordFile",
        "FILE",
        "File whose first line is the password; or set $RSTREAM_PASSWORD, as other users can read command lines",
    ),
    _access("credentialProvider", "MODULE:FUNCTION", "Function that returns a redis.CredentialProvider"),
    _access("replyTimeout", "DURATION", "Maximum time to wait for a reply, 5s by default"),
)


def port_option(default: int) -> Callable[[F], F]:
    """`--port` of a command that listens."""
    text = "Port to listen on; 0: any free port."
    return click.option("--port", type=click.IntRange(0, 65535), default=default, show_default=True, help=text)


def max_streams_option(command: F) -> F:
    """`--max-streams` of a command that reads all streams again and again."""
    text = "Maximum number of streams: the first ones by name."
    return click.option("--max-streams", type=click.IntRange(1), default=10_000, show_default=True, help=text)(command)


# `--to-url` and the options for the target's login, which `address_of` reads for TARGET.
to_url_option = OptionSet(
    click.option("--to-url", metavar="URL", help="URL of the target's server.  [default: --url]"),
    _access("username", "TEXT", "Target: user name, if the URL has none", TARGET),
    _access("passwordFile", "FILE", "Target: file whose first line is the password", TARGET),
    _access("credentialProvider", "MODULE:FUNCTION", "Target: function that returns credentials", TARGET),
)


def _given_beside_the_url(side: str) -> dict[str, str]:
    from spark_streams.connector.admin.streams import IDENTITY

    context = click.get_current_context(silent=True)
    sources = (side + _TYPED, side + _ENVIRONMENT)
    typed, around = ({}, {}) if context is None else (context.meta.get(source, {}) for source in sources)
    variable = "RSTREAM_TO_PASSWORD" if side else "RSTREAM_PASSWORD"
    if secret := os.environ.get(variable):
        if not is_utf8(secret):
            raise click.UsageError(
                f"the password in {variable} is not UTF-8. Set it in a shell whose locale is UTF-8, or write it to a "
                "file and name that with --password-file"
            )
        around = {**around, "password": secret}
    if not typed.keys().isdisjoint(IDENTITY):
        around = {name: value for name, value in around.items() if name not in IDENTITY}
    return {**around, **typed}


def login_environment(url: str) -> dict[str, str]:
    """Return the environment variables by which another process of `rstream` uses the same server and login."""
    login = _given_beside_the_url("")
    return {"RSTREAM_URL": url, **{_variable(name): value for name, value in login.items()}}


def output_option(text: str, default: str | None = None) -> Callable[[F], F]:
    """Add `-o`, `--output`: the file that a command writes."""
    shown = default is not None
    return click.option("-o", "--output", metavar="FILE", default=default, show_default=shown, help=text)


def json_option(command: F) -> F:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(command)


def address_of(url: str, starts: bool = False, side: str = "") -> Address:
    """Return the server's address. starts: start the bundled engine if it does not run; side: TARGET for the server of
    `--to-url`. Raises OptionError."""
    from spark_streams.connector.admin.streams import server_address

    address = server_address(url, _given_beside_the_url(side), "target server" if side else "server")
    return address if starts else address.without_starting()


def connect(url: str, starts: bool = False) -> Server:
    """Return a connection to the server, a context manager. starts: as address_of. Raises ServerError, OptionError."""
    from spark_streams.connector.wire.connect import connect as connected

    return connected(address_of(url, starts))


@contextlib.contextmanager
def refusing_usage() -> Iterator[None]:
    """Raise an OptionError as click.UsageError."""
    try:
        yield
    except OptionError as error:
        raise click.UsageError(error.message) from None


@contextlib.contextmanager
def on_signals(handler: Callable[..., object]) -> Iterator[None]:
    """Call the handler on SIGINT and SIGTERM."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def say(text: str, err: bool = False) -> None:
    """Print lines. Control characters in names and values are escaped."""
    click.echo(printable_lines(text), err=err)


def print_json(value: object) -> None:
    """Print a JSON document."""
    click.echo(json_text(value, indent=2))


def console() -> Console:
    """Return standard output as a console: as wide as the terminal, or wide enough for whole rows in a pipe or file."""
    from rich.console import Console

    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(emoji=False, highlight=False, width=_WIDE if wide else None)


def print_table(names: Sequence[str], rows: Sequence[Sequence[object]], narrow: int = 0) -> None:
    """Print a table. Columns of numbers and columns whose name ends in a blank are right-aligned. None is `?`.

    On a terminal of less than narrow columns, or too narrow for whole numbers, IDs, times and words, each row is a
    block of lines.
    """
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    table, screen = Table(box=None, pad_edge=False, header_style="bold"), console()
    cells = [[_cell(cell) for cell in row] for row in rows]
    for column, name in enumerate(names):
        is_right = name.endswith(" ") or (bool(rows) and all(isinstance(row[column], int | None) for row in rows))
        is_whole = all(_WHOLE.fullmatch(row[column]) for row in cells)
        longest = max((len(row[column]) for row in cells), default=0) if is_whole else None
        side: Literal["left", "right"] = "right" if is_right else "left"
        table.add_column(name.strip(), justify=side, no_wrap=is_whole, min_width=longest, overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))  # a plain string would be parsed as markup
    if max(narrow, Measurement.get(screen, screen.options.update(max_width=_WIDE), table).minimum) <= screen.width:
        screen.print(table if rows else "none")
        return
    for number, row in enumerate(cells):
        block = Table(box=None, pad_edge=False, show_header=False)
        for name, cell in zip(names, row, strict=True):
            block.add_row(Text(name.strip(), "bold"), Text(cell))
        screen.print(*[""][:number], block, sep="\n")


def _cell(value: object) -> str:
    return printable("?" if value is None else f"{value:,}" if isinstance(value, int) else str(value))
