"""The latest state of each customer in a Redis hash. An older batch never replaces the state of a newer one.

    RSTREAM_URL=redis://127.0.0.1:6379/0 python examples/recipes/latest_in_hashes.py

The hash of ann is `example:state:{51}:ann`: customers are spread over buckets, each in one slot of a cluster. Each
bucket has one more hash, which holds the entry ID of each customer's state.
"""

import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import redis
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_streams

BUCKETS = 64
CHUNK = 500  # hashes that are written together
COLUMNS = ["amount", "place"]
# Entry IDs as texts whose alphabetical order is the order of the stream.
VERSION = "concat_ws('-', lpad(split_part(_id, '-', 1), 20, '0'), lpad(split_part(_id, '-', 2), 20, '0'))"


def bucket(customer: str) -> str:
    return f"example:state:{{{zlib.crc32(customer.encode()) % BUCKETS}}}"


def key(customer: str) -> str:
    return f"{bucket(customer)}:{customer}"


def connect(url: str) -> "redis.Redis | redis.RedisCluster":
    if url.startswith("redis+cluster://"):
        first_node = url.removeprefix("redis+cluster").split(",")[0]
        return redis.RedisCluster.from_url(f"redis{first_node}")
    return redis.Redis.from_url(url)


def upserting(url: str) -> Callable[[DataFrame, int], None]:
    """Return a function for foreachBatch. Repeating a batch at any time changes nothing."""

    def upsert(batch: DataFrame, _number: int) -> None:
        texts = [F.col(name).cast("string").alias(name) for name in COLUMNS]
        newest = F.max_by(F.struct(*texts), F.expr(VERSION)).alias("state")
        rows = batch.groupBy("customer").agg(newest, F.expr(f"max({VERSION})").alias("version"))
        rows = rows.select("customer", "version", F.expr(f"crc32(customer) % {BUCKETS}").alias("bucket"), "state.*")
        # One task writes a bucket, whose rows are adjacent.
        rows = rows.repartition("bucket").sortWithinPartitions("bucket")
        rows.mapInArrow(writing(url), "written BIGINT").agg({"written": "sum"}).collect()

    return upsert


def writing(url: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(pages: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with connect(url) as client:
            for page in pages:
                changes = np.flatnonzero(np.diff(page["bucket"].to_numpy())) + 1
                bounds = [0, *changes.tolist(), page.num_rows]
                for begin, end in pairwise(bounds):
                    for chunk_start in range(begin, end, CHUNK):
                        put(client, page.slice(chunk_start, min(CHUNK, end - chunk_start)))
                yield pa.record_batch({"written": [page.num_rows]})

    return write


def put(client: "redis.Redis | redis.RedisCluster", rows: pa.RecordBatch) -> None:
    """Write rows of one bucket. If another client writes to it meanwhile, the transaction is repeated (WATCH)."""
    if not rows.num_rows:
        return
    versions_key = bucket(rows["customer"][0].as_py()) + " versions"

    def write_newer(pipe: "redis.client.Pipeline") -> None:
        stored = pa.array(pipe.hmget(versions_key, rows["customer"].to_pylist()), pa.binary()).cast(pa.string())
        newer = rows.filter(pc.or_kleene(pc.is_null(stored), pc.less(stored, rows["version"])))
        pipe.multi()
        for customer, *values in zip(*[newer[name].to_pylist() for name in ("customer", *COLUMNS)], strict=True):
            # The whole hash, so that fields that are null now disappear.
            pipe.delete(key(customer))
            state = {name: value for name, value in zip(COLUMNS, values, strict=True) if value is not None}
            pipe.hset(key(customer), mapping={"customer": customer, **state})
        if newer.num_rows:
            versions = zip(newer["customer"].to_pylist(), newer["version"].to_pylist(), strict=True)
            pipe.hset(versions_key, mapping=dict(versions))

    client.transaction(write_newer, versions_key)


def into_hashes(spark: SparkSession, url: str) -> DataStreamWriter:
    moves = (
        spark.readStream.format("rstream")
        .schema("customer STRING, amount DECIMAL(10,2), place STRING, _id STRING")
        .options(url=url, streams="example:moves", group="hashes", startingOffsets="earliest")
        .load()
        .where("customer IS NOT NULL")
    )
    return moves.writeStream.foreachBatch(upserting(url)).queryName("hashes")


if __name__ == "__main__":
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
    url = os.environ.get("RSTREAM_URL", "redis://127.0.0.1:6379/0")
    new = [("ann", "12.50", "Rome"), ("bob", "250.00", "Oslo"), ("ann", "99.99", None)]
    moves = spark.createDataFrame(new, "customer STRING, amount STRING, place STRING").coalesce(1)
    moves.write.format("rstream").mode("append").options(url=url, stream="example:moves").save()
    # In a real query the checkpoint is on permanent storage.
    checkpoint = tempfile.mkdtemp()
    spark_streams.run(into_hashes(spark, url).option("checkpointLocation", checkpoint).trigger(availableNow=True))
    with connect(url) as client:
        print(key("ann"), client.hgetall(key("ann")))
        print(key("bob"), client.hgetall(key("bob")))
