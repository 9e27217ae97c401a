"""A Python source with the same hundred rows in each trigger. It measures the cost of Python sources in Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

ROWS = 100


class ConstantSource(DataSource):
    """format("constant")."""

    @classmethod
    def name(cls) -> str:
        return "constant"

    def schema(self) -> str:
        """One column."""
        return "n BIGINT"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _Reader()


class _Reader(DataSourceStreamReader):
    _triggers = 0

    def initialOffset(self) -> dict[str, Any]:
        return {"triggers": 0}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # Spark calls it without arguments
        self._triggers += 1
        return {"triggers": self._triggers}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(end["triggers"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"n": list(range(ROWS))})

    def commit(self, end: dict[str, Any]) -> None:
        pass
