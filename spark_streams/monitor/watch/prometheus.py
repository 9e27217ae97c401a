"""Prometheus metrics of watched queries. A scrape reads the lag of the groups, also while no query runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

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
from spark_streams.monitor.watch.lag_cache import LagCache
from spark_streams.monitor.watch.queries import Query

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_OF_QUERIES = ("query",)
_OF_STREAMS = (*_OF_QUERIES, *OF_GROUPS)


class Collector:
    """Returns the metrics to prometheus_client. queries: returns the watched queries."""

    def __init__(self, queries: Callable[[], Iterable[Query]], lags: LagCache) -> None:
        self._queries = queries
        self._lags = lags

    def collect(self) -> Iterable[Metric]:
        """Return all metrics; docs/reference/metrics.md lists them."""
        queries = list(self._queries())
        yield from self._groups(queries)
        yield from _queries(queries)

    def _groups(self, queries: list[Query]) -> Iterable[Metric]:
        keys = {key for query in queries for key in query.groups}
        group_lags = self._lags.fetch(keys)
        yield from group_metrics(group_lags[key] for key in sorted(group_lags))
        yield from waiting_metrics(self._lags.waiting(keys))
        yield from server_up(self._lags.answers)


_QUERY = Table(
    _OF_QUERIES,
    (
        Family("rstream_query_running", "1 while the query runs."),
        Family("rstream_query_failures", "Runs of the query that failed.", counts=True),
        Family("rstream_batches", "Micro-batches of the query.", counts=True),
        Family("rstream_rows", "Rows that the query read.", counts=True),
        Family("rstream_rows_per_second", "Rows per second of the last micro-batch."),
        Family("rstream_batch_seconds", "Seconds that the last micro-batch took."),
    ),
)
_LIMIT = Table(
    (*_OF_QUERIES, "group", "consumer", "reason"),
    (Family("rstream_batch_limit_entries", "Limit of the last micro-batch by targetBatchTime, and its reason."),),
)
_ENTRIES = Table(
    _OF_STREAMS,
    (
        Family("rstream_claimed_entries", "Entries claimed from consumers that left them pending.", counts=True),
        Family("rstream_dead_letters", "Entries moved to the dead-letter stream.", counts=True),
        Family("rstream_lost_entries", "Entries that were missing when the query should have read them.", counts=True),
    ),
)
_VALUES = Table(
    (*_OF_STREAMS, "column"),
    (Family("rstream_bad_values", "Values that did not fit the type of their column.", counts=True),),
)
TABLES = (_QUERY, _LIMIT, _ENTRIES, _VALUES)


def _queries(queries: list[Query]) -> Iterable[Metric]:
    streams = [((query.name, *key), counts) for query in queries for key, counts in sorted(query.totals.items())]
    bad = [((*key, column), (n,)) for key, counts in streams for column, n in sorted(counts.bad.items())]
    yield from metrics(_QUERY, map(_of_query, queries))
    limits = {labels: value for query in queries for labels, value in _limits(query)}  # labels are unique
    yield from metrics(_LIMIT, limits.items())
    yield from metrics(_ENTRIES, ((key, (counts.claimed, counts.dead, counts.lost)) for key, counts in streams))
    yield from metrics(_VALUES, bad)


def _limits(query: Query) -> Iterable[Sample]:
    for source in query.sources:
        if source.limit is not None:
            yield (query.name, source.group, source.consumer, source.limit.reason), (source.limit.entries,)


def _of_query(query: Query) -> Sample:
    last = (None, None) if query.last is None else (query.last.rows_per_second, query.last.batch_ms / 1000)
    return (query.name,), (float(query.running), query.failures, query.batches, query.rows, *last)
