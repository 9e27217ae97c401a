"""Streams that a query reads, and places that it or its foreachBatch writes to, from Spark's plans in the JVM.

Options of a plan can hold a password: only the server, the streams and the group are kept.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_streams.base.untyped import JavaObject
from spark_streams.connector.errors import RStreamError
from spark_streams.connector.options.sink_options import SinkOptions
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.watch.lineage.datasets import Columns, Dataset, path_dataset, sink_dataset, stream_dataset
from spark_streams.connector.wire.address.address import Address

UNREADABLE = (Py4JError, PySparkException, RStreamError)  # raised for a plan, or by a session that has ended
_log = logging.getLogger("spark_streams.operations.monitor")


@dataclass(frozen=True)
class Source:
    """A source of format("rstream"). streams: empty for a pattern."""

    address: Address
    group: str
    consumer: str
    streams: tuple[str, ...] = ()
    columns: Columns = field(default=(), repr=False)

    def dataset(self, stream: str) -> Dataset:
        return stream_dataset(self.address, stream, self.columns, self.group, self.consumer)


def sources_of(jvm: JavaObject, execution: JavaObject) -> Iterator[Source]:
    """Yield the rstream sources of a query. Raises UNREADABLE."""
    for leaf in _as_java(jvm, execution.analyzedPlan().collectLeaves()):
        if _kind(leaf) == "StreamingRelationV2" and leaf.sourceName() == "rstream":
            options = SourceOptions.parse(dict(leaf.extraOptions().asCaseSensitiveMap()))
            yield Source(options.address, options.group, options.consumer, options.streams or (), _columns(leaf))


def output_of_query(jvm: JavaObject, execution: JavaObject) -> Dataset | None:
    """Return where a query writes; None for foreachBatch and sinks of other formats. Raises UNREADABLE."""
    sink = execution.sink().toString()
    if sink.startswith("FileSink["):
        return path_dataset(sink[len("FileSink[") : -1], _columns(execution.analyzedPlan()))
    return output_of_write(jvm, execution.logicalPlan())


def output_of_write(jvm: JavaObject, plan: JavaObject) -> Dataset | None:
    """Return the stream or the folder of a write, None for any other plan. Raises UNREADABLE."""
    kind = _kind(plan)
    if kind == "InsertIntoHadoopFsRelationCommand":
        return path_dataset(plan.outputPath().toString(), _columns(plan.query()))
    if kind not in ("AppendData", "WriteToMicroBatchDataSource") or plan.table().name() != "rstream":
        return None
    return sink_dataset(SinkOptions.parse(dict(_as_java(jvm, plan.writeOptions()))), _columns(plan.query()))


def _kind(plan: JavaObject) -> str:
    return str(plan.getClass().getSimpleName())


def _columns(plan: JavaObject) -> Columns:
    schema = StructType.fromJson(json.loads(plan.schema().json()))
    return tuple((field.name, field.dataType.simpleString()) for field in schema.fields)


def _as_java(jvm: JavaObject, collection: JavaObject) -> JavaObject:
    return jvm.scala.jdk.javaapi.CollectionConverters.asJava(collection)


class WriteListener:
    """Spark's QueryExecutionListener: calls `wrote` after each action of the session, and of its queries' sessions."""

    class Java:
        implements = ("org.apache.spark.sql.util.QueryExecutionListener",)

    def __init__(self, spark: SparkSession, wrote: Callable[[JavaObject], None]) -> None:
        self._wrote, self._manager = wrote, spark._jsparkSession.listenerManager()
        jvm: JavaObject = spark.sparkContext._jvm
        # Each call from Python gives Java another proxy, and only the one that was registered can be removed.
        self._proxy = jvm.java.util.concurrent.atomic.AtomicReference(self).get()
        self._hash = jvm.System.identityHashCode
        self._manager.register(self._proxy)

    def close(self) -> None:
        self._manager.unregister(self._proxy)

    def onSuccess(self, _name: str, execution: JavaObject, _nanoseconds: int) -> None:
        try:
            self._wrote(execution)
        except UNREADABLE as error:
            _log.debug("lineage: a plan cannot be read: %s", error)

    def onFailure(self, _name: str, _execution: JavaObject, _error: JavaObject) -> None:
        """Do nothing: a write that failed has no output."""

    def equals(self, other: JavaObject) -> bool:
        return bool(self._hash(other) == self.hashCode())

    def hashCode(self) -> int:
        number: int = self._hash(self._proxy)
        return number
