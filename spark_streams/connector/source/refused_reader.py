"""Reader in the place of a streaming reader that cannot be created.

If `streamReader()` raises, Spark's runner raises an UnboundLocalError of its own, which hides the cause. So the first
method that Spark calls raises the error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_streams.connector.errors import RStreamError
from spark_streams.connector.spark.data_source import ReadLimit, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    import pyarrow as pa


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises the same error from each method."""

    def __init__(self, error: RStreamError) -> None:
        self._error = error

    def _refuse(self) -> NoReturn:
        raise self._error.with_traceback(None) from None

    def getDefaultReadLimit(self) -> ReadLimit:
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> None:
        self._refuse()

    def initialOffset(self) -> dict[str, object]:
        self._refuse()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        self._refuse()

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self._refuse()
