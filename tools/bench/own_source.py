"""A Python source that makes its rows: what a Python source costs in Spark. It is the peer of P5, and the floor of P22.

format("own") has the same hundred rows in each trigger. With option("rate", N) it has N rows a second, each with the
microsecond at which it is due. With option("file", F) it has the rows of an Arrow file, once, in two partitions.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType


class OwnSource(DataSource):
    """format("own")."""

    @classmethod
    def name(cls) -> str:
        return "own"

    def schema(self) -> str:
        return "t STRING" if "rate" in self.options else "n BIGINT"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if "file" in self.options:
            return _FileReader(self.options["file"], schema.names)
        return _Reader(int(self.options.get("rate", 0)))


class _Reader(DataSourceStreamReader):
    def __init__(self, rate: int) -> None:
        self._rate, self._triggers = rate, -1

    def initialOffset(self) -> dict[str, Any]:
        return self.latestOffset()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # Spark calls it without arguments
        self._triggers += 1
        return {"row": int(time.time() * self._rate) if self._rate else self._triggers}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition((start["row"], end["row"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not self._rate:
            yield pa.RecordBatch.from_pydict({"n": list(range(100))})
            return
        start, end = partition.value
        stamps = [f"{row * 1_000_000 // self._rate:016d}" for row in range(start + 1, end + 1)]
        yield pa.RecordBatch.from_arrays([pa.array(stamps, pa.string())], names=["t"])

    def commit(self, end: dict[str, Any]) -> None:
        pass


class _FileReader(DataSourceStreamReader):
    def __init__(self, file: str, names: list[str]) -> None:
        self._file, self._names = file, names

    def initialOffset(self) -> dict[str, Any]:
        return {"is_read": False}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # Spark calls it without arguments
        return {"is_read": True}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(part) for part in range(2) if start != end]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batches = pa.ipc.open_file(pa.memory_map(self._file))
        half = batches.num_record_batches // 2
        first, last = (half, batches.num_record_batches) if partition.value else (0, half)
        for number in range(first, last):
            yield batches.get_batch(number).select(self._names)
