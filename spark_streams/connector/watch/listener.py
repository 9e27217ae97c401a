"""`spark_streams.watch(spark, url)`: log lines and metrics of each query that reads streams, docs/reference/metrics.md.

Spark calls the listener after each micro-batch; the listener then reads the lags over its own connection. It cannot
stop or slow a query, because Spark calls listeners on another thread. If the server does not answer, it logs a warning.
When a query fails, the listener writes the error's class and message to the server, so that the dead letter of the
entry that caused it can name them (source.pending.poison_batch).
"""

from __future__ import annotations

import atexit
import datetime
import json
import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_streams.base.untyped import Json
from spark_streams.connector.errors import InvalidOptionError, OffsetError, UnsupportedError
from spark_streams.connector.options.access_options import server_of
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.source.pending.poison_record import QueryFailure, note_failure
from spark_streams.connector.spark.running_pyspark import is_of_connect
from spark_streams.connector.watch import log_lines
from spark_streams.connector.watch.failure import failure_of, may_be_caused_by_entry
from spark_streams.connector.watch.lineage.datasets import Dataset
from spark_streams.connector.watch.lineage.lineage import Lineage
from spark_streams.connector.watch.metrics_page import MetricsPage
from spark_streams.connector.watch.notebook import NotebookTable, lag_table, query_table
from spark_streams.connector.watch.progress import Activity, Health, WatchedQuery, limit_of, offsets_in, read_progress
from spark_streams.connector.watch.query_metrics import LagCache, QueryCollector
from spark_streams.connector.wire.address import Address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )
    from pyspark.sql.streaming.query import StreamingQuery

_GONE = (Py4JError, PySparkException, OSError)  # raised by a session that has ended
_AT_LAST = 2.0  # seconds to remove the listener when a client of Spark Connect ends
_log = logging.getLogger("spark_streams.monitor")


