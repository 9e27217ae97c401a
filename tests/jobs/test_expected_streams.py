"""`--check` names streams that have no entry yet, with the nearest name: the query would wait for them."""

from __future__ import annotations

import redis
from rich.console import Console

from spark_streams.jobs.job import Job
from spark_streams.jobs.parts.query import Query
from spark_streams.jobs.parts.source_and_sink import Source
from tools.servers.server import Server


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
