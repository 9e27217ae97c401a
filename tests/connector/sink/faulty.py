"""format("rstream-faulty"): the sink, in which something happens to an attempt of a task, or before the commit.

Options beside the sink's own: `fault` says what, `faultFolder` where a file is touched when it has happened (once).

    raise       the task fails after its first batches
    exit        the Python worker of the sink gets SIGKILL
    executor    the executor gets SIGKILL
    slow        the task stands still, until a twin has done its work (then the file `twin` is touched), and goes on
    hold-write  a file tells that some chunks are written, and the task stands still for ever
    hold-commit the same when all is written and Spark's commit log knows nothing of it
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from spark_streams.connector.datasource import RStreamDataSource
from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.sink.writers import BatchWriter, StreamWriter, WrittenRows

_BATCHES = 2  # that are handed on before it happens


class Fault:
    """Happens once."""

    def __init__(self, kind: str, folder: str) -> None:
        self.kind = kind
        self.file = Path(folder) / kind
        self.twin = Path(folder) / "twin"
        self.struck = False  # here

    def within(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, with the fault among them in partition 0."""
        context = TaskContext.get()
        assert context is not None
        for at, batch in enumerate(batches):
            yield from (batch.slice(start, 100) for start in range(0, len(batch), 100))
            if at == 0 and context.partitionId() == 0:
                self.strike()
        if context.partitionId() == 0 and self.kind == "slow" and not self.struck:
            self.twin.touch()

    def strike(self) -> None:
        """Now, unless it has happened before: to whichever attempt comes here first, be it a twin."""
        if self.kind == "hold-commit":
            return
        try:
            self.file.touch(exist_ok=False)
        except FileExistsError:
            return
        self.struck = True
        if self.kind == "raise":
            raise RuntimeError("a fault")
        if self.kind == "exit":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "executor":
            daemon = os.getppid()
            os.kill(int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
        if self.kind == "slow":
            while not self.twin.exists():
                time.sleep(0.02)
        if self.kind == "hold-write":
            time.sleep(600)


class FaultyBatchWriter(BatchWriter):
    def __init__(self, fault: Fault, *given: Any) -> None:
        super().__init__(*given)
        self._fault = fault

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        return super().write(self._fault.within(iterator))


class FaultyStreamWriter(StreamWriter):
    def __init__(self, fault: Fault, *given: Any) -> None:
        super().__init__(*given)
        self._fault = fault

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        return super().write(self._fault.within(iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        super().commit(messages, batchId)
        if self._fault.kind == "hold-commit" and not self._fault.file.exists():
            self._fault.file.touch()
            time.sleep(600)


class FaultySource(RStreamDataSource):
    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        self._fault = Fault(given.pop("fault", "none"), given.pop("faultfolder", "."))
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return "rstream-faulty"

    def writer(self, schema: StructType, overwrite: bool) -> FaultyBatchWriter:
        return FaultyBatchWriter(self._fault, SinkOptions.parse(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> FaultyStreamWriter:
        return FaultyStreamWriter(self._fault, SinkOptions.parse(self.options), schema, overwrite)
