"""`rstream groups release`, and what `claim` and `ack` do with released entries (XNACK)."""

from __future__ import annotations

import time

import pytest
import redis

from tests.operations.groups.conftest import Rstream, RstreamJson
from tests.operations.groups.test_pending_entries import G, held, twice
from tests.operations.groups.test_queries import LENIENT, make_query
from tools.driving import add, another_reader, begin, drain, reader
from tools.sending import before_sending
from tools.servers.server import Server, skip_without_xnack


@pytest.fixture
def orders(client: redis.Redis) -> list[str]:
    """Thirty entries: ann was given ten, bob fifteen; nobody has acknowledged any."""
    ids = [str(client.xadd("orders", {"n": n}, id=f"{1_000 + n}-1")) for n in range(30)]
    client.xgroup_create("orders", "g", id="0")
    client.xreadgroup("g", "ann", {"orders": ">"}, count=10)
    client.xreadgroup("g", "bob", {"orders": ">"}, count=15)
    return ids


def released(client: redis.Redis, stream: str = "orders") -> dict[str, int]:
    """Released entries, each with its deliveries."""
    rows = client.xpending_range(stream, "g", "-", "+", 10_000)
    return {one["message_id"]: one["times_delivered"] for one in rows if one["time_since_delivered"] < 0}


@pytest.mark.parametrize(("mode", "deliveries"), [("fail", 1), ("silent", 0), ("fatal", 2**63 - 1)])
def test_release(client: redis.Redis, orders: list[str], rstream_json: RstreamJson, mode: str, deliveries: int) -> None:
    skip_without_xnack(client)
    [one] = twice(rstream_json, "release", "orders", *G, "--consumer", "bob", "--mode", mode, "--last-id", "1019-1")
    assert (one["entries"], one["consumer"], one["mode"]) == (10, "bob", mode)
    assert released(client) == dict.fromkeys(orders[10:20], deliveries)
    assert (len(held(client, "ann")), held(client, "bob")) == (10, orders[20:25])


def test_release_of_more_than_a_page_and_of_so_many(client: redis.Redis, rstream_json: RstreamJson) -> None:
    skip_without_xnack(client)
    add(client, 2_500)
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "bob", {"s": ">"})
    [one] = twice(rstream_json, "release", "s", *G, "--consumer", "bob", "--limit", "2200")
    assert (one["entries"], len(released(client, "s")), len(held(client, "bob", "s"))) == (2_200, 2_200, 300)


def test_what_was_released_is_the_next_batch_of_a_query(
    server: Server, client: redis.Redis, orders: list[str], rstream_json: RstreamJson
) -> None:
    skip_without_xnack(client)
    one = reader(server, streams="orders")
    at = one.initialOffset()
    at = one.latestOffset(at, one.getDefaultReadLimit())
    twice(rstream_json, "release", "orders", *G, "--consumer", "bob")
    assert drain(one, start=at) == [list(range(10, 25))]
    assert [len(held(client, name)) for name in ("ann", "bob", "spark")] == [10, 0, 0]


def test_release_is_refused_while_a_query_or_another_client_is_at_work(
    server: Server, client: redis.Redis, rstream: Rstream, rstream_json: RstreamJson
) -> None:
    skip_without_xnack(client)
    add(client, 10)
    one = another_reader(server)
    one.latestOffset(one.initialOffset(), one.getDefaultReadLimit())
    words = ("groups", "release", "s", "--group", "g", "--consumer", "spark")
    assert "a query is running as consumer 'spark'" in rstream_json(*words, code=3)["refused"][0]
    ran = rstream(*words, "--even-active", "--yes")
    assert (ran.exit_code, "a query is running as consumer 'spark'" in ran.stderr) == (1, True)
    assert len(held(client, "spark", "s")) == 10
    add(client, 5, first=10)
    client.xreadgroup("g", "bob", {"s": ">"})
    refused = rstream_json("groups", "release", "s", "--group", "g", "--consumer", "bob", code=3)["refused"]
    assert "was active" in refused[0]


def test_release_of_nobody_s_entries(client: redis.Redis, orders: list[str], rstream: Rstream) -> None:
    ran = rstream("groups", "release", "orders", *G, "--consumer", "bobby")
    assert (ran.exit_code, "has no consumer 'bobby'" in ran.stderr) == (3, True)
    assert rstream("groups", "release", "orders", *G).exit_code == 2


def test_a_server_that_cannot_release_is_named(client: redis.Redis, orders: list[str], rstream: Rstream) -> None:
    try:
        client.execute_command("XNACK", "orders", "g", "FAIL", "IDS", 1, "1-1")
        # This is the test of a server without XNACK. The other tests of this file run on a server that has it.
        pytest.skip("this server has XNACK")
    except redis.ResponseError:
        pass
    for words in ([], ["--yes"]):
        ran = rstream("groups", "release", "orders", *G, "--consumer", "bob", *words)
        assert ran.exit_code == (1 if words else 3)
        assert "RSTREAM_UNSUPPORTED" in ran.stderr
        assert "rstream groups claim orders --group g --from bob --to CONSUMER" in ran.stderr
    assert len(held(client, "bob")) == 15


