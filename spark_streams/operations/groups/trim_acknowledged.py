"""Remove by hand what every group of a stream has received and acknowledged.

The rule is that of onCommit=delete (connector.retention): an entry stays if a group has not received it, or if it is
pending in one. The group of a query without a pending list stands where that query has committed. A stream without
groups stays whole: no client has acknowledged its entries. XTRIM needs no memory, so a full server runs it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.base.printable import name_text
from spark_streams.base.units import counted
from spark_streams.connector.admin.groups import (
    Readers,
    ReadingGroup,
    count_missing,
    count_read,
    knows_acked,
)
from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.wire.connection import Argument, Server
from spark_streams.connector.wire.replies import is_no_group, is_no_such_key
from spark_streams.connector.wire.xinfo import StreamState, groups_in, stream_states
from spark_streams.operations.groups.change_plan import UNBOUNDED, Bound, Only, Plan, made
from spark_streams.operations.groups.pending_entries import pending_ids
from spark_streams.operations.monitor.held import stream_sizes

PAGE = 20_000  # entries that one XTRIM removes: other clients wait for it


@dataclass(frozen=True)
class Trimmed:
    """A stream that was, or would be, trimmed."""

    stream: str
    entries: int  # that it had
    acknowledged: int | None  # how many of them are removed; None if the server does not count them (before Redis 7)
    bytes: int | None  # about; None if not known
    needed: str  # lowest ID that a group needs
    needed_by: str  # this group
    delivered: str  # the last ID that every group was given
    removed: int = 0  # entries, by this command

    @property
    def bound(self) -> Bound:
        """What a change is bounded to."""
        return self.stream, self.needed_by, self.delivered


def find_acknowledged(server: Server, streams: Sequence[str]) -> tuple[list[Trimmed], list[str]]:
    """Return what can be removed of each stream that has a group, and the streams that have none. Raises
    ServerError."""
    retention = Readers().fetch(server, [stream.encode() for stream in streams])
    states = stream_states(server, streams)
    planned, without_groups = [], []
    for stream in streams:
        of_stream = retention[key].readers if (key := stream.encode()) in retention else {}
        if not of_stream:
            without_groups.append(stream)
            continue
        group, slowest = min(of_stream.items(), key=lambda item: item[1].needed)
        delivered = min(reader.info.last_delivered for reader in of_stream.values())
        acknowledged = _count_acknowledged(server, stream, states[stream], of_stream, slowest.needed, delivered)
        name = group.decode("utf-8", "backslashreplace")
        length = states[stream].length
        planned.append(Trimmed(stream, length, acknowledged, None, str(slowest.needed), name, str(delivered)))
    sizes = stream_sizes(server, [one.stream for one in planned if one.acknowledged], refused=lambda _: None)
    return [replace(one, bytes=_bytes(one, sizes)) for one in planned], without_groups


def _count_acknowledged(
    server: Server,
    stream: str,
    state: StreamState,
    readers: Mapping[bytes, ReadingGroup],
    needed: StreamId,
    delivered: StreamId,
) -> int | None:
    """Return how many entries the sweep removes: those below what a group needs; if the server has XTRIM ACKED, all
    that were delivered and are pending in no group. None: the server does not count entries (before Redis 7)."""
    is_whole = needed > delivered or knows_acked(server, stream)
    read = count_read(
        server, stream, state, delivered if is_whole else needed.previous() if needed > MIN_ID else MIN_ID
    )
    if read is None or state.added is None:
        return None
    below = max(read - (state.added - state.length), 0)
    if needed > delivered or not is_whole:
        return below
    holding = [group for group, one in readers.items() if one.oldest]
    pending = sorted({entry for group in holding for entry in pending_ids(server, stream, group, MIN_ID, delivered)})
    return max(below - len(pending) + count_missing(server, stream, pending), 0)


def trim(server: Server, found: Trimmed, only: Only = UNBOUNDED) -> Plan[Trimmed]:
    """Remove the entries of a stream that no group needs now. Raises StreamStateError, ServerError."""
    if (yield made) is None:
        return found
    return replace(found, removed=sum(_pages(server, found.stream, only.last_of(found.stream))))


def _pages(server: Server, stream: str, last: StreamId) -> Iterator[int]:
    """Remove whole nodes of the stream, page by page, then what is left below, and acknowledged entries between pending
    ones. The groups are read again for each page: they may have been changed."""
    readers, key, removed = Readers(), stream.encode(), -1
    while removed and (state := readers.fetch(server, [key]).get(key)) is not None and state.readers:
        groups = [*state.readers]
        state = replace(state, limit=last)
        yield (removed := remove_below(server, stream, groups, state.needed, "~", "LIMIT", PAGE))
        if not removed:
            yield remove_below(server, stream, groups, state.needed, "=")
            if state.needed < state.delivered and knows_acked(server, stream):
                yield server.execute("XTRIM", stream, "MINID", "=", str(state.delivered), "ACKED")


def remove_below(
    server: Server,
    stream: str,
    groups: Sequence[bytes],
    needed: StreamId,
    *how: Argument,
    forgotten: Collection[bytes] = (),
) -> int:
    """Remove entries below an ID, which none of these groups needs. Return their number. forgotten: groups that do not
    count. Raises StreamStateError if another group may need what is removed: it was made, set back or given entries
    again meanwhile. WATCH does not notice that (R20), and a full server refuses MULTI, so the request looks behind the
    removal."""
    names = [("XPENDING", stream, name) for name in groups]
    asked: list[tuple[Argument, ...]] = [("XTRIM", stream, "MINID", how[0], str(needed), *how[1:])]
    asked += [("XINFO", "GROUPS", stream), *names]
    removed: int
    removed, infos, *pending = server.execute_all(asked, is_no_group, is_no_such_key)
    needing, replies = [], dict(zip(groups, pending, strict=True))
    for info in [] if is_no_such_key(infos) or not removed else groups_in(infos):
        reply = replies.get(info.name)
        oldest = None if reply is None or is_no_group(reply) or not reply[0] else StreamId.parse(reply[1])
        if info.name not in forgotten and ReadingGroup(info, oldest).needed < needed:
            needing.append(name_text(info.name))
    if needing:
        raise StreamStateError(
            f"group {', '.join(map(repr, needing))} of stream {stream!r} was created, set back or given entries again "
            f"while the stream was trimmed: {counted(removed, 'entry', 'entries')} below {needed} are removed, and it "
            "may need them. Restore them from a backup, or let its queries accept the loss (failOnDataLoss=false)"
        )
    return removed


def _bytes(planned: Trimmed, sizes: Mapping[str, int]) -> int | None:
    if planned.acknowledged == 0:
        return 0
    size = sizes.get(planned.stream)
    return None if planned.acknowledged is None or size is None else planned.acknowledged * size // planned.entries
