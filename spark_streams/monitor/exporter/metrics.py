"""A look in Prometheus' words: the table in docs/operations.md."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from spark_streams._version import __version__
from spark_streams.monitor.exporter.look import Look
from spark_streams.monitor.exporter.looks import Looks
from spark_streams.monitor.group_metrics import OF_GROUPS, group_metrics, server_up, waiting_metrics

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_OF_STREAMS = ("stream",)
_OF_REASONS = ("stream", "reason")


class Collector:
    """Gives prometheus_client the metrics of the last look, or of one that it waits for."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks

    def collect(self) -> Iterable[Metric]:
        """All of them; of a server that does not answer no more than that."""
        from prometheus_client.core import GaugeMetricFamily

        look = self._looks.last()
        yield server_up(look is not None)
        about = GaugeMetricFamily("rstream_exporter_info", "1; its version.", labels=("version",))
        about.add_metric((__version__,), 1)
        yield about
        if look is None:
            return
        yield from _of_the_look(look, self._looks)
        yield from group_metrics(look.groups)
        yield from _of_groups(look)
        yield from _of_streams(look)
        yield from _of_dead_letters(look)
        yield from waiting_metrics(look.waiting)


def _of_the_look(look: Look, looks: Looks) -> Iterable[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    yield GaugeMetricFamily("rstream_scrape_seconds", "How long the look at the server took.", value=look.seconds)
    yield GaugeMetricFamily("rstream_streams", "Streams that are looked at.", value=len(look.streams))
    yield GaugeMetricFamily("rstream_streams_left_out", "Streams beyond --max-streams.", value=looks.chosen.left_out)
    rights = GaugeMetricFamily(
        "rstream_missing_right", "1 for each right that the exporter's user lacks.", labels=("right",)
    )
    for right in looks.rights:
        rights.add_metric((right,), 1)
    used = GaugeMetricFamily("rstream_server_memory_bytes", "Memory that the server uses.", labels=("node",))
    most = GaugeMetricFamily(
        "rstream_server_memory_limit_bytes", "Its maxmemory; none where it has no limit.", labels=("node",)
    )
    for node in look.nodes:
        used.add_metric((node.node,), node.used)
        if node.most:
            most.add_metric((node.node,), node.most)
    yield from (rights, used, most)


def _of_groups(look: Look) -> Iterable[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    consumers = GaugeMetricFamily("rstream_consumers", "Consumers that the group has.", labels=OF_GROUPS)
    idle = GaugeMetricFamily(
        "rstream_group_idle_seconds", "How long none of its consumers has asked for anything.", labels=OF_GROUPS
    )
    given = CounterMetricFamily("rstream_delivered_entries", "Entries ever given to the group.", labels=OF_GROUPS)
    for one in look.groups:
        key = one.stream, one.group
        consumers.add_metric(key, len(one.consumers))
        if one.consumers:
            idle.add_metric(key, min(consumer.idle_ms for consumer in one.consumers) / 1000)
        if one.delivered is not None:
            given.add_metric(key, one.delivered)
    yield from (consumers, idle, given)


def _of_streams(look: Look) -> Iterable[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    length = GaugeMetricFamily("rstream_stream_entries", "Entries that the stream holds.", labels=_OF_STREAMS)
    added = CounterMetricFamily("rstream_added_entries", "Entries ever added to the stream.", labels=_OF_STREAMS)
    size = GaugeMetricFamily(
        "rstream_stream_memory_bytes", "Memory of the stream, as the server estimates it.", labels=_OF_STREAMS
    )
    for one in look.streams:
        length.add_metric((one.stream,), one.length)
        if one.added is not None:
            added.add_metric((one.stream,), one.added)
        if one.stream in look.stream_bytes:
            size.add_metric((one.stream,), look.stream_bytes[one.stream])
    yield from (length, added, size)


def _of_dead_letters(look: Look) -> Iterable[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    waiting = GaugeMetricFamily(
        "rstream_dead_letters_waiting", "Dead letters that stand in the stream, by reason.", labels=_OF_REASONS
    )
    newest = GaugeMetricFamily(
        "rstream_dead_letters_newest_timestamp_seconds", "When the newest of these came.", labels=_OF_REASONS
    )
    uncounted = GaugeMetricFamily(
        "rstream_dead_letters_uncounted", "Entries there that are yet to be counted by reason.", labels=_OF_STREAMS
    )
    for one in look.reasons:
        waiting.add_metric((one.stream, one.reason), one.letters)
        newest.add_metric((one.stream, one.reason), one.newest_ms / 1000)
    for stream, entries in look.uncounted.items():
        uncounted.add_metric((stream,), entries)
    yield from (waiting, newest, uncounted)
