"""The places that hold a value, and how a person's entries are found and erased: docs/guide/personal-data.md, done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession

import spark_streams
from spark_streams.connector.errors import QueryError
from spark_streams.operations.cli import main
from tests.connector.spark.streams import read_stream
from tools.servers.server import Server

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]
PERSON = "ada-of-4711"  # stands in no other text


def rstream(server: Server, *words: str) -> str:
    done = CliRunner().invoke(main, [*words, "--url", server.url])
    assert done.exit_code == 0, done.output
    return done.output


def keys_with(client: redis.Redis, value: str) -> Iterator[str]:
    """The keys of the server, of any type, that hold a value."""
    for key in sorted(client.keys()):
        reading: dict[str, Any] = {
            "stream": client.xrange, "hash": client.hgetall, "set": client.smembers, "string": client.get,
            "zset": partial(client.zrange, start=0, end=-1), "list": partial(client.lrange, start=0, end=-1),
        }  # fmt: skip
        if value in str(reading[str(client.type(key))](key)):
            yield str(key)


def files_with(folder: Path, value: str) -> set[str]:
    return {file.name for file in folder.rglob("*") if file.is_file() and value.encode() in file.read_bytes()}


def test_a_persons_entries_are_found_and_erased(
    spark: SparkSession, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    """One entry is good, one becomes a dead letter, one waits for a retry. Another person's entries stay."""
    for name in (PERSON, "bob"):
        client.xadd("orders", {"customer": name, "amount": 1})
        client.xadd("orders", {"customer": name, "amount": f"{name} owes"})  # it becomes a dead letter
    watched = tmp_path / "watched"
    watched.mkdir()
    with spark_streams.watch(
        spark, server.url, log=None, metrics_file=watched / "metrics", lineage=str(watched / "lineage")
    ):
        rows = read_stream(
            spark, server, "customer STRING, amount INT", streams="orders", mode="DEADLETTER",
            deadLetterStream="orders:dead",
        )  # fmt: skip
        writer = rows.writeStream.format("rstream").options(url=server.url, stream="copies")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        spark_streams.run(writer.trigger(availableNow=True))
    # Only the streams hold values; metrics, lineage and the checkpoint hold none.
    assert [*keys_with(client, PERSON)] == ["copies", "orders", "orders:dead"]
    assert files_with(tmp_path, PERSON) == set()

    found = rstream(server, "export", "orders", "-", "--where", f"customer={PERSON}")
    ids = [json.loads(line)["id"] for line in found.splitlines() if line.startswith("{")]
    assert len(ids) == 2
    assert "orders:dead" in rstream(server, "where", "orders", *ids)
    client.xdel("orders", *ids)
    rstream(server, "dead", "purge", "orders:dead", "--field", f"customer={PERSON}", "--yes")
    copies = rstream(server, "export", "copies", "-", "--where", f"customer={PERSON}")
    client.xdel("copies", *(json.loads(line)["id"] for line in copies.splitlines() if line.startswith("{")))

    assert [*keys_with(client, PERSON)] == []
    assert [*keys_with(client, "bob")] == ["copies", "orders", "orders:dead"]
    # What is erased is no loss: its groups had acknowledged it.
    client.xadd("orders", {"customer": "bob", "amount": 2})
    spark_streams.run(writer.trigger(availableNow=True))
    assert client.xlen("copies") == 2


def test_an_entry_that_waits_for_a_retry_is_held_there(
    spark: SparkSession, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    client.xadd("orders", {"customer": PERSON, "amount": PERSON})
    rows = read_stream(
        spark, server, "customer STRING, amount INT", streams="orders", mode="DEADLETTER",
        deadLetterStream="orders:dead", retryDelay="1h",
    )  # fmt: skip
    writer = rows.writeStream.format("rstream").options(url=server.url, stream="copies")
    spark_streams.run(writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True))
    [waiting] = [key for key in keys_with(client, PERSON) if key != "orders"]
    assert waiting.startswith("rstream:retry:")


def test_the_error_that_ended_a_query_may_quote_a_value_and_is_deleted(
    spark: SparkSession, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    """It is kept for the dead letter of the entry that kills a query."""
    client.xadd("orders", {"customer": PERSON, "amount": 1})
    options = {"streams": "orders", "deadLetterStream": "orders:dead", "maxDeliveries": "3"}
    rows = read_stream(spark, server, "customer STRING, amount INT", **options)

    def refuse(rows: DataFrame, _: int) -> None:
        raise ValueError(f"no account of {rows.first()}")

    writer = rows.writeStream.foreachBatch(refuse).option("checkpointLocation", str(tmp_path))
    with pytest.raises(QueryError):
        spark_streams.run(writer.trigger(availableNow=True))
    [error] = [key for key in keys_with(client, PERSON) if key != "orders"]
    assert error == "rstream:failure:{orders}:g:spark"
    client.delete(error)
    assert [*keys_with(client, PERSON)] == ["orders"]
