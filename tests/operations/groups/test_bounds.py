"""A change with the bounds of its dry run is no more than the dry run has shown, whatever arrives in between."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from spark_streams.operations.commands.dry_run import bounds_of, up_to_last
from spark_streams.operations.groups import group_deletion as deletion
from spark_streams.operations.groups import unused
from spark_streams.operations.groups.change_plan import only_these
from tests.connector.deadletter.making import DEAD, fill, record_origin
from tests.connector.deadletter.test_redrive_plan_destinations import forge
from tests.operations.groups.conftest import Rstream, RstreamJson
from tests.operations.groups.test_pending_entries import G, held
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
    assert up_to_last([""]) == ["--last-id", "0-0"], "nothing was there, so nothing is changed"
    assert only_these([("-s", "--g", "5-0"), ("t", "g", "")]) == [
        "--only",
        "-s",
        "--g",
        "5-0",
        "--only",
        "t",
        "g",
        "0-0",
    ]


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
    assert planned["bounds"] == ["--only", "orders", "g", "5-0"]
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
    begin = "to change no more than this, set or replace these options: "
    assert all(line.startswith(f"{begin}--last-id ") for line in lines[:2])
    assert lines[2] == f"{begin}--only orders g 5-0 --yes"
    assert lines[0].endswith(" --allow s --recorded --yes")
    nothing = rstream("groups", "ack", "orders", *G, "--consumer", "nobody").stdout
    assert nothing.splitlines()[-1] == f"{begin}--only orders g 0-0 --yes"


OLD = 1_700_000_000_000  # an entry's time, years ago


def half_read(client: redis.Redis, stream: str, first: int, group: str = "g") -> None:
    """A stream of ten entries from this ID on, of which a group was given five."""
    for n in range(10):
        client.xadd(stream, {"n": n}, id=f"{first + n}-0")
    client.xgroup_create(stream, group, id="0")
    client.xreadgroup(group, "bob", {stream: ">"}, count=5)


@pytest.mark.parametrize(
    "change", [("claim", "--from", "bob", "--to", "eve"), ("ack", "--all"), ("ack", "--consumer", "bob")]
)
def test_each_stream_has_its_own_last_entry(
    client: redis.Redis, rstream_json: RstreamJson, change: tuple[str, ...]
) -> None:
    """The last entry of one stream is no bound of another, whose IDs are lower."""
    half_read(client, "a", 1)
    half_read(client, "b", 1_000)
    command, *options = change
    planned = rstream_json("groups", command, "a", "b", *G, *options)
    client.xreadgroup("g", "bob", {"a": ">"}, count=5)
    half_read(client, "c", 1)
    done = rstream_json("groups", command, "a", "b", *G, *options, *planned["bounds"], "--yes")
    assert done["streams"] == planned["streams"]
    assert sum(one["entries"] for one in done["streams"]) == 10


@pytest.mark.parametrize(
    "change",
    [
        ("groups", "ack", "a*", *G, "--all"),
        ("groups", "delete", "a*", *G, "--even-active"),
        ("groups", "seek", "a*", *G, "--to", "latest", "--even-active"),
        ("groups", "create", "a*", "--group", "new"),
        ("trim", "a*", "--acked"),
    ],
)
def test_a_stream_that_a_pattern_matches_later_is_not_changed(
    client: redis.Redis, rstream_json: RstreamJson, change: tuple[str, ...]
) -> None:
    half_read(client, "a1", 1)
    client.xack("a1", "g", *[f"{n}-0" for n in range(1, 6)])
    client.xreadgroup("g", "bob", {"a1": ">"}, count=1)
    planned = rstream_json(*change)
    half_read(client, "a2", 1)
    client.xack("a2", "g", "1-0")
    client.xadd("a1", {"n": 10}, id="20-0")
    before = client.xinfo_groups("a2"), client.xlen("a2")
    done = rstream_json(*change, *planned["bounds"], "--yes")
    assert [one["stream"] for one in done["streams"]] == ["a1"]
    assert (client.xinfo_groups("a2"), client.xlen("a2")) == before
    assert [one.get("position") for one in done["streams"]] == [one.get("position") for one in planned["streams"]]


def idle(client: redis.Redis, stream: str, group: str = "g") -> None:
    """A group that was given some old entries, and holds the others back from being trimmed."""
    half_read(client, stream, OLD, group)
    client.xgroup_create(stream, "ahead", id="$")
    client.xgroup_createconsumer(stream, "ahead", "spark")


@pytest.mark.parametrize("mode", [(), ("--hold",), ("--consumers",)])
def test_a_group_of_the_same_name_of_another_stream_is_not_pruned(
    client: redis.Redis, rstream_json: RstreamJson, mode: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was in use at the dry run, and pauses afterwards."""
    monkeypatch.setattr(unused, "SHORTEST_MS", 1)
    for stream in ("a", "b"):
        idle(client, stream)
        client.xgroup_createconsumer(stream, "g", "empty")
    command = ("groups", "prune", "--idle", "250ms", "--group", "g", *mode)
    time.sleep(0.3)
    for consumer in ("bob", "empty"):
        client.xreadgroup("g", consumer, {"b": ">"}, count=1)
    client.xack("b", "g", *[one["message_id"] for one in client.xpending_range("b", "g", "-", "+", 9, "empty")])
    planned = rstream_json(*command)
    assert [(one["stream"], one["group"]) for one in planned["streams"]] == [("a", "g")]
    time.sleep(0.3)
    assert len(rstream_json(*command)["streams"]) == 2, "now the other one is idle, too"
    done = rstream_json(*command, *planned["bounds"], "--yes")
    assert [(one["stream"], one["group"]) for one in done["streams"]] == [("a", "g")]
    assert (client.xlen("b"), len(client.xinfo_consumers("b", "g"))) == (10, 2)


