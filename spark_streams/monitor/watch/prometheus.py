"""The metrics of watched queries in Prometheus' words. How a group stands is asked when somebody scrapes, also while
no query runs."""

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
from spark_streams.monitor.watch.lag_cache import Standings
from spark_streams.monitor.watch.queries import Query

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_OF_QUERIES = ("query",)
_OF_STREAMS = (*_OF_QUERIES, *OF_GROUPS)


class Collector:
    """Gives prometheus_client the metrics. queries: all that are known at the moment."""

    def __init__(self, queries: Callable[[], Iterable[Query]], standings: Standings) -> None:
        self._queries = queries
        self._standings = standings

    def collect(self) -> Iterable[Metric]:
        """Return all metrics; docs/reference/metrics.md lists them."""
        known = list(self._queries())
        yield from self._groups(known)
        yield from _queries(known)

    def _groups(self, queries: list[Query]) -> Iterable[Metric]:
        keys = {key for query in queries for key in query.groups}
        found = self._standings.of(keys)
        yield from group_metrics(found[key] for key in sorted(found))
        yield from waiting_metrics(self._standings.waiting(keys))
        yield from server_up(self._standings.answers)


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
TABLES = (_QUERY, _ENTRIES, _VALUES)


def _queries(queries: list[Query]) -> Iterable[Metric]:
    streams = [((query.name, *key), counts) for query in queries for key, counts in sorted(query.totals.items())]
    bad = [((*key, column), (n,)) for key, counts in streams for column, n in sorted(counts.bad.items())]
    yield from metrics(_QUERY, map(_of_query, queries))
    yield from metrics(_ENTRIES, ((key, (one.claimed, one.dead, one.lost)) for key, one in streams))
    yield from metrics(_VALUES, bad)


def _of_query(one: Query) -> Sample:
    last = (None, None) if one.last is None else (one.last.rows_per_second, one.last.batch_ms / 1000)
    return (one.name,), (float(one.running), one.failures, one.batches, one.rows, *last)
