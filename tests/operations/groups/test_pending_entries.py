"""`rstream groups claim`, `ack` and `delete`: what they change is what their dry runs say, and what is left of it."""

from __future__ import annotations

import time
from typing import Any
from unittest.mock import Mock

import pytest
import redis

from spark_streams.connector.admin import groups as guard
from spark_streams.connector.errors import ServerUnreachableError
from spark_streams.connector.keys import delays_key, retry_stream, returned_stream
from spark_streams.connector.wire.connection import Connection, Reply
from spark_streams.operations.groups import pending_entries
from tests.operations.groups.conftest import Rstream, RstreamJson
from tools.sending import before_sending

G = ("--group", "g", "--even-active")


@pytest.fixture
def orders(client: redis.Redis) -> list[str]:
    """Thirty entries: ann was given ten, bob fifteen; nobody has acknowledged any."""
    ids = [str(client.xadd("orders", {"n": n}, id=f"{1_000 + n}-1")) for n in range(30)]
    client.xgroup_create("orders", "g", id="0")
    client.xreadgroup("g", "ann", {"orders": ">"}, count=10)
    client.xreadgroup("g", "bob", {"orders": ">"}, count=15)
    return ids


def held(client: redis.Redis, consumer: str, stream: str = "orders") -> list[str]:
    """What is pending for a consumer."""
    return [one["message_id"] for one in client.xpending_range(stream, "g", "-", "+", 10_000, consumer)]


def twice(rstream_json: RstreamJson, *words: str, code: int = 0) -> Any:
    """The dry run, then the real one: what both say of each stream."""
    planned = rstream_json("groups", *words, code=code)
    done = rstream_json("groups", *words, "--yes")
    assert (planned["dry_run"], done["dry_run"], planned["streams"]) == (True, False, done["streams"])
    return done["streams"]


# -- ack ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "ann", "bob"),
    [
        (["--all"], 10, 15),
        (["--consumer", "bob"], 0, 15),
        (["--first-id", "1005", "--last-id", "1012"], 5, 3),
        (["--id", "1003-1", "--id", "1011-1", "--id", "1029-1", "--id", "5-5"], 1, 1),
        (["--consumer", "ann", "--limit", "4"], 4, 0),
        (["--limit", "12"], 10, 2),
        (["--idle", "1h"], 0, 0),
    ],
)
def test_ack(
    client: redis.Redis, orders: list[str], rstream_json: RstreamJson, words: list[str], ann: int, bob: int
) -> None:
    [one] = twice(rstream_json, "ack", "orders", *G, *words)
    assert one["entries"] == ann + bob
    assert one["consumers"] == {name: count for name, count in (("ann", ann), ("bob", bob)) if count}
    assert (len(held(client, "ann")), len(held(client, "bob"))) == (10 - ann, 15 - bob)


def test_ack_of_what_has_been_pending_for_a_while(
    client: redis.Redis, orders: list[str], rstream_json: RstreamJson
) -> None:
    client.xclaim("orders", "g", "ann", 0, held(client, "ann"), idle=3_600_000, justid=True)
    client.xreadgroup("g", "ann", {"orders": ">"}, count=2)
    [one] = twice(rstream_json, "ack", "orders", *G, "--consumer", "ann", "--idle", "30m")
    assert (one["entries"], held(client, "ann")) == (10, orders[25:27])


def test_ack_of_more_than_a_page(client: redis.Redis, rstream_json: RstreamJson) -> None:
    pipe = client.pipeline(transaction=False)
    for n in range(2_500):
        pipe.xadd("s", {"n": n}, id=f"{n + 1}-0")
    pipe.execute()
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "bob", {"s": ">"})
    [one] = twice(rstream_json, "ack", "s", *G, "--last-id", "2400-0")
    assert (one["entries"], len(held(client, "bob", "s"))) == (2_400, 100)


def test_a_dry_run_of_ack_does_not_ask_what_was_deleted(
    orders: list[str], rstream_json: RstreamJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_entries, "_deleted", lambda *_: pytest.fail("it asks"))
    rstream_json("groups", "ack", "orders", "--group", "g", "--consumer", "ann", "--even-active")


