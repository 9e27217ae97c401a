"""Remove by hand what every group of a stream has received and acknowledged.

The rule is that of onCommit=delete (connector.retention): an entry stays if a group has not received it, or if it is
pending in one. The group of a query without a pending list stands where that query has committed. A stream without
groups stays whole: no client has acknowledged its entries. XTRIM needs no memory, so a full server runs it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.connector.admin.groups import (
    Readers,
    ReadingGroup,
    Sweeper,
    count_missing,
    count_read,
    fetch_readers,
    knows_acked,
)
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.xinfo import StreamState, stream_states
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
    readers = fetch_readers(server, [stream.encode() for stream in streams])
    states = stream_states(server, streams)
    planned, without_groups = [], []
    for stream in streams:
        of_stream = {group: reader for (name, group), reader in readers.items() if name == stream.encode()}
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
    """Remove the entries of a stream that no group needs now. Raises ServerError."""
    if (yield made) is None:
        return found
    stream, last = found.stream, only.last_of(found.stream)
    sweeper, by_nodes = Sweeper(True, time.monotonic), sum(_pages(server, stream, last))
    sweeper.sweep(server, [stream], {stream: last})
    return replace(found, removed=by_nodes + sweeper.removed)


def _pages(server: Server, stream: str, last: StreamId) -> Iterator[int]:
    """Remove whole nodes of the stream, page by page. The groups are read again for each page: they may have been
    changed."""
    readers, key = Readers(), stream.encode()
    while (state := readers.fetch(server, [key]).get(key)) is not None and state.groups:
        needed = replace(state, limit=last).needed
        removed = server.execute("XTRIM", stream, "MINID", "~", str(needed), "LIMIT", PAGE)
        if not removed:
            return
        yield removed


def _bytes(planned: Trimmed, sizes: Mapping[str, int]) -> int | None:
    if planned.acknowledged == 0:
        return 0
    size = sizes.get(planned.stream)
    return None if planned.acknowledged is None or size is None else planned.acknowledged * size // planned.entries
