"""The streaming reader that Spark drives: on the driver it hands out micro-batches, in a task it reads.

Spark's part only: offsets as JSON, read limits, partitions. What a batch is stands in source.micro_batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_streams.options import Options
from spark_streams.source.columns import Columns
from spark_streams.source.dead import Dead
from spark_streams.source.group import Membership
from spark_streams.source.micro_batches import MicroBatches
from spark_streams.source.narrow import tell_the_sink
from spark_streams.source.notes import Writer
from spark_streams.source.offsets import Offset
from spark_streams.source.plan import Run, Task
from spark_streams.source.read import read_task
from spark_streams.wire.connection import Connection
from spark_streams.wire.patient import PatientConnection
from spark_streams.worker import leave_interrupts_to_the_driver


class RunPartition(InputPartition):
    """One task's share of a micro-batch. token: the batch's own name; narrowed: the batch is a piece of one that
    failed."""

    def __init__(self, task: Task, token: str, narrowed: bool) -> None:
        super().__init__(task)
        self.task = task
        self.token = token
        self.narrowed = narrowed


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """format("rstream") for readStream. One object lives on the driver for the whole run of a query (FACTS S1)."""

    def __init__(self, options: Options, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._batches: MicroBatches | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Tasks get the options and the columns; connections and what is known of batches stay on the driver."""
        return {**self.__dict__, "_batches": None}

    # -- on the driver -----------------------------------------------------------------------------------------

    @property
    def batches(self) -> MicroBatches:
        """The query's batches, made on first use: only the driver's copy of the reader has them."""
        if self._batches is None:
            leave_interrupts_to_the_driver()
            self._batches = MicroBatches(self._options)
        return self._batches

    def initialOffset(self) -> dict[str, Any]:
        return self.batches.first().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options["maxEntriesPerTrigger"]
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self.batches.until_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` itself where there is nothing to read."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = self.batches.next(Offset.from_json(start), most)
        return start if end is None else end.to_json()

    def reportLatestOffset(self) -> dict[str, object]:
        return self.batches.reported()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, stop = Offset.from_json(start), Offset.from_json(end)
        plan = self.batches.plan(begin, stop)
        return [RunPartition(task, stop.token, plan.narrowed) for task in plan.tasks]

    def commit(self, end: dict[str, Any]) -> None:
        self.batches.commit(Offset.from_json(end))

    def stop(self) -> None:
        if self._batches is not None:
            self._batches.stop()
            self._batches = None

    # -- in a task ---------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RunPartition)
        member = Membership(self._options["streams"] or (), self._options["group"], self._options["consumer"])
        # Its own connection: the one that reads has replies on their way. Rarely needed. A note may be written twice.
        notes = PatientConnection(self._options.address, f"notes of group {member.group!r}", lambda: None)

        def lost(run: Run, count: int) -> None:
            notes.run(lambda server: Writer(server, member, partition.token, *_task_names()).lost(run, count))

        def unreadable(streams: str | pa.Array, dead: Dead) -> None:
            rows = dead.rows.tolist()
            of_rows = [streams] * len(rows) if isinstance(streams, str) else streams.take(pa.array(rows)).to_pylist()
            notes.run(lambda server: Writer(server, member, partition.token, *_task_names()).dead(of_rows, dead))

        try:
            with Connection(self._options.address) as server:
                if partition.narrowed:
                    tell_the_sink(server, *_task_names())
                fail = self._options["failOnDataLoss"]
                yield from read_task(server, member, partition.task, self._columns, fail, lost, unreadable)
        finally:
            notes.close()


def _task_names() -> tuple[str, str]:
    """Spark's query id and batch id, as tasks see them (FACTS S8); empty outside of a query."""
    context = TaskContext.get()
    if context is None:
        return "", ""
    names = [context.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId")]
    return names[0] or "", names[1] or ""
