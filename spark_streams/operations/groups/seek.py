"""Set a group to another position (XGROUP SETID), with the number of entries below it (ENTRIESREAD): the server then
still knows the group's lag. The commit marks of its queries say that an operator has set it, so they go on there."""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.base.ids import MAX_ID, StreamId
from spark_streams.connector.admin.groups import GroupSnapshot, Mark, Start, change, count_between, count_read, set_mark
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.xinfo import group_named
from spark_streams.operations.groups.target import Target

_PAGE = 10_000  # pending entries


@dataclass(frozen=True)
class Sought:
    """A group that was, or would be, moved. read_again, skipped: entries of the stream between the positions;
    pending_again: entries of read_again that are pending: the consumer that reads them again takes them over; lag:
    entries that are not delivered yet at the new position, None if the server does not count them."""

    stream: str
    group: str
    position_before: str
    position: str
    read_again: int
    skipped: int
    pending_again: int
    lag: int | None


def plan_seek(server: Server, snapshot: GroupSnapshot, target: Target, now_ms: int) -> tuple[Sought, Start]:
    """Return the effect of moving the group, and the start for XGROUP SETID. Raises StreamStateError."""
    stream, head, before = snapshot.stream, snapshot.head, snapshot.position
    to = target.position(server, stream, head, now_ms, before)
    read = count_read(server, stream, head, to)
    lag = None if head.added is None or read is None else head.added - read
    return _sought(server, snapshot, before, to, lag), Start(to, read)


def seek(server: Server, snapshot: GroupSnapshot, target: Target, now_ms: int) -> Sought:
    """Move the group, and return the effect. Raises GroupInUseError, StreamStateError, ServerError."""
    planned, start = plan_seek(server, snapshot, target, now_ms)
    stream, group = snapshot.stream, snapshot.group
    queries = dict.fromkeys([*snapshot.marks, *snapshot.absent])
    marks = {query: Mark.of_seek(start.position, snapshot.marks.get(query)) for query in queries}
    groups, *_ = change(
        server,
        stream,
        group,
        snapshot.queries,
        [
            ("XINFO", "GROUPS", stream),
            ("XGROUP", "SETID", stream, group, str(start.position), *start.words()),
            *[set_mark(stream, group, query, mark) for query, mark in marks.items()],
        ],
    )
    info = group_named(group, groups)
    assert info is not None  # XGROUP SETID has found it
    before = info.last_delivered
    if str(before) == planned.position_before:
        return planned
    return _sought(server, snapshot, before, start.position, planned.lag)  # a consumer has read since


def _sought(server: Server, snapshot: GroupSnapshot, before: StreamId, to: StreamId, lag: int | None) -> Sought:
    entries = count_between(server, snapshot.stream, min(before, to), max(before, to))
    pending_again = count_pending(server, snapshot.stream, snapshot.group, to, before) if to < before else 0
    moved = (entries, 0) if to < before else (0, entries)
    return Sought(snapshot.stream, snapshot.group, str(before), str(to), *moved, pending_again, lag)


def count_pending(server: Server, stream: str, group: str, after: StreamId, last: StreamId = MAX_ID) -> int:
    """Return how many entries with after < ID ≤ last are pending for any consumer. Raises ServerReplyError and its
    subclasses."""
    total = 0
    while after < last:
        page = server.execute("XPENDING", stream, group, bytes(after.next()), bytes(last), _PAGE)
        total += len(page)
        if len(page) < _PAGE:
            break
        after = StreamId.parse(page[-1][0])
    return total
