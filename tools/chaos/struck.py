"""format("rstream-chaos"): the unchanged source and sink, in which the fault of the query happens.

The planner's methods run in a separate Python process on the driver, `read` in the tasks' processes (FACTS S1, S7).
Both receive the query through the option `chaos`. Every row that a task attempt passes to the sink is recorded as a
line [producer, number, stream, ID] of a file of its own:

    rows/<batch>-<partition>-<attempt>-<run>-<uuid>.jsonl       `.part` until the attempt has succeeded

run: one execution of the batch by one driver; later runs sort higher.
"""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_streams.connector.datasource import RStreamDataSource
from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.sink.writers import StreamWriter, WrittenRows
from spark_streams.connector.source.limits import LIMITS
from spark_streams.connector.source.stream_reader import EntriesPartition, StreamReader
from spark_streams.connector.source.trigger.bookmark import Bookmarked
from spark_streams.connector.spark.data_source import ReadLimit, for_this_spark
from spark_streams.connector.wire.address import Patience
from spark_streams.connector.wire.connection import Connection
from tools.chaos.query import Fault, Query
from tools.patience import with_patience
from tools.sending import acknowledged_in

Batches = Iterator[pa.RecordBatch]
_ZOMBIE_SECONDS = 90.0  # after which a zombie without `wake` ends


class FaultRaised(Exception):  # noqa: N818 - not an error of the program
    """A task fails because the scene requires it."""


# -- a fault -----------------------------------------------------------------------------------------------------------


def stand_still(query: Query, stage: str, batch: int) -> None:
    """Hold or pause if the fault is at this stage of this batch."""
    fault = query.fault
    if fault is not None and fault.kind in ("hold", "pause") and (fault.stage, fault.batch) == (stage, batch):
        _happen(query, fault)


def _fault_of_task(query: Query, stage: str) -> Fault | None:
    """Return what happens to the current task: to the first one of the fault's batch and stage, in its first attempt.

    A `crash`, and the rest of an `orphan`, happens to every task and attempt.
    """
    fault, context = query.fault, TaskContext.get()
    if fault is None or context is None or fault.stage != stage:
        return None
    if context.getLocalProperty("streaming.sql.batchId") != str(fault.batch):
        return None
    if fault.kind == "orphan":
        return replace(fault, kind="zombie" if _is_first(query) else "crash")
    is_struck = fault.kind == "crash" or (context.attemptNumber() == 0 and _is_first(query))
    return fault if is_struck else None


def _is_first(query: Query) -> bool:
    """Whether this is the first task that reaches the fault. True once."""
    try:
        query.sign("struck").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _happen(query: Query, fault: Fault) -> None:
    if fault.kind in ("raise", "crash"):
        raise FaultRaised(f"a task of batch {fault.batch} fails in attempt {_context().attemptNumber()}")
    if fault.kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.kind == "hold":
        _note(query, "held", str(os.getpid()))
        while True:
            signal.pause()
    if fault.kind == "pause" and not query.has("held"):
        _note(query, "held", str(os.getpid()))
        _wait_for_file(query.sign("go"))
    if fault.kind == "wait":
        twin = f"{fault.batch}-{_context().partitionId()}-1-*.jsonl"
        _wait_for_file(query.path / "rows", twin)
        query.sign("twin").touch()
    if fault.kind == "sleep":
        query.sign("asleep").touch()
        _wait_for_file(query.sign("wake"), seconds=_ZOMBIE_SECONDS)


def struck(batches: Batches, query: Query, stage: str) -> Batches:
    """Yield the rows of the current task, with the fault at this stage between them."""
    fault = _fault_of_task(query, stage)
    return batches if fault is None else _struck(batches, query, fault)


def _struck(batches: Batches, query: Query, fault: Fault) -> Batches:
    """Yield the rows up to the fault. Rows follow only if the task survives it."""
    left = fault.rows  # -1: it has happened
    for batch in batches:
        if left == -1 or left > batch.num_rows:
            left -= batch.num_rows if left >= 0 else 0
            yield batch
            continue
        if left:
            yield batch.slice(0, left)
        _happen(query, fault)
        yield batch.slice(left)
        left = -1
    if left >= 0:  # the task has fewer rows
        _happen(query, fault)


