"""A Python source that makes its rows: what any Python source costs in Spark, the peer of P5 and the floor of P22.

format("own"): the same hundred rows in each trigger. format("clock"): RATE rows a second, each with the microsecond at
which it is due.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

RATE = 1_000  # rows per second


class _Constant(DataSourceStreamReader):
    _triggers = -1

    def now(self) -> int:
        self._triggers += 1
        return self._triggers

    def rows(self, start: int, end: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"n": list(range(100))})

    def initialOffset(self) -> dict[str, Any]:
        return {"row": self.now()}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # Spark calls it without arguments
        return {"row": self.now()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition((start["row"], end["row"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield self.rows(*partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        pass


class _Clock(_Constant):
    def now(self) -> int:
        return int(time.time() * RATE)

    def rows(self, start: int, end: int) -> pa.RecordBatch:
        stamps = [f"{row * (1_000_000 // RATE):016d}" for row in range(start + 1, end + 1)]
        return pa.RecordBatch.from_arrays([pa.array(stamps, pa.string())], names=["t"])


class OwnSource(DataSource):
    """format("own")."""

    @classmethod
    def name(cls) -> str:
        return "own"

    def schema(self) -> str:
        return "n BIGINT"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _Constant()


class ClockSource(OwnSource):
    """format("clock")."""

    @classmethod
    def name(cls) -> str:
        return "clock"

    def schema(self) -> str:
        return "t STRING"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _Clock()
