"""The query of a job: its trigger, its progress, and streams that it must not, or cannot, read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from rich.console import Console

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import ConfigError, StreamMissingError
from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.offset import Offset, StreamOffset
from spark_streams.jobs.job import Job
from spark_streams.jobs.parts.query import Query, RunProgress, check_feedback_loop, check_target_time, trigger_of
from spark_streams.jobs.parts.source_and_sink import Sink, Source
from tools.servers.server import Server


def job_with(text: str | None) -> Any:
    return SimpleNamespace(get=lambda key, default=None: default if text is None else text)


def trigger_from(text: str | None) -> Mapping[str, Any]:
    return trigger_of(job_with(text))


@pytest.mark.parametrize(
    ("text", "trigger"),
    [
        (None, {"availableNow": True}),
        ("available-now", {"availableNow": True}),
        ("5s", {"processingTime": "5000 milliseconds"}),
        ("500ms", {"processingTime": "500 milliseconds"}),
        ("2 m", {"processingTime": "120000 milliseconds"}),
    ],
)
def test_a_trigger_is_a_word_or_a_length_of_time(text: str | None, trigger: dict[str, Any]) -> None:
    assert trigger_from(text) == trigger


@pytest.mark.parametrize("text", ["often", "once", "5", "0s", "-5s", "5 seconds"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match='must be "available-now" or an interval such as "10s", not '):
        trigger_from(text)


@pytest.mark.parametrize("text", [None, "1ms", "1s", "900 MS"])
def test_a_short_interval_is_not_in_the_way_of_the_time_of_a_batch(text: str | None) -> None:
    check_target_time(job_with(text), 10_000)


@pytest.mark.parametrize("text", ["1001ms", "10s", "2 S", "1m", "1 H"])
def test_a_pause_that_would_count_as_time_of_a_batch_is_refused(text: str) -> None:
    check_target_time(job_with(text), None)
    with pytest.raises(ConfigError, match=r"is more than a tenth of source.targetBatchTime \(10000 ms\).*trigger = "):
        check_target_time(job_with(text), 10_000)


def test_an_interval_that_is_none_is_refused_as_ever() -> None:
    with pytest.raises(ConfigError, match="must be"):
        check_target_time(job_with("often"), 10_000)


# The progress of a job's run: each completed batch is counted once, and a poll asks Spark for new batches alone.


class Durations(dict[str, int]):
    """Java's map of durations."""

    def containsKey(self, name: str) -> bool:
        return name in self


@dataclass
class Progress:
    """Spark's progress of a batch. asked: names of the values that were read."""

    number: int
    rows: int
    ran: bool = True
    asked: list[str] = field(default_factory=list)

    def batchId(self) -> int:
        self.asked.append("batchId")
        return self.number

    def numInputRows(self) -> int:
        self.asked.append("numInputRows")
        return self.rows

    def durationMs(self) -> Durations:
        self.asked.append("durationMs")
        return Durations(addBatch=1) if self.ran else Durations(triggerExecution=1)


def test_each_completed_batch_is_counted_once_at_whatever_poll_it_is_seen() -> None:
    """An idle trigger before a batch has the number of that batch."""
    idle, first, second, third = Progress(0, 0, ran=False), Progress(0, 10), Progress(1, 20), Progress(2, 30)
    progress = RunProgress()
    for recent in ([], [idle], [idle, first], [idle, first], [first, second, third], [second, third]):
        progress = progress.with_batches(recent)
    assert (progress.last, progress.entries) == (2, 60)


def test_a_poll_reads_nothing_but_the_number_of_a_batch_that_is_counted_already() -> None:
    """A job polls five times a second, and Spark keeps 100 batches."""
    old, counted, new = Progress(3, 10), Progress(4, 10), Progress(5, 10)
    assert RunProgress(last=4, entries=7).with_batches([old, counted, new]).entries == 17
    assert (old.asked, counted.asked) == ([], ["batchId"])


# A job that writes to what it reads is refused.


HERE = "redis://127.0.0.1:6379"


@pytest.mark.parametrize(
    ("source", "sink", "refused"),
    [
        ({"streams": "a,b"}, {"stream": "b"}, "output x: sink.stream is 'b', which source.streams names, too: the job"),
        ({"streams": "a"}, {"stream": "b"}, None),
        ({"streams": "a"}, {"stream": "a", "url": "redis://127.0.0.1:6380"}, None),
        ({"streams": "a"}, {"streamColumn": "to"}, None),
        ({"streamsPattern": "o:*"}, {"stream": "o:late"}, "is 'o:late', which source.streamsPattern 'o:.' finds, too"),
        ({"streamsPattern": "o:[^l]*"}, {"stream": "o:late"}, None),
    ],
)
def test_a_job_that_reads_its_own_output_is_refused(
    source: dict[str, str], sink: dict[str, str], refused: str | None
) -> None:
    read = SourceOptions.parse({"url": HERE, "group": "g", **source})
    written = {"output x: sink.stream": SinkOptions.parse({"url": HERE, **sink})}
    if refused is None:
        check_feedback_loop(read, written, lambda one, other: one.url == other.url)
    else:
        with pytest.raises(ConfigError, match=refused):
            check_feedback_loop(read, written, lambda one, other: one.url == other.url)