def _wait_for_file(folder: Path, pattern: str = "", seconds: float = 60.0) -> None:
    """Wait until such a file exists. Raises FaultRaised after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (list(folder.glob(pattern)) if pattern else folder.exists()):
        if time.monotonic() > deadline:
            raise FaultRaised(f"no file {folder / pattern} within {seconds:g} s")
        time.sleep(0.02)


def _note(query: Query, name: str, text: str) -> None:
    """Write a signal file atomically."""
    unfinished = query.path / f"{query.driver}{name}.{os.getpid()}"
    unfinished.write_text(text)
    os.replace(unfinished, query.sign(name))


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context


# -- what a task writes ------------------------------------------------------------------------------------------------


class Attempt:
    """The file of the current task attempt while it is written."""

    def __init__(self, query: Query, batch: int, run: int) -> None:
        context = _context()
        (query.path / "rows").mkdir(exist_ok=True)
        self.name = f"{batch}-{context.partitionId()}-{context.attemptNumber()}-{run}-{uuid.uuid4().hex}"
        self._unfinished = query.path / "rows" / f"{self.name}.part"

    def recorded(self, batches: Batches) -> Batches:
        """Yield the rows of the attempt. Each is recorded before."""
        with self._unfinished.open("w", buffering=1) as file:  # one write per row: a kill cuts off at most one
            for batch in batches:
                for values in zip(*(column.to_pylist() for column in batch.columns[:4]), strict=True):
                    file.write(json.dumps(values) + "\n")
                yield batch

    def succeeded(self) -> None:
        """Give the file its final name."""
        os.replace(self._unfinished, self._unfinished.with_suffix(".jsonl"))


class StruckWriter(StreamWriter):
    """The sink. On the driver, and in tasks."""

    query: Query
    run: int

    def write(self, iterator: Batches) -> WrittenRows:
        fault = _fault_of_task(self.query, "writing")
        if fault is not None and fault.kind == "zombie":
            self._leave_a_zombie(_struck(iter(list(iterator)), self.query, replace(fault, kind="sleep")))
        return self._write(iterator if fault is None else _struck(iterator, self.query, fault))

    def _write(self, rows: Batches) -> WrittenRows:
        attempt = Attempt(self.query, int(_context().getLocalProperty("streaming.sql.batchId") or -1), self.run)
        message = super().write(attempt.recorded(rows))
        attempt.succeeded()
        return message

    def _leave_a_zombie(self, rows: Batches) -> NoReturn:
        """Fail this task, and leave a copy of its process that does the task's work when `wake` exists.

        The copy knows nothing of what happened between. The file `zombie` holds its result or error.
        """
        if os.fork() == 0:
            outcome = "the zombie has written its rows, if it had any"
            try:
                self._write(rows)
            except BaseException as error:  # noqa: BLE001 - the copy must end here after any error
                outcome = f"{type(error).__name__}: {error}"
            finally:
                _note(self.query, "zombie", outcome)
                os._exit(0)
        _wait_for_file(self.query.sign("asleep"))
        raise FaultRaised("the attempt is given up; its process lives on")

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        stand_still(self.query, "closing", batchId)
        super().commit(messages, batchId)
        stand_still(self.query, "written", batchId)


# -- the source --------------------------------------------------------------------------------------------------------


class ChaosDataSource(RStreamDataSource):
    """The data source under test; its option `chaos` holds the Query."""

    def __init__(self, options: Mapping[str, str]) -> None:
        settings = dict(options)
        self._query = Query.from_json(settings.pop("chaos"))
        super().__init__(settings)

    @classmethod
    def name(cls) -> str:
        return "rstream-chaos"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = SourceOptions.parse(self.options)
        limits = replace(LIMITS, prefetch_entries=self._query.ahead)
        reader = StruckReader(options, self._columns(schema, options), limits=limits)
        reader.query = self._query
        return for_this_spark(reader)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StruckWriter:
        writer = StruckWriter(self._sink(), schema, overwrite)
        writer.query, writer.run = self._query, time.time_ns()
        return writer

    def _sink(self) -> SinkOptions:
        seconds = self._query.patience
        options = super()._sink()
        return options if seconds is None else with_patience(options, Patience(limit=seconds, first_connection=seconds))


class StruckReader(StreamReader):
    """The source. On the driver, and in tasks."""

    query: Query
    is_up = False

    def initialOffset(self) -> dict[str, object]:
        self._begin()
        return super().initialOffset()

    def prepareForTriggerAvailableNow(self) -> None:
        self._begin()
        super().prepareForTriggerAvailableNow()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        self._begin()
        query, fault = self.query, self.query.fault
        if query.logged() == -1:
            stand_still(query, "started", 0)
            if fault and (fault.kind, fault.batch) == ("hold", 0) and query.options.get("startingOffsets") == "latest":
                _wait_for_file(query.sign("go"))
        stand_still(query, "committed", query.committed())
        end = super().latestOffset(start, limit)
        if end != start:
            stand_still(query, "reserved", query.logged() + 1)
        return end

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[EntriesPartition]:
        self._begin()
        stand_still(self.query, "logged", self.query.logged())
        return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        fault = _fault_of_task(self.query, "reading")
        if fault is not None and fault.rows == 0:  # before the task's first command
            _happen(self.query, fault)
            fault = None
        rows = super().read(partition)
        yield from rows if fault is None else _struck(rows, self.query, fault)

    def _begin(self) -> None:
        """Say that this process runs, and record every XACK of it from now on."""
        if not self.is_up:
            self.is_up = True
            self.query.sign("up").touch()
            _record_acknowledgements(self.query)


def _record_acknowledgements(query: Query) -> None:
    """Record every XACK that this process sends from now on, with the last batch that is committed before it.

    The query stands still at stage `looked` before the first XREADGROUP (noAck: before it selects new entries) when the
    batch before the fault's is logged, and at stage `acknowledging` after the first XACK.
    """
    send, choose = Connection.send, Bookmarked.take

    def look() -> None:
        if query.fault is not None and query.logged() + 1 >= query.fault.batch:
            # Entries reserved ahead may belong to the first or second batch after the last logged one.
            stand_still(query, "looked", query.fault.batch)

    def choosing(self: Bookmarked, *arguments: Any) -> Any:
        look()
        return choose(self, *arguments)

    def recording(self: Connection, data: bytes | memoryview) -> None:
        sent = bytes(data)
        if b"XREADGROUP" in sent:
            look()
        if b"XACK" not in sent:
            send(self, data)
            return
        committed = query.committed()
        with (query.path / "acks.jsonl").open("a") as lines:
            for stream, group, ids in acknowledged_in(sent):
                if group == query.group:
                    lines.write(json.dumps({"stream": stream, "ids": ids, "committed": committed}) + "\n")
        send(self, data)
        stand_still(query, "acknowledging", query.committed())

    Connection.send = recording  # type: ignore[method-assign]
    Bookmarked.take = choosing  # type: ignore[method-assign, assignment]
