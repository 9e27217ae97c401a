"""Metrics of `rstream exporter`. docs/reference/metrics.md is printed from the tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from spark_streams.base.version import __version__
from spark_streams.connector.admin.dead_letters import OTHER_KINDS
from spark_streams.connector.lag.group_metrics import (
    OF_GROUPS,
    Family,
    MetricTable,
    Sample,
    group_metrics,
    margin_metrics,
    metrics,
    server_up,
    waiting_metrics,
)
from spark_streams.connector.lag.survey import GroupLag, StreamSummary
from spark_streams.operations.monitor.held import Held
from spark_streams.operations.monitor.snapshots import Reason, SnapshotCache

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_EXPORTER = MetricTable(("version",), (Family("rstream_exporter_info", "1; its label is the exporter's version."),))
_SNAPSHOT = MetricTable(
    (),
    (
        Family("rstream_scrape_seconds", "Seconds that the last refresh took."),
        Family("rstream_streams", "Streams that the exporter reads."),
        Family("rstream_streams_left_out", "Streams beyond --max-streams, or with names above 1,024 bytes; not read."),
        Family("rstream_groups_left_out", "Groups beyond --max-groups, which have no metrics."),
    ),
)
_RIGHTS = MetricTable(
    ("right",), (Family("rstream_missing_right", "1 for each right that the exporter's user lacks."),)
)
_NODE = MetricTable(
    ("node",),
    (
        Family("rstream_server_memory_bytes", "Memory that the server uses."),
        Family("rstream_server_memory_limit_bytes", "The server's maxmemory; absent if it has no limit."),
    ),
)
_GROUP = MetricTable(
    OF_GROUPS,
    (
        Family("rstream_consumers", "Consumers of the group, active or not."),
        Family("rstream_group_idle_seconds", "Seconds since a consumer of the group sent a request."),
        Family("rstream_delivered_entries", "Entries delivered to the group since it was created.", counts=True),
        Family(
            "rstream_held_entries",
            "Entries, about, that the group keeps in the stream and another group no longer needs.",
        ),
        Family("rstream_held_bytes", "Memory of these entries, about: their share of the stream's."),
    ),
)
_STREAM = MetricTable(
    ("stream",),
    (
        Family("rstream_stream_entries", "Entries in the stream."),
        Family("rstream_added_entries", "Entries added to the stream since it was created.", counts=True),
        Family("rstream_end_entry_bytes", "Size of the first or last entry, the larger one."),
        Family("rstream_stream_memory_bytes", "Memory of the stream, as the server estimates it (MEMORY USAGE)."),
        Family(
            "rstream_idempotent_adds",
            "Entries added with XADD IDMP or IDMPAUTO (Redis 8.6); absent if there are none.",
            counts=True,
        ),
        Family("rstream_duplicate_adds", "Repeated adds of these, which added nothing.", counts=True),
    ),
)
_REASON = MetricTable(
    ("stream", "reason"),
    (
        Family("rstream_dead_letters_waiting", "Dead letters in the stream, by reason."),
        Family("rstream_dead_letters_newest_timestamp_seconds", "Time of the newest of these."),
    ),
)
_UNCOUNTED = MetricTable(
    ("stream",), (Family("rstream_dead_letters_uncounted", "Dead letters that are not yet counted by reason."),)
)
TABLES = (_GROUP, _STREAM, _REASON, _UNCOUNTED, _NODE, _SNAPSHOT, _RIGHTS, _EXPORTER)


class ExportedMetrics:
    """Returns the metrics of the current snapshot to prometheus_client; it waits for the snapshot."""

    def __init__(self, snapshots: SnapshotCache) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterable[Metric]:
        """Return all metrics; if the server does not answer, only rstream_server_up and the exporter's version."""
        snapshot = self._snapshots.last()
        yield from server_up(snapshot is not None)
        yield from metrics(_EXPORTER, [((__version__,), (1,))])
        if snapshot is None:
            return
        left_out = self._snapshots.stream_filter.left_out, snapshot.groups_left_out
        yield from metrics(_SNAPSHOT, [((), (snapshot.seconds, len(snapshot.streams), *left_out))])
        yield from metrics(_RIGHTS, (((right,), (1,)) for right in self._snapshots.rights))
        yield from metrics(_NODE, (((memory.node,), (memory.used, memory.limit or None)) for memory in snapshot.nodes))
        yield from group_metrics(snapshot.groups)
        yield from margin_metrics(snapshot.margins)
        held = {(one.stream, one.group): one for one in snapshot.held}
        of_groups = (_of_group(group, held.get((group.stream, group.group))) for group in snapshot.groups)
        yield from metrics(_GROUP, of_groups)
        yield from metrics(_STREAM, (_of_stream(stream, snapshot.stream_bytes) for stream in snapshot.streams))
        yield from metrics(_REASON, map(_of_reason, most_frequent(snapshot.reasons)))
        yield from metrics(_UNCOUNTED, (((name,), (n,)) for name, n in snapshot.uncounted.items()))
        yield from waiting_metrics(snapshot.waiting)


def _of_group(group: GroupLag, held: Held | None) -> Sample:
    idle = min((consumer.idle_ms / 1000 for consumer in group.consumers), default=None)
    holds = (0, 0) if held is None else (held.entries, held.bytes)
    return (group.stream, group.group), (len(group.consumers), idle, group.delivered, *holds)


def _of_stream(stream: StreamSummary, sizes: Mapping[str, int]) -> Sample:
    adds = stream.idempotent
    of_adds = (None, None) if adds is None else (adds.added, adds.duplicates)
    return (stream.stream,), (stream.length, stream.added, stream.entry_bytes, sizes.get(stream.stream), *of_adds)


def most_frequent(reasons: Sequence[Reason], most: int = 1_000) -> Sequence[Reason]:
    """Return at most so many counts: the largest ones, and the sum of the others. Strangers choose reasons."""
    if len(reasons) <= most:
        return reasons
    ordered = sorted(reasons, key=lambda one: (-one.count, one.stream, one.reason))
    named = [one for one in ordered[: most - 1] if one.stream != OTHER_KINDS]
    others = {*ordered} - {*named}
    newest = max((one.newest_ms for one in others if one.newest_ms is not None), default=None)
    return [*named, Reason(OTHER_KINDS, OTHER_KINDS, sum(one.count for one in others), newest)]


def _of_reason(reason: Reason) -> Sample:
    return (reason.stream, reason.reason), (reason.count, None if reason.newest_ms is None else reason.newest_ms / 1000)
