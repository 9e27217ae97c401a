"""The metrics in Prometheus' words. How a group stands is asked when somebody scrapes, also while no query runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from spark_streams.errors import InvalidOptionError, UnsupportedError
from spark_streams.monitor.watch.lag_cache import Standings
from spark_streams.monitor.watch.queries import Query

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

_OF_GROUPS = ("stream", "group")
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
        from prometheus_client.core import GaugeMetricFamily

        lag = GaugeMetricFamily("rstream_lag_entries", "Entries that the group has yet to be given.", labels=_OF_GROUPS)
        age = GaugeMetricFamily(
            "rstream_lag_seconds", "Age of the oldest entry that the group has not acknowledged.", labels=_OF_GROUPS
        )
        pending = GaugeMetricFamily(
            "rstream_pending_entries", "Entries given to consumers and not acknowledged.", labels=_OF_GROUPS
        )
        oldest = GaugeMetricFamily(
            "rstream_oldest_pending_seconds", "How long the oldest of these has waited.", labels=_OF_GROUPS
        )
        keys = {key for query in queries for key in query.groups}
        found = self._standings.of(keys)
        for key in sorted(found):
            one = found[key]
            lag.add_metric(key, one.lag)
            pending.add_metric(key, one.pending)
            oldest.add_metric(key, (one.oldest_idle_ms or 0) / 1000)
            if one.lag_ms is not None:
                age.add_metric(key, one.lag_ms / 1000)
        yield from (lag, age, pending, oldest)
        yield GaugeMetricFamily(
            "rstream_server_up", "Whether the stream server answers.", value=float(self._standings.answers)
        )


def _queries(queries: list[Query]) -> Iterable[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    of_streams = (*_OF_QUERIES, *_OF_GROUPS)
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


class Exposition:
    """Serves the metrics over HTTP (`/metrics`), writes them to a file, or both.

    Raises UnsupportedError without prometheus_client, InvalidOptionError where the port or the file cannot be had.
    """

    def __init__(self, collector: Collector, port: int | None, host: str, file: Path | None) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError:
            raise UnsupportedError(
                "Prometheus metrics need the package prometheus_client: pip install 'spark-streams[monitor]'"
            ) from None
        self._registry: CollectorRegistry = CollectorRegistry()
        self._registry.register(collector)
        self._file = file
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None
        if port is not None:
            try:
                self._server, self._thread = start_http_server(port, host, self._registry)
            except OSError as error:
                raise InvalidOptionError(f"metrics cannot be served at {host}:{port}: {error}") from error
        if file is not None:
            try:
                self.write()
            except OSError as error:
                self.close()
                raise InvalidOptionError(f"metrics cannot be written to {file}: {error}") from error

    @property
    def port(self) -> int | None:
        """Where it serves."""
        return None if self._server is None else self._server.server_port

    def write(self) -> None:
        """Put the file in place, whole. Raises OSError."""
        if self._file is not None:
            from prometheus_client import write_to_textfile

            write_to_textfile(str(self._file), self._registry)

    def close(self) -> None:
        """Stop serving; the file stays as it is."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = self._thread = None
