"""Lost shards and a lost key: readers, writers and commands refuse them by name, and make nothing again in silence."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.errors import ShardsError, StreamMissingError
from spark_streams.connector.keys import shards_key
from spark_streams.connector.options.access_options import server_of
from spark_streams.connector.shards.names import shards_of
from spark_streams.connector.shards.shard_sets import fetch_shard_sets, require_plain
from spark_streams.connector.sink.chunks import Destination
from spark_streams.connector.wire.connect import connect
from tests.connector.shards.test_source import read, written
from tests.connector.sink.writing import options
from tools.driving import ALL, drain, reader, stop_all
from tools.servers.server import Server

KEY = shards_key("orders").decode()
NAMES = shards_of("orders", 4)
ROWS = list(range(200))
LOST = {
    "a shard": [NAMES[2]],
    "shard 0": [NAMES[0]],
    "the key": [KEY],
    "the key and shard 0": [KEY, NAMES[0]],
    "the key and a shard": [KEY, NAMES[2]],
    "the key and all but one": [KEY, NAMES[0], NAMES[1], NAMES[3]],
    "all": [KEY, *NAMES],
}
IN_PART = [lost for lost in LOST if lost not in ("the key", "all")]


def sink(server: Server, **given: str) -> None:
    checked = options(server.url, stream="orders", **given)
    with connect(checked.address) as one:
        Destination.from_options(checked).make_ready(one)


def rstream(server: Server, *words: str) -> str:
    """What it printed. Raises ShardsError, StreamMissingError with that, if it says so."""
    done = CliRunner().invoke(main, [*words, "--url", server.url], env={"COLUMNS": "200"})
    for error in (ShardsError, StreamMissingError):
        if error.condition in done.output:
            raise error(done.output)
    assert done.exit_code == 0 or "RSTREAM_STREAM_STATE" in done.output, done.output
    return done.output


def first_rows(server: Server, **given: str) -> list[int]:
    return sorted(n for batch in drain(reader(server, streams="orders", **given)) for n in batch)


WHO: dict[str, Callable[[Server, Any], object]] = {
    "a new query": lambda server, _: first_rows(server),
    "a new query with shards": lambda server, _: first_rows(server, shards="4"),
    "a query": lambda server, end: reader(server, streams="orders").latestOffset(end, ALL) == end,
    "a query with shards": lambda server, end: (
        reader(server, streams="orders", shards="4").latestOffset(end, ALL) == end
    ),
    "a sink": lambda server, _: sink(server, shards="4", shardBy="key"),
    "a sink with another number": lambda server, _: sink(server, shards="5", shardBy="key"),
    "a plain sink": lambda server, _: sink(server),
    "a read": lambda server, _: read(server),
    "rstream add": lambda server, _: rstream(server, "add", "orders", "key=k1", "n=1"),
    "rstream lag": lambda server, _: rstream(server, "lag", "orders"),
    "rstream groups create": lambda server, _: rstream(
        server, "groups", "create", "orders", "--group", "h", "--mkstream", "--yes"
    ),
    "rstream shards": lambda server, _: rstream(server, "shards", "orders"),
}  # fmt: skip


def left_of(server: Server, client: redis.Redis, lost: str) -> dict[str, Any]:
    """Two hundred rows in four shards that a query has read, and then this is lost. Returns the query's offset."""
    written(server)
    one = reader(server, streams="orders")
    begin = one.initialOffset()
    end = one.latestOffset(begin, ALL)
    one.partitions(begin, end)
    stop_all()
    client.delete(*LOST[lost])
    return end


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("lost", IN_PART)
def test_what_is_lost_in_part_is_refused_by_name(server: Server, client: redis.Redis, who: str, lost: str) -> None:
    """The error names what is lost, and nothing is made that was not there."""
    end = left_of(server, client, lost)
    there = sorted(client.keys("*orders*"))
    with pytest.raises(ShardsError) as caught:
        WHO[who](server, end)
    stop_all()
    assert all(name in str(caught.value) for name in LOST[lost]), caught.value
    assert "rstream shards orders --recreate" in str(caught.value)
    assert not client.exists(*LOST[lost]), "it was made again"
    assert sorted(client.keys("*orders*")) == there


@pytest.mark.parametrize("who", WHO)
def test_a_lost_key_alone_loses_nothing(server: Server, client: redis.Redis, who: str) -> None:
    """The names of the shards say how many they are."""
    end = left_of(server, client, "the key")
    if who in ("a sink with another number", "a plain sink", "rstream add"):
        with pytest.raises(ShardsError, match="in 4 shards"):
            WHO[who](server, end)
    else:
        found = WHO[who](server, end)
        assert found in (None, True, ROWS) or NAMES[0] in str(found)
    stop_all()
    assert not client.exists("orders")


