"""Lineage of the watched queries: START, RUNNING, COMPLETE and FAIL of each run, with what it reads and writes.

Spark's listeners call these methods. Tasks of the outbox then read Spark's plans and build the events, so that no
listener waits. Over Spark Connect there are no plans: events have the streams of the progress only.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_streams.base.extras import lacks
from spark_streams.base.printable import printable
from spark_streams.base.untyped import JavaObject
from spark_streams.connector.errors import InvalidOptionError, RStreamError, UnsupportedError
from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.pending.poison_record import QueryFailure
from spark_streams.connector.spark.running_pyspark import is_of_connect
from spark_streams.connector.watch.lineage.datasets import Columns, Dataset, path_dataset, sink_dataset, stream_dataset
from spark_streams.connector.watch.progress import Progress
from spark_streams.connector.wire import server_url as http_url
from spark_streams.connector.wire.address import Address, password_in

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent
    from pyspark.sql.streaming.query import StreamingQuery

# -- streams that a query reads, and places that it or its foreachBatch writes to, from Spark's plans in the JVM -------

# Options of a plan can hold a password: only the server, the streams and the group are kept.

UNREADABLE = (Py4JError, PySparkException, RStreamError)  # raised for a plan, or by a session that has ended
_log = logging.getLogger("spark_streams.monitor")


@dataclass(frozen=True)
class QuerySource:
    address: Address
    group: str
    consumer: str
    streams: tuple[str, ...] = ()  # empty for a pattern
    columns: Columns = field(default=(), repr=False)

    def dataset(self, stream: str) -> Dataset:
        return stream_dataset(self.address, stream, self.columns, self.group, self.consumer)


def sources_of(jvm: JavaObject, execution: JavaObject) -> Iterator[QuerySource]:
    """Yield the rstream sources of a query. Raises UNREADABLE."""
    for leaf in _as_java(jvm, execution.analyzedPlan().collectLeaves()):
        if _kind(leaf) == "StreamingRelationV2" and leaf.sourceName() == "rstream":
            options = SourceOptions.parse(dict(leaf.extraOptions().asCaseSensitiveMap()))
            yield QuerySource(options.address, options.group, options.consumer, options.streams or (), _columns(leaf))


def output_of_query(jvm: JavaObject, execution: JavaObject) -> Dataset | None:
    """Return where a query writes; None for foreachBatch and sinks of other formats. Raises UNREADABLE."""
    sink = execution.sink().toString()
    if sink.startswith("FileSink["):
        return path_dataset(sink[len("FileSink[") : -1], _columns(execution.analyzedPlan()))
    return output_of_write(jvm, execution.logicalPlan())


def output_of_write(jvm: JavaObject, plan: JavaObject) -> Dataset | None:
    """Return the stream or the folder of a write, None for any other plan. Raises UNREADABLE."""
    kind = _kind(plan)
    if kind == "InsertIntoHadoopFsRelationCommand":
        return path_dataset(plan.outputPath().toString(), _columns(plan.query()))
    if kind not in ("AppendData", "WriteToMicroBatchDataSource") or plan.table().name() != "rstream":
        return None
    return sink_dataset(SinkOptions.parse(dict(_as_java(jvm, plan.writeOptions()))), _columns(plan.query()))


def _kind(plan: JavaObject) -> str:
    return str(plan.getClass().getSimpleName())


def _columns(plan: JavaObject) -> Columns:
    schema = StructType.fromJson(json.loads(plan.schema().json()))
    return tuple((field.name, field.dataType.simpleString()) for field in schema.fields)


def _as_java(jvm: JavaObject, collection: JavaObject) -> JavaObject:
    return jvm.scala.jdk.javaapi.CollectionConverters.asJava(collection)


class WriteListener:
    """Spark's QueryExecutionListener: calls `wrote` after each action of the session, and of its queries' sessions."""

    class Java:
        implements = ("org.apache.spark.sql.util.QueryExecutionListener",)

    def __init__(self, spark: SparkSession, wrote: Callable[[JavaObject], None]) -> None:
        self._wrote, self._manager = wrote, spark._jsparkSession.listenerManager()
        jvm: JavaObject = spark.sparkContext._jvm
        # Each call from Python gives Java another proxy, and only the one that was registered can be removed.
        self._proxy = jvm.java.util.concurrent.atomic.AtomicReference(self).get()
        self._hash = jvm.System.identityHashCode
        self._manager.register(self._proxy)

    def close(self) -> None:
        self._manager.unregister(self._proxy)

    def onSuccess(self, _name: str, execution: JavaObject, _nanoseconds: int) -> None:
        try:
            self._wrote(execution)
        except UNREADABLE as error:
            _log.debug("lineage: a plan cannot be read: %s", error)

    def onFailure(self, _name: str, _execution: JavaObject, _error: JavaObject) -> None:
        """Do nothing: a write that failed has no output."""

    def equals(self, other: JavaObject) -> bool:
        return bool(self._hash(other) == self.hashCode())

    def hashCode(self) -> int:
        return int(self._hash(self._proxy))


# -- the events of queries ---------------------------------------------------------------------------------------------

_INTERVAL = 60.0  # seconds between two RUNNING events of a run
_REPORT = 2000  # milliseconds for Spark to report the writes of the last micro-batch


_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]{2,99})\]")


def without_values(failure: QueryFailure) -> str:
    """Return the class and the error condition of a failure. Its message may quote values of rows, which do not leave
    for a catalog that more people read than the query's log."""
    condition = _CONDITION.match(failure.message)
    named = f"{failure.error[:200]} [{condition[1]}]" if condition else failure.error[:200]
    return f"{named}. The message is in the log of the query: it may quote values of rows"


