"""latest_in_hashes.py: an older batch changes nothing, whoever runs it when; and keys that stand in one slot."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from redis.crc import key_slot

from tools.servers.cluster import running_cluster
from tools.servers.server import Server, skip_without_redis

pytestmark = pytest.mark.spark
Recipe = Callable[[str], ModuleType]


def test_an_older_batch_never_replaces_a_newer_one(spark: SparkSession, server: Server, recipe: Recipe) -> None:
    hashes = recipe("latest_in_hashes")
    upsert = hashes.upserting(server.url)

    def batch(number: int, *customers: int) -> None:
        rows = [(f"c{n}", f"{number}.00", None if number % 2 else "Rome", f"9-{number}") for n in customers]
        upsert(spark.createDataFrame(rows, "customer STRING, amount STRING, place STRING, _id STRING"), number)

    def seen() -> dict[str, dict[str, str]]:
        with server.client(decode_responses=True) as client:
            return {key: client.hgetall(key) for key in client.scan_iter("example:state:*") if "versions" not in key}

    batch(2, 1, 2)
    batch(10, 2, 3)
    newest = seen()
    assert newest == {
        hashes.key("c1"): {"customer": "c1", "amount": "2.00", "place": "Rome"},
        hashes.key("c2"): {"customer": "c2", "amount": "10.00", "place": "Rome"},
        hashes.key("c3"): {"customer": "c3", "amount": "10.00", "place": "Rome"},
    }
    batch(2, 1, 2)  # as text 9-10 would stand before 9-2
    batch(9, 2)
    assert seen() == newest
    batch(11, 1)
    assert seen()[hashes.key("c1")] == {"customer": "c1", "amount": "11.00"}, "a field that is null now is gone"


def test_who_is_overtaken_between_looking_and_writing_looks_again(server: Server, recipe: Recipe) -> None:
    """Another run of a query, that stood still in the midst of it."""
    hashes = recipe("latest_in_hashes")

    def rows(version: str) -> pa.RecordBatch:
        told = {"customer": "ann", "version": version, "amount": version, "place": "x"}
        return pa.record_batch({name: [value] for name, value in told.items()})

    def reading(client: object) -> None:
        transaction = client.transaction  # type: ignore[attr-defined]

        def overtaken(function: Callable[[object], None], *watched: str) -> None:
            looked: list[int] = []

            def once_overtaken(pipe: object) -> None:
                function(pipe)
                if not looked:
                    hashes.put(server.client(), rows("0002"))
                looked.append(1)

            transaction(once_overtaken, *watched)
            assert len(looked) == 2

        client.transaction = overtaken  # type: ignore[attr-defined]

    with server.client() as slow:
        reading(slow)
        hashes.put(slow, rows("0001"))
        assert slow.hget(hashes.key("ann"), "amount") == b"0002"


def test_all_keys_of_a_chunk_are_in_one_slot(recipe: Recipe) -> None:
    hashes = recipe("latest_in_hashes")
    for customer in ("ann", "bob", "ünal", "a}{b", ""):
        keys = [hashes.key(customer), f"{hashes.bucket(customer)} versions"]
        assert len({key_slot(key.encode()) for key in keys}) == 1


def test_hashes_of_a_cluster(recipe: Recipe) -> None:
    """Of all its nodes."""
    skip_without_redis()
    hashes = recipe("latest_in_hashes")
    customers = [f"c{n}" for n in range(200)]
    with running_cluster() as cluster, hashes.connect(cluster.url) as client:
        for version in ("2", "1"):
            for name in {hashes.bucket(one) for one in customers}:
                ours = [one for one in customers if hashes.bucket(one) == name]
                told = {"customer": ours, "version": [version] * len(ours), "amount": [version] * len(ours)}
                hashes.put(client, pa.record_batch({**told, "place": pa.nulls(len(ours), pa.string())}))
        assert {client.hget(hashes.key(one), "amount") for one in customers} == {b"2"}
        nodes = {client.get_node_from_key(hashes.key(one)).name for one in customers}
        assert len(nodes) == len(client.get_primaries())


def test_spark_finds_the_same_bucket_as_who_looks_a_hash_up(spark: SparkSession, recipe: Recipe) -> None:
    hashes = recipe("latest_in_hashes")
    names = ["ann", "ünal", "a}{b", "", "日本"]
    found = spark.createDataFrame([(name,) for name in names], "customer STRING")
    buckets = found.selectExpr("customer", f"crc32(customer) % {hashes.BUCKETS} AS bucket").collect()
    assert {row["customer"]: f"example:state:{{{row['bucket']}}}" for row in buckets} == {
        name: hashes.bucket(name) for name in names
    }
