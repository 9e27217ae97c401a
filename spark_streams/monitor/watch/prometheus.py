"""The metrics of watched queries in Prometheus' words. How a group stands is asked when somebody scrapes, also while
no query runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from spark_streams.monitor.group_metrics import OF_GROUPS, group_metrics, server_up, waiting_metrics
from spark_streams.monitor.watch.lag_cache import Standings
from spark_streams.monitor.watch.queries import Query

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_OF_QUERIES = ("query",)


class Collector:
    """Gives prometheus_client the metrics. queries: all that are known at the moment."""

    def __init__(self, queries: Callable[[], Iterable[Query]], standings: Standings) -> None:
        self._queries = queries
        self._standings = standings

    def collect(self) -> Iterable[Metric]:
        """The table in docs/operations.md."""
        known = list(self._queries())
        yield from self._groups(known)
        yield from _queries(known)

    def _groups(self, queries: list[Query]) -> Iterable[Metric]:
        keys = {key for query in queries for key in query.groups}
        found = self._standings.of(keys)
        yield from group_metrics(found[key] for key in sorted(found))
        yield from waiting_metrics(self._standings.waiting(keys))
        yield server_up(self._standings.answers)


def _queries(queries: list[Query]) -> Iterable[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    of_streams = (*_OF_QUERIES, *OF_GROUPS)
    claimed = CounterMetricFamily(
        "rstream_claimed_entries", "Entries taken over from consumers that had left them.", labels=of_streams
    )
    dead = CounterMetricFamily("rstream_dead_letters", "Entries moved to the dead-letter stream.", labels=of_streams)
    lost = CounterMetricFamily(
        "rstream_lost_entries", "Entries that were gone before they were read.", labels=of_streams
    )
    bad = CounterMetricFamily(
        "rstream_bad_values", "Values that did not fit their column's type.", labels=(*of_streams, "column")
    )
    rows = CounterMetricFamily("rstream_rows", "Rows read by the query.", labels=_OF_QUERIES)
    batches = CounterMetricFamily("rstream_batches", "Micro-batches of the query.", labels=_OF_QUERIES)
    failures = CounterMetricFamily("rstream_query_failures", "Runs of the query that failed.", labels=_OF_QUERIES)
    running = GaugeMetricFamily("rstream_query_running", "1 while the query runs.", labels=_OF_QUERIES)
    speed = GaugeMetricFamily("rstream_rows_per_second", "Rows/s of the last micro-batch.", labels=_OF_QUERIES)
    took = GaugeMetricFamily("rstream_batch_seconds", "How long the last micro-batch took.", labels=_OF_QUERIES)
    for query in queries:
        name = (query.name,)
        running.add_metric(name, float(query.running))
        failures.add_metric(name, query.failures)
        rows.add_metric(name, query.rows)
        batches.add_metric(name, query.batches)
        if query.last is not None:
            speed.add_metric(name, query.last.rows_per_second)
            took.add_metric(name, query.last.batch_ms / 1000)
        for key, counts in sorted(query.totals.items()):
            claimed.add_metric((*name, *key), counts.claimed)
            dead.add_metric((*name, *key), counts.dead)
            lost.add_metric((*name, *key), counts.lost)
            for column, count in sorted(counts.bad.items()):
                bad.add_metric((*name, *key, column), count)
    yield from (running, failures, batches, rows, speed, took, claimed, dead, lost, bad)
