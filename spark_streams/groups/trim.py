"""Remove by hand what every group of a stream has received and acknowledged.

The rule is that of onCommit=delete (retention.sweep): an entry stays if a group has not received it, or if it is
pending in one. The group of a query with noAck stands where that query has committed. A stream without groups stays
whole: no client has acknowledged its entries. XTRIM needs no memory, so a full server runs it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_streams.monitor.stream_sizes import stream_sizes
from spark_streams.retention.readers import Readers, fetch_readers
from spark_streams.retention.sweep import Sweeper
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.xinfo import StreamState, stream_states

PAGE = 20_000  # entries that one XTRIM removes: other clients wait for it


@dataclass(frozen=True)
class Trimmed:
    """A stream that was, or would be, trimmed. entries: that it had; acknowledged: how many of them no group needs,
    about, None if not known; bytes: about, None if not known; needed: lowest ID that a group needs; needed_by: this
    group; removed: how many entries have left the stream."""

    stream: str
    entries: int
    acknowledged: int | None
    bytes: int | None
    needed: str
    needed_by: str
    removed: int = 0


def plan_trim(server: Server, streams: Sequence[str]) -> tuple[list[Trimmed], list[str]]:
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
        state, lag = states[stream], slowest.info.lag
        acknowledged = None if lag is None else max(state.length - lag - slowest.info.pending, 0)
        if state.first is not None and slowest.needed <= state.first:
            acknowledged = 0
        name = group.decode("utf-8", "backslashreplace")
        planned.append(Trimmed(stream, state.length, acknowledged, None, str(slowest.needed), name))
    sizes = stream_sizes(server, [one.stream for one in planned if one.acknowledged], refused=lambda _: None)
    return [replace(one, bytes=_bytes(one, sizes)) for one in planned], without_groups


def trim(server: Server, planned: Trimmed) -> Trimmed:
    """Remove the entries of a stream that no group needs now. Return it with their number. Raises ServerError."""
    before = stream_states(server, [planned.stream])[planned.stream]
    for _ in _pages(server, planned.stream):
        pass
    Sweeper(True, time.monotonic).sweep(server, [planned.stream])
    after = stream_states(server, [planned.stream])[planned.stream]
    return replace(planned, removed=_left(after) - _left(before))


def _pages(server: Server, stream: str) -> Iterator[int]:
    """Remove whole nodes of the stream, page by page. The groups are read again for each page: they may have been
    changed."""
    readers, key = Readers(), stream.encode()
    while (state := readers.fetch(server, [key]).get(key)) is not None and state.groups:
        removed = server.execute("XTRIM", stream, "MINID", "~", str(state.needed), "LIMIT", PAGE)
        if not removed:
            return
        yield removed


def _left(state: StreamState) -> int:
    """Return how many entries have left the stream, also those that are trimmed while others are added."""
    return (state.added or 0) - state.length


def _bytes(planned: Trimmed, sizes: Mapping[str, int]) -> int | None:
    if planned.acknowledged == 0:
        return 0
    size = sizes.get(planned.stream)
    return None if planned.acknowledged is None or size is None else planned.acknowledged * size // planned.entries