@pytest.mark.parametrize(("other", "is_one"), [("?client_name=other", True), ("?db=0", True), ("?db=1", False)])
def test_one_server_has_many_addresses(server: Server, client: redis.Redis, other: str, is_one: bool) -> None:
    client.xadd("orders", {"a": 1})
    config = {"url": server.url, "source": {"group": "g", "streams": "orders"}, "job": {"checkpoint": "/nowhere"}}
    job = Job("aggregate", {**config, "sink": {"stream": "orders", "url": server.url + other}}, Console())
    if is_one:
        with pytest.raises(ConfigError, match=r"sink\.stream is 'orders', which source\.streams names, too"):
            Query(job, Source(job), Sink(job))
    else:
        Query(job, Source(job), Sink(job))
    assert client.keys() == ["orders"], "nothing is left"


# `--check` names streams that have no entry yet, with the nearest name: the query would wait for them.


def note(server: Server, **source: object) -> str | None:
    """What the check of a job with this source says of its streams."""
    config = {"url": server.url, "source": {"group": "g", **source}, "job": {"checkpoint": "/nowhere/checkpoint"}}
    job = Job("etl", config, Console(), check=True)
    told = Query(job, Source(job)).plan().get("note")
    assert told is None or isinstance(told, str)
    return told


def test_each_stream_is_named_and_nothing_is_made(server: Server, client: redis.Redis) -> None:
    client.xadd("orders", {"a": 1})
    client.xadd("returns", {"a": 1})
    client.xgroup_create("retruns", "other", mkstream=True)
    assert note(server, streams=["odrers", "orders", "retruns"]) == (
        f"stream 'odrers' at {server.url} does not exist yet; waiting for its first entry (did you mean 'orders'?); "
        f"stream 'retruns' at {server.url} has never had an entry; waiting for its first entry "
        "(did you mean 'returns'?)"
    )
    assert sorted(client.keys()) == ["orders", "retruns", "returns"]


def test_streams_with_entries_are_not_reported(server: Server, client: redis.Redis) -> None:
    client.xadd("orders", {"a": 1})
    assert note(server, streams=["orders"]) is None
    assert note(server, streamsPattern="ord*") is None


def test_a_pattern_that_matches_nothing(server: Server, client: redis.Redis) -> None:
    client.xadd("orders:1", {"a": 1})
    assert note(server, streamsPattern="odrers:*") == (
        f"no stream with entries at {server.url} matches 'odrers:*' (did you mean 'orders:1'?)"
    )


def test_one_that_would_be_refused(server: Server, client: redis.Redis) -> None:
    client.xadd("orders", {"a": 1})
    told = note(server, streams=["odrers"], createStreams=False)
    assert told is not None
    assert told.startswith(f"stream 'odrers' does not exist at {server.url} (did you mean 'orders'?); check its name")


# A wrong server, or a misspelt stream, which would only be waited for.


def checkpoint_of(folder: Path, **positions: str) -> str:
    """A checkpoint that has read these streams up to these IDs."""
    streams = {stream: StreamOffset(StreamId.parse(position)) for stream, position in positions.items()}
    offset = Offset("g", "spark", streams)
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id": "q"}')
    (folder / "offsets" / "0").write_text(f'v1\n{{"batchTimestampMs": 1}}\n{json.dumps(offset.to_json())}\n')
    return str(folder)


def start(server: Server, checkpoint: str, **source: object) -> Query:
    job = Job(
        "etl", {"url": server.url, "source": {"group": "g", **source}, "job": {"checkpoint": checkpoint}}, Console()
    )
    return Query(job, Source(job))


@pytest.mark.parametrize("source", [{"streams": ["orders"]}, {"streams": "orders,new"}, {"streamsPattern": "o*"}])
def test_a_server_that_has_nothing_of_what_the_checkpoint_has_read_is_refused(
    server: Server, client: redis.Redis, tmp_path: Path, source: Mapping[str, object]
) -> None:
    client.xadd("new", {"a": 1})
    checkpoint = checkpoint_of(tmp_path / "checkpoint", orders="5-0")
    with pytest.raises(StreamMissingError, match=r"stream 'orders' does not exist at .*source\.must_exist = false"):
        start(server, checkpoint, **source)
    start(server, checkpoint, must_exist=False, **source)
    client.xadd("orders", {"a": 1})
    start(server, checkpoint, **source)


def test_a_checkpoint_that_has_read_one_stream_of_two_lets_the_source_judge_the_other(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    client.xadd("orders", {"a": 1})
    start(server, checkpoint_of(tmp_path / "a", orders="5-0", returns="5-0"), streams="orders,returns")
    start(server, checkpoint_of(tmp_path / "b", returns="0-0"), streams="returns")  # it has never had an entry


@pytest.mark.parametrize("source", [{"streams": "odrers"}, {"streams": "orders,odrers"}, {"streamsPattern": "odrers*"}])
def test_with_must_exist_a_misspelt_stream_is_refused_and_nothing_is_made(
    server: Server, client: redis.Redis, tmp_path: Path, source: Mapping[str, object]
) -> None:
    client.xadd("orders", {"a": 1})
    start(server, str(tmp_path), must_exist=True, streams="orders")
    with pytest.raises(StreamMissingError, match=r"did you mean 'orders'.*source\.must_exist"):
        start(server, str(tmp_path), must_exist="true", **source)
    assert client.keys() == ["orders"]


def test_must_exist_is_true_or_false(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"source\.must_exist must be true or false, not 'yes'"):
        start(server, str(tmp_path), must_exist="yes", streams="orders")