@dataclass
class _LineageRun:
    """A run of a query. Datasets are keys of a dict, in their order."""

    id: str
    name: str
    began: str
    execution: JavaObject = None  # in the JVM; None over Spark Connect
    sources: list[QuerySource] = field(default_factory=list)
    inputs: dict[Dataset, None] = field(default_factory=dict)
    outputs: dict[Dataset, None] = field(default_factory=dict)
    told: bool = False  # START was sent
    due: float = 0.0  # when the next RUNNING may be sent


class Lineage:
    """Sends the lineage of a session's queries. to: a collector's URL, or a file; address: the server of a query whose
    plan cannot be read. Raises UnsupportedError, InvalidOptionError."""

    def __init__(self, spark: SparkSession, address: Address, to: str) -> None:
        self._spark, self._address = spark, address
        self._outbox = Outbox(to, sender(to))
        self._runs: dict[str, _LineageRun] = {}
        self._declared: dict[Dataset, None] | None = None
        self._version = spark.version
        self._jvm: JavaObject = None if is_of_connect(spark) else spark.sparkContext._jvm
        self._bus: JavaObject = None if self._jvm is None else spark.sparkContext._jsc.sc().listenerBus()
        self._writes: WriteListener | None = None

    def listen(self) -> None:
        """Note what foreachBatch writes. Spark's calls must be possible, as they are with another listener."""
        self._writes = None if self._jvm is None else WriteListener(self._spark, self._wrote)

    def declare_outputs(self, outputs: Iterable[Dataset]) -> None:
        """Set the outputs of all queries, in place of those of their plans."""
        self._declared = dict.fromkeys(outputs)

    def close(self) -> None:
        """Send the events that wait."""
        self._outbox.close()
        if self._writes is not None:
            self._writes.close()

    # -- called by Spark's listeners -----------------------------------------------------------------------------------

    def started(self, run_id: str, name: str, began: str, handle: StreamingQuery | None) -> None:
        run = self._runs[run_id] = _LineageRun(run_id, name, began)
        if self._jvm is not None and handle is not None:
            run.execution = handle._jsq.streamingQuery()
        self._outbox.put(partial(self._start, run))

    def progressed(self, progress: Progress) -> None:
        run = self._runs.get(progress.run)
        if run is not None and time.monotonic() >= run.due:
            run.due = time.monotonic() + _INTERVAL
            self._outbox.put(partial(self._go_on, run, "RUNNING", progress.began, progress))

    def terminated(self, run_id: str, at: str, last: Progress | None, failure: QueryFailure | None) -> None:
        if (run := self._runs.get(run_id)) is not None:
            kind = "COMPLETE" if failure is None else "FAIL"
            error = None if failure is None else without_values(failure)
            self._outbox.put(partial(self._go_on, run, kind, at, last, error))

    def _wrote(self, execution: JavaObject) -> None:
        """Note the output of a write that is one of a running foreachBatch."""
        output = None if self._declared is not None else output_of_write(self._jvm, execution.analyzed())
        if output is None:
            return
        for run in [*self._runs.values()]:
            batch = None if run.execution is None else run.execution.lastExecution()
            if batch is not None and batch.sparkSession() == execution.sparkSession():
                run.outputs[output] = None

    # -- tasks of the outbox -------------------------------------------------------------------------------------------

    def _start(self, run: _LineageRun) -> list[RunEvent]:
        try:
            run.sources = [] if run.execution is None else list(sources_of(self._jvm, run.execution))
        except UNREADABLE as error:
            _log.warning("lineage of query %s has no columns: %s", run.name, error)
        run.inputs |= dict.fromkeys(source.dataset(stream) for source in run.sources for stream in source.streams)
        return self._events(run)

    def _go_on(
        self, run: _LineageRun, kind: str, at: str, progress: Progress | None, error: str | None = None
    ) -> list[RunEvent]:
        """Return an event after START. progress: of the last micro-batch."""
        for read in () if progress is None else progress.sources:
            known = [one for one in run.sources if (one.group, one.consumer) == (read.group, read.consumer)]
            source = known[0] if known else QuerySource(self._address, read.group, read.consumer)
            run.inputs |= dict.fromkeys(source.dataset(stream.stream) for stream in read.streams)
        if self._declared is None and run.execution is not None:
            try:
                output = output_of_query(self._jvm, run.execution)
                run.outputs |= {} if output is None else {output: None}
                if kind != "RUNNING":
                    self._bus.waitUntilEmpty(_REPORT)
            except UNREADABLE as problem:  # the query failed before it had a plan, or Spark reports too late
                _log.debug("lineage: outputs of query %s may be missing: %s", run.name, problem)
        if kind != "RUNNING":
            del self._runs[run.id]
        return self._events(run, kind, at, error)

    def _events(self, run: _LineageRun, kind: str = "", at: str = "", error: str | None = None) -> list[RunEvent]:
        """Return START if it was not sent yet, then this event. A query that reads no stream has no events."""
        from spark_streams.connector.watch.lineage.openlineage_events import run_event

        if not (run.told or run.sources or run.inputs):
            return []
        wanted = [*([] if run.told else [("START", run.began, None)]), *([(kind, at, error)] if kind else [])]
        run.told = True
        job = (os.environ.get("OPENLINEAGE_NAMESPACE", "default"), run.name)
        outputs = [*(run.outputs if self._declared is None else self._declared)]
        return [
            run_event(kind, at, run.id, job, [*run.inputs], outputs, self._version, error) for kind, at, error in wanted
        ]