def test_ack_counts_what_it_has_taken_from_the_pending_list_itself(
    client: redis.Redis, orders: list[str], rstream_json: RstreamJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten, ann acknowledges one meanwhile, and another one is deleted."""
    honest = pending_entries._deleted

    def amid(*arguments: Any) -> list[bytes]:
        found = honest(*arguments)
        client.xack("orders", "g", orders[0])
        client.xdel("orders", orders[1])
        return found

    monkeypatch.setattr(pending_entries, "_deleted", amid)
    [one] = rstream_json("groups", "ack", "orders", *G, "--consumer", "ann", "--yes")["streams"]
    assert (one["entries"], held(client, "ann")) == (9, [])


def test_ack_leaves_what_another_consumer_has_claimed_since_it_was_listed(
    client: redis.Redis, orders: list[str], rstream_json: RstreamJson
) -> None:
    time.sleep(0.05)
    with before_sending(b"XCLAIM", act=lambda *_: client.xclaim("orders", "g", "bob", 0, orders[:1]), times=1):
        [told] = rstream_json("groups", "ack", "orders", *G, "--consumer", "ann", "--yes")["streams"]
    assert (told["entries"], held(client, "ann"), held(client, "bob")[0]) == (9, [], orders[0])


def test_ack_does_not_count_a_deleted_entry_that_another_consumer_claims_before(
    client: redis.Redis, orders: list[str], rstream_json: RstreamJson
) -> None:
    """XCLAIM of an entry that the stream does not have only removes it from the pending list."""
    client.xdel("orders", orders[0])
    with before_sending(b"XACK", act=lambda *_: client.xclaim("orders", "g", "bob", 0, orders[:1]), times=1):
        [told] = rstream_json("groups", "ack", "orders", *G, "--consumer", "ann", "--yes")["streams"]
    assert (told["entries"], held(client, "ann")) == (9, [])


def test_what_was_delivered_just_now_is_listed_again() -> None:
    """Only then its idle time shows whether another consumer claims it."""
    answers: list[Reply] = [[[[b"1-1", b"ann", idle, 1]]] for idle in (99, 100)]
    server = Mock(execute_all=lambda _: answers.pop(0))
    assert pending_entries._settled(server, [("XPENDING",)]) == [[b"1-1", b"ann", 100, 1]]
    assert answers == []


def test_ack_must_be_told_which(orders: list[str], rstream: Rstream) -> None:
    assert rstream("groups", "ack", "orders", *G).exit_code == 2
    assert rstream("groups", "ack", "orders", *G, "--all", "--consumer", "bob").exit_code == 2


# -- claim -------------------------------------------------------------------------------------------------------------


def test_claim_hands_over_without_counting_a_delivery(
    client: redis.Redis, orders: list[str], rstream_json: RstreamJson
) -> None:
    [one] = twice(rstream_json, "claim", "orders", *G, "--from", "bob", "--to", "eve", "--last-id", "1019-1")
    assert (one["entries"], one["gone"], one["above"]) == (10, 0, 0)
    assert held(client, "eve") == orders[10:20]
    assert {one["times_delivered"] for one in client.xpending_range("orders", "g", "-", "+", 100)} == {1}
    rest = rstream_json("groups", "claim", "orders", *G, "--from", "bob", "--to", "eve", "--limit", "2", "--yes")
    assert (rest["streams"][0]["entries"], len(held(client, "bob"))) == (2, 3)


def test_claim_reports_deleted_entries(client: redis.Redis, orders: list[str], rstream_json: RstreamJson) -> None:
    client.xtrim("orders", minid="1012-1", approximate=False)
    client.xdel("orders", "1020-1")
    [one] = twice(rstream_json, "claim", "orders", *G, "--from", "bob", "--to", "eve")
    assert (one["entries"], one["gone"]) == (12, 3)
    assert (len(held(client, "eve")), held(client, "bob")) == (12, [])


def test_claim_of_nobody_s_entries(client: redis.Redis, orders: list[str], rstream: Rstream) -> None:
    ran = rstream("groups", "claim", "orders", *G, "--from", "bobby", "--to", "eve")
    assert (ran.exit_code, "has no consumer 'bobby'" in ran.stderr) == (3, True)
    assert rstream("groups", "claim", "orders", *G, "--from", "bob", "--to", "bob").exit_code == 2
    assert rstream("groups", "claim", "orders", *G, "--to", "bob").exit_code == 2


# -- delete ------------------------------------------------------------------------------------------------------------


def test_delete_of_a_group(client: redis.Redis, orders: list[str], rstream_json: RstreamJson) -> None:
    client.set("rstream:committed:{orders}:g:spark", "1003-1 4.x")
    client.set("rstream:attempts:{orders}:g:ann", "{}")
    client.set("rstream:attempts:{orders}:g:gone", "{}")
    client.set("rstream:begun:g:spark", "a*")
    stay = ["rstream:committed:{orders}:h:spark", "rstream:committed:{orders2}:g:spark", "rstream:begun:h:spark"]
    for key in stay:
        client.set(key, "1-1")
    client.set("rstream:sink:{orders}:q", "1")
    [one] = twice(rstream_json, "delete", "orders", "--group", "g", "--even-active")
    assert (one["pending"], one["consumers"]) == (25, {"ann": 10, "bob": 15})
    assert len(one["keys"]) == 3
    assert client.xinfo_groups("orders") == []
    left = [*stay, "rstream:sink:{orders}:q"]
    assert sorted(client.keys("rstream:*")) == sorted([*left, "rstream:attempts:{orders}:g:gone"])
    [one] = twice(rstream_json, "delete", "orders", "--group", "g", "--consumer", "gone")
    assert one["keys"] == ["rstream:attempts:{orders}:g:gone"]
    assert sorted(client.keys("rstream:*")) == sorted(left)


def test_keys_of_a_destroyed_group_are_deleted(
    client: redis.Redis, orders: list[str], rstream_json: RstreamJson, rstream: Rstream
) -> None:
    client.xgroup_destroy("orders", "g")
    client.set("rstream:committed:{orders}:g:spark", "1003-1 4.x")
    client.set("rstream:attempts:{orders}:g:a%20b", "{}")
    [one] = twice(rstream_json, "delete", "orders", "--group", "g")
    assert (one["pending"], one["keys"]) == (0, ["rstream:committed:{orders}:g:spark"])
    [one] = twice(rstream_json, "delete", "orders", "--group", "g", "--consumer", "a b")
    assert (one["pending"], one["keys"]) == (0, ["rstream:attempts:{orders}:g:a%20b"])
    assert client.keys("rstream:*") == []
    for words in ([], ["--consumer", "a b"]):
        ran = rstream("groups", "delete", "orders", "--group", "g", *words, "--yes")
        assert (ran.exit_code, "no group 'g' of stream 'orders'" in ran.stderr) == (1, True)


def test_keys_of_groups_are_searched_for_once(
    client: redis.Redis, orders: list[str], rstream: Rstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many streams have the group: the server may have millions of keys of others."""
    client.set("rstream:committed:{orders}:g:spark", "1003-1 4.x")
    client.xgroup_create("bills", "g", mkstream=True)
    honest, sent = Connection.execute, list[object]()

    def recording(self: Connection, *arguments: object) -> object:
        sent.append(arguments[0])
        return honest(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Connection, "execute", recording)
    assert rstream("groups", "delete", "orders", "bills", "--group", "g", "--even-active", "--yes").exit_code == 0
    assert sent.count("SCAN") == 1
    assert client.keys("rstream:*") == []


def test_entries_waiting_for_retry_stay_when_their_group_is_deleted(
    client: redis.Redis, orders: list[str], rstream_json: RstreamJson, rstream: Rstream
) -> None:
    first, second, other = (retry_stream("orders", group, n) for group, n in (("g", 1), ("g", 2), ("h", 1)))
    client.set(delays_key("orders", "g"), "60000 600000")
    for name in (second, other):
        client.xadd(name, {"n": 1})
    client.xgroup_create(first, "x", mkstream=True)
    client.xgroup_create(returned_stream("orders", "g"), "g", mkstream=True)
    told = rstream("groups", "delete", "orders", "--group", "g", "--even-active")
    assert f"1 entries of the group in {second!r} wait for a retry, and are not deleted" in told.stdout
    assert rstream("groups", "delete", "orders", "--group", "g", "--even-active", "--yes").exit_code == 0
    assert sorted(client.keys("rstream:*")) == sorted([second, other])


def test_begun_stays_while_other_streams_of_its_pattern_need_it(
    client: redis.Redis, orders: list[str], rstream_json: RstreamJson
) -> None:
    client.set("rstream:begun:g:spark", "*")
    client.xadd("other", {"n": 1})
    client.set("rstream:first:{other}:g:spark", "1-1")
    client.set("rstream:first:{orders}:g:spark", "1-1")
    rstream_json("groups", "delete", "orders", *G, "--yes")
    assert sorted(client.keys("rstream:*")) == ["rstream:begun:g:spark", "rstream:first:{other}:g:spark"]


def test_delete_of_a_consumer(
    client: redis.Redis, orders: list[str], rstream_json: RstreamJson, rstream: Rstream
) -> None:
    words = ("groups", "delete", "orders", *G, "--consumer", "bob")
    planned = rstream_json(*words, code=3)
    assert (planned["streams"][0]["pending"], "hand them over" in planned["refused"][0]) == (15, True)
    refused = rstream(*words, "--yes")
    assert (refused.exit_code, "15 entries of stream 'orders' are pending" in refused.stderr) == (1, True)
    client.set("rstream:committed:{orders}:g:bob", "1003-1 4.x")
    [one] = twice(rstream_json, *words[1:], "--forget-pending")
    assert one["consumers"] == {"bob": 15}
    assert one["keys"] == ["rstream:committed:{orders}:g:bob"]
    assert [one["name"] for one in client.xinfo_consumers("orders", "g")] == ["ann"]
    assert client.keys("rstream:*") == []


def test_consumers_whose_names_are_no_text(client: redis.Redis, orders: list[str], rstream_json: RstreamJson) -> None:
    client.execute_command("XREADGROUP", "GROUP", "g", b"\xff", "COUNT", 3, "STREAMS", "orders", ">")
    assert rstream_json("groups", "ack", "orders", *G, "--first-id", "1025", "--yes")["streams"][0]["entries"] == 3
    assert rstream_json("groups", "seek", "orders", *G, "--to", "earliest", "--yes")["streams"][0]["read_again"] == 28
    assert rstream_json("groups", "delete", "orders", *G, "--yes")["streams"][0]["pending"] == 25


# -- killed in the midst -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 3, 5])
@pytest.mark.parametrize("hand", [["ack", "--all"], ["claim", "--from", "bob", "--to", "eve"], ["delete"]], ids=str)
def test_a_hand_that_is_cut_off_is_laid_on_again(
    client: redis.Redis,
    rstream: Rstream,
    rstream_json: RstreamJson,
    monkeypatch: pytest.MonkeyPatch,
    hand: list[str],
    at: int,
) -> None:
    """Its connection breaks before a transaction of it, or behind one; the next run does what is left."""
    for stream in ("s", "t"):
        pipe = client.pipeline(transaction=False)
        for n in range(1_200):
            pipe.xadd(stream, {"n": n}, id=f"{n + 1}-0")
        pipe.execute()
        client.xgroup_create(stream, "g", id="0")
        client.xreadgroup("g", "bob", {stream: ">"})
        client.set(f"rstream:committed:{{{stream}}}:g:spark", "1-1")
    client.set("rstream:begun:g:spark", "*")
    honest, calls = guard.transact, 0

    def breaking(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at // 2 + 1 and at % 2 == 0:
            raise ServerUnreachableError("cut off")
        replies = honest(*arguments)
        if calls == at // 2 + 1:
            raise ServerUnreachableError("cut off")
        return replies

    with monkeypatch.context() as patch:
        patch.setattr(guard, "transact", breaking)
        ran = rstream("groups", hand[0], "s", "t", *G, *hand[1:], "--yes")
        assert (ran.exit_code, "cut off" in ran.stderr) == (1, True)
    if hand[0] == "delete":
        for stream in ("s", "t"):
            rstream("groups", "delete", stream, *G, "--yes")  # where nothing was left, it says so
        assert (client.xinfo_groups("s"), client.xinfo_groups("t"), client.keys("rstream:*")) == ([], [], [])
        return
    rstream_json("groups", hand[0], "s", "t", *G, *hand[1:], "--yes")
    assert [len(held(client, "bob", stream)) for stream in "st"] == [0, 0]
    assert [len(held(client, "eve", stream)) for stream in "st"] == ([1_200] * 2 if hand[0] == "claim" else [0] * 2)
