"""Metrics of `rstream exporter`. docs/reference/metrics.md is printed from the tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from spark_streams._version import __version__
from spark_streams.monitor.exporter.dead_letters import Reason
from spark_streams.monitor.exporter.snapshot_cache import Looks
from spark_streams.monitor.group_metrics import (
    OF_GROUPS,
    Family,
    Sample,
    Table,
    group_metrics,
    metrics,
    server_up,
    waiting_metrics,
)
from spark_streams.monitor.lag_survey import GroupStanding, StreamStanding

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_EXPORTER = Table(("version",), (Family("rstream_exporter_info", "1; its label is the exporter's version."),))
_LOOK = Table(
    (),
    (
        Family("rstream_scrape_seconds", "Seconds that the last refresh took."),
        Family("rstream_streams", "Streams that the exporter reads."),
        Family("rstream_streams_left_out", "Streams beyond --max-streams, which it does not read."),
    ),
)
_RIGHTS = Table(("right",), (Family("rstream_missing_right", "1 for each permission that the exporter's user lacks."),))
_NODE = Table(
    ("node",),
    (
        Family("rstream_server_memory_bytes", "Memory that the server uses."),
        Family("rstream_server_memory_limit_bytes", "The server's maxmemory; absent if it has no limit."),
    ),
)
_GROUP = Table(
    OF_GROUPS,
    (
        Family("rstream_consumers", "Consumers of the group, active or not."),
        Family("rstream_group_idle_seconds", "Seconds since a consumer of the group sent a request."),
        Family("rstream_delivered_entries", "Entries delivered to the group since it was created.", counts=True),
    ),
)
_STREAM = Table(
    ("stream",),
    (
        Family("rstream_stream_entries", "Entries in the stream."),
        Family("rstream_added_entries", "Entries added to the stream since it was created.", counts=True),
        Family("rstream_stream_memory_bytes", "Memory of the stream, as the server estimates it (MEMORY USAGE)."),
    ),
)
_REASON = Table(
    ("stream", "reason"),
    (
        Family("rstream_dead_letters_waiting", "Dead letters in the stream, by reason."),
        Family("rstream_dead_letters_newest_timestamp_seconds", "Time of the newest of these."),
    ),
)
_UNCOUNTED = Table(
    ("stream",),
    (Family("rstream_dead_letters_uncounted", "Dead letters that are not yet counted by reason."),),
)
TABLES = (_GROUP, _STREAM, _REASON, _UNCOUNTED, _NODE, _LOOK, _RIGHTS, _EXPORTER)


class Collector:
    """Gives prometheus_client the metrics of the last look, or of one that it waits for."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks

    def collect(self) -> Iterable[Metric]:
        """All of them; of a server that does not answer no more than that."""
        look = self._looks.last()
        yield from server_up(look is not None)
        yield from metrics(_EXPORTER, [((__version__,), (1,))])
        if look is None:
            return
        yield from metrics(_LOOK, [((), (look.seconds, len(look.streams), self._looks.chosen.left_out))])
        yield from metrics(_RIGHTS, (((right,), (1,)) for right in self._looks.rights))
        yield from metrics(_NODE, (((one.node,), (one.used, one.most or None)) for one in look.nodes))
        yield from group_metrics(look.groups)
        yield from metrics(_GROUP, map(_of_group, look.groups))
        yield from metrics(_STREAM, (_of_stream(one, look.stream_bytes) for one in look.streams))
        yield from metrics(_REASON, map(_of_reason, look.reasons))
        yield from metrics(_UNCOUNTED, (((name,), (n,)) for name, n in look.uncounted.items()))
        yield from waiting_metrics(look.waiting)


def _of_group(one: GroupStanding) -> Sample:
    idle = min((consumer.idle_ms / 1000 for consumer in one.consumers), default=None)
    return (one.stream, one.group), (len(one.consumers), idle, one.delivered)


def _of_stream(one: StreamStanding, sizes: Mapping[str, int]) -> Sample:
    return (one.stream,), (one.length, one.added, sizes.get(one.stream))


def _of_reason(one: Reason) -> Sample:
    return (one.stream, one.reason), (one.letters, one.newest_ms / 1000)
