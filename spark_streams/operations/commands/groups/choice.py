"""Options that select pending entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict, TypeVar

import click

from spark_streams.operations.commands.entry import parse_id
from spark_streams.operations.commands.shared import milliseconds

if TYPE_CHECKING:
    from spark_streams.connector.admin.groups import GroupSnapshot
    from spark_streams.operations.commands.bounds import Only
    from spark_streams.operations.groups.pending_selection import Choice

F = TypeVar("F", bound=Callable[..., object])


class SelectionOptions(TypedDict):
    """Values of the options that select pending entries."""

    idle: int | None
    ids: tuple[str, ...]
    first: str | None
    last: str | None
    limit: int | None


_OPTIONS = (
    click.option(
        "--idle", metavar="TIME", callback=milliseconds, help="Only entries pending for at least this time (30s, 5m)."
    ),
    click.option("--id", "ids", metavar="ID", multiple=True, help="Only this entry; repeatable."),
    click.option("--first-id", "first", metavar="ID", help="Only entries with this ID or a later one."),
    click.option("--last-id", "last", metavar="ID", help="Only entries with this ID or an earlier one."),
    click.option("--limit", type=click.IntRange(1), help="Maximum number of entries over all streams."),
)


def choice_options(command: F) -> F:
    """Add the options that select pending entries."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def choice_of(consumers: tuple[str, ...], selection: SelectionOptions, released: bool = False) -> Choice:
    """Return the choice that these options describe. consumers, released: as in Choice."""
    from spark_streams.base.ids import MAX_ID, MIN_ID
    from spark_streams.operations.groups.pending_selection import Choice

    first, last = selection["first"], selection["last"]
    low = MIN_ID if first is None else parse_id(first)[0]
    high = MAX_ID if last is None else parse_id(last)[1]
    ids = tuple(parse_id(entry_id)[0] for entry_id in selection["ids"])
    return Choice(consumers, selection["idle"], low, high, ids, selection["limit"], released)


def bounded(choice: Choice, only: Only, snapshot: GroupSnapshot) -> Choice:
    """Return the choice without entries of this group that its dry run has not shown."""
    last = only.id(snapshot.stream, snapshot.group)
    return choice if last is None else choice.up_to(last)
