"""Hand pending entries of one consumer to another one (XCLAIM … JUSTID), one page per transaction.

JUSTID delivers no entries, so the server counts no delivery. The idle time of the entries begins again.

claim_again (rstream replay): entries that were delivered to the group and are not pending any more become pending again
for a stopped query (XCLAIM … FORCE), so that it reads them a second time. The group's position does not change.

The new query reads the entries with its next batch if they are not above its commit mark. Entries above it may belong
to a batch that runs, and would be acknowledged unread with it: they are not handed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from spark_streams.base.ids import MAX_ID, StreamId
from spark_streams.connector.admin.groups import (
    RELEASED_IDLE,
    SHOWN,
    GroupSnapshot,
    change,
    count_missing,
    fetch_mark,
    ids_between,
    queries_among,
    set_mark,
)
from spark_streams.connector.admin.streams import pairs
from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.wire.connection.connection import Argument
from spark_streams.connector.wire.connection.server import Server
from spark_streams.operations.groups.pending_selection import Choice, pages

_ENDLESS = 1 << 50  # milliseconds
_PAGE = 1_000  # entries that one command changes, some milliseconds of the server's time


@dataclass
class Claimed:
    """Entries that were, or would be, handed over on one stream. gone: pending entries that are not in the stream any
    more, which Redis 7 and later remove from the pending list; above: entries that stay, because they are above the
    commit mark of the new query; last: the last one that is handed over."""

    stream: str
    group: str
    source: str
    to: str
    entries: int = 0
    gone: int = 0
    above: int = 0
    last: str = ""


def claim(server: Server, snapshot: GroupSnapshot, to: str, choice: Choice, act: bool) -> Claimed:
    """Hand entries over; unless `act`, only report which. choice: of one consumer, or of released entries. Raises
    GroupInUseError, StreamStateError, ServerError: pages before the error stay handed over."""
    report, below = _plan(server, snapshot, to, choice)
    for page in pages(server, snapshot, below):
        if not act:
            deleted = _count_deleted(server, snapshot, page.ids)
            report.entries += len(page.ids) - deleted
        else:
            # Released entries that a consumer has taken meanwhile are not idle for this long.
            idle = RELEASED_IDLE if page.consumer is None else choice.idle or 0
            command: tuple[Argument, ...] = ("XCLAIM", snapshot.stream, snapshot.group, to, idle, *page.ids, "JUSTID")
            queries = [] if page.consumer is None else queries_among([page.owner])
            [claimed] = change(server, snapshot.stream, snapshot.group, queries, [command])
            deleted = _count_deleted(server, snapshot, sorted({*page.ids} - {*claimed}))
            report.entries += len(claimed)
        report.gone += deleted
        report.last = page.later(report.last)
    return report


def claim_again(server: Server, snapshot: GroupSnapshot, query: str, choice: Choice, act: bool) -> int:
    """Make a range of entries pending for a stopped query; unless `act`, only count them. Return their number. Raises
    GroupInUseError, StreamStateError, ServerError."""
    entries = 0
    # No entry is idle for this long: entries that are pending already stay with their consumers.
    head: tuple[Argument, ...] = ("XCLAIM", snapshot.stream, snapshot.group, query, _ENDLESS)
    # Otherwise a query that was killed before it acknowledged its last batch would acknowledge these with it.
    mark = snapshot.marks[query]._replace(has_replay=True)
    for ids in _replayed_ids(server, snapshot, query, choice):
        if act:
            commands = [(*head, *ids, "FORCE", "JUSTID"), set_mark(snapshot.stream, snapshot.group, query, mark)]
            claimed, _ = change(server, snapshot.stream, snapshot.group, [query], commands)
            entries += len(claimed)
        else:
            commands = [("XPENDING", snapshot.stream, snapshot.group, entry_id, entry_id, 1) for entry_id in ids]
            entries += server.execute_all(commands).count([])
    return entries


def _replayed_ids(server: Server, snapshot: GroupSnapshot, query: str, choice: Choice) -> Iterator[list[bytes]]:
    bounds = [choice.last, snapshot.position, _committed_position(server, snapshot, query)]
    last = min(bound for bound in bounds if bound is not None)
    for ids in ids_between(server, snapshot.stream, choice.first, last):
        yield from (ids[start : start + _PAGE] for start in range(0, len(ids), _PAGE))


def _plan(server: Server, snapshot: GroupSnapshot, to: str, choice: Choice) -> tuple[Claimed, Choice]:
    """Return an empty report, and the choice without entries that the new consumer must not get. Raises
    StreamStateError."""
    source = SHOWN if choice.released else choice.consumers[0]
    if not choice.released and not snapshot.consumers_named([source]):
        raise StreamStateError(
            f"group {snapshot.group!r} of stream {snapshot.stream!r} has no consumer {source!r}. To list its "
            f"consumers: rstream pending {snapshot.stream}"
        )
    report = Claimed(snapshot.stream, snapshot.group, source, to)
    bound = _committed_position(server, snapshot, to)
    if bound is not None and choice.last > bound:
        above = replace(choice, first=max(choice.first, bound.next()), limit=None)
        report.above = sum(len(page.ids) for page in pages(server, snapshot, above))
        choice = choice.up_to(bound)
    return report, choice


def _committed_position(server: Server, snapshot: GroupSnapshot, consumer: str) -> StreamId | None:
    """Return the last entry that may be handed to a consumer; None if it is not known to be a query. Raises
    StreamStateError if it is a query with noAck."""
    mark = fetch_mark(server, snapshot.stream, snapshot.group, consumer)
    if mark is not None and not mark.has_pending_list:
        raise StreamStateError(
            f"query {consumer!r} of group {snapshot.group!r} reads stream {snapshot.stream!r} with noAck, so it cannot "
            "read entries that are handed to it. Start the query without noAck, repeat this command while it runs, "
            f"and set noAck again when rstream pending {snapshot.stream} --group {snapshot.group} shows nothing"
        )
    return None if mark is None else min(mark.id, MAX_ID.previous())


def _count_deleted(server: Server, snapshot: GroupSnapshot, ids: Sequence[bytes]) -> int:
    """Return how many of these are not in the stream any more; 0 if the server keeps such entries pending."""
    if snapshot.head.added is None or not ids:
        return 0
    info = pairs(server.execute("XINFO", "STREAM", snapshot.stream))
    first, deleted = info[b"recorded-first-entry-id"], StreamId.parse(info[b"max-deleted-entry-id"])
    if not info[b"length"]:
        return len(ids)
    # All entries above the last deleted one exist.
    doubtful = [
        entry_id
        for entry_id in ids
        if StreamId.parse(entry_id) < StreamId.parse(first) or StreamId.parse(entry_id) <= deleted
    ]
    return count_missing(server, snapshot.stream, doubtful)
