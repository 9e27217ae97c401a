"""A watched query: its log lines, its metrics, and what its dead letters know."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_streams
from spark_streams.connector.errors import InvalidOptionError
from spark_streams.connector.spark.data_source import HAS_READ_LIMITS
from spark_streams.connector.watch.listener import Watch
from tests.connector.spark.streams import read_stream, run_to_the_end, start
from tests.connector.spark.watching import attached
from tools.servers.server import Server, engine_at_length, free_port, running_redis, serving, skip_without_redis
from tools.waiting import until

pytestmark = pytest.mark.spark


@pytest.fixture
def watching(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Watch]]:
    """Attach a listener that logs to `log`."""
    yield from attached(spark, log=tmp_path / "log")


def logged(folder: Path) -> list[dict[str, Any]]:
    """The lines so far."""
    return [json.loads(line) for line in (folder / "log").read_text().splitlines()]


def metrics(text: str) -> dict[tuple[str, ...], float]:
    """(name, values of the labels stream, group, query, column that it has …) → value."""
    labels = ("stream", "group", "query", "column")
    return {
        (sample.name, *[sample.labels[name] for name in labels if name in sample.labels]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def drained(frame: DataFrame, folder: Path) -> None:
    """Run to the end of what is there."""
    run_to_the_end(lambda: start(frame, folder))


def test_lines_and_metrics_say_what_happened(
    spark: SparkSession,
    server: Server,
    client: redis.Redis,
    watching: Callable[..., Watch],
    tmp_path: Path,
) -> None:
    for n in range(30):
        client.xadd("s", {"n": n if n != 7 else "seven"})
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "gone", {"s": ">"}, count=5)
    file = tmp_path / "metrics.prom"
    watch = watching(server.url, metrics_port=0, metrics_file=file)
    options = {"mode": "DEADLETTER", "deadLetterStream": "dead", "claimIdle": "1ms"}
    drained(read_stream(spark, server, "n INT", streams="s", maxEntriesPerTrigger="20", **options), tmp_path)
    watch.catch_up()
    for n in range(4):
        client.xadd("s", {"n": n})
    address = f"http://127.0.0.1:{watch.metrics_port}/metrics"
    served = ""

    def lag_is_served() -> bool:  # the page may be a second old
        nonlocal served
        served = urllib.request.urlopen(address, timeout=60).read().decode()
        return metrics(served).get(("rstream_lag_entries", "s", "g")) == 4

    until(lag_is_served, "the metrics do not show a lag of 4 entries", 60, log=lambda: served, interval=0.05)
    watch.close()
    lines = logged(tmp_path)
    events = [one["event"] for one in lines]
    assert [one for one in events if one == "progress"] == ["progress"] * 2
    runs = 1 if HAS_READ_LIMITS else 3  # before, a run is one batch, and one more finds that there is nothing left
    assert (events[0], events.count("started"), events.count("terminated"), events[-1]) == (
        *("started", runs, runs, "terminated"),
    )
    batches = [one["groups"][0] for one in lines if one["event"] == "progress"]
    assert sum(one["rows"] for one in lines if one["event"] == "progress") == 29
    assert sum(one["entries"] for one in batches) == 30
    assert {(one["stream"], one["group"], one["consumer"], one["lost"]) for one in batches} == {("s", "g", "spark", 0)}
    assert [one["claimed"] for one in batches] == [5, 5 if HAS_READ_LIMITS else 0]  # by this run
    # Spark tells of a batch when it likes to: the next one may have been made.
    assert all(one["lag"] in (10, 0) for one in batches)
    assert all(one["lag_ms"] is not None and one["pending"] is not None for one in batches)
    # What did not fit in a batch is known with the next one.
    assert [one["bad"] for one in batches] == [{}, {"n": 1}]
    assert "error" not in lines[-1]
    told, written = metrics(served), metrics(file.read_text())
    query = lines[0]["query"]
    for found in (told, written):
        assert found["rstream_lag_entries", "s", "g"] == 4
        assert 0 <= found["rstream_lag_seconds", "s", "g"] < 60
        assert found["rstream_pending_entries", "s", "g"] == 0
        assert found["rstream_rows_total", query] == 29
        assert found["rstream_batches_total", query] == 2
        assert found["rstream_claimed_entries_total", "s", "g", query] == 5
        assert found["rstream_lost_entries_total", "s", "g", query] == 0
        assert found["rstream_bad_values_total", "s", "g", query, "n"] == 1
        assert found["rstream_server_up",] == 1
    assert written["rstream_query_running", query] == 0


@pytest.mark.long
@engine_at_length
def test_a_dead_letter_says_what_killed_the_query(
    spark: SparkSession,
    server: Server,
    client: redis.Redis,
    watching: Callable[..., Watch],
    tmp_path: Path,
) -> None:
    """Also where every run dies in its first batch, so that Spark never tells of an offset."""
    client.xadd("s", {"n": 0})

    @F.udf("int", useArrow=False)
    def check(n: int) -> int:
        if n == 0:
            raise ZeroDivisionError("n is zero,\nand must not be")
        return n

    watch = watching(server.url)
    options = {"maxDeliveries": "1", "deadLetterStream": "dead", "streams": "s", "maxEntriesPerTrigger": "2"}
    for _ in range(10):
        frame = read_stream(spark, server, "n INT", **options).select(check("n"))
        try:
            drained(frame, tmp_path)
            break
        except StreamingQueryException:
            watch.catch_up()
            for n in range(1, 13):  # without others that are committed, nothing is concluded
                client.xadd("s", {"n": n})
    [(_, letter)] = client.xrange("dead")
    assert (letter["n"], letter["dl.reason"], letter["dl.error"]) == ("0", "poison", "ZeroDivisionError")
    message, _, place = letter["dl.message"].rpartition(" (")
    assert message == "n is zero,\nand must not be"
    assert re.fullmatch(rf"\S*{Path(__file__).name}:\d+ in check\)", place)
    watch.close()
    ends = [one for one in logged(tmp_path) if one["event"] == "terminated"]
    errors = [one["error"] for one in ends[:-1] if HAS_READ_LIMITS or "error" in one]  # else a run is one batch
    assert errors
    assert set(errors) == {"ZeroDivisionError"}


def test_a_server_that_is_away_stops_nothing(
    spark: SparkSession,
    engine_server: Server,
    watching: Callable[..., Watch],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with engine_server.client() as client:
        client.flushall()
        client.xadd("s", {"n": 1})
    watch = watching(f"redis://:secret@127.0.0.1:{free_port()}/0", metrics_file=tmp_path / "metrics")
    with caplog.at_level(logging.WARNING, "spark_streams.monitor"):
        drained(read_stream(spark, engine_server, "n INT", streams="s"), tmp_path)
        watch.close()
    [line] = [one for one in logged(tmp_path) if one["event"] == "progress"]
    assert (line["rows"], line["groups"][0]["entries"], line["groups"][0]["lag"]) == (1, 1, None)
    assert len(caplog.records) == 1
    assert "secret" not in caplog.text
    assert metrics((tmp_path / "metrics").read_text())["rstream_server_up",] == 0


def test_lines_go_to_a_logger_or_are_dropped(
    spark: SparkSession,
    engine_server: Server,
    watching: Callable[..., Watch],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with engine_server.client() as client:
        client.flushall()
        client.xadd("s", {"n": 1})
    told, silent = watching(engine_server.url, log=logging.getLogger("mine")), watching(engine_server.url, log=None)
    with caplog.at_level(logging.INFO, "mine"):
        drained(read_stream(spark, engine_server, "n INT", streams="s"), tmp_path)
        told.close()
        silent.close()
    events = [json.loads(one.message)["event"] for one in caplog.records]
    runs = 1 if HAS_READ_LIMITS else 2
    assert events[0] == "started"
    assert [events.count(one) for one in ("started", "progress", "terminated")] == [runs, 1, runs]
    assert not (tmp_path / "log").exists()


def test_a_query_that_waits_says_how_its_groups_stand(
    spark: SparkSession, engine_server: Server, watching: Callable[..., Watch], tmp_path: Path
) -> None:
    with engine_server.client() as client:
        client.flushall()
        client.xadd("s", {"n": 1})
        watch = watching(engine_server.url)
        spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "100")
        try:
            query = start(read_stream(spark, engine_server, "n INT", streams="s"), tmp_path, once=False)
            until(lambda: any(one["event"] == "idle" for one in logged(tmp_path)), "the query logs no idle event", 60)
            query.stop()
        finally:
            spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
    watch.close()
    lines = logged(tmp_path)
    [group] = next(one for one in lines if one["event"] == "idle")["groups"]
    assert (group["stream"], group["group"], group["lag"]) == ("s", "g", 0)
    assert "entries" not in group
    assert lines[-1]["event"] == "terminated"


def health(watch: Watch) -> tuple[int, str]:
    """Status and text of /healthz."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{watch.metrics_port}/healthz", timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture
