"""`rstream groups prune --consumers`: idle consumers without pending entries go, and no entry is lost."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import redis

from spark_streams.connector.keys import key_beside
from spark_streams.connector.source.commit_mark import committed_key
from spark_streams.operations.groups import group_deletion as deletion
from spark_streams.operations.groups import unused
from tests.operations.groups.conftest import Rstream, RstreamJson
from tools.driving import ALL, NEVER_AHEAD, drain, read, reader, stop_all
from tools.sending import before_sending
from tools.servers.server import Server
from tools.waiting import until

WORDS = ("groups", "prune", "--consumers", "--idle", "50ms")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer is silent after 50 ms, as after a minute."""
    monkeypatch.setattr(unused, "SHORTEST_MS", 1)


def consumers(client: redis.Redis, stream: str = "s", group: str = "g") -> dict[str, int]:
    return {one["name"]: one["pending"] for one in client.xinfo_consumers(stream, group)}


def put(client: redis.Redis, count: int = 4) -> None:
    client.xgroup_create("s", "g", id="0", mkstream=True)
    for n in range(count):
        client.xadd("s", {"n": n}, id=f"{n + 1}-0")


def test_only_idle_consumers_without_pending_entries_go(
    client: redis.Redis, rstream_json: RstreamJson, rstream: Rstream
) -> None:
    put(client)
    for name in ("a", "b", "c\n", "holds"):
        client.xgroup_createconsumer("s", "g", name)
    client.xgroup_create("t", "other", mkstream=True)
    client.xgroup_createconsumer("t", "other", "d")
    client.xreadgroup("g", "holds", {"s": ">"}, count=2)
    time.sleep(0.06)
    client.xgroup_createconsumer("s", "g", "new")
    planned = rstream_json(*WORDS[:-1], "55ms", "s")
    [one] = planned["streams"]
    assert (planned["dry_run"], one["stream"], one["group"]) == (True, "s", "g")
    assert set(one["consumers"]) >= {"a", "b", "c\n"}
    assert all(idle >= 50 for idle in one["consumers"].values())
    assert "holds" not in one["consumers"]
    assert set(consumers(client)) == {"a", "b", "c\n", "holds", "new"}
    client.xreadgroup("g", "new", {"s": ">"}, count=1)
    done = rstream(*WORDS, "--yes")
    assert done.exit_code == 0, done.output
    assert "c\\n" in done.stdout
    assert done.stdout.splitlines()[-1] == "deleted 4 consumers"
    assert (consumers(client), consumers(client, "t", "other")) == ({"holds": 2, "new": 1}, {})
    assert rstream_json(*WORDS)["streams"] == []


def test_groups_are_chosen_and_a_preview_names_some(client: redis.Redis, rstream: Rstream) -> None:
    for group in ("nb-1", "etl"):
        client.xgroup_create("s", group, mkstream=True)
        for n in range(7):
            client.xgroup_createconsumer("s", group, f"worker-{n}")
    time.sleep(0.06)
    told = rstream(*WORDS, "--group", "nb-*").stdout
    assert "worker-4, …" in told
    assert "worker-5" not in told
    assert "dry run, nothing was changed; with --yes: deleted 7 consumers" in told
    assert rstream(*WORDS, "--group", "nb-*", "--yes").exit_code == 0
    assert (len(consumers(client, "s", "nb-1")), len(consumers(client, "s", "etl"))) == (0, 7)


def test_the_consumer_of_a_running_query_stays(server: Server, client: redis.Redis, rstream_json: RstreamJson) -> None:
    for n in range(3):
        client.xadd("s", {"n": n})
    one = reader(server, limits=NEVER_AHEAD)
    end = one.latestOffset(one.initialOffset(), ALL)
    read(one, one.initialOffset(), end)
    one.latestOffset(end, ALL)  # it acknowledges
    client.xgroup_createconsumer("s", "g", "old")
    time.sleep(0.06)
    told = rstream_json(*WORDS, "--yes")
    assert [list(one["consumers"]) for one in told["streams"]] == [["old"]]
    assert consumers(client) == {"spark": 0}
    stop_all()
    time.sleep(0.06)
    assert list(rstream_json(*WORDS, "--yes")["streams"][0]["consumers"]) == ["spark"]
    client.xadd("s", {"n": 3})
    assert drain(reader(server, limits=NEVER_AHEAD), start=end) == [[3]]


@pytest.mark.parametrize("before", [b"XPENDING", b"XINFO"])
def test_what_a_consumer_reads_meanwhile_stays_pending_for_it(
    client: redis.Redis, rstream_json: RstreamJson, before: bytes
) -> None:
    """Just before the transaction, or before the second look at the group."""
    put(client)
    for name in ("back", "gone"):
        client.xgroup_createconsumer("s", "g", name)
    time.sleep(0.06)
    looks = 0

    def reads(*_: Any) -> None:
        nonlocal looks
        looks += 1
        if looks == (1 if before == b"XPENDING" else 2):
            client.xreadgroup("g", "back", {"s": ">"}, count=3)
            client.xclaim("s", "g", "back", 0, ["2-0"])

    words = (before,) if before == b"XPENDING" else (before, b"CONSUMERS")
    with before_sending(*words, act=reads):
        told = rstream_json(*WORDS, "--yes")
    [one] = told["streams"]
    assert list(one["consumers"]) == ["gone"]
    assert one["given_back"] == ({"back": 3} if before == b"XPENDING" else {})
    assert len(told["then"]) == len(one["given_back"])
    assert consumers(client) == {"back": 3}
    entries = client.xpending_range("s", "g", "-", "+", 10, "back")
    assert [(each["message_id"], each["times_delivered"]) for each in entries] == [
        ("1-0", 1),
        ("2-0", 2),
        ("3-0", 1),
    ]
    assert all(each["time_since_delivered"] < 30_000 for each in entries)
    assert [entry for entry, _ in client.xreadgroup("g", "new", {"s": ">"})[0][1]] == ["4-0"]


