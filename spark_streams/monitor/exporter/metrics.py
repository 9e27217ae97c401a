"""A look in Prometheus' words: the table in docs/reference/metrics.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from spark_streams._version import __version__
from spark_streams.monitor.exporter.dead_letters import Reason
from spark_streams.monitor.exporter.looks import Looks
from spark_streams.monitor.group_metrics import (
    OF_GROUPS,
    Family,
    Sample,
    group_metrics,
    metrics,
    server_up,
    waiting_metrics,
)
from spark_streams.monitor.lag_survey import GroupStanding, StreamStanding

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_EXPORTER = (Family("rstream_exporter_info", "1; its version."),)
_LOOK = (
    Family("rstream_scrape_seconds", "How long the look at the server took."),
    Family("rstream_streams", "Streams that are looked at."),
    Family("rstream_streams_left_out", "Streams beyond --max-streams."),
)
_RIGHTS = (Family("rstream_missing_right", "1 for each right that the exporter's user lacks."),)
_NODE = (
    Family("rstream_server_memory_bytes", "Memory that the server uses."),
    Family("rstream_server_memory_limit_bytes", "Its maxmemory; none where it has no limit."),
)
_GROUP = (
    Family("rstream_consumers", "Consumers that the group has."),
    Family("rstream_group_idle_seconds", "How long none of its consumers has asked for anything."),
    Family("rstream_delivered_entries", "Entries ever given to the group.", counts=True),
)
_STREAM = (
    Family("rstream_stream_entries", "Entries that the stream holds."),
    Family("rstream_added_entries", "Entries ever added to the stream.", counts=True),
    Family("rstream_stream_memory_bytes", "Memory of the stream, as the server estimates it."),
)
_REASON = (
    Family("rstream_dead_letters_waiting", "Dead letters that stand in the stream, by reason."),
    Family("rstream_dead_letters_newest_timestamp_seconds", "When the newest of these came."),
)
_UNCOUNTED = (Family("rstream_dead_letters_uncounted", "Entries there that are yet to be counted by reason."),)


class Collector:
    """Gives prometheus_client the metrics of the last look, or of one that it waits for."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks

    def collect(self) -> Iterable[Metric]:
        """All of them; of a server that does not answer no more than that."""
        look = self._looks.last()
        yield from server_up(look is not None)
        yield from metrics(_EXPORTER, ("version",), [((__version__,), (1,))])
        if look is None:
            return
        yield from metrics(_LOOK, (), [((), (look.seconds, len(look.streams), self._looks.chosen.left_out))])
        yield from metrics(_RIGHTS, ("right",), (((right,), (1,)) for right in self._looks.rights))
        yield from metrics(_NODE, ("node",), (((one.node,), (one.used, one.most or None)) for one in look.nodes))
        yield from group_metrics(look.groups)
        yield from metrics(_GROUP, OF_GROUPS, map(_of_group, look.groups))
        yield from metrics(_STREAM, ("stream",), (_of_stream(one, look.stream_bytes) for one in look.streams))
        yield from metrics(_REASON, ("stream", "reason"), map(_of_reason, look.reasons))
        yield from metrics(_UNCOUNTED, ("stream",), (((name,), (n,)) for name, n in look.uncounted.items()))
        yield from waiting_metrics(look.waiting)


def _of_group(one: GroupStanding) -> Sample:
    idle = min((consumer.idle_ms / 1000 for consumer in one.consumers), default=None)
    return (one.stream, one.group), (len(one.consumers), idle, one.delivered)


def _of_stream(one: StreamStanding, sizes: Mapping[str, int]) -> Sample:
    return (one.stream,), (one.length, one.added, sizes.get(one.stream))


def _of_reason(one: Reason) -> Sample:
    return (one.stream, one.reason), (one.letters, one.newest_ms / 1000)
