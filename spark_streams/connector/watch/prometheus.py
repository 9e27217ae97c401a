"""Prometheus metrics of watched queries. A scrape reads the lag of the groups, also while no query runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from spark_streams.connector import counters
from spark_streams.connector.counters import Counts, RunCounter
from spark_streams.connector.lag.group_metrics import (
    OF_GROUPS,
    Family,
    Sample,
    Table,
    group_metrics,
    margin_metrics,
    metrics,
    server_up,
    waiting_metrics,
)
from spark_streams.connector.watch.lag_cache import LagCache
from spark_streams.connector.watch.queries import Query

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
        yield from margin_metrics(self._lags.margins(group_lags))
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
    (*_OF_QUERIES, "group", "consumer"),
    (Family("rstream_batch_limit_entries", "Limit of the last micro-batch by targetBatchTime."),),
)


def tables() -> tuple[Table, ...]:
    """Return the metrics of queries; docs/reference/metrics.md lists them."""
    return (_QUERY, _LIMIT, *(_table(counter) for counter in counters.TABLE if counter.metric))


def _table(counter: RunCounter) -> Table:
    labels = _OF_STREAMS if counter.unit == "entries" else (*_OF_STREAMS, "column")
    return Table(labels, (Family(counter.metric, counter.meaning, counts=True),))


def _queries(queries: list[Query]) -> Iterable[Metric]:
    streams = [((query.name, *key), counts) for query in queries for key, counts in sorted(query.totals.items())]
    yield from metrics(_QUERY, map(_of_query, queries))
    limits = {labels: value for query in queries for labels, value in _limits(query)}  # labels are unique
    yield from metrics(_LIMIT, limits.items())
    for counter in counters.TABLE:
        if counter.metric:
            yield from metrics(
                _table(counter), (sample for key, counts in streams for sample in _of_counter(counter, key, counts))
            )


def _of_counter(counter: RunCounter, labels: tuple[str, ...], counts: Counts) -> Iterable[Sample]:
    """Return the sample of a stream; of a counter of values a sample for each column."""
    if counter.unit == "entries":
        return [(labels, (counts[counter],))]
    return [((*labels, column), (number,)) for column, number in sorted(counts.columns(counter).items())]


def _limits(query: Query) -> Iterable[Sample]:
    for source in query.sources:
        if source.limit is not None:
            yield (query.name, source.group, source.consumer), (source.limit,)


def _of_query(query: Query) -> Sample:
    last = (None, None) if query.last is None else (query.last.rows_per_second, query.last.batch_ms / 1000)
    return (query.name,), (float(query.running), query.failures, query.batches, query.rows, *last)
