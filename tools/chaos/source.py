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
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_streams.connector.datasource import RStreamDataSource
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.limits import LIMITS
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.spark.data_source import ReadLimit, SupportsTriggerAvailableNow, for_this_spark
from tools.chaos import patience
from tools.chaos.query import Query
from tools.chaos.strike import Strike, apply_strike, stand_still, wait_for_file
from tools.chaos.wiretap import record_acknowledgements
from tools.chaos.writer import ChaosWriter


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
        patience.limit(query.patience)  # the constructor of a writer already connects to the server
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
