"""`spark_streams.watch(spark, url)`: log lines and metrics of each query that reads streams, docs/reference/metrics.md.

Spark tells a listener of each micro-batch; how the groups stand is asked from the server then, on a connection of the
listener's own. Nothing here can stop or slow a query: Spark calls listeners beside it; a server that does not answer
is a warning. When a query dies, its error's class and message are noted on the server, so that the dead letter of the
entry that killed it can say them (source.recovery.poison_batch).
"""

from __future__ import annotations

import atexit
import datetime
import json
import logging
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_streams.errors import InvalidOptionError, OffsetError, UnsupportedError
from spark_streams.model.untyped import Json
from spark_streams.monitor.exposition import Exposition
from spark_streams.monitor.watch import log_lines
from spark_streams.monitor.watch.failure import failure_of, is_an_entrys
from spark_streams.monitor.watch.lag_cache import Standings
from spark_streams.monitor.watch.notebook import NotebookTable, lag_table, query_table
from spark_streams.monitor.watch.progress import offsets_in, read_progress
from spark_streams.monitor.watch.prometheus import Collector
from spark_streams.monitor.watch.queries import Query
from spark_streams.options.access_options import server_of
from spark_streams.source.offset import Offset
from spark_streams.source.recovery.poison_record import Failure, note_failure
from spark_streams.spark.connect import is_of_connect
from spark_streams.wire.address.address import Address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )
    from pyspark.sql.streaming.query import StreamingQuery

_GONE = (Py4JError, PySparkException, OSError)  # what a session that has ended answers
_AT_LAST = 2.0  # seconds for the end of a client of Spark Connect
_log = logging.getLogger("spark_streams.monitor")


class Watch(StreamingQueryListener):
    """Listener that `watch` attached to a session. It is a context manager: leaving it calls `close()`.

    `lag()` and `queries()` return tables, which a notebook draws and other programs print as text.

    Attributes:
        metrics_port: Port on which Prometheus metrics are served, or `None`.
    """

    def __init__(
        self, spark: SparkSession, address: Address, write: Callable[[str], None] | None, host: str = "127.0.0.1",
        port: int | None = None, file: Path | None = None,
    ) -> None:  # fmt: skip
        self._spark = spark
        self._write = write
        self._standings = Standings(address)
        self._lock = threading.Lock()
        self._queries: dict[str, Query] = {}
        self._handles: dict[str, StreamingQuery] = {}  # by run: they tell, after its end, which offsets it had
        self._metrics: Exposition | None = None
        if port is not None or file is not None:
            self._metrics = Exposition(Collector(self._known, self._standings), port, host, file)
        self.metrics_port = None if self._metrics is None else self._metrics.port
        self._closed = False
        # Detached; or only silent: over Spark Connect removeListener may wait for ever (docs/internals/facts.md, S62).
        self._is_deaf = False

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def catch_up(self, wait: float = 5.0) -> None:
        """Wait until Spark has told of the ends of all queries that are over, for `wait` seconds at most."""
        deadline = time.monotonic() + wait
        while any(not one.isActive for one in self._runs()) and time.monotonic() < deadline:
            time.sleep(0.02)

    def lag(self) -> NotebookTable:
        """Return the lag of the groups that the watched queries have read from, as of now.

        A query's groups are known after its first micro-batch. If the server does not answer, the table has no rows.
        """
        self.catch_up()
        self._standings.forget()
        with self._lock:
            groups = [key for query in self._queries.values() for key in query.groups]
        return lag_table(self._standings.of(groups).values())

    def queries(self) -> NotebookTable:
        """Return the state of each watched query, and what it has counted since `watch` was called."""
        self.catch_up()
        with self._lock:
            return query_table(self._queries.values())

    def close(self) -> None:
        """Catch up and detach."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        try:
            self.catch_up()
            self._is_deaf = True
            if not is_of_connect(self._spark):
                self._spark.streams.removeListener(self)
        except _GONE:
            _log.debug("the Spark session has ended before its listener")
        if self._metrics is not None:
            self._expose()
            self._metrics.close()
        self._standings.close()

    # -- what Spark calls, on a thread of its own ----------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        if self._is_deaf:
            return
        query_id, run = str(event.id), str(event.runId)
        try:
            handle = self._spark.streams.get(query_id)
        except _GONE:
            handle = None
        with self._lock:
            query = self._queries.setdefault(query_id, Query(event.name or query_id, query_id))
            query.started(run)
            if handle is not None:
                self._handles[run] = handle
        self._tell(log_lines.event_line(event.timestamp, "started", query.name, query_id, run))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        if self._is_deaf:
            return
        self._standings.forget()
        progress = read_progress(json.loads(event.progress.json))
        if not progress.sources:
            return
        with self._lock:
            query = self._queries.setdefault(progress.id, Query(progress.query, progress.id, progress.run, True))
            progress = query.progressed(progress)
        if self._write is not None:
            standings = self._standings.of(query.groups)
            self._tell(log_lines.progress_line(_now(), progress, standings))
        self._expose()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        if self._is_deaf:
            return
        with self._lock:
            query = self._queries.get(str(event.id))
        if query is None or not query.sources:
            return
        if self._write is not None:
            told = log_lines.groups(query.sources, self._standings.of(query.groups), entries=False)
            self._tell(
                log_lines.event_line(event.timestamp, "idle", query.name, query.id, str(event.runId), groups=told)
            )
        self._expose()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if self._is_deaf:
            return
        query_id, run = str(event.id), str(event.runId)
        failure = None if event.exception is None else failure_of(event.exception)
        try:
            if failure is not None and event.exception is not None and is_an_entrys(event.exception):
                self._note(query_id, run, failure)
        finally:
            with self._lock:
                query = self._queries.setdefault(query_id, Query(query_id, query_id))
                query.terminated(run, failure is not None)
                self._standings.forget()
                self._handles.pop(run, None)
        more = {} if failure is None else {"error": failure.error, "message": failure.message[:2000]}
        self._tell(log_lines.event_line(_now(), "terminated", query.name, query_id, run, **more))
        self._expose()

    # -- what comes of it ----------------------------------------------------------------------------------------------

    def _note(self, query_id: str, run: str, failure: Failure) -> None:
        """For the dead letter of the entry that did it, if it was one: a note for each rstream source of the query."""
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
            offsets[offset["group"], offset["consumer"]] = offset  # those behind are the later ones
        for told in offsets.values():
            try:
                offset_of = Offset.from_json(told)
            except OffsetError:
                continue  # a later version's
            self._standings.tell(lambda server, at=offset_of: note_failure(server, at, failure))  # type: ignore[misc]

    def _tell(self, line: dict[str, object]) -> None:
        if self._write is not None:
            self._write(log_lines.text(line))

    def _expose(self) -> None:
        if self._metrics is not None:
            try:
                self._metrics.write()
            except OSError as error:
                _log.warning("metrics cannot be written: %s", error)

    def _known(self) -> list[Query]:
        with self._lock:
            return list(self._queries.values())

    def _runs(self) -> list[StreamingQuery]:
        with self._lock:
            return list(self._handles.values())


def _now() -> str:
    """As Spark writes moments."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def attach(
    spark: SparkSession,
    access: Mapping[str, str],
    log: str | Path | logging.Logger | None,
    metrics_port: int | None,
    metrics_host: str,
    metrics_file: str | Path | None,
) -> Watch:
    """See spark_streams.watch."""
    watch = Watch(
        spark, server_of(access, "watch"), _writer(log), metrics_host, metrics_port,
        None if metrics_file is None else Path(metrics_file),
    )  # fmt: skip
    _add(spark, watch)
    # A program that ends right after its query has died has not been told of that yet.
    _at_exit(spark, watch)
    return watch


