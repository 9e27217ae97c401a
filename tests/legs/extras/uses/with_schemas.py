"""docs/guide/schemas.md: values of each format in tasks of Spark."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2
from pyspark.sql import SparkSession

import spark_streams

FIELD = descriptor_pb2.FieldDescriptorProto
file = descriptor_pb2.FileDescriptorProto(name="order.proto", syntax="proto3")
file.message_type.add(name="Order").field.add(name="n", number=1, type=FIELD.TYPE_INT32, label=FIELD.LABEL_OPTIONAL)
descriptors = Path(tempfile.mkdtemp(), "order.desc")
descriptors.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
avro = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "n", "type": "int"}]})
given = {
    "avro": (b"\x0e", {"schema": avro}),
    "json": (b'{"n": 7}', {"schema": '{"properties": {"n": {"type": "integer"}}}'}),
    "protobuf": (b"\x08\x07", {"schema": str(descriptors), "message": "Order"}),
}
spark = SparkSession.builder.master("local[2]").getOrCreate()
decoded = []
for name, (payload, schema) in given.items():
    rows = spark.createDataFrame([(bytearray(payload),)], "payload BINARY")
    (row,) = spark_streams.decode(rows, "payload", format=name, **schema).collect()
    decoded.append((name, row["payload"]["n"]))
print("decoded:", decoded)
spark.stop()