class Watch(StreamingQueryListener):
    """Listener that `watch` attached to a session. It is a context manager: leaving it calls `close()`.

    `lag()` and `queries()` return tables, which a notebook draws and other programs print as text.

    Attributes:
        metrics_port: Port on which Prometheus metrics are served, or `None`.
    """

    def __init__(
        self, spark: SparkSession, address: Address, write: Callable[[str], None] | None, limit: float,
        host: str = "127.0.0.1", port: int | None = None, file: Path | None = None, lineage: Lineage | None = None,
    ) -> None:  # fmt: skip
        self._spark = spark
        self._write = write
        self._lags = LagCache(address)
        self._lock = threading.Lock()
        self._queries: dict[str, WatchedQuery] = {}
        self._handles: dict[str, StreamingQuery] = {}  # by run: after its end they return its offsets
        self._health = Health(limit, self._activity)
        self._metrics: MetricsPage | None = None
        if port is not None or file is not None:
            collector = QueryCollector(self._watched_queries, self._lags)
            self._metrics = MetricsPage(collector, port, host, file, self._health.trouble)
        self.metrics_port = None if self._metrics is None else self._metrics.port
        self._lineage = lineage
        self._closed = False
        # Ignores events. Over Spark Connect removeListener may block for ever (docs/internals/facts.md, S62).
        self._is_deaf = False

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def catch_up(self, wait: float = 5.0) -> None:
        """Wait until Spark has reported the end of all queries that have ended, for `wait` seconds at most."""
        deadline = time.monotonic() + wait
        while any(not run.isActive for run in self._runs()) and time.monotonic() < deadline:
            time.sleep(0.02)

    def lag(self) -> NotebookTable:
        """Return the lag of the groups that the watched queries have read from, as of now.

        A query's groups are known after its first micro-batch. If the server does not answer, the table has no rows.
        """
        self.catch_up()
        self._lags.forget()
        groups = [key for query in self._watched_queries() for key in query.groups]
        return lag_table(self._lags.fetch(groups).values())

    def queries(self) -> NotebookTable:
        """Return the state of each watched query, and what it has counted since `watch` was called."""
        self.catch_up()
        return query_table(self._watched_queries())

    def count_dead_letters(self, group: str, counts: Mapping[str, int]) -> None:
        """Count dead letters that a job has written itself for its only query, by stream."""
        with self._lock:
            for query in self._queries.values():
                query.wrote_dead_letters(group, counts)

    def declare_outputs(self, outputs: Iterable[Dataset]) -> None:
        """Set the outputs that a job's only query has in its lineage."""
        if self._lineage is not None:
            self._lineage.declare_outputs(outputs)

    def close(self) -> None:
        """Wait for outstanding events, and detach the listener."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        try:
            self.catch_up()
            self._is_deaf = True
            if self._lineage is not None:
                self._lineage.close()
            if not is_of_connect(self._spark):
                self._spark.streams.removeListener(self)
        except _GONE:
            _log.debug("the Spark session has ended before its listener")
        if self._metrics is not None:
            self._expose()
            self._metrics.close()
        self._lags.close()

    # -- called by Spark, on its own thread ----------------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        if self._is_deaf:
            return
        query_id, run = str(event.id), str(event.runId)
        self._health.seen(run, event.name or query_id, "started")
        try:
            handle = self._spark.streams.get(query_id)
        except _GONE:
            handle = None
        with self._lock:
            query = self._queries.setdefault(query_id, WatchedQuery(event.name or query_id, query_id))
            query.started(run)
            if handle is not None:
                self._handles[run] = handle
        if self._lineage is not None:
            self._lineage.started(run, query.name, event.timestamp, handle)
        self._tell(log_lines.event_line(event.timestamp, "started", query.name, query_id, run))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        if self._is_deaf:
            return
        self._lags.forget()
        progress = read_progress(json.loads(event.progress.json))
        self._health.seen(progress.run, progress.query, "progress")
        if not progress.sources:
            return
        with self._lock:
            query = self._queries.setdefault(progress.id, WatchedQuery(progress.query, progress.id, progress.run, True))
            progress = query.progressed(progress)
        if self._metrics is not None:
            query.committed(progress, self._lags.first_entries(progress))
        if self._lineage is not None:
            self._lineage.progressed(progress)
        if self._write is not None:
            lags = self._lags.fetch(query.groups)
            self._tell(log_lines.progress_line(_now(), progress, lags))
        self._expose()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        if self._is_deaf:
            return
        with self._lock:
            query = self._queries.get(str(event.id))
        self._health.seen(str(event.runId), str(event.id) if query is None else query.name, "idle")
        if query is None or not query.sources:
            return
        if self._write is not None:
            groups = log_lines.groups(query.sources, self._lags.fetch(query.groups), entries=False)
            self._tell(
                log_lines.event_line(event.timestamp, "idle", query.name, query.id, str(event.runId), groups=groups)
            )
        self._expose()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if self._is_deaf:
            return
        query_id, run = str(event.id), str(event.runId)
        self._health.ended(run)
        failure = None if event.exception is None else failure_of(event.exception)
        try:
            if failure is not None and event.exception is not None and may_be_caused_by_entry(event.exception):
                self._note(query_id, run, failure)
        finally:
            with self._lock:
                query = self._queries.setdefault(query_id, WatchedQuery(query_id, query_id))
                query.terminated(run, failure is not None)
                self._lags.forget()
                self._handles.pop(run, None)
            if self._lineage is not None:
                self._lineage.terminated(run, _now(), query.last, failure)
        more = {} if failure is None else {"error": failure.error, "message": failure.message[:2000]}
        self._tell(log_lines.event_line(_now(), "terminated", query.name, query_id, run, **more))
        self._expose()

    # -- notes, lines and metrics --------------------------------------------------------------------------------------

    def _note(self, query_id: str, run: str, failure: QueryFailure) -> None:
        """Write the failure to the server for each rstream source of the query, for the dead letter of its entry."""
        offsets: dict[tuple[str, str], dict[str, Json]] = {}
        with self._lock:
            handle, query = self._handles.get(run), self._queries.get(query_id)
        for source in () if query is None else query.sources:
            offsets[source.group, source.consumer] = dict(source.offset)
        try:
            error = None if handle is None else handle.exception()
        except _GONE:
            error = None
        for offset in offsets_in("" if error is None else str(error)):
            offsets[offset["group"], offset["consumer"]] = offset  # the last one is the newest
        for offset_json in offsets.values():
            try:
                offset_of = Offset.from_json(offset_json)
            except OffsetError:
                continue  # written by a later version
            self._lags.use(lambda server, offset=offset_of: note_failure(server, offset, failure))  # type: ignore[misc]

    def _activity(self, run: str) -> Activity | None:
        with self._lock:
            handle = self._handles.get(run)
        try:
            return None if handle is None else (bool(handle.status["isTriggerActive"]), str(handle.status["message"]))
        except _GONE:
            return None

    def _tell(self, line: dict[str, object]) -> None:
        if self._write is not None:
            self._write(log_lines.text(line))

    def _expose(self) -> None:
        if self._metrics is not None:
            try:
                self._metrics.write()
            except OSError as error:
                _log.warning("metrics cannot be written: %s", error)

    def _watched_queries(self) -> list[WatchedQuery]:
        with self._lock:
            return list(self._queries.values())

    def _runs(self) -> list[StreamingQuery]:
        with self._lock:
            return list(self._handles.values())


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def attach(
    spark: SparkSession,
    access: Mapping[str, str],
    log: str | Path | logging.Logger | None,
    metrics_port: int | None,
    metrics_host: str,
    metrics_file: str | Path | None,
    lineage: str | None,
    unhealthy_after: str,
) -> Watch:
    try:
        limit = limit_of(unhealthy_after)
    except ValueError as error:
        raise InvalidOptionError(f"unhealthy_after {error}") from None
    address = server_of(access, "watch")
    sent = None if lineage is None else Lineage(spark, address, lineage)
    file = None if metrics_file is None else Path(metrics_file)
    watch = Watch(spark, address, _writer(log), limit, metrics_host, metrics_port, file, sent)
    _add(spark, watch)
    if sent is not None:
        sent.listen()
    # A program may end right after its query has failed, before Spark reports that.
    _at_exit(spark, watch)
    return watch


def _add(spark: SparkSession, watch: Watch) -> None:
    """Raises UnsupportedError if Spark Connect's server accepts no listener."""
    if not is_of_connect(spark):
        spark.streams.addListener(watch)
        return
    # A pending message to the session's Python functions would end the listeners' thread; any command removes it
    # (docs/internals/facts.md, S62). At its end this process would wait for that thread before the listener can be
    # detached. It does not wait for a daemon thread, and threads that a daemon thread starts are daemons.
    spark.sql("SELECT 1").collect()
    adding = threading.Thread(target=spark.streams.addListener, args=(watch,), daemon=True)
    with warnings.catch_warnings(record=True) as caught_warnings:  # it raises nothing
        adding.start()
        adding.join()
    if caught_warnings:
        raise UnsupportedError(
            f"the queries cannot be watched: Spark Connect's server accepts no listener: {caught_warnings[0].message}"
        )


def _at_exit(spark: SparkSession, watch: Watch) -> None:
    """Close the watch when the process ends. Over Spark Connect close it before the client's threads end, so that it
    can still receive outstanding events."""
    threads_end = getattr(threading, "_register_atexit", None)  # as concurrent.futures uses it; last in, first out
    if not is_of_connect(spark) or threads_end is None:
        atexit.register(watch.close)
        return

    def leave() -> None:
        watch.close()
        removing = threading.Thread(target=spark.streams.removeListener, args=(watch,), daemon=True)
        with warnings.catch_warnings(action="ignore"):  # the session may have been stopped before
            removing.start()
            removing.join(_AT_LAST)

    threads_end(leave)


def _writer(log: str | Path | logging.Logger | None) -> Callable[[str], None] | None:
    if log is None:
        return None
    if isinstance(log, logging.Logger):
        return log.info
    try:
        return log_lines.LogFile(None if log == "-" else Path(log))
    except OSError as error:
        raise InvalidOptionError(f"log lines cannot be written to {log}: {error}") from error