def _add(spark: SparkSession, watch: Watch) -> None:
    """Raises UnsupportedError where Spark Connect's server takes no listener."""
    if not is_of_connect(spark):
        spark.streams.addListener(watch)
        return
    # A pending message to the session's Python functions would end the listeners' thread; any command takes it
    # (docs/internals/facts.md, S62). This process waits for that thread at its end, before anything could detach the
    # listener; not if it is a daemon, as threads are that a daemon starts.
    spark.sql("SELECT 1").collect()
    adding = threading.Thread(target=spark.streams.addListener, args=(watch,), daemon=True)
    with warnings.catch_warnings(record=True) as said:  # it raises nothing
        adding.start()
        adding.join()
    if said:
        raise UnsupportedError(
            f"the queries cannot be watched, for Spark Connect's server takes no listener: {said[0].message}"
        )


def _at_exit(spark: SparkSession, watch: Watch) -> None:
    """Close it at the process' end; over Spark Connect before its client's threads are told of that, so that it can
    still ask for what is missing."""
    threads_end = getattr(threading, "_register_atexit", None)  # what concurrent.futures has; last in, first out
    if not is_of_connect(spark) or threads_end is None:
        atexit.register(watch.close)
        return

    def leave() -> None:
        watch.close()
        removing = threading.Thread(target=spark.streams.removeListener, args=(watch,), daemon=True)
        with warnings.catch_warnings(action="ignore"):  # of a session that was stopped before
            removing.start()
            removing.join(_AT_LAST)

    threads_end(leave)


def _writer(log: str | Path | logging.Logger | None) -> Callable[[str], None] | None:
    if log is None:
        return None
    if isinstance(log, logging.Logger):
        return log.info
    try:
        return log_lines.File(None if log == "-" else Path(log))
    except OSError as error:
        raise InvalidOptionError(f"log lines cannot be written to {log}: {error}") from error
