"""`rstream where --checkpoint` reads the log that Spark writes, and follows an entry through a query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner
from pyspark.sql import SparkSession

from spark_streams.cli import main
from tests.connector.spark.streams import read_stream, run_to_the_end
from tools.servers.server import Server

pytestmark = pytest.mark.spark


def run(spark: SparkSession, server: Server, folder: Path) -> None:
    """Copy `s` to `out`, two entries for each micro-batch, until nothing is left."""
    options = {"deadLetterStream": "s:dead", "mode": "DEADLETTER", "maxEntriesPerTrigger": "2"}
    frame = read_stream(spark, server, "n INT", streams="s", **options)
    writer = frame.select("n").writeStream.format("rstream").option("url", server.url).option("stream", "out")
    run_to_the_end(writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start)


def journeys(server: Server, folder: Path, stream: str, entry: str) -> list[dict[str, dict[str, Any]]]:
    """The lines of each journey, by event."""
    words = ["where", stream, entry, "--json", "--checkpoint", str(folder), "--url", server.url]
    ran = CliRunner().invoke(main, words)
    assert ran.exit_code == 0, ran.output
    return [{line["event"]: line for line in journey["lines"]} for journey in json.loads(ran.output)]


def test_an_entry_is_followed_through_a_query_its_dead_letter_and_a_correction(
    spark: SparkSession, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    ids = [str(client.xadd("s", {"n": n})) for n in (1, 2, 3, "bad")]
    run(spark, server, tmp_path)
    first, last = (journeys(server, tmp_path, "s", entry)[0] for entry in (ids[0], ids[2]))
    assert (first["batch"]["batch"], last["batch"]["batch"]) == (0, 1)
    assert all(one["batch"]["exact"] and one["batch"]["committed"] and one["rows"]["closed"] for one in (first, last))
    assert (last["rows"]["streams"], last["rows"]["exact"]) == (["out"], False), "known of the batch"

    [bad] = journeys(server, tmp_path, "s", ids[3])
    assert (bad["dead"]["exact"], bad["dead"]["same_fields"], bad["dead"]["batch"]) == (True, True, "1")
    assert bad["delivered"]["exact"], "its dead letter proves that"
    redriven = CliRunner().invoke(main, ["dead", "redrive", "s:dead", "--set", "n=4", "--yes", "--url", server.url])
    assert redriven.exit_code == 0, redriven.output
    run(spark, server, tmp_path)
    [letter, corrected] = journeys(server, tmp_path, "s:dead", bad["dead"]["id"])
    assert letter["sent back"]["stream"] == "s"
    assert corrected["sent back from"]["previous"] == f"s:dead/{bad['dead']['id']}"
    assert (corrected["batch"]["batch"], corrected["rows"]["streams"]) == (2, ["out"])