def test_a_query_that_starts_meanwhile_keeps_its_consumer(
    server: Server, client: redis.Redis, rstream: Rstream
) -> None:
    put(client)
    client.xgroup_createconsumer("s", "g", "spark")
    time.sleep(0.06)
    started: list[Any] = []

    def starts(*_: Any) -> None:
        if not started:
            started.append(reader(server, limits=NEVER_AHEAD))
            started[0].latestOffset(started[0].initialOffset(), ALL)

    with before_sending(b"WATCH", act=starts):
        ran = rstream(*WORDS, "--yes")
    assert (ran.exit_code, "left out: a query is running as consumer" in ran.output) == (3, True), ran.output
    assert consumers(client) == {"spark": 4}


def test_a_client_that_waits_for_an_entry_gets_it(server: Server, client: redis.Redis, rstream: Rstream) -> None:
    """It is idle for the server, and its consumer is made again."""
    put(client, 0)
    client.xgroup_createconsumer("s", "g", "waits")
    got: list[Any] = []

    def waits() -> None:
        with server.client() as other:
            got.extend(other.xreadgroup("g", "waits", {"s": ">"}, block=60_000))

    waiting = threading.Thread(target=waits)
    waiting.start()
    until(lambda: client.info("clients")["blocked_clients"], "the client does not wait")
    time.sleep(0.06)
    assert rstream(*WORDS, "--yes").exit_code == 0
    assert consumers(client) == {}
    client.xadd("s", {"n": 1}, id="1-0")
    waiting.join(60)
    assert got[0][1][0][0] == b"1-0"
    assert consumers(client) == {"waits": 1}


def test_many_consumers_take_several_transactions(
    client: redis.Redis, rstream_json: RstreamJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "_TOGETHER", 3)
    put(client)
    for n in range(8):
        client.xgroup_createconsumer("s", "g", f"c{n}")
    time.sleep(0.06)
    with before_sending(b"EXEC", act=lambda *_: None) as transactions:
        assert len(rstream_json(*WORDS, "--yes")["streams"][0]["consumers"]) == 8
    assert (len(transactions), consumers(client)) == (3, {})


def test_two_different_changes_are_refused(rstream: Rstream) -> None:
    ran = rstream(*WORDS, "--hold")
    assert (ran.exit_code, "leave one of them out" in ran.stderr) == (2, True)


@pytest.mark.parametrize("more", [(), ("--yes",)])
@pytest.mark.parametrize("is_there", [True, False])
def test_the_only_copy_of_a_position_is_printed_before_it_goes(
    client: redis.Redis, rstream: Rstream, more: tuple[str, ...], is_there: bool
) -> None:
    """Also if the consumer is gone, and only the keys of its query are left."""
    client.xadd("s", {"n": 1}, id="5-1")
    client.xgroup_create("s", "g", "0")
    if is_there:
        client.xgroup_createconsumer("s", "g", "etl")
    client.set(committed_key("s", "g", "etl"), "5-1 7.5f1c9a0b")
    words = ("groups", "delete", "s", "--group", "g", "--consumer", "etl", "--even-active")
    told = rstream(*words, *more).stdout
    assert "query 'etl' of group 'g' has committed stream 's' up to 5-1" in told
    assert bool(client.exists(committed_key("s", "g", "etl"))) is not bool(more)


@pytest.mark.parametrize("way", ["delete", "prune", "leftovers"])
def test_keys_of_a_query_whose_consumer_was_deleted_go_with_the_group(
    client: redis.Redis, rstream: Rstream, rstream_json: RstreamJson, way: str
) -> None:
    """And the command prints how the query continues: the deleted key has said it."""
    client.xgroup_create("s", "g", id="0", mkstream=True)
    for n in range(2):
        client.xadd("s", {"n": n}, id=f"{1_700_000_000_000 + n}-0")
    client.xreadgroup("g", "other", {"s": ">"}, count=1)
    names = [("committed", "late:1"), ("notes", "late:1"), ("first", "begun")]
    of_query = [key_beside("s", kind, "g", query).decode() for kind, query in names]
    beside = ["rstream:committed:{s}:{s}x:g:late", "rstream:committed:{s}:h:late"]
    for key in (*of_query, *beside):
        client.set(key, "3-0 4.x")
    if way == "leftovers":
        client.xgroup_destroy("s", "g")
    time.sleep(0.06)
    words = ("prune", "--idle", "50ms") if way == "prune" else ("delete", "s", "--group", "g", "--even-active")
    planned, done = rstream_json("groups", *words), rstream_json("groups", *words, "--yes")
    assert planned["streams"][0]["keys"] == done["streams"][0]["keys"] == of_query
    assert planned["then"] == done["then"]
    assert "rstream groups create s --group g --start 3-0 --yes" in "".join(done["then"])
    assert sorted(client.keys("rstream:*")) == sorted(beside)
