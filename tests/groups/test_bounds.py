"""A change with the bounds of its dry run is no more than the dry run has shown, whatever arrives in between."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from spark_streams.commands.bounds import bounds_of, up_to_last
from tests.deadletter.making import DEAD, fill, record_origin
from tests.deadletter.redrive.test_destinations import forge
from tests.groups.conftest import Rstream, RstreamJson
from tests.groups.test_pending import G, held
from tools.servers.server import Server


@pytest.fixture
def orders(client: redis.Redis) -> None:
    for n in range(10):
        client.xadd("orders", {"n": n}, id=f"{n + 1}-0")
    client.xgroup_create("orders", "g", id="0")
    client.xreadgroup("g", "bob", {"orders": ">"}, count=5)


def test_words_of_bounds() -> None:
    assert bounds_of({"allow": ["a b", "-c"]}, "exact") == ["--allow", "a b", "--allow=-c", "--exact"]
    assert up_to_last(["9-0", "", "10-0"]) == ["--last-id", "10-0"]
    assert up_to_last([""]) == []


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (["ack", "orders", *G, "--all"], 2),
        (["ack", "orders", *G, "--consumer", "bob"], 2),
        (["claim", "orders", *G, "--from", "bob", "--to", "eve"], 2),
    ],
)
def test_an_entry_that_becomes_pending_later_is_not_changed(
    client: redis.Redis, orders: None, rstream_json: RstreamJson, change: list[str], left: int
) -> None:
    planned = rstream_json("groups", *change)
    assert planned["bounds"] == ["--last-id", "5-0"]
    client.xreadgroup("g", "bob", {"orders": ">"}, count=2)
    done = rstream_json("groups", *change, *planned["bounds"], "--yes")
    assert (done["streams"], done["bounds"]) == (planned["streams"], [])
    assert len(held(client, "bob")) == left


def test_a_group_moves_to_the_position_of_the_dry_run(
    client: redis.Redis, orders: None, rstream_json: RstreamJson
) -> None:
    planned = rstream_json("groups", "seek", "orders", *G, "--to", "latest")
    client.xadd("orders", {"n": 10}, id="11-0")
    rstream_json("groups", "seek", "orders", *G, "--to", "latest", *planned["bounds"], "--yes")
    [(_, entries)] = client.xreadgroup("g", "bob", {"orders": ">"})
    assert [entry for entry, _ in entries] == ["11-0"]
    planned = rstream_json("groups", "create", "orders", "--group", "new")
    client.xadd("orders", {"n": 11}, id="12-0")
    rstream_json("groups", "create", "orders", "--group", "new", *planned["bounds"], "--yes")
    [(_, entries)] = client.xreadgroup("new", "bob", {"orders": ">"})
    assert [entry for entry, _ in entries] == ["12-0"]


def redriven(client: redis.Redis) -> dict[str, int]:
    return {stream: client.xlen(stream) for stream in ("s", "elsewhere", "orders[1]", "orders1")}


@pytest.mark.parametrize("command", ["redrive", "purge"])
def test_a_dead_letter_that_arrives_later_stays(
    client: redis.Redis, server: Server, rstream_json: RstreamJson, command: str
) -> None:
    fill(server, 3)
    planned = rstream_json("dead", command, DEAD)
    fill(server, 2, first=9)
    rstream_json("dead", command, DEAD, *planned["bounds"], "--yes")
    assert client.xlen(DEAD) == 2


def test_no_other_stream_and_no_other_group_receives_dead_letters(
    client: redis.Redis, server: Server, rstream_json: RstreamJson
) -> None:
    """Of the four, two are recorded origins at the time of the dry run. The others are recorded after it."""
    fill(server, 1)
    fill(server, 1, first=5, stream="orders[1]")
    forge(server, "elsewhere")
    forge(server, "orders1")
    planned = rstream_json("dead", "redrive", DEAD)
    assert planned["bounds"] == [
        *("--last-id", planned["bounds"][1]),
        *("--allow", "orders[1]", "--allow", "s", "--exact", "--recorded"),
    ]
    for stream in ("elsewhere", "orders1"):
        record_origin(client, DEAD, stream, "g")
    done = rstream_json("dead", "redrive", DEAD, *planned["bounds"], "--yes")
    assert (done["moved"], redriven(client)) == (2, {"s": 1, "elsewhere": 0, "orders[1]": 1, "orders1": 0})


def test_bounds_do_not_allow_a_group_that_is_not_recorded(
    client: redis.Redis, server: Server, rstream_json: RstreamJson
) -> None:
    fill(server, 1)
    forge(server, "s", "other")
    planned = rstream_json("dead", "redrive", DEAD)
    done = rstream_json("dead", "redrive", DEAD, *planned["bounds"], "--yes")
    assert (planned["moved"], done["moved"], client.xlen(DEAD)) == (1, 1, 1)


def test_a_person_reads_the_options(server: Server, orders: None, rstream: Rstream) -> None:
    fill(server, 1)
    said: list[Any] = [
        rstream("dead", "redrive", DEAD).stdout,
        rstream("dead", "purge", DEAD).stdout,
        rstream("groups", "ack", "orders", *G, "--all").stdout,
    ]
    lines = [text.splitlines()[-1] for text in said]
    begin = "to change no more than this, set or replace these options: --last-id "
    assert all(line.startswith(begin) for line in lines)
    assert lines[0].endswith(" --allow s --recorded --yes")
    nothing = rstream("groups", "ack", "orders", *G, "--consumer", "nobody").stdout
    assert nothing.splitlines()[-1].startswith("dry run")
