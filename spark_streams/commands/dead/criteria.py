"""Which dead letters are meant, as options; and progress while they are gone through."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypedDict, TypeVar

import click

from spark_streams.commands.shared import say
from spark_streams.errors import OptionError

if TYPE_CHECKING:
    from spark_streams.deadletter.criteria import Criteria
    from spark_streams.wire.address.address import Address

F = TypeVar("F", bound=Callable[..., object])


class Chosen(TypedDict):
    """What a command is given for these options."""

    streams: tuple[str, ...]
    reasons: tuple[str, ...]
    stages: tuple[str, ...]
    errors: tuple[str, ...]
    fields: tuple[str, ...]
    older: str | None
    newer: str | None
    first: str | None
    last: str | None


_OPTIONS = (
    click.option("--stream", "streams", multiple=True, metavar="TEXT", help="Of entries of this stream (dl.stream)."),
    click.option("--reason", "reasons", multiple=True, metavar="TEXT", help="With this reason (dl.reason)."),
    click.option("--stage", "stages", multiple=True, metavar="TEXT", help="That failed in this step (dl.stage)."),
    click.option("--error", "errors", multiple=True, metavar="TEXT", help="With this error (dl.error)."),
    click.option("--field", "fields", multiple=True, metavar="NAME=VALUE", help="Whose entry has this field."),
    click.option("--older", metavar="TIME", help="That are dead letters for longer than this (30m, 7d)."),
    click.option("--newer", metavar="TIME", help="That are dead letters for less than this."),
    click.option("--first-id", "first", metavar="ID", help="From this dead letter on."),
    click.option("--last-id", "last", metavar="ID", help="Up to this dead letter, and it, too."),
)


def criteria_options(command: F) -> F:
    """The options that choose dead letters."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def criteria_of(chosen: Chosen) -> Criteria:
    """What these options mean. Raises click.UsageError."""
    from spark_streams.deadletter.criteria import parse_criteria

    try:
        return parse_criteria(**chosen)
    except OptionError as error:
        raise click.UsageError(error.message) from None


def say_none_is_meant(address: Address, stream: str, criteria: Criteria, for_program: bool = False) -> None:
    """Why no dead letter was found; on the error stream where the output is for programs. Raises ServerError."""
    from spark_streams.deadletter.criteria import Criteria, why_none_is_meant
    from spark_streams.deadletter.inspect.listing import count_by_kind

    with progress("count", quiet=for_program) as tell:
        counts = count_by_kind(address, stream, Criteria(), tell)
    say(why_none_is_meant(stream, criteria, counts), err=for_program)


@contextlib.contextmanager
def progress(title: str, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """A function to tell (done, total, note), which shows a bar on the error stream; quiet: nothing."""
    if quiet:
        yield lambda done, total, note="": None
        return
    from rich.console import Console

    from spark_streams.monitor.terminal.progress_bar import telling

    with telling(Console(stderr=True, highlight=False, soft_wrap=True), title) as tell:
        yield tell
