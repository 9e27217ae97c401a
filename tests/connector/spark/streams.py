"""What the tests of this folder do with streams and queries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import BinaryType, MapType

from spark_streams.connector.spark.data_source import HAS_FILTERS, HAS_READ_LIMITS
from tools.servers.server import Server

# Since Spark 4.1, which also hands over filters, a loaded DataFrame keeps the plan of its first use.
PLANS_ONCE = HAS_FILTERS


def append(frame: DataFrame, server: Server, stream: str, **options: str) -> None:
    """Write a frame's rows to a stream."""
    frame.write.format("rstream").mode("append").options(url=server.url, stream=stream, **options).save()


def read_stream(spark: SparkSession, server: Server, schema: str | None, **options: str) -> DataFrame:
    """A streaming frame of group g from its earliest entry, unless the options say otherwise."""
    reader = spark.readStream.format("rstream")
    reader = reader if schema is None else reader.schema(schema)
    given = {"url": server.url, "group": "g", "startingOffsets": "earliest", **options}
    if "startingTimestamp" in options:
        del given["startingOffsets"]
    return reader.options(**given).load()


def start(frame: DataFrame, folder: Path, once: bool = True) -> StreamingQuery:
    """A query of this frame into Parquet under a folder; once: to the end of what is there."""
    writer = (
        frame.writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
    )
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="100 milliseconds")).start()


def drain(frame: DataFrame, folder: Path) -> DataFrame:
    """Run the query to the end of what is there; what it wrote."""
    run_to_the_end(lambda: start(frame, folder))
    return written(frame.sparkSession, folder)


def run_to_the_end(begin: Callable[[], StreamingQuery]) -> list[StreamingQuery]:
    """A query with availableNow, as often as this Spark needs for it (as spark_streams.run does); each of them."""
    ran: list[StreamingQuery] = []
    while True:
        ran.append(begin())
        ran[-1].awaitTermination()
        if HAS_READ_LIMITS or not any("addBatch" in one.durationMs for one in ran[-1].recentProgress):
            return ran


def collected(frame: DataFrame) -> list[Row]:
    """Its rows. Before Spark 4.1 Python cannot make a map with binary keys: it comes as a list of pairs."""
    if PLANS_ONCE:
        return frame.collect()
    kinds = {field.name: field.dataType for field in frame.schema}
    maps = [name for name, of in kinds.items() if isinstance(of, MapType) and isinstance(of.keyType, BinaryType)]
    rows = frame.withColumns({name: F.map_entries(name) for name in maps}).collect()
    return [Row(**(row.asDict() | {name: _pairs(row[name]) for name in maps})) for row in rows]


def _pairs(entries: list[Row] | None) -> dict[bytes, bytes] | None:
    return None if entries is None else {bytes(key): bytes(value) for key, value in entries}


def written(spark: SparkSession, folder: Path) -> DataFrame:
    """What queries have written into this folder."""
    return spark.read.parquet(str(folder / "out"))
