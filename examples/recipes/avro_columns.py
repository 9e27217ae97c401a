"""Decode a field with Avro into columns, without a jar. Bytes that are not such a record become dead letters.

    python examples/recipes/avro_columns.py

Needs `pip install fastavro`.
"""

import io
import os
import tempfile
from collections.abc import Callable, Iterator

import fastavro
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_streams

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
# The same schema for Arrow and for Spark.
ARROW = pa.struct({"customer": pa.string(), "amount": pa.decimal128(10, 2), "at": pa.timestamp("us", "UTC")})
SPARK = "STRUCT<customer: STRING, amount: DECIMAL(10,2), at: TIMESTAMP>"


def decoding(schema: dict, like: pa.StructType) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for mapInArrow: it adds `record`, or in `problem` the error of `payload`.

    To read records of another version of the schema, pass that version as `writer_schema` and this one as
    `reader_schema`.
    """

    def decode(pages: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parsed = fastavro.parse_schema(schema)
        for page in pages:
            records, problems = [], []
            for payload in page["payload"].to_pylist():
                record, problem = None, None
                try:
                    source = io.BytesIO(payload or b"")
                    record = fastavro.schemaless_reader(source, parsed, None)
                    if source.read(1):
                        record, problem = None, "bytes after the record"
                except Exception as error:  # noqa: BLE001 # fastavro raises different errors for wrong bytes
                    problem = f"{type(error).__name__} {error}"
                records.append(record)
                problems.append(problem)
            decoded = [pa.array(records, like), pa.array(problems, pa.string())]
            yield pa.record_batch([*page.columns, *decoded], names=[*page.schema.names, "record", "problem"])

    return decode


def encoding(schema: dict) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for mapInArrow: it encodes each row as the field `payload`."""

    def encode(pages: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parsed = fastavro.parse_schema(schema)
        for page in pages:
            payloads = []
            for record in page.to_pylist():
                buffer = io.BytesIO()
                fastavro.schemaless_writer(buffer, parsed, record)
                payloads.append(buffer.getvalue())
            yield pa.record_batch({"payload": pa.array(payloads, pa.binary())})

    return encode


def orders_of(spark: SparkSession, url: str) -> DataStreamWriter:
    ours = "_stream STRING, _id STRING, _fields MAP<BINARY, BINARY>, payload BINARY"
    entries = (
        spark.readStream.format("rstream")
        .schema(ours)
        .options(url=url, streams="example:avro", group="avro", startingOffsets="earliest")
        .load()
        .withColumn("now", F.current_timestamp())  # time of the batch, the same when it is run again
    )
    decoded = entries.mapInArrow(decoding(SCHEMA, ARROW), f"{ours}, now TIMESTAMP, record {SPARK}, problem STRING")

    def write(batch: DataFrame, _number: int) -> None:
        wrong = {"reason": "no Avro", "message": F.col("problem"), "group": "avro", "at": batch.now}
        good, letters = spark_streams.route_dead_letters(batch, "problem IS NOT NULL", **wrong)
        for rows, stream in ((letters, "example:avro:dead"), (good.select("record.*"), "example:avro:orders")):
            to = {"url": url, "stream": stream, "transaction": stream}
            rows.write.format("rstream").mode("append").options(**to).save()

    return decoded.writeStream.foreachBatch(write).queryName("avro")


if __name__ == "__main__":
    spark = SparkSession.builder.getOrCreate()
    url = os.environ.get("RSTREAM_URL", "embedded:")
    new = spark.sql("SELECT 'ann' AS customer, 12.50BD AS amount, timestamp '2026-01-01 10:00:00Z' AS at")
    new = new.selectExpr("customer", "CAST(amount AS DECIMAL(10,2)) AS amount", "at")
    good = new.mapInArrow(encoding(SCHEMA), "payload BINARY")
    bad = spark.sql("SELECT X'FF' AS payload")
    good.unionAll(bad).write.format("rstream").mode("append").options(url=url, stream="example:avro").save()
    # In a real query the checkpoint is on permanent storage.
    checkpoint = tempfile.mkdtemp()
    spark_streams.run(orders_of(spark, url).option("checkpointLocation", checkpoint).trigger(availableNow=True))
    orders = spark.read.format("rstream").schema("customer STRING, amount DECIMAL(10,2), at TIMESTAMP")
    orders.options(url=url, streams="example:avro:orders").load().show()
    dead = spark.read.format("rstream").options(url=url, streams="example:avro:dead").load()
    dead.selectExpr("fields['dl.reason'] AS reason", "fields['dl.message'] AS message").show(truncate=False)
