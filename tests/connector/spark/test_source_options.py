"""The source's options inside Spark, on both servers: whatever they are, what went in comes out once."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
import redis
from chispa import assert_df_equality
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_streams.connector.counters import CLAIMED, LOST
from spark_streams.connector.watch.progress import offset_in, read_progress
from tests.connector.spark.streams import append, drain, read_stream, run_to_the_end, start, written
from tools.servers.server import Server
from tools.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(2)]

SCHEMA = "n INT, name STRING, at TIMESTAMP"


def numbers(spark: SparkSession, first: int, last: int) -> DataFrame:
    """Rows n = first … last-1."""
    return spark.range(first, last, numPartitions=1).select(
        F.col("id").cast("int").alias("n"),
        F.format_string("row %d\r\n", "id").alias("name"),
        F.timestamp_millis(F.lit(1_700_000_000_123) + F.col("id")).alias("at"),
    )


def pending(client: redis.Redis, stream: str = "s") -> int:
    return int(client.xpending(stream, "g")["pending"])


@pytest.mark.parametrize(
    "options",
    [
        {"noAck": "true", "maxEntriesPerTrigger": "250"},
        {"maxEntriesPerTrigger": '{"s*": 400}', "maxBytesPerTrigger": "30kb"},
        {"ordered": "true"},
        {"minPartitions": "5", "entriesPerPartition": "200", "minEntriesPerTrigger": "5000", "maxTriggerDelay": "10m"},
        {"streamsPattern": "?", "startingTimestamp": "2020-01-01T00:00:00Z", "mode": "FAILFAST"},
        {"claimIdle": "1h", "maxDeliveries": "3", "mode": "DEADLETTER", "deadLetterStream": "dead"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_went_in_comes_out_once(
    spark: SparkSession, server: Server, client: redis.Redis, tmp_path: Path, options: dict[str, str]
) -> None:
    frame = numbers(spark, 0, 600)
    append(frame, server, "s")
    streams = {} if "streamsPattern" in options else {"streams": "s"}
    back = drain(read_stream(spark, server, SCHEMA, **streams, **options), tmp_path)
    assert_df_equality(back, frame, ignore_row_order=True, ignore_nullable=True)
    assert pending(client) == 0
    assert not client.exists("dead")


def test_another_client_of_the_group_reads_at_the_same_time(
    spark: SparkSession, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    """Every entry is processed exactly once between the two, while a producer goes on."""
    client.xgroup_create("s", "g", id="0", mkstream=True)
    theirs: list[int] = []
    done = threading.Event()
    total = 6_000

    def produce() -> None:
        with server.client() as producer:
            for first in range(0, total, 100):
                pipe = producer.pipeline(transaction=False)
                for n in range(first, first + 100):
                    pipe.xadd("s", {"n": n})
                pipe.execute()
                time.sleep(0.05)

    def consume() -> None:
        with server.client(decode_responses=True) as consumer:
            while not done.is_set() and len(theirs) < total // 2:  # however slow the query is
                for _, entries in consumer.xreadgroup("g", "worker", {"s": ">"}, count=37, block=20) or []:
                    theirs.extend(int(fields["n"]) for _, fields in entries)
                    consumer.xack("s", "g", *[entry for entry, _ in entries])
                time.sleep(0.03)

    threads = [threading.Thread(target=produce), threading.Thread(target=consume)]
    frame = read_stream(spark, server, "n INT", streams="s", maxEntriesPerTrigger="700")
    query = start(frame, tmp_path, once=False)
    until(lambda: query.lastProgress is not None, "the query makes no progress", 60)
    for thread in threads:
        thread.start()
    threads[0].join()

    def all_read() -> bool:
        assert query.isActive, str(query.exception())
        group = client.xinfo_groups("s")[0]
        return bool(group["last-delivered-id"] == client.xinfo_stream("s")["last-generated-id"] and not pending(client))

    until(all_read, "the query has not read the stream to its end", 60)
    done.set()
    threads[1].join()
    query.stop()
    ours = [row.n for row in written(spark, tmp_path).collect()]
    assert len(ours) > 500
    assert len(theirs) > 500
    assert sorted(ours + theirs) == list(range(total))


def test_entries_that_do_not_fit_become_dead_letters_of_their_query_and_batch(
    spark: SparkSession, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    frame = numbers(spark, 0, 100)
    append(frame, server, "s")
    for n in range(5):
        client.xadd("s", {"n": f"{n}?", "name": "x"})
    options = {"streams": "s", "mode": "DEADLETTER", "deadLetterStream": "dead", "maxEntriesPerTrigger": "80"}
    query = run_to_the_end(lambda: start(read_stream(spark, server, SCHEMA, **options), tmp_path))[0]
    assert_df_equality(written(spark, tmp_path), frame, ignore_row_order=True, ignore_nullable=True)
    letters = [fields for _, fields in client.xrange("dead")]
    assert sorted(letter["n"] for letter in letters) == [f"{n}?" for n in range(5)]
    assert {(letter["dl.query"], letter["dl.batch"]) for letter in letters} == {(str(query.id), "1")}
    assert pending(client) == 0


@pytest.mark.parametrize("once", [True, False])
def test_a_self_join_of_one_load_names_the_cause_and_leaves_no_source_behind(
    spark: SparkSession, server: Server, tmp_path: Path, once: bool
) -> None:
    append(numbers(spark, 0, 50), server, "s")
    frame = read_stream(spark, server, SCHEMA, streams="s")
    cause = r"RSTREAM_CONSUMER_TAKEN.*reads one load\(\) twice \(a self-join\).*call load\(\) for each side"
    with pytest.raises(StreamingQueryException, match=cause):
        start(frame.join(frame.select("n"), "n"), tmp_path / "join", once).awaitTermination()
    assert drain(read_stream(spark, server, SCHEMA, streams="s"), tmp_path / "alone").count() == 50


def test_a_union_of_one_load_reads_each_entry_for_both_sides(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    append(numbers(spark, 0, 50), server, "s")
    frame = read_stream(spark, server, SCHEMA, streams="s")
    assert drain(frame.union(frame), tmp_path).count() == 100


def test_a_second_query_with_the_same_consumer_is_refused_and_the_first_goes_on(
    spark: SparkSession, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    append(numbers(spark, 0, 50), server, "s")
    frame = read_stream(spark, server, SCHEMA, streams="s")
    first = start(frame, tmp_path / "first", once=False)
    until(lambda: first.lastProgress is not None and not pending(client), "the first batch is not acknowledged", 60)
    with pytest.raises(StreamingQueryException, match="RSTREAM_CONSUMER_TAKEN.*another running query is consumer"):
        start(frame, tmp_path / "second").awaitTermination()
    append(numbers(spark, 50, 60), server, "s")
    until(lambda: written(spark, tmp_path / "first").count() == 60, "the query has not written 60 rows", 60)
    assert first.isActive
    first.stop()
    append(numbers(spark, 60, 70), server, "s")
    assert drain(frame, tmp_path / "first").count() == 70  # at once: the first one's process is gone


def test_what_a_dead_client_left_is_taken_over_and_told_in_the_progress(
    spark: SparkSession, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    append(numbers(spark, 0, 50), server, "s")
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "bob", {"s": ">"}, count=20)
    options = {"streams": "s", "claimIdle": "1ms", "failOnDataLoss": "false"}
    frame = read_stream(spark, server, "n INT, _deliveries INT", **options)
    query = run_to_the_end(lambda: start(frame, tmp_path))[0]
    back = written(spark, tmp_path)
    assert [tuple(row) for row in back.orderBy("n").collect()] == [(n, 2 if n < 20 else 1) for n in range(50)]
    told = read_progress(json.loads(query.recentProgress[-1].json))
    assert [stream.counts[CLAIMED] for stream in told.sources[0].streams] == [20]
    assert {one["name"]: one["pending"] for one in client.xinfo_consumers("s", "g")} == {"bob": 0, "spark": 0}


def test_a_counted_loss_is_told_in_the_progress(
    spark: SparkSession, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    append(numbers(spark, 0, 50), server, "s")
    frame = read_stream(spark, server, SCHEMA, streams="s", failOnDataLoss="false")
    assert drain(frame, tmp_path).count() == 50
    append(numbers(spark, 50, 60), server, "s")
    client.xtrim("s", maxlen=4, approximate=False)
    query = run_to_the_end(lambda: start(frame, tmp_path))[0]
    assert written(spark, tmp_path).count() == 54
    offsets = [offset_in(json.loads(one.json)["sources"][0]["latestOffset"]) or {} for one in query.recentProgress]
    assert {"s": 6} in [offset.get("report", offset).get("lost") for offset in offsets]
    told = read_progress(json.loads(query.recentProgress[-1].json))
    assert [stream.counts[LOST] for stream in told.sources[0].streams] == [6]
