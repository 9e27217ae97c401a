"""Setting a group to another position (XGROUP SETID), with the number of entries that lie below it (ENTRIESREAD), so
that the server goes on to know its lag."""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.groups.group_snapshot import Standing
from spark_streams.groups.guard import change
from spark_streams.groups.target import Target
from spark_streams.model.ids import MAX_ID, StreamId
from spark_streams.source.findings.count_entries import count_between, count_read
from spark_streams.source.findings.finding import Start
from spark_streams.source.pending_list import pending_page
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.xinfo import group_named

_PAGE = 10_000  # pending entries


@dataclass(frozen=True)
class Sought:
    """A group that was, or would be, set. read_again, skipped: entries that the stream holds between the positions;
    pending_again: those of the former that are pending: who is given them anew takes them over; lag: entries that it
    has yet to be given then, None where the server does not count."""

    stream: str
    group: str
    position_before: str
    position: str
    read_again: int
    skipped: int
    pending_again: int
    lag: int | None


def plan_seek(server: Server, standing: Standing, target: Target, now_ms: int) -> tuple[Sought, Start]:
    """What setting the group there would change, and what tells the group. Raises StreamStateError."""
    stream, head, before = standing.stream, standing.head, standing.position
    to = target.position(server, stream, head, now_ms, before)
    read = count_read(server, stream, head, to)
    lag = None if head.added is None or read is None else head.added - read
    return _between(server, standing, before, to, lag), Start(to, read)


def seek(server: Server, standing: Standing, target: Target, now_ms: int) -> Sought:
    """Set the group there; what that has changed. Raises GroupInUseError, StreamStateError, ServerError."""
    planned, start = plan_seek(server, standing, target, now_ms)
    stream, group = standing.stream, standing.group
    told, _ = change(
        server,
        stream,
        group,
        standing.queries,
        [("XINFO", "GROUPS", stream), ("XGROUP", "SETID", stream, group, str(start.position), *start.words())],
    )
    info = group_named(group, told)
    assert info is not None  # XGROUP SETID has found it
    before = info.last_delivered
    if str(before) == planned.position_before:
        return planned
    return _between(server, standing, before, start.position, planned.lag)  # somebody has read since


def _between(server: Server, standing: Standing, before: StreamId, to: StreamId, lag: int | None) -> Sought:
    entries = count_between(server, standing.stream, min(before, to), max(before, to))
    again = count_pending(server, standing.stream, standing.group, to, before) if to < before else 0
    moved = (entries, 0) if to < before else (0, entries)
    return Sought(standing.stream, standing.group, str(before), str(to), *moved, again, lag)


def count_pending(server: Server, stream: str, group: str, after: StreamId, last: StreamId = MAX_ID) -> int:
    """How many entries with after < id ≤ last are pending, for whomever. Raises ServerReplyError and kin."""
    total = 0
    while after < last:
        page = pending_page(server, stream, ("XPENDING", stream, group, bytes(after.next()), bytes(last), _PAGE))
        total += page.count
        if page.last is None or page.count < _PAGE:
            break
        after = page.last
    return total
