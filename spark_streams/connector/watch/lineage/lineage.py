"""Lineage of the watched queries: START, RUNNING, COMPLETE and FAIL of each run, with what it reads and writes.

Spark's listeners call these methods. Tasks of the outbox then read Spark's plans and build the events, so that no
listener waits. Over Spark Connect there are no plans: events have the streams of the progress only.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from spark_streams.base.untyped import JavaObject
from spark_streams.connector.source.pending.poison_record import QueryFailure
from spark_streams.connector.spark.running_pyspark import is_of_connect
from spark_streams.connector.watch.lineage.datasets import Dataset
from spark_streams.connector.watch.lineage.outbox import Outbox, sender
from spark_streams.connector.watch.lineage.plans import (
    UNREADABLE,
    Source,
    WriteListener,
    output_of_query,
    output_of_write,
    sources_of,
)
from spark_streams.connector.watch.progress import Progress
from spark_streams.connector.wire.address.address import Address

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_INTERVAL = 60.0  # seconds between two RUNNING events of a run
_REPORT = 2000  # milliseconds for Spark to report the writes of the last micro-batch
_log = logging.getLogger("spark_streams.operations.monitor")


_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]{2,99})\]")


def without_values(failure: QueryFailure) -> str:
    """Return the class and the error condition of a failure. Its message may quote values of rows, which do not leave
    for a catalog that more people read than the query's log."""
    condition = _CONDITION.search(failure.message)
    named = f"{failure.error[:200]} [{condition[1]}]" if condition else failure.error[:200]
    return f"{named}. The message is in the log of the query: it may quote values of rows"


@dataclass
class _Run:
    """A run of a query. execution: in the JVM, None over Spark Connect; told: whether START was sent; due: when the
    next RUNNING may be sent. Datasets are keys of a dict, in their order."""

    id: str
    name: str
    began: str
    execution: JavaObject = None
    sources: list[Source] = field(default_factory=list)
    inputs: dict[Dataset, None] = field(default_factory=dict)
    outputs: dict[Dataset, None] = field(default_factory=dict)
    told: bool = False
    due: float = 0.0


class Lineage:
    """Sends the lineage of a session's queries. to: a collector's URL, or a file; address: the server of a query whose
    plan cannot be read. Raises UnsupportedError, InvalidOptionError."""

    def __init__(self, spark: SparkSession, address: Address, to: str) -> None:
        self._spark, self._address = spark, address
        self._outbox = Outbox(to, sender(to))
        self._runs: dict[str, _Run] = {}
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
        run = self._runs[run_id] = _Run(run_id, name, began)
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

    def _start(self, run: _Run) -> list[RunEvent]:
        try:
            run.sources = [] if run.execution is None else list(sources_of(self._jvm, run.execution))
        except UNREADABLE as error:
            _log.warning("lineage of query %s has no columns: %s", run.name, error)
        run.inputs |= dict.fromkeys(source.dataset(stream) for source in run.sources for stream in source.streams)
        return self._events(run)

    def _go_on(
        self, run: _Run, kind: str, at: str, progress: Progress | None, error: str | None = None
    ) -> list[RunEvent]:
        """Return an event after START. progress: of the last micro-batch."""
        for read in () if progress is None else progress.sources:
            known = [one for one in run.sources if (one.group, one.consumer) == (read.group, read.consumer)]
            source = known[0] if known else Source(self._address, read.group, read.consumer)
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

    def _events(self, run: _Run, kind: str = "", at: str = "", error: str | None = None) -> list[RunEvent]:
        """Return START if it was not sent yet, then this event. A query that reads no stream has no events."""
        from spark_streams.connector.watch.lineage.events import run_event

        if not (run.told or run.sources or run.inputs):
            return []
        wanted = [*([] if run.told else [("START", run.began, None)]), *([(kind, at, error)] if kind else [])]
        run.told = True
        job = (os.environ.get("OPENLINEAGE_NAMESPACE", "default"), run.name)
        outputs = [*(run.outputs if self._declared is None else self._declared)]
        return [
            run_event(kind, at, run.id, job, [*run.inputs], outputs, self._version, error) for kind, at, error in wanted
        ]
