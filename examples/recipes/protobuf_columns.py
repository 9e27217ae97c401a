"""Decode a field with a Protobuf message into columns, without a jar. Other bytes become dead letters.

    python examples/recipes/protobuf_columns.py

Needs `pip install protobuf`, and the file that
`protoc --include_imports --descriptor_set_out=orders.desc orders.proto` writes.
"""

import os
import tempfile
from collections.abc import Callable, Iterator

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_streams


def descriptor_set() -> bytes:
    """Return orders.desc of: message Order { string customer = 1; int64 cents = 2; repeated string tags = 3; }"""
    file = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    kind = descriptor_pb2.FieldDescriptorProto
    order.field.add(name="customer", number=1, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL)
    order.field.add(name="cents", number=2, type=kind.TYPE_INT64, label=kind.LABEL_OPTIONAL)
    order.field.add(name="tags", number=3, type=kind.TYPE_STRING, label=kind.LABEL_REPEATED)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


MESSAGE = "shop.Order"
# The selected fields for Arrow and for Spark. Read nested messages by name, as `fields` does.
ARROW = pa.struct({"customer": pa.string(), "cents": pa.int64(), "tags": pa.list_(pa.string())})
SPARK = "STRUCT<customer: STRING, cents: BIGINT, tags: ARRAY<STRING>>"


def message_class(descriptors: bytes) -> type[message.Message]:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(MESSAGE))


def fields(order: message.Message) -> dict[str, object]:
    return {"customer": order.customer, "cents": order.cents, "tags": list(order.tags)}


def decoding(descriptors: bytes) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for mapInArrow: it adds `record`, or in `problem` the error of `payload`."""

    def decode(pages: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kind = message_class(descriptors)
        for page in pages:
            records, problems = [], []
            for payload in page["payload"].to_pylist():
                record, problem = None, None
                if payload is None:
                    problem = "the entry has no payload"
                else:
                    try:
                        record = fields(kind.FromString(payload))
                    except message.DecodeError as error:
                        problem = str(error)
                records.append(record)
                problems.append(problem)
            decoded = [pa.array(records, ARROW), pa.array(problems, pa.string())]
            yield pa.record_batch([*page.columns, *decoded], names=[*page.schema.names, "record", "problem"])

    return decode


def encoding(descriptors: bytes) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for mapInArrow: it encodes each row as the field `payload`."""

    def encode(pages: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kind = message_class(descriptors)
        for page in pages:
            payloads = [kind(**row).SerializeToString(deterministic=True) for row in page.to_pylist()]
            yield pa.record_batch({"payload": pa.array(payloads, pa.binary())})

    return encode


def orders_of(spark: SparkSession, url: str, descriptors: bytes) -> DataStreamWriter:
    ours = "_stream STRING, _id STRING, _fields MAP<BINARY, BINARY>, payload BINARY"
    entries = (
        spark.readStream.format("rstream")
        .schema(ours)
        .options(url=url, streams="example:protobuf", group="protobuf", startingOffsets="earliest")
        .load()
        .withColumn("now", F.current_timestamp())  # time of the batch, the same when it is run again
    )
    decoded = entries.mapInArrow(decoding(descriptors), f"{ours}, now TIMESTAMP, record {SPARK}, problem STRING")

    def write(batch: DataFrame, _number: int) -> None:
        wrong = {"reason": "no Order", "message": F.col("problem"), "group": "protobuf", "at": batch.now}
        good, letters = spark_streams.route_dead_letters(batch, "problem IS NOT NULL", **wrong)
        for rows, stream in ((letters, "example:protobuf:dead"), (good.select("record.*"), "example:protobuf:orders")):
            to = {"url": url, "stream": stream, "transaction": stream}
            rows.write.format("rstream").mode("append").options(**to).save()

    return decoded.writeStream.foreachBatch(write).queryName("protobuf")


if __name__ == "__main__":
    spark = SparkSession.builder.getOrCreate()
    url = os.environ.get("RSTREAM_URL", "embedded:")
    new = spark.sql("SELECT 'ann' AS customer, 1250L AS cents, array('new', 'gift') AS tags")
    good = new.mapInArrow(encoding(descriptor_set()), "payload BINARY")
    bad = spark.sql("SELECT X'0AFF' AS payload")
    good.unionAll(bad).write.format("rstream").mode("append").options(url=url, stream="example:protobuf").save()
    # In a real query the checkpoint is on permanent storage.
    checkpoint = tempfile.mkdtemp()
    query = orders_of(spark, url, descriptor_set())
    spark_streams.run(query.option("checkpointLocation", checkpoint).trigger(availableNow=True))
    orders = spark.read.format("rstream").schema("customer STRING, cents BIGINT, tags ARRAY<STRING>")
    orders.options(url=url, streams="example:protobuf:orders").load().show()
    dead = spark.read.format("rstream").options(url=url, streams="example:protobuf:dead").load()
    dead.selectExpr("fields['dl.reason'] AS reason", "fields['dl.message'] AS message").show(truncate=False)
