"""Prometheus metrics of watched queries. A scrape reads the lag of the groups, also while no query runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from spark_streams.base.ids import StreamId
from spark_streams.base.printable import name_text
from spark_streams.connector import counters
from spark_streams.connector.counters import Counts, RunCounter
from spark_streams.connector.deadletter.waiting_entries import WaitingEntries, waiting_of
from spark_streams.connector.keys import is_returned
from spark_streams.connector.lag import group_metrics
from spark_streams.connector.lag.margin import Margin, MarginWindow, node_memories
from spark_streams.connector.lag.survey import GroupLag, survey
from spark_streams.connector.source.offset import Range
from spark_streams.connector.watch.latency import BOUNDS
from spark_streams.connector.watch.progress import Progress, WatchedQuery
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import KeptConnection
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.replies import is_error

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# -- lags of the watched groups, for any thread: if the server does not answer, there are none, but no error -----------

_FRESH = 1.0  # seconds for which a lag is used again
_log = logging.getLogger("spark_streams.monitor")

Key = tuple[str, str]  # stream, group


class LagCache:
    """Lags by stream and group, over one connection that is opened again after it broke. now: a monotonic clock, in
    seconds."""

    def __init__(self, address: Address, now: Callable[[], float] = time.monotonic) -> None:
        self._connection = KeptConnection(
            address, lambda error: _log.warning("the monitor cannot read the streams: %s", error)
        )
        self._now = now
        self._lock = threading.Lock()
        self._lags: dict[Key, GroupLag] = {}
        self._margins = MarginWindow()
        self._read_at: dict[str, float] = {}  # time of the last read, by stream

    @property
    def answers(self) -> bool:
        return self._connection.answers

    def fetch(self, keys: Iterable[Key]) -> dict[Key, GroupLag]:
        """Return the lags of these groups, a second old at most. Missing groups are left out; if the server does not
        answer, all are."""
        group_keys = set(keys)
        with self._lock:
            since = self._now() - _FRESH
            stale = sorted({stream for stream, _ in group_keys if self._read_at.get(stream, since - 1) < since})
            if stale and not self._refresh(stale):
                return {}
            as_shown = {key: (name_text(key[0]), name_text(key[1])) for key in group_keys}
            return {key: self._lags[shown] for key, shown in as_shown.items() if shown in self._lags}

    def margins(self, keys: Iterable[Key]) -> dict[Key, Margin]:
        """Return the margins of these groups by what was read so far. Groups that were never read are left out."""
        as_shown = {(name_text(stream), name_text(group)): (stream, group) for stream, group in keys}
        with self._lock:
            return {as_shown[shown]: margin for shown, margin in sorted(self._margins.margins(as_shown).items())}

    def waiting(self, keys: Iterable[Key]) -> list[WaitingEntries]:
        """Return the entries of these groups that wait for a retry; none if the server does not answer."""
        group_keys, waiting = sorted({key for key in keys if not is_returned(key[0])}), list[WaitingEntries]()
        if group_keys:
            self.use(lambda server: waiting.extend(waiting_of(server, group_keys)))
        return waiting

    def first_entries(self, progress: Progress) -> Mapping[Range, StreamId]:
        """Return the first entry of each range of a micro-batch that is not removed; none if the server is away."""
        parts = [part for source in progress.sources for one in source.streams for part in one.ranges if part.count > 1]
        asked = [("XRANGE", part.stream, f"({part.after}", bytes(part.last), "COUNT", 1) for part in parts]
        first: dict[Range, StreamId] = {}

        def ask(server: Server) -> None:  # one reply at a time: entries may be large
            for part, reply in zip(parts, server.execute_each(asked, is_error), strict=True):
                if reply and not is_error(reply):
                    first[part] = StreamId.parse(reply[0][0])

        self.use(ask)
        return first

    def forget(self) -> None:
        """Make the next call read from the server."""
        with self._lock:
            self._read_at.clear()

    def use(self, act: Callable[[Server], None]) -> bool:
        """Call `act` with the connection, and return whether the server answered."""
        with self._lock:
            return self._connection.use(act)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _refresh(self, streams: list[str]) -> bool:
        def fetch_lags(server: Server) -> None:
            snapshot = survey(server, streams)
            self._margins.add(snapshot)
            self._margins.add_memory(node_memories(server, refused=lambda _: None), snapshot.at_ms)
            refreshed = {*map(name_text, streams)}
            kept = {key: lag for key, lag in self._lags.items() if key[0] not in refreshed}
            self._lags = kept | {(group.stream, group.group): group for group in snapshot.groups}
            self._read_at.update(dict.fromkeys(streams, self._now()))

        return self._connection.use(fetch_lags)


# -- metrics -----------------------------------------------------------------------------------------------------------

_OF_QUERIES = ("query",)
_OF_STREAMS = (*_OF_QUERIES, *group_metrics.OF_GROUPS)


class QueryCollector:
    """Returns the metrics to prometheus_client. queries: returns the watched queries."""

    def __init__(self, queries: Callable[[], Iterable[WatchedQuery]], lags: LagCache) -> None:
        self._queries = queries
        self._lags = lags

    def collect(self) -> Iterable[Metric]:
        """Return all metrics; docs/reference/metrics.md lists them."""
        queries = list(self._queries())
        keys = {key for query in queries for key in query.groups}
        group_lags = self._lags.fetch(keys)
        yield from group_metrics.group_metrics(group_lags[key] for key in sorted(group_lags))
        yield from group_metrics.margin_metrics(self._lags.margins(group_lags))
        yield from group_metrics.waiting_metrics(self._lags.waiting(keys))
        yield from group_metrics.server_up(self._lags.answers)
        yield from _queries(queries)


_QUERY = group_metrics.MetricTable(
    _OF_QUERIES,
    (
        group_metrics.Family("rstream_query_running", "1 while the query runs."),
        group_metrics.Family("rstream_query_failures", "Runs of the query that failed.", counts=True),
        group_metrics.Family("rstream_batches", "Micro-batches of the query.", counts=True),
        group_metrics.Family("rstream_rows", "Rows that the query read.", counts=True),
        group_metrics.Family("rstream_rows_per_second", "Rows per second of the last micro-batch."),
        group_metrics.Family("rstream_batch_seconds", "Seconds that the last micro-batch took."),
    ),
)
_LIMIT = group_metrics.MetricTable(
    (*_OF_QUERIES, "group", "consumer"),
    (group_metrics.Family("rstream_batch_limit_entries", "Limit of the last micro-batch by targetBatchTime."),),
)
_LATENCY = group_metrics.MetricTable(
    _OF_STREAMS,
    (group_metrics.Family("rstream_latency_seconds", "From XADD to the commit of the micro-batch.", spreads=True),),
)


def tables() -> tuple[group_metrics.MetricTable, ...]:
    """Return the metrics of queries; docs/reference/metrics.md lists them."""
    return (_QUERY, _LIMIT, _LATENCY, *(_table(counter) for counter in counters.TABLE if counter.metric))


def _table(counter: RunCounter) -> group_metrics.MetricTable:
    labels = _OF_STREAMS if counter.unit == "entries" else (*_OF_STREAMS, "column")
    return group_metrics.MetricTable(labels, (group_metrics.Family(counter.metric, counter.meaning, counts=True),))


def _queries(queries: list[WatchedQuery]) -> Iterable[Metric]:
    streams = [((query.name, *key), counts) for query in queries for key, counts in sorted(query.totals.items())]
    yield from group_metrics.metrics(_QUERY, map(_of_query, queries))
    sources = [(query.name, one) for query in queries for one in query.sources if one.limit is not None]
    limits = {(name, one.group, one.consumer): (one.limit,) for name, one in sources}  # labels are unique
    yield from group_metrics.metrics(_LIMIT, limits.items())
    latencies = {(query.name, *key): one for query in queries for key, one in query.latencies.copy().items()}
    spreads = [(key, (([*zip(BOUNDS, one.counts, strict=True)], one.total),)) for key, one in sorted(latencies.items())]
    yield from group_metrics.metrics(_LATENCY, spreads)
    for counter in counters.TABLE:
        if counter.metric:
            yield from group_metrics.metrics(
                _table(counter), (sample for key, counts in streams for sample in _of_counter(counter, key, counts))
            )


def _of_counter(counter: RunCounter, labels: tuple[str, ...], counts: Counts) -> Iterable[group_metrics.Sample]:
    """Return the sample of a stream; of a counter of values a sample for each column."""
    if counter.unit == "entries":
        return [(labels, (counts[counter],))]
    return [((*labels, column), (number,)) for column, number in sorted(counts.columns(counter).items())]


def _of_query(query: WatchedQuery) -> group_metrics.Sample:
    last = (None, None) if query.last is None else (query.last.rows_per_second, query.last.batch_ms / 1000)
    return (query.name,), (float(query.running), query.failures, query.batches, query.rows, *last)