# -- sending: in their order, on a thread of its own, so that a query never waits --------------------------------------

# While the collector does not answer, events wait, and the thread tries again. If too many wait, new ones are dropped.

KEY_FILE = "RSTREAM_LINEAGE_KEY_FILE"
MOST = 1000  # tasks that wait
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0  # seconds between two attempts
_AT_LAST = 5.0  # seconds for what waits when the watch is closed
_REQUEST = 5.0  # seconds for a request


class Outbox:
    """Queue of tasks that return events. to: for messages; send: raises an error if an event cannot be sent; dropped:
    number of events that were not sent."""

    def __init__(self, to: str, send: Callable[[RunEvent], object]) -> None:
        self._to, self._send = printable(to), send
        self._tasks: queue.Queue[Callable[[], list[RunEvent]]] = queue.Queue(MOST)
        self._closing, self._closed = threading.Event(), threading.Event()
        self._fails = False
        self.dropped = 0
        self._thread = threading.Thread(target=self._work, name="rstream-lineage", daemon=True)
        self._thread.start()

    def put(self, task: Callable[[], list[RunEvent]]) -> None:
        """Add a task. It is dropped if too many wait."""
        try:
            self._tasks.put_nowait(task)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Send what waits, for a few seconds at most. An event that cannot be sent at once is dropped."""
        self._closing.set()
        if not self._tasks.full():
            self._tasks.put_nowait(list)  # no events: wakes the thread
        self._thread.join(_AT_LAST)
        self._closed.set()
        self.dropped += sum(task is not list for task in [*self._tasks.queue])
        if self.dropped:
            _log.warning("lineage: %d events for %s were dropped", self.dropped, self._to)

    def _work(self) -> None:
        while not (self._closing.is_set() and self._tasks.empty()):
            for event in self._tasks.get()():
                self._deliver(event)

    def _deliver(self, event: RunEvent) -> None:
        wait = _FIRST_WAIT
        while not self._closed.is_set():
            try:
                self._send(event)
            except Exception as error:  # noqa: BLE001 - of any library that a transport uses
                if not self._fails:
                    _log.warning("lineage: %s takes no events: %s", self._to, printable(str(error)))
                self._fails = True
                if _is_refused(error) or self._closing.wait(wait):
                    break
                wait = min(2 * wait, _LONGEST_WAIT)
            else:
                if self._fails:
                    _log.warning("lineage: %s takes events again; %d were dropped", self._to, self.dropped)
                self._fails = False
                return
        self.dropped += 1


def _is_refused(error: Exception) -> bool:
    """Whether the collector refuses this event, also if it is sent again. A login and a limit may change."""
    code = getattr(getattr(error, "response", None), "status_code", 0)
    return 400 <= code < 500 and code not in (401, 403, 408, 429)


def sender(to: str) -> Callable[[RunEvent], object]:
    """Return a function that sends an event to the URL of a collector, appends it to a file, or for `env` sends it as
    OpenLineage's own configuration says.

    Raises UnsupportedError without openlineage-python, InvalidOptionError if `to` cannot be used.
    """
    try:
        from openlineage.client import OpenLineageClient
        from openlineage.client.transport.file import FileConfig, FileTransport
        from openlineage.client.transport.http import HttpConfig, HttpTransport, TokenProvider
    except ModuleNotFoundError:
        raise UnsupportedError(lacks("lineage", "openlineage-python")) from None

    class KeyFile(TokenProvider):
        """Reads the key for each request: it may be replaced."""

        def get_bearer(self) -> str | None:
            file = os.environ.get(KEY_FILE)
            return f"Bearer {password_in(file)}" if file else None

    if to == "env":
        client = OpenLineageClient()
        if client.transport.kind == "console":  # it has found no configuration
            raise InvalidOptionError(
                "lineage=env needs OpenLineage's configuration: set OPENLINEAGE_CONFIG, OPENLINEAGE_URL or "
                "OPENLINEAGE__TRANSPORT__TYPE, or write openlineage.yml"
            )
        return client.emit
    if http_url.is_root(to):
        # The outbox tries again. The library would log each attempt.
        config = HttpConfig(f"{to.rstrip('/')}/", timeout=_REQUEST, auth=KeyFile({}), retry={"total": 0})
        return HttpTransport(config).emit
    if "://" in to and not to.startswith("file://"):
        raise InvalidOptionError(
            "lineage must be a file, or http://host:port or https://host:port of a collector, without a login and a "
            f"query: write the collector's key into a file, and set {KEY_FILE} to its path"
        )
    path = unquote(urlsplit(to).path) if to.startswith("file:") else to
    try:
        Path(path).open("a", encoding="utf-8").close()
    except OSError as error:
        raise InvalidOptionError(f"lineage cannot be written to {path}: {error.strerror}") from None
    return FileTransport(FileConfig(path, append=True)).emit