@pytest.mark.parametrize("how", ["stopped", "reserved", "logged"])
@pytest.mark.parametrize("options", [{}, LENIENT], ids=["strict", "lenient"])
def test_a_stopped_query_whose_entries_were_released(
    server: Server, client: redis.Redis, rstream: Rstream, how: str, options: dict[str, str]
) -> None:
    """It loses none, and counts none as lost; a batch of its log it reads twice, as the command says."""
    skip_without_xnack(client)
    query = make_query(server, client, how)
    told = rstream("groups", "release", "s", "--group", "g", "--consumer", "spark", "--yes")
    assert told.exit_code == 0, told.stderr
    assert "entries of that batch are read twice" in told.stdout
    assert f"released {0 if how == 'stopped' else 10} entries" in told.stdout
    expected = [*range(20, 50), *(range(20, 30) if how == "logged" else ())]
    assert sorted(query.resume(**options)) == sorted(expected)
    assert query.lost().get("lost", {}) == {}
    assert released(client, "s") == {}


def test_entries_that_a_query_had_claimed_and_that_were_released_are_not_missed(
    server: Server, client: redis.Redis, rstream: Rstream
) -> None:
    skip_without_xnack(client)
    client.xgroup_create("s", "g", id="0", mkstream=True)
    add(client, 5)
    client.xreadgroup("g", "bob", {"s": ">"})
    time.sleep(0.03)
    crashed = reader(server, claimIdle="1ms")
    at = crashed.initialOffset()
    crashed.latestOffset(at, crashed.getDefaultReadLimit())
    crashed.stop()
    told = rstream("groups", "release", "s", *G, "--consumer", "spark", "--yes")
    assert told.exit_code == 0, told.stderr
    assert drain(reader(server), start=at) == [list(range(5))]


# -- claim and ack -----------------------------------------------------------------------------------------------------


def test_claim_hands_released_entries_to_a_consumer(
    client: redis.Redis, orders: list[str], rstream_json: RstreamJson
) -> None:
    skip_without_xnack(client)
    client.execute_command("XNACK", "orders", "g", "FAIL", "IDS", 3, *orders[10:13])
    client.execute_command("XNACK", "orders", "g", "FATAL", "IDS", 1, orders[2])
    [one] = twice(rstream_json, "claim", "orders", *G, "--released", "--to", "eve", "--first-id", "1011")
    assert (one["source"], one["entries"], held(client, "eve")) == ("(released)", 2, orders[11:13])
    [one] = twice(rstream_json, "claim", "orders", *G, "--released", "--to", "eve")
    assert (one["entries"], len(held(client, "eve")), released(client)) == (2, 4, {})
    [one] = twice(rstream_json, "claim", "orders", *G, "--released", "--to", "eve")
    assert (one["entries"], len(held(client, "ann"))) == (0, 9)


def test_claim_of_released_entries_goes_without_from_and_idle(orders: list[str], rstream: Rstream) -> None:
    words = ("groups", "claim", "orders", *G, "--released", "--to", "eve")
    assert rstream(*words, "--from", "bob").exit_code == 2
    assert rstream(*words, "--idle", "1m").exit_code == 2
    assert rstream("groups", "ack", "orders", *G, "--released", "--consumer", "bob").exit_code == 2


@pytest.mark.parametrize(
    ("words", "entries"),
    [(("ack",), 9), (("release", "--mode", "silent"), 9), (("claim", "--to", "bob", "--idle", "1ms"), 9)],
)
def test_what_a_consumer_releases_since_it_was_listed_stays_released(
    client: redis.Redis, orders: list[str], rstream_json: RstreamJson, words: tuple[str, ...], entries: int
) -> None:
    """With its count."""
    skip_without_xnack(client)
    time.sleep(0.12)
    let_go = ("XNACK", "orders", "g", "FATAL", "IDS", 1, orders[3])
    with before_sending(b"XCLAIM", act=lambda *_: client.execute_command(*let_go), times=1):
        whose = "--from" if words[0] == "claim" else "--consumer"
        done = rstream_json("groups", words[0], "orders", *G, whose, "ann", *words[1:], "--yes")
    assert done["streams"][0]["entries"] == entries
    assert released(client)[orders[3]] == 2**63 - 1
    assert held(client, "ann") == []


def test_ack_of_released_entries(client: redis.Redis, orders: list[str], rstream_json: RstreamJson) -> None:
    skip_without_xnack(client)
    client.execute_command("XNACK", "orders", "g", "FAIL", "IDS", 5, *orders[8:13])
    [one] = twice(rstream_json, "ack", "orders", *G, "--id", orders[8], "--id", orders[1])
    assert (one["entries"], one["consumers"]) == (2, {"ann": 1, "(released)": 1})
    [one] = twice(rstream_json, "ack", "orders", *G, "--idle", "1ms", "--consumer", "ann")
    assert one["consumers"] == {"ann": 7}
    [one] = twice(rstream_json, "ack", "orders", *G, "--released", "--limit", "1")
    assert one["consumers"] == {"(released)": 1}
    [one] = twice(rstream_json, "ack", "orders", *G, "--all")
    assert one["consumers"] == {"bob": 12, "(released)": 3}
    assert client.xpending("orders", "g")["pending"] == 0


def test_ack_of_released_entries_is_refused_while_a_query_of_the_group_lives(
    server: Server, client: redis.Redis, rstream_json: RstreamJson
) -> None:
    """It may take them meanwhile, and what it reads must not be acknowledged by others."""
    skip_without_xnack(client)
    ids = add(client, 10)
    one = another_reader(server)
    begin(one)
    client.xreadgroup("g", "bob", {"s": ">"}, count=4)
    client.execute_command("XNACK", "s", "g", "FATAL", "IDS", 2, *ids[:2])
    words = ("groups", "ack", "s", *G, "--released")
    assert "a query is running as consumer 'spark'" in rstream_json(*words, code=3)["refused"][0]
    one.stop()
    assert twice(rstream_json, *words[1:])[0]["entries"] == 2