def test_a_group_that_has_read_since_the_dry_run_is_not_deleted(
    client: redis.Redis, orders: None, rstream_json: RstreamJson, rstream: Rstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unused, "SHORTEST_MS", 1)
    command = ("groups", "delete", "orders", *G, "--even-active")
    planned = rstream_json(*command)
    assert planned["bounds"] == ["--only", "orders", "g", "5-0"]
    client.xreadgroup("g", "bob", {"orders": ">"}, count=1)
    refused = rstream(*command, *planned["bounds"], "--yes")
    assert (refused.exit_code, "stands at 6-0, and not where the dry run" in refused.stderr) == (1, True)
    assert len(client.xinfo_groups("orders")) == 1


def test_what_a_consumer_reads_after_the_dry_run_is_not_forgotten_with_it(
    client: redis.Redis, orders: None, rstream_json: RstreamJson, rstream: Rstream
) -> None:
    command = ("groups", "delete", "orders", *G, "--even-active", "--consumer", "bob", "--forget-pending")
    planned = rstream_json(*command)
    client.xreadgroup("g", "bob", {"orders": ">"}, count=2)
    refused = rstream(*command, *planned["bounds"], "--yes")
    assert (refused.exit_code, "has read meanwhile" in refused.stderr) == (1, True)
    assert len(held(client, "bob")) == 7
    assert rstream_json(*command, "--yes")["streams"][0]["pending"] == 7


@pytest.mark.parametrize("pending", [0, 5])
def test_what_a_consumer_reads_between_the_look_and_its_deletion_stays_pending(
    client: redis.Redis, orders: None, rstream: Rstream, monkeypatch: pytest.MonkeyPatch, pending: int
) -> None:
    """It is given back with its idle time and number of deliveries."""
    if not pending:
        client.xack("orders", "g", *[f"{n}-0" for n in range(1, 6)])
    honest = deletion.delete_without_entries

    def late(*arguments: Any) -> Any:
        client.xreadgroup("g", "bob", {"orders": ">"}, count=2)
        return honest(*arguments)

    monkeypatch.setattr(deletion, "delete_without_entries", late)
    command = ("groups", "delete", "orders", *G, "--even-active", "--consumer", "bob", "--forget-pending")
    refused = rstream(*command, "--yes")
    assert (refused.exit_code, "has read meanwhile" in refused.stderr) == (1, True)
    assert [
        (one["message_id"], one["times_delivered"]) for one in client.xpending_range("orders", "g", "-", "+", 9)
    ] == [
        ("6-0", 1),
        ("7-0", 1),
    ]
