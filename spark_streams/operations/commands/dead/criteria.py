"""Options that select dead letters, and a progress bar for commands that read them."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypedDict, TypeVar

import click

from spark_streams.base.printable import json_text
from spark_streams.connector.errors import OptionError
from spark_streams.operations.commands.shared import say

if TYPE_CHECKING:
    from spark_streams.connector.deadletter.letter_page import Criteria
    from spark_streams.connector.wire.address.address import Address

_LINE_SECONDS = 0.2  # between two lines of progress for a program

F = TypeVar("F", bound=Callable[..., object])


class FilterOptions(TypedDict):
    """Values of the options that select dead letters."""

    streams: tuple[str, ...]
    reasons: tuple[str, ...]
    stages: tuple[str, ...]
    errors: tuple[str, ...]
    fields: tuple[str, ...]
    ids: tuple[str, ...]
    older: str | None
    newer: str | None
    first: str | None
    last: str | None


_OPTIONS = (
    click.option("--stream", "streams", multiple=True, metavar="TEXT", help="Only from this stream (dl.stream)."),
    click.option("--reason", "reasons", multiple=True, metavar="TEXT", help="Only with this reason (dl.reason)."),
    click.option("--stage", "stages", multiple=True, metavar="TEXT", help="Only with this failed step (dl.stage)."),
    click.option("--error", "errors", multiple=True, metavar="TEXT", help="Only with this error (dl.error)."),
    click.option("--field", "fields", multiple=True, metavar="NAME=VALUE", help="Only entries with this field value."),
    click.option("--id", "ids", multiple=True, metavar="ID", help="Only this dead letter; repeatable."),
    click.option("--older", metavar="TIME", help="Only dead letters written longer ago than this (30m, 7d)."),
    click.option("--newer", metavar="TIME", help="Only dead letters written within this time."),
    click.option("--first-id", "first", metavar="ID", help="Only dead letters with this ID or a later one."),
    click.option("--last-id", "last", metavar="ID", help="Only dead letters with this ID or an earlier one."),
)


def criteria_options(command: F) -> F:
    """Add the options that select dead letters."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def criteria_of(filters: FilterOptions) -> Criteria:
    """Return the criteria of these options. Raises click.UsageError."""
    from spark_streams.connector.deadletter.letter_page import parse_criteria

    try:
        return parse_criteria(**filters)
    except OptionError as error:
        raise click.UsageError(error.message) from None


def print_why_none_match(address: Address, stream: str, criteria: Criteria, for_program: bool = False) -> None:
    """Print why no dead letter matched. for_program: on standard error. Raises ServerError."""
    from spark_streams.connector.deadletter.letter_page import Criteria, explain_no_match
    from spark_streams.connector.deadletter.listing import count_by_kind

    with progress("count", quiet=for_program) as tell:
        counts = count_by_kind(address, stream, Criteria(), tell)
    say(explain_no_match(stream, criteria, counts), err=for_program)


@contextlib.contextmanager
def progress(title: str, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Yield a function of (done, total, note) that shows a progress bar on standard error. quiet: show nothing.

    With RSTREAM_PROGRESS=json it writes lines for a program instead: {"done": 200, "total": 1000, "note": ""}."""
    if os.environ.get("RSTREAM_PROGRESS") == "json":
        with _progress_lines() as tell:
            yield tell
        return
    if quiet:
        yield lambda done, total, note="": None
        return
    from rich.console import Console

    from spark_streams.connector.running.progress_bar import showing_progress

    with showing_progress(Console(emoji=False, stderr=True, highlight=False, soft_wrap=True), title) as tell:
        yield tell


@contextlib.contextmanager
def _progress_lines() -> Iterator[Callable[..., None]]:
    """Yield the same function, which writes lines of JSON to standard error: a few per second, and the last one."""
    last, written_at = "", -math.inf

    def tell(done: int, total: int, note: str = "") -> None:
        nonlocal last, written_at
        last = json_text({"done": done, "total": total, "note": note})
        if time.monotonic() - written_at >= _LINE_SECONDS:
            say(last, err=True)
            last, written_at = "", time.monotonic()

    try:
        yield tell
    finally:
        if last:
            say(last, err=True)
