"""A snapshot of a server: its streams and groups, their memory, dead letters by reason, entries waiting for a retry.

It reads the streams in portions, smaller ones if entries are large. So its memory does not depend on the size of
entries, and it can stop when its time is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from spark_streams.base.printable import name_text
from spark_streams.connector.admin.dead_letters import PageSize, pages_of
from spark_streams.connector.admin.groups import WaitingEntries, waiting_entries, waiting_of
from spark_streams.connector.admin.streams import MarginWindow, NodeMemory, node_memories
from spark_streams.connector.deadletter.page_reader import FIRST_STREAMS
from spark_streams.connector.errors import NotPermittedError, RStreamError, ServerError
from spark_streams.connector.lag.margin import Margin
from spark_streams.connector.lag.survey import GroupLag, StreamSummary, survey
from spark_streams.connector.wire.connection.server import Server
from spark_streams.operations.monitor.exporter.dead_letters import DeadLetters, Reason
from spark_streams.operations.monitor.held import Held, held_in
from spark_streams.operations.monitor.stream_sizes import stream_sizes

Refused = Callable[[RStreamError], None]


@dataclass(frozen=True)
class Snapshot:
    """streams, groups: as in a survey; stream_bytes: by stream; reasons, uncounted: of dead letters; waiting: entries
    that wait for a retry; seconds: that the snapshot took; margins: by stream and group; groups_left_out: groups beyond
    the maximum."""

    streams: tuple[StreamSummary, ...]
    groups: tuple[GroupLag, ...]
    stream_bytes: dict[str, int]
    nodes: tuple[NodeMemory, ...]
    reasons: tuple[Reason, ...]
    uncounted: dict[str, int]
    waiting: tuple[WaitingEntries, ...]
    seconds: float
    margins: Mapping[tuple[str, str], Margin]
    groups_left_out: int = 0

    @property
    def held(self) -> list[Held]:
        """Groups that hold entries back."""
        return held_in(self.streams, self.groups, self.stream_bytes)


def take_snapshot(
    server: Server,
    names: Sequence[str | bytes],
    dead_letters: DeadLetters,
    margins: MarginWindow,
    refused: Refused,
    max_seconds: float,
    max_groups: int,
    now: Callable[[], float] = time.monotonic,
) -> Snapshot:
    """Return a snapshot of these streams; missing streams are left out. margins: what earlier snapshots saw, to which
    this one is added; refused: receives an error for each missing right; max_groups: of all streams together, the
    others are only counted. Raises ServerError, also if the snapshot takes longer than `max_seconds`.
    """
    began = now()
    streams: list[StreamSummary] = []
    groups: list[GroupLag] = []
    sizes: dict[str, int] = {}
    size, done, left_out, at_ms = PageSize(first=FIRST_STREAMS), 0, 0, 0
    for keys in pages_of(names, size):
        if now() - began > max_seconds:
            raise ServerError(
                f"the snapshot took longer than {max_seconds:g} s: {done:,} of {len(names):,} streams at "
                f"{server.address} in {now() - began:.1f} s; name fewer streams, or set a larger --time-limit"
            )
        done += len(keys)
        seen = survey(server, keys, refused=refused, max_groups=max_groups - len(groups))
        left_out += seen.left_out
        streams += seen.streams
        groups += seen.groups
        existing = {stream.stream for stream in seen.streams}
        size.learn(len(keys), sum(stream.end_bytes for stream in seen.streams), len(keys))
        sizes.update(stream_sizes(server, [key for key in keys if name_text(key) in existing], refused))
        margins.add(seen, sizes)
        at_ms = seen.at_ms
    nodes = node_memories(server, refused)
    if at_ms:  # there are streams
        margins.add_memory(nodes, at_ms)
    margins.keep(stream.stream for stream in streams)
    dead_letters.refresh(server, streams, {name_text(key): key for key in names}, refused)
    return Snapshot(
        tuple(streams),
        tuple(groups),
        sizes,
        tuple(nodes),
        tuple(dead_letters.reasons),
        dead_letters.uncounted,
        _waiting(server, names, groups, refused),
        now() - began,
        margins.margins((group.stream, group.group) for group in groups),
        left_out,
    )


def _waiting(
    server: Server, names: Sequence[str | bytes], groups: Sequence[GroupLag], refused: Refused
) -> tuple[WaitingEntries, ...]:
    """Return the entries that wait for a retry: of these groups, and in retry streams among these streams."""
    raw = [name.encode() if isinstance(name, str) else name for name in names]
    try:
        waiting = [
            *waiting_of(server, [(group.stream, group.group) for group in groups]),
            *waiting_entries(server, raw),
        ]
    except NotPermittedError as error:
        refused(error)
        return ()
    return tuple({entries.waits_in: entries for entries in waiting}.values())
