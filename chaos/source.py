"""format("rstream-chaos"): the source as it is, with kill points around its methods and a record of its XACKs.

The planner's methods run in a Python process of their own on the driver, `read` in the tasks' (FACTS S1, S7); both get
the fault with the reader, through the option `chaos`.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hiredis
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from chaos.query import Fault, Query
from spark_streams.datasource import RStreamDataSource
from spark_streams.source import ahead
from spark_streams.source.stream_reader import StreamReader
from spark_streams.wire.connection import Connection


class FaultRaised(Exception):  # noqa: N818 - it is no error of anybody
    """A task fails because the test wants it to."""


class ChaosDataSource(RStreamDataSource):
    """The data source under test; its option `chaos` holds the Query."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = dict(options)
        self._query = given.pop("chaos")
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return "rstream-chaos"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        inner = super().streamReader(schema)
        assert isinstance(inner, StreamReader)
        query = Query.from_json(json.loads(self._query))
        ahead.LEAST = query.ahead
        return ChaosReader(inner, query)


class ChaosReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Hands every call on to the real reader, and stops at the query's kill point."""

    def __init__(self, inner: StreamReader, query: Query) -> None:
        self._inner, self._query = inner, query
        self._fault = query.fault or Fault("", batch=-2)
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
        if self._query.logged() == -1:
            self._hold_at("started", 0)
            if self._fault.batch == 0 and self._query.options.get("startingOffsets") == "latest":
                wait_for_file(self._query.path / "go")
        self._hold_at("committed", self._query.committed())
        end = self._inner.latestOffset(start, limit)
        if end != start:
            self._hold_at("reserved", self._query.logged() + 1)
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._inner.reportLatestOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._record()
        self._hold_at("logged", self._query.logged())
        return self._inner.partitions(start, end)

    def commit(self, end: dict[str, Any]) -> None:
        self._inner.commit(end)

    def stop(self) -> None:
        self._inner.stop()

    def _hold_at(self, point: str, batch: int) -> None:
        if (self._fault.stage, self._fault.batch) != (point, batch):
            return
        if self._fault.kind == "hold":
            hold(self._query)
        if self._fault.kind == "pause" and not self._query.held():
            say_held(self._query)
            wait_for_file(self._query.path / "go")

    def _record(self) -> None:
        """From now on note down every XACK that leaves this process."""
        if not self._recording:
            self._recording = True
            (self._query.path / "up").touch()
            record_acknowledgements(self._query, lambda: self._hold_at("acknowledging", self._query.committed()))

    # -- in a task --------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from faulty(self._inner.read(partition), self._query)


class Strike:
    """The fault as one task meets it."""

    def __init__(self, fault: Fault, query: Query, context: TaskContext) -> None:
        self.rows, self._fault, self._query, self._context = fault.rows, fault, query, context

    @classmethod
    def of(cls, query: Query, stage: str) -> Strike | None:
        """Only in the first attempt, in the fault's batch and stage, at the task that comes first."""
        fault, context = query.fault, TaskContext.get()
        if fault is None or context is None or context.attemptNumber() > 0:
            return None
        stages = {"read", "reading"} if stage == "read" else {stage}
        if fault.stage not in stages or context.getLocalProperty("streaming.sql.batchId") != str(fault.batch):
            return None
        return cls(fault, query, context) if _is_first(query) else None

    def now(self) -> None:
        """It happens."""
        where = f"partition {self._context.partitionId()} of batch {self._fault.batch}"
        if self._fault.kind == "raise":
            raise FaultRaised(f"{where} fails in its first attempt")
        if self._fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fault.kind == "hold":
            hold(self._query)
        if self._fault.kind == "wait":
            twin = f"{self._fault.batch}-{self._context.partitionId()}-1-*.jsonl"
            wait_for_file(self._query.path / "rows", twin)
            (self._query.path / "twin").touch()


def faulty(batches: Iterator[pa.RecordBatch], query: Query) -> Iterator[pa.RecordBatch]:
    """The rows that a task reads, until the fault strikes."""
    strike = Strike.of(query, "read")
    left = strike.rows if strike else 0
    for batch in batches:
        if strike is None or batch.num_rows < left:
            left -= batch.num_rows
            yield batch
            continue
        if left:
            yield batch.slice(0, left)
        strike.now()
        yield batch.slice(left)
        strike = None
    if strike is not None:  # fewer rows than the fault wanted to wait for
        strike.now()


def _is_first(query: Query) -> bool:
    """The first task that comes is the one that is struck, and it is struck once."""
    try:
        (query.path / "struck").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def wait_for_file(folder: Path, pattern: str = "") -> None:
    """Wait until such a file is there; the query fails where that takes too long."""
    deadline = time.monotonic() + 60
    while not (list(folder.glob(pattern)) if pattern else folder.exists()):
        if time.monotonic() > deadline:
            raise FaultRaised(f"{folder / pattern} has not come")
        time.sleep(0.02)


def say_held(query: Query) -> None:
    """The kill point is reached."""
    note = query.path / f"held.{os.getpid()}"
    note.write_text(str(os.getpid()))
    os.replace(note, query.path / "held")


def hold(query: Query) -> None:
    """Say that the kill point is reached, and stand still until killed."""
    say_held(query)
    while True:
        signal.pause()


def record_acknowledgements(query: Query, then: Any) -> None:
    """Note every XACK that this process sends, with the last batch that is committed before it; then call `then`."""
    send = Connection.send
    file = query.path / "acks.jsonl"

    def recording(self: Connection, data: bytes | memoryview) -> None:
        found = acknowledged_in(bytes(data)) if b"XACK" in bytes(data) else []
        if found:
            committed = query.committed()
            with file.open("a") as lines:
                for stream, group, ids in found:
                    if group == query.group:
                        lines.write(json.dumps({"stream": stream, "ids": ids, "committed": committed}) + "\n")
        send(self, data)
        if found:
            then()

    Connection.send = recording  # type: ignore[method-assign]


def acknowledged_in(requests: bytes) -> list[tuple[str, str, list[str]]]:
    """(stream, group, ids) of every XACK in a run of whole requests."""
    reader = hiredis.Reader()
    reader.feed(requests)
    found = []
    while (words := reader.gets()) is not False:
        if isinstance(words, list) and words and words[0] in (b"XACK", b"XACKDEL"):
            ids = words[3:] if words[0] == b"XACK" else words[words.index(b"IDS") + 2 :]
            found.append((words[1].decode(), words[2].decode(), [one.decode() for one in ids]))
    return found