@pytest.mark.parametrize("who", WHO)
def test_what_is_lost_wholly(server: Server, client: redis.Redis, who: str) -> None:
    """A query that has read the shards is refused, and so is what only reads; to all others the stream is a new one."""
    end = left_of(server, client, "all")
    if who == "a query":
        with pytest.raises(ShardsError, match="the checkpoint has 4 shards of stream 'orders'"):
            WHO[who](server, end)
    elif who == "a query with shards":
        with pytest.raises(Exception, match="RSTREAM_(DATA_LOSS|GROUP_MISSING)"):
            WHO[who](server, end)
    elif who in ("a read", "rstream lag", "rstream shards"):
        with pytest.raises(StreamMissingError):
            WHO[who](server, end)
    else:
        WHO[who](server, end)


def test_recreate_makes_what_is_lost_and_a_query_then_names_the_loss(server: Server, client: redis.Redis) -> None:
    """Also the key. A second run finds nothing to do."""
    end = left_of(server, client, "the key and a shard")
    planned = f"dry run, nothing was changed; with --yes: created {NAMES[2]}, empty"
    assert rstream(server, "shards", "orders", "--recreate").splitlines() == [planned]
    assert not client.exists(NAMES[2])
    assert rstream(server, "shards", "orders", "--recreate", "--yes").splitlines() == [f"created {NAMES[2]}, empty"]
    assert rstream(server, "shards", "orders", "--recreate", "--yes") == "no shard is lost; nothing was created\n"
    assert client.hget(KEY, "shards") == "4"
    assert [client.xlen(name) for name in NAMES].count(0) == 1
    with pytest.raises(Exception, match=r"RSTREAM_(DATA_LOSS|GROUP_MISSING)\W.*orders:2/4"):
        reader(server, streams="orders").latestOffset(end, ALL)
    stop_all()
    sink(server, shards="4", shardBy="key")
    assert len(read(server)) < 200


@pytest.mark.parametrize("lost", IN_PART)
def test_without_fail_on_data_loss_a_query_makes_what_is_lost_again(
    server: Server, client: redis.Redis, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It warns, counts what its checkpoint had not read yet, and reads on."""
    end = left_of(server, client, lost)
    one = reader(server, streams="orders", failOnDataLoss="false")
    after = one.latestOffset(end, ALL)
    assert "are lost, and are created again, empty" in caplog.text
    assert client.exists(KEY, *NAMES) == 5
    written(server, first=1000, number=1)
    assert sorted(n for batch in drain(one, start=after) for n in batch) == list(range(1000, 1200))


def test_shards_of_two_numbers_without_a_key(server: Server, client: redis.Redis) -> None:
    """As versions left them that did not look for lost shards. The remedy in the error ends it."""
    end = left_of(server, client, "the key")
    for name in shards_of("orders", 3):
        client.xadd(name, {"n": -1})
    for who, meets in WHO.items():
        with pytest.raises(ShardsError, match="stream 'orders' has shards for the numbers 3, 4"):
            meets(server, end)
        assert not client.exists(KEY), who
    listed = json.loads(rstream(server, "shards", "--json"))
    assert [(one["shards"], one["key"]) for one in listed] == [(3, False), (4, False)]
    delete = ("shards", "orders", "--delete", "--count", "3", "--yes")
    refused = rstream(server, *delete)
    assert "no group has read all entries of 'orders:0/3:" in refused
    [shown] = re.findall("rstream (lag .+) shows how far groups are behind", refused)
    assert rstream(server, *shlex.split(shown)) == "none\n"
    assert [batch[0] for batch in drain(reader(server, group="h", streamsPattern="orders:*/3:*"))] == [-1]
    stop_all()
    rstream(server, *delete)
    assert client.exists(*shards_of("orders", 3)) == 0
    assert first_rows(server, group="i") == ROWS


def test_a_plain_stream_that_a_query_made_while_the_key_was_lost(server: Server, client: redis.Redis) -> None:
    """As versions left it that did not look for lost shards: no query waits there for ever."""
    end = left_of(server, client, "the key and shard 0")
    client.xgroup_create("orders", "g", mkstream=True)
    for meets in WHO.values():
        with pytest.raises(ShardsError, match="is in 4 shards, but there is also a plain stream of that name"):
            meets(server, end)


def test_delete_ends_a_stream_of_which_shards_are_lost(server: Server, client: redis.Redis) -> None:
    left_of(server, client, "a shard")
    [row] = json.loads(rstream(server, "shards", "--json"))
    assert (row["lost"], row["key"]) == ([NAMES[2]], True)
    assert "1 lost" in rstream(server, "shards")
    rstream(server, "shards", "orders", "--delete", "--force", "--yes")
    assert not client.exists(KEY, *NAMES)
    sink(server, shards="5", shardBy="key")


def test_a_user_who_may_use_one_plain_stream_is_not_refused(redis_server: Server) -> None:
    """The names of shards, which that user may not look at, are none of its streams."""
    with redis_server.client() as client:
        client.flushall()
        rights = ("+@all", "resetkeys", "~plain", "~rstream:*{plain}*")
        client.execute_command("ACL", "SETUSER", "narrow", "on", ">pw", *rights)
        try:
            with connect(server_of({"url": redis_server.url.replace("://", "://narrow:pw@")}, "server")) as one:
                assert fetch_shard_sets(one, ["plain"]) == {}
                require_plain(one, "plain")
        finally:
            client.execute_command("ACL", "DELUSER", "narrow")
