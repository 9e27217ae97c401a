"""`rstream groups prune`: groups that nobody reads from are deleted, and any that may be in use stays."""

from __future__ import annotations

import time

import pytest
import redis

from spark_streams.connector.admin.groups import GroupSnapshot
from spark_streams.connector.keys import retry_stream
from spark_streams.connector.source.commit_mark import committed_key
from spark_streams.connector.wire.connection import Connection
from spark_streams.operations.groups import unused
from tests.operations.groups.conftest import Rstream, RstreamJson
from tools.driving import ALL, NEVER_AHEAD, drain, read, reader, stop_all
from tools.servers.server import Server

OLD = 1_700_000_000_000  # an entry's time, years ago


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer is silent after 50 ms, as after a minute."""
    monkeypatch.setattr(unused, "SHORTEST_MS", 1)
    monkeypatch.setattr("spark_streams.connector.admin.groups.ACTIVE_MS", 1)


def abandoned(client: redis.Redis, stream: str = "orders", group: str = "nb-1", pending: int = 2) -> None:
    """A group that was given some of its entries, and that nobody has read from since."""
    for n in range(5):
        client.xadd(stream, {"n": n}, id=f"{OLD + n}-0")
    client.xgroup_create(stream, group, id="0")
    client.xreadgroup(group, "spark", {stream: ">"}, count=pending)


def groups(client: redis.Redis, stream: str = "orders") -> list[str]:
    return [one["name"] for one in client.xinfo_groups(stream)]


def test_an_abandoned_group_is_deleted_with_what_is_kept_for_it(
    client: redis.Redis, rstream_json: RstreamJson, rstream: Rstream
) -> None:
    abandoned(client)
    client.set("rstream:committed:{orders}:nb-1:spark", f"{OLD}-0 4.x")
    client.set("rstream:committed:{orders}:other:spark", f"{OLD}-0 4.x")
    time.sleep(0.06)
    planned = rstream_json("groups", "prune", "--idle", "50ms")
    assert groups(client) == ["nb-1"]
    done = rstream_json("groups", "prune", "--idle", "50ms", "--yes")
    [one] = done["streams"]
    assert planned["streams"][0] | {"idle_ms": 0} == one | {"idle_ms": 0}
    assert (one["stream"], one["group"], one["pending"], one["consumers"]) == ("orders", "nb-1", 2, {"spark": 2})
    assert one["keys"] == ["rstream:committed:{orders}:nb-1:spark"]
    assert one["committed"] == {"spark": f"{OLD}-0"}
    assert groups(client) == []
    assert client.keys("rstream:*") == ["rstream:committed:{orders}:other:spark"]
    assert rstream_json("groups", "prune", "--idle", "50ms")["streams"] == []


def test_a_dry_run_for_people(client: redis.Redis, rstream: Rstream) -> None:
    abandoned(client)
    time.sleep(0.06)
    ran = rstream("groups", "prune", "--idle", "50ms")
    assert "dry run, nothing was changed; with --yes: deleted 1 group, with 2 pending entries" in ran.stdout
    assert groups(client) == ["nb-1"]


def test_entries_waiting_for_retry_stay_and_are_named(client: redis.Redis, rstream: Rstream) -> None:
    abandoned(client)
    waiting = retry_stream("orders", "nb-1", 1)
    client.xadd(waiting, {"n": 1})
    time.sleep(0.06)
    ran = rstream("groups", "prune", "--idle", "50ms", "--yes")
    assert (ran.exit_code, f"in {waiting!r} wait for a retry, and are not deleted" in ran.stdout) == (0, True)
    assert (groups(client), client.xlen(waiting)) == ([], 1)


def test_a_group_in_which_a_query_lives_stays(server: Server, client: redis.Redis, rstream_json: RstreamJson) -> None:
    for n in range(5):
        client.xadd("s", {"n": n}, id=f"{OLD + n}-0")
    one = reader(server, limits=NEVER_AHEAD)
    at = one.initialOffset()
    end = one.latestOffset(at, ALL)
    read(one, at, end)
    client.xadd("s", {"n": 5}, id=f"{OLD + 9}-0")
    time.sleep(0.06)
    told = rstream_json("groups", "prune", "--idle", "50ms", "--yes")
    assert (told["streams"], told["in_use"], groups(client, "s")) == ([], 1, ["g"])
    stop_all()
    assert [one["group"] for one in rstream_json("groups", "prune", "--idle", "50ms")["streams"]] == ["g"]
    assert drain(reader(server, limits=NEVER_AHEAD), start=end) == [[5]]


def test_a_group_whose_consumer_was_active_stays(client: redis.Redis, rstream_json: RstreamJson) -> None:
    abandoned(client)
    assert rstream_json("groups", "prune", "--idle", "1h", "--yes")["in_use"] == 1
    client.xgroup_createconsumer("orders", "nb-1", "old")
    time.sleep(0.1)
    client.xreadgroup("nb-1", "live", {"orders": ">"}, count=1)
    assert rstream_json("groups", "prune", "--idle", "90ms", "--yes")["in_use"] == 1
    assert groups(client) == ["nb-1"]


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("no consumer", "has no consumer"),
        ("read to its end", "all entries were delivered to it"),
        ("ids are no times", "IDs are not times"),
        ("unread entries are young", "its oldest undelivered entry is"),
    ],
)
def test_a_group_whose_idle_time_nobody_can_tell_stays_and_is_named(
    client: redis.Redis, rstream_json: RstreamJson, rstream: Rstream, case: str, why: str
) -> None:
    if case == "ids are no times":
        for n in range(5):
            client.xadd("orders", {"n": n}, id=f"{n + 1}-0")
        client.xgroup_create("orders", "nb-1", id="0")
        client.xreadgroup("nb-1", "spark", {"orders": ">"}, count=2)
        client.xack("orders", "nb-1", "1-0", "2-0")
    elif case == "unread entries are young":
        client.xgroup_create("orders", "nb-1", id="0", mkstream=True)
        client.xgroup_createconsumer("orders", "nb-1", "spark")
        time.sleep(2.1)
        client.xadd("orders", {"n": 1})
    else:
        abandoned(client, pending=5)
        client.xack("orders", "nb-1", *[f"{OLD + n}-0" for n in range(5)])
    if case == "no consumer":
        client.xgroup_delconsumer("orders", "nb-1", "spark")
        client.xgroup_setid("orders", "nb-1", "0")
    time.sleep(0.06)
    idle = "2s" if case == "unread entries are young" else "50ms"
    told = rstream_json("groups", "prune", "--idle", idle, "--yes")
    assert told["streams"] == []
    [kept] = told["kept"]
    assert (kept["stream"], kept["group"], why in kept["why"]) == ("orders", "nb-1", True), kept
    assert groups(client) == ["nb-1"]
    assert "kept: group 'nb-1' of stream 'orders'" in rstream("groups", "prune", "--idle", idle).stdout


def test_a_group_that_was_read_to_its_end_and_has_old_pending_entries_is_abandoned(
    client: redis.Redis, rstream_json: RstreamJson
) -> None:
    """A client that waits for the next entry would have acknowledged them."""
    abandoned(client, pending=5)
    time.sleep(0.06)
    shows_attempts = "inactive" in client.xinfo_consumers("orders", "nb-1")[0]  # since Redis 7.2
    told = rstream_json("groups", "prune", "--idle", "50ms", "--yes")
    if not shows_attempts:
        assert "does not tell whether it is polled" in told["kept"][0]["why"]
        return
    assert [(one["group"], one["pending"]) for one in told["streams"]] == [("nb-1", 5)]
    assert groups(client) == []


@pytest.mark.parametrize("hold", [(), ("--hold",)])
def test_a_worker_that_polls_and_finds_nothing_keeps_its_group_and_its_pending_entry(
    client: redis.Redis, rstream_json: RstreamJson, hold: tuple[str, ...]
) -> None:
    """Before Redis 7.2, its consumer is idle since the last read that found something."""
    abandoned(client, pending=5)
    client.xack("orders", "nb-1", *[f"{OLD + n}-0" for n in range(1, 5)])
    client.xgroup_create("orders", "ahead", id="$")
    time.sleep(0.3)
    assert not client.xreadgroup("nb-1", "spark", {"orders": ">"})
    told = rstream_json("groups", "prune", "--idle", "250ms", "--group", "nb-1", *hold, "--yes")
    assert told["streams"] == []
    assert (client.xinfo_groups("orders")[-1]["pending"], client.xlen("orders")) == (1, 5)


def test_the_group_of_a_query_with_no_ack_stays(server: Server, client: redis.Redis, rstream_json: RstreamJson) -> None:
    """Its consumer does not read, and another one has been silent for long."""
    abandoned(client, "s", "g")
    client.xack("s", "g", *[f"{OLD + n}-0" for n in range(5)])
    client.xgroup_delconsumer("s", "g", "spark")
    one = reader(server, noAck="true", limits=NEVER_AHEAD)
    end = one.latestOffset(one.initialOffset(), ALL)
    read(one, one.initialOffset(), end)
    one.commit(end)
    stop_all()
    client.xgroup_createconsumer("s", "g", "old")
    client.xadd("s", {"n": 9}, id=f"{OLD + 9}-0")
    time.sleep(0.06)
    told = rstream_json("groups", "prune", "--idle", "50ms", "--yes")
    assert (told["streams"], groups(client, "s")) == ([], ["g"])
    assert "a query with noAck has committed to it" in told["kept"][0]["why"]


def test_the_groups_of_two_queries_with_no_ack_stay(client: redis.Redis, rstream_json: RstreamJson) -> None:
    for stream in ("s", "t"):
        abandoned(client, stream, "g")
        client.set(committed_key(stream, "g", "spark"), f"{OLD}-0 1.64a3ed2d-noAck")
    time.sleep(0.06)
    told = rstream_json("groups", "prune", "--idle", "50ms", "--yes")
    assert (told["streams"], [one["stream"] for one in told["kept"]]) == ([], ["s", "t"])


def test_streams_and_groups_are_chosen_by_pattern(client: redis.Redis, rstream_json: RstreamJson) -> None:
    for stream in ("orders:1", "orders:2", "audit"):
        abandoned(client, stream)
        client.xgroup_create(stream, "etl", id="0")
        client.xreadgroup("etl", "spark", {stream: ">"}, count=1)
    time.sleep(0.06)
    found = rstream_json("groups", "prune", "--idle", "50ms", "--group", "nb-*", "orders:*")["streams"]
    assert [(one["stream"], one["group"]) for one in found] == [("orders:1", "nb-1"), ("orders:2", "nb-1")]
    assert len(rstream_json("groups", "prune", "--idle", "50ms", "audit")["streams"]) == 2
    done = rstream_json("groups", "prune", "--idle", "50ms", "--yes")["streams"]
    assert len(done) == 6
    assert groups(client, "audit") == []


def test_what_is_too_short_is_refused(rstream: Rstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unused, "SHORTEST_MS", 60_000)
    ran = rstream("groups", "prune", "--idle", "59s")
    assert (ran.exit_code, "at least 1m" in ran.stderr) == (2, True)
    assert rstream("groups", "prune").exit_code == 2


def test_a_group_that_is_read_from_meanwhile_stays_and_those_behind_it_are_deleted(
    client: redis.Redis, rstream: Rstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at all groups and the deletion. If all are in use by then, the command ends with 3."""
    for group in ("nb-1", "nb-2"):
        abandoned(client, stream=f"orders:{group}", group=group)
    time.sleep(0.2)
    honest = unused.prune_group

    def late(server: Connection, snapshot: GroupSnapshot, *more: object) -> object:
        if snapshot.group == "nb-1":
            client.xreadgroup("nb-1", "spark", {"orders:nb-1": ">"}, count=1)
        return honest(server, snapshot, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(unused, "prune_group", late)
    ran = rstream("groups", "prune", "--idle", "150ms", "--yes")
    said = "left out: group 'nb-1' of stream 'orders:nb-1' is in use now, and is not deleted"
    assert (ran.exit_code, said in ran.stdout) == (0, True)
    assert [groups(client, f"orders:nb-{n}") for n in (1, 2)] == [["nb-1"], []]
    time.sleep(0.2)
    last = rstream("groups", "prune", "--idle", "150ms", "--yes")
    assert (last.exit_code, said in last.stdout, groups(client, "orders:nb-1")) == (3, True, ["nb-1"])
