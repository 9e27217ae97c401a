"""format("rstream-chaos"): the unchanged source and sink, with kill points around their methods.

The planner's methods run in a separate Python process on the driver, `read` in the tasks' processes (FACTS S1, S7).
Both receive the fault with the reader, through the option `chaos`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_streams.connector.datasource import RStreamDataSource
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.sink.writers import StreamWriter
from spark_streams.connector.source.limits import LIMITS
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.source.trigger.bookmark import Bookmarked
from spark_streams.connector.spark.data_source import (
    DataSourceStreamArrowWriter,
    ReadLimit,
    SupportsTriggerAvailableNow,
    for_this_spark,
)
from spark_streams.connector.wire.connection import Connection
from spark_streams.connector.wire.session import Backoff
from tools.chaos.query import Query
from tools.chaos.sink import Record, new_run, record_attempt
from tools.chaos.strike import Sleep, Strike, apply_strike, leave_a_zombie, stand_still, wait_for_file
from tools.sending import acknowledged_in

_wait = Backoff.wait
_limits: list[float] = []  # seconds; empty: the default. Spark uses a Python worker for several queries.


def limit_patience(seconds: float | None) -> None:
    """Set the seconds that this process waits for a server at most. None: the default."""
    _limits[:] = [] if seconds is None else [seconds]
    Backoff.wait = _wait_at_most  # type: ignore[method-assign]


def _wait_at_most(self: Backoff, action: str, where: str, reason: str, lost: bool) -> None:
    self.limit = min([self.limit, *_limits])
    _wait(self, action, where, reason, lost)


# -- what the planner's process sends ----------------------------------------------------------------------------------


def record_acknowledgements(query: Query) -> None:
    """Record every XACK that this process sends from now on, with the last batch that is committed before it.

    The query stands still at stage `looked` before the first XREADGROUP (noAck: before it selects new entries) when the
    batch before the fault's is logged, and at stage `acknowledging` after the first XACK.
    """
    send, choose = Connection.send, Bookmarked.take
    file = query.path / "acks.jsonl"

    def stand_still_before_it_reserves() -> None:
        if query.fault is not None and query.logged() + 1 >= query.fault.batch:
            # Entries reserved ahead may belong to the first or second batch after the last logged one.
            stand_still(query, "looked", query.fault.batch)

    def choosing(self: Bookmarked, *arguments: Any) -> Any:
        stand_still_before_it_reserves()
        return choose(self, *arguments)

    def recording(self: Connection, data: bytes | memoryview) -> None:
        sent = bytes(data)
        if b"XREADGROUP" in sent:
            stand_still_before_it_reserves()
        acknowledgements = acknowledged_in(sent) if b"XACK" in sent else []
        if acknowledgements:
            committed = query.committed()
            with file.open("a") as lines:
                for stream, group, ids in acknowledgements:
                    if group == query.group:
                        lines.write(json.dumps({"stream": stream, "ids": ids, "committed": committed}) + "\n")
        send(self, data)
        if acknowledgements:
            stand_still(query, "acknowledging", query.committed())

    Connection.send = recording  # type: ignore[method-assign]
    Bookmarked.take = choosing  # type: ignore[method-assign, assignment]


# -- the writer --------------------------------------------------------------------------------------------------------


# Columns of the sink: a row's value, and the stream and ID that it was read from.
COLUMNS = ("p", "n", "source", "entry")


class ChaosWriter(DataSourceStreamArrowWriter):
    """Passes every call to the real writer. Rows are recorded before the writer receives them."""

    def __init__(self, inner: StreamWriter, query: Query) -> None:
        self._inner, self._query = inner, query
        self._run = new_run()

    # -- in a task --------------------------------------------------------------------------------------------------

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        limit_patience(self._query.patience)
        strike = Strike.for_task(self._query, "writing")
        if strike is not None and strike.fault.kind == "zombie":
            self._leave_a_zombie(list(iterator), strike.rows)
        return self._write(apply_strike(iterator, strike))

    def _write(self, rows: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        with record_attempt(self._query, batch, self._run) as record:
            return self._inner.write(_noted(rows, record))

    def _leave_a_zombie(self, batches: Sequence[pa.RecordBatch], rows: int) -> None:
        def write(sleep: Sleep) -> str:
            self._write(apply_strike(iter(batches), sleep))
            return "the zombie has written its rows, if it had any"

        leave_a_zombie(self._query, rows, write)

    # -- on the driver ----------------------------------------------------------------------------------------------

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        limit_patience(self._query.patience)
        stand_still(self._query, "closing", batchId)
        self._inner.commit(messages, batchId)
        stand_still(self._query, "written", batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._inner.abort(messages, batchId)


def _noted(batches: Iterator[pa.RecordBatch], record: Record) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in COLUMNS]
        for value in zip(*columns, strict=True):
            record.add(value)
        yield batch


# -- the source --------------------------------------------------------------------------------------------------------


class ChaosDataSource(RStreamDataSource):
    """The data source under test; its option `chaos` holds the Query."""

    def __init__(self, options: Mapping[str, str]) -> None:
        settings = dict(options)
        self._query = settings.pop("chaos")
        super().__init__(settings)

    @classmethod
    def name(cls) -> str:
        return "rstream-chaos"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        query = Query.from_json(json.loads(self._query))
        options = SourceOptions.parse(self.options)
        limits = replace(LIMITS, prefetch_entries=query.ahead)
        return for_this_spark(ChaosReader(StreamReader(options, self._columns(schema, options), limits=limits), query))

    def streamWriter(self, schema: StructType, overwrite: bool) -> ChaosWriter:  # type: ignore[override]
        query = Query.from_json(json.loads(self._query))
        limit_patience(query.patience)  # the constructor of a writer already connects to the server
        return ChaosWriter(super().streamWriter(schema, overwrite), query)


class ChaosReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Passes every call to the real reader, and stops at the query's kill point."""

    def __init__(self, inner: StreamReader, query: Query) -> None:
        self._inner, self._query = inner, query
        self._recording = False

    # -- in the planner's process ---------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        self._record()
        return self._inner.initialOffset()

    def getDefaultReadLimit(self) -> ReadLimit:
        return self._inner.getDefaultReadLimit()

    def prepareForTriggerAvailableNow(self) -> None:
        self._record()
        self._inner.prepareForTriggerAvailableNow()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._record()
        query = self._query
        if query.logged() == -1:
            stand_still(query, "started", 0)
            fault = query.fault
            if fault and (fault.kind, fault.batch) == ("hold", 0) and query.options.get("startingOffsets") == "latest":
                wait_for_file(query.sign("go"))
        stand_still(query, "committed", query.committed())
        end = self._inner.latestOffset(start, limit)
        if end != start:
            stand_still(query, "reserved", query.logged() + 1)
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._inner.reportLatestOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._record()
        stand_still(self._query, "logged", self._query.logged())
        return self._inner.partitions(start, end)

    def commit(self, end: dict[str, Any]) -> None:
        self._inner.commit(end)

    def stop(self) -> None:
        self._inner.stop()

    def _record(self) -> None:
        """Record every XACK of this process from now on."""
        if not self._recording:
            self._recording = True
            self._query.sign("up").touch()
            record_acknowledgements(self._query)

    # -- in a task --------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        strike = Strike.for_task(self._query, "reading")
        if strike is not None and strike.rows == 0:  # before the task's first command
            strike.now()
            strike = None
        yield from apply_strike(self._inner.read(partition), strike)