def short_limits(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An idle query reports ten times a second, and the limit of its silence may be short."""
    monkeypatch.setattr("spark_streams.connector.watch.progress.LEAST", 0.0)
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "100")
    yield
    spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")


@pytest.mark.parametrize("kind", ["engine", "redis"])
def test_an_idle_query_whose_server_stands_still_is_not_healthy(
    kind: str, spark: SparkSession, watching: Callable[..., Watch], tmp_path: Path, short_limits: None
) -> None:
    if kind == "redis":
        skip_without_redis()
    with running_redis() if kind == "redis" else serving() as server:
        with server.client() as client:
            pid = int(client.info("server")["process_id"])
            client.xadd("s", {"n": 1})
        watch = watching(server.url, metrics_port=0, unhealthy_after="2s")
        query = start(read_stream(spark, server, "n INT", streams="s"), tmp_path, once=False)
        try:
            until(lambda: any(one["event"] == "idle" for one in logged(tmp_path)), "the query logs no idle event", 60)
            until(lambda: health(watch) == (200, "ok\n"), "the idle query is not healthy", 60)
            os.kill(pid, signal.SIGSTOP)
            seen = (
                r"has ended no trigger since .*\([2-9] s, unhealthy_after is 2 s\)\. "
                "Its last event is 'idle', and Spark says: "
            )

            def stands_still() -> bool:
                status, reason = health(watch)
                return status == 503 and re.search(seen, reason) is not None

            until(stands_still, "the query is healthy without a server", 40, interval=0.2)
            os.kill(pid, signal.SIGCONT)
            until(lambda: health(watch)[0] == 200, "the query is not healthy again", 60)
            assert query.isActive
        finally:
            os.kill(pid, signal.SIGCONT)
            query.stop()


def test_a_batch_that_hangs_is_not_healthy_and_a_long_interval_is(
    spark: SparkSession, engine_server: Server, watching: Callable[..., Watch], tmp_path: Path, short_limits: None
) -> None:
    with engine_server.client() as client:
        client.flushall()
        client.xadd("s", {"n": 1})
    watch = watching(engine_server.url, log=None, metrics_port=0, unhealthy_after="1s")
    until(lambda: health(watch)[0] == 503, "a program without a query is healthy for ever")
    assert health(watch)[1].startswith("no query runs since")
    may_end = threading.Event()
    rows = read_stream(spark, engine_server, "n INT", streams="s").writeStream.trigger(processingTime="1 hour")
    rows = rows.option("checkpointLocation", str(tmp_path)).queryName("slow")
    query = rows.foreachBatch(lambda frame, number: may_end.wait(60)).start()
    try:
        until(lambda: "query 'slow' has ended no trigger" in health(watch)[1], "a batch that hangs is healthy", 60)
        may_end.set()
        until(lambda: health(watch)[0] == 200, "the query is not healthy after its batch", 60)
        time.sleep(1.5)  # the limit: no event comes until the next trigger
        assert health(watch) == (200, "ok\n")
    finally:
        may_end.set()
        query.stop()


def test_what_cannot_be_opened_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="nowhere"):
        spark_streams.watch(spark, "embedded:", log=tmp_path / "nowhere" / "log")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidOptionError, match=f"metrics cannot be served at 127.0.0.1:{port}"):
            spark_streams.watch(spark, "embedded:", log=None, metrics_port=port)
    with pytest.raises(InvalidOptionError, match="metrics cannot be written"):
        spark_streams.watch(spark, "embedded:", log=None, metrics_file=tmp_path / "nowhere" / "metrics")
    with pytest.raises(InvalidOptionError, match="unhealthy_after must be at least 30s"):
        spark_streams.watch(spark, "embedded:", log=None, unhealthy_after="5s")
