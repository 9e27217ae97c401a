"""Which pending entries are meant, as options."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict, TypeVar

import click

from spark_streams.commands.entry import parse_id
from spark_streams.commands.shared import milliseconds

if TYPE_CHECKING:
    from spark_streams.groups.pending_selection import Choice

F = TypeVar("F", bound=Callable[..., object])


class Chosen(TypedDict):
    """What a command is given for these options."""

    idle: int | None
    ids: tuple[str, ...]
    first: str | None
    last: str | None
    limit: int | None


_OPTIONS = (
    click.option("--idle", metavar="TIME", callback=milliseconds, help="Only those pending for so long (30s, 5m)."),
    click.option("--id", "ids", metavar="ID", multiple=True, help="Only this entry; repeatable."),
    click.option("--first-id", "first", metavar="ID", help="From this entry on."),
    click.option("--last-id", "last", metavar="ID", help="Up to this entry, and it, too."),
    click.option("--limit", type=click.IntRange(1), help="So many entries at most, of all streams."),
)


def choice_options(command: F) -> F:
    """Add the options that choose pending entries."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def choice_of(consumers: tuple[str, ...], chosen: Chosen, released: bool = False) -> Choice:
    """Return what these options mean. consumers, released: as in Choice."""
    from spark_streams.groups.pending_selection import Choice
    from spark_streams.model.ids import MAX_ID, MIN_ID

    first, last = chosen["first"], chosen["last"]
    low = MIN_ID if first is None else parse_id(first)[0]
    high = MAX_ID if last is None else parse_id(last)[1]
    ids = tuple(parse_id(one)[0] for one in chosen["ids"])
    return Choice(consumers, chosen["idle"], low, high, ids, chosen["limit"], released)
