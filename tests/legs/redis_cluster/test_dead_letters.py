"""Dead letters and their way back where entries, dead letters and destinations stand in several slots: each once,
wherever a process dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any
from unittest import mock

import pytest
import redis
import redis.asyncio

from spark_streams.base.ids import MAX_ID
from spark_streams.connector import dead_letters
from spark_streams.connector.deadletter.mover import WATCHED_TRIES, redrive_key, redriven_key
from spark_streams.connector.deadletter.post import FailedEntry, post
from spark_streams.connector.errors import ServerReplyError, StreamStateError, UnsupportedError, WrongKeyTypeError
from spark_streams.connector.keys import retry_stream, returned_stream, slot_of
from spark_streams.connector.source.group_client import GroupClient, Membership
from spark_streams.connector.source.task.notes import LetterDestination, collect, notes_key
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.connection import pack
from tests.connector.deadletter.making import DEAD, envelopes, fill, marks, numbers, redrive
from tools.driving import ALL, drain, forget_all, reader, rows
from tools.machine_time import machine_seconds
from tools.sending import KilledError, at_each_point, before_sending, dying_at, in_turn, killed, lost
from tools.servers.cluster import RedisCluster

pytestmark = pytest.mark.in_turn

MEMBER = Membership("g", "spark")
COUNT = 12


def test_each_dead_letter_is_posted_once_wherever_the_driver_dies(cluster: RedisCluster) -> None:
    assert slot_of(b"s") != slot_of(DEAD.encode())

    def begin() -> None:
        cluster.flushed()
        with cluster.server.client(decode_responses=True) as client:
            ids = [str(client.xadd("s", {"n": n})) for n in range(COUNT)]
            client.xgroup_create("s", "g", id="0")
            client.xreadgroup("g", "spark", {"s": ">"})
            for n, entry in enumerate(ids):
                note = pack("query", "7", "now", "why", "n", str(n))
                client.hset(notes_key("s", MEMBER).decode(), f"t letter {entry}", note)

    def act() -> None:
        with connect(Address.parse(cluster.url)) as server:
            collect(GroupClient(server, MEMBER), ["s"], "t", LetterDestination(DEAD))

    def check() -> None:
        assert sorted(numbers(cluster.server, DEAD)) == list(range(COUNT))
        with connect(Address.parse(cluster.url)) as server:
            assert server.execute("XPENDING", "s", "g")[0] == 0
            assert set(server.execute("HVALS", notes_key("s", MEMBER))) == {b""}  # emptied: a late task adds none

    assert at_each_point(begin, act, check) > 8


def test_a_bad_value_becomes_a_dead_letter_in_another_slot(cluster: RedisCluster) -> None:
    with cluster.server.client() as client:
        for n in ("0", "bad", "2"):
            client.xadd("s", {"n": n})
    assert drain(reader(cluster.server, mode="DEADLETTER", deadLetterStream=DEAD)) == [[0, 2]]
    assert [one["id"] for one in envelopes(cluster.server)] != []
    with connect(Address.parse(cluster.url)) as server:
        assert server.execute("XPENDING", "s", "g")[0] == 0
        assert server.execute("XLEN", DEAD) == 1
        assert server.pipeline([("EXISTS", b"rstream:outbox:{dead}:g:s")]) == [0]


def test_what_is_tried_again_waits_beside_its_stream_and_dies_in_another_slot(cluster: RedisCluster) -> None:
    """Each once, at each of its tries, wherever the query dies."""
    given = {"mode": "DEADLETTER", "deadLetterStream": DEAD, "retryDelay": "1ms,2ms"}
    log: dict[str, Any] = {}

    def begin() -> None:
        forget_all()
        cluster.flushed()
        with cluster.server.client() as client:
            for n in ("0", "bad", "2"):
                client.xadd("s", {"n": n})
        log.clear()
        log["rows"] = set()

    def act() -> None:
        with mock.patch("spark_streams.connector.wire.lease.Lease._take"):  # whoever died has one for ten seconds
            one = reader(cluster.server, **given)
            log.setdefault("committed", one.initialOffset())
            deadline = machine_seconds() + 30
            while log.get("idle", 0) < 3:
                end = log.get("logged", log["committed"])
                if end == log["committed"]:
                    end = log["logged"] = one.latestOffset(end, ALL)
                log["idle"] = log.get("idle", 0) + 1 if end == log["committed"] and not waiting() else 0
                if end != log["committed"]:
                    log["rows"] |= {(row["_id"], row["n"]) for row in rows(one, log["committed"], end)}
                    log["committed"] = end
                    one.commit(end)
                assert machine_seconds() < deadline

    def waiting() -> bool:
        keys = [retry_stream("s", "g", 1), retry_stream("s", "g", 2), returned_stream("s", "g")]
        with cluster.server.client() as client:
            return any(client.xlen(key) for key in keys)

    def check() -> None:
        assert sorted(n for _, n in log["rows"]) == [0, 2]
        [letter] = envelopes(cluster.server)
        assert (letter["stream"], letter["deliveries"]) == ("s", "3")
        with connect(Address.parse(cluster.url)) as server:
            assert server.execute("XPENDING", "s", "g")[0] == 0
            assert server.execute("XPENDING", returned_stream("s", "g"), "g")[0] == 0
            assert server.execute("EXISTS", b"rstream:outbox:{dead}:g:" + returned_stream("s", "g").encode()) == 0

    begin()
    act()
    check()
    for turn in range(1, 160, 11):
        for heard in (False, True):
            begin()
            with contextlib.suppress(KilledError), dying_at(turn, heard):
                act()
            act()
            check()


def test_each_dead_letter_is_moved_once_wherever_a_redrive_dies(cluster: RedisCluster) -> None:
    """To two streams, of which one is in another slot than the other."""

    def begin() -> None:
        cluster.flushed()
        fill(cluster.server, COUNT // 2)
        fill(cluster.server, COUNT // 2, first=COUNT // 2, stream="other")

    def act() -> None:
        with mock.patch("spark_streams.connector.wire.lease.Lease._take"):  # whoever died has one for ten seconds
            redrive(cluster.server)

    def check() -> None:
        assert sorted(numbers(cluster.server, "s") + numbers(cluster.server, "other")) == list(range(COUNT))
        assert len({*marks(cluster.server, "s"), *marks(cluster.server, "other")}) == COUNT
        assert numbers(cluster.server, DEAD) == []

    assert at_each_point(begin, act, check) > 20
    with connect(Address.parse(cluster.url)) as server:
        keys = ("rstream:redrive:{dead}", "rstream:redrive:{dead}:to", "rstream:redriven:{s}:dead")
        left = [server.execute("EXISTS", key) for key in keys]
        assert left == [0, 0, 0]


def test_a_redrive_says_what_it_has_moved(cluster: RedisCluster) -> None:
    fill(cluster.server, 120)
    assert redrive(cluster.server, dry_run=True).moved == 120
    report = redrive(cluster.server, limit=50)
    assert (report.moved, report.vanished) == (50, 0)
    assert redrive(cluster.server).moved == 70
    assert numbers(cluster.server) == list(range(120))


def test_in_one_slot_each_dead_letter_is_moved_once_wherever_a_redrive_dies(cluster: RedisCluster) -> None:
    """A dead letter whose entry was appended is noted, until it is deleted."""
    letters, stream = "{s}:dead", "s"

    def begin() -> None:
        cluster.flushed()
        fill(cluster.server, COUNT, into=letters)

    def act() -> None:
        with mock.patch("spark_streams.connector.wire.lease.Lease._take"):
            redrive(cluster.server, stream=letters)

    for turn in range(1, 20):
        for heard in (False, True):
            begin()
            with contextlib.suppress(KilledError), dying_at(turn, heard):
                act()
            with cluster.server.client() as client:
                key = redriven_key(stream, letters)
                notes = client.hkeys(key)
                noted = [n for n, (entry, _) in enumerate(client.xrange(letters)) if entry in notes]
                assert {*numbers(cluster.server, stream), *numbers(cluster.server, letters)} == {*range(COUNT)}
                in_both = len(numbers(cluster.server, stream)) + len(numbers(cluster.server, letters)) - COUNT
                assert in_both == len(noted)
                act()
                assert not client.exists(key)
            assert numbers(cluster.server, stream) == list(range(COUNT))
            assert numbers(cluster.server, letters) == []


def test_a_page_on_its_way_to_other_slots_does_not_expire(cluster: RedisCluster) -> None:
    fill(cluster.server, COUNT)
    with mock.patch("spark_streams.connector.wire.lease.Lease._take"):
        with contextlib.suppress(KilledError), before_sending(b"XDEL", act=killed):
            redrive(cluster.server)
        with cluster.server.client() as client:
            assert client.pttl(redrive_key(DEAD)) == -1
            assert json.loads(client.get(redrive_key(DEAD)) or "")["to"] == ["s"]
            assert (numbers(cluster.server), len(numbers(cluster.server, DEAD))) == (list(range(7)), COUNT)
        report = redrive(cluster.server, max_redrives=5)  # other options: another run finishes the page
        assert (report.moved_before, report.moved) == (7, COUNT - 7)
    assert numbers(cluster.server) == list(range(COUNT))


def test_a_page_that_another_slot_refused_within_its_transaction_stays_if_the_process_dies(
    cluster: RedisCluster,
) -> None:
    """The note that is written in the same transaction does not prove that the entries were appended."""
    fill(cluster.server, COUNT)
    with cluster.server.client() as client, mock.patch("spark_streams.connector.wire.lease.Lease._take"):
        busy = [lambda *_: client.xadd("s", {"n": -1})] * WATCHED_TRIES
        acts = in_turn(*busy, lambda *_: client.set("s", "text"))
        becomes_text = before_sending(b"MULTI", b"HSET", act=acts, times=WATCHED_TRIES + 1)
        dies = before_sending(b"HDEL", act=killed)
        with contextlib.suppress(KilledError), becomes_text as changed, dies as died:
            redrive(cluster.server)
        assert (len(changed), len(died)) == (WATCHED_TRIES + 1, 1)
        with pytest.raises(StreamStateError, match="redis-cli DEL 'rstream:redriven:{s}:dead'"):
            redrive(cluster.server)
        client.delete("s")
        client.xgroup_create("s", "g", id="0", mkstream=True)
        with pytest.raises(StreamStateError, match="7 of them have no entry there"):
            redrive(cluster.server)
        assert sorted(numbers(cluster.server, DEAD)) == list(range(COUNT))
        client.delete("rstream:redriven:{s}:dead")
        assert redrive(cluster.server).moved == COUNT
    assert numbers(cluster.server) == list(range(COUNT))


@pytest.mark.parametrize("created_again", [False, True])
def test_entries_are_not_moved_again_if_their_stream_is_deleted_after_the_process_died(
    cluster: RedisCluster, created_again: bool
) -> None:
    """A reader may have read them before the stream was deleted."""
    fill(cluster.server, COUNT)
    with cluster.server.client() as client, mock.patch("spark_streams.connector.wire.lease.Lease._take"):
        with contextlib.suppress(KilledError), before_sending(b"XDEL", act=killed):
            redrive(cluster.server, to="s")
        assert numbers(cluster.server) == list(range(7))
        client.delete("s")
        if created_again:
            client.xgroup_create("s", "g", id="0", mkstream=True)
        assert redrive(cluster.server, to="s").moved == COUNT
    assert numbers(cluster.server) == list(range(7, COUNT))
    assert numbers(cluster.server, DEAD) == []


def test_dead_letters_are_kept_if_their_stream_is_replaced_while_they_are_moved(cluster: RedisCluster) -> None:
    """The stream becomes a string just before the transaction, the process dies, and the stream is created again."""
    fill(cluster.server, COUNT)
    with cluster.server.client() as client, mock.patch("spark_streams.connector.wire.lease.Lease._take"):
        becomes_text = before_sending(b"MULTI", b"HSET", act=lambda *_: client.set("s", "text"), times=1)
        dies = before_sending(b"HDEL", act=killed)
        with contextlib.suppress(KilledError, WrongKeyTypeError), becomes_text as changed, dies:
            redrive(cluster.server)
        assert len(changed) == 1
        client.delete("s")
        client.xgroup_create("s", "g", id="0", mkstream=True)
        assert redrive(cluster.server).moved == COUNT
    assert numbers(cluster.server) == list(range(COUNT))
    assert numbers(cluster.server, DEAD) == []


def test_a_limit_counts_what_a_lost_connection_left_on_its_way(cluster: RedisCluster) -> None:
    fill(cluster.server, COUNT)
    with before_sending(b"XDEL", act=lost, times=1):
        report = redrive(cluster.server, limit=8)
    assert (report.moved, numbers(cluster.server)) == (8, list(range(8)))
    assert sorted(numbers(cluster.server, DEAD)) == list(range(8, COUNT))


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_outbox_that_a_killed_query_left_keeps_the_entry_from_a_second_dead_letter(
    cluster: RedisCluster, is_lost: bool
) -> None:
    """If a failover has lost it together with the dead letter, that is posted again."""
    cluster.flushed()
    with cluster.server.client(decode_responses=True) as client:
        ids = [str(client.xadd("s", {"n": n})) for n in range(3)]
        client.xgroup_create("s", "g", id="0")
        client.xreadgroup("g", "spark", {"s": ">"})
        if not is_lost:
            client.hset("rstream:outbox:{dead}:g:s", ids[0], "")  # its dead letter is there
    letters = [FailedEntry("s", entry.encode(), [b"n", b"1"], {"stream": "s"}, pending_for="spark") for entry in ids]
    with connect(Address.parse(cluster.url)) as server:
        assert post(server, DEAD, "g", letters) == 3
        assert server.execute("XLEN", DEAD) == (3 if is_lost else 2)
        assert server.execute("XPENDING", "s", "g")[0] == 0
        assert server.execute("EXISTS", b"rstream:outbox:{dead}:g:s") == 0


def test_a_stream_of_dead_letters_that_is_written_to_all_the_time_is_redriven_to_another_slot(
    cluster: RedisCluster,
) -> None:
    fill(cluster.server, COUNT)
    with mock.patch("spark_streams.connector.wire.lease.Lease._take"):
        with contextlib.suppress(KilledError), before_sending(b"XDEL", act=killed):  # a page is on its way
            redrive(cluster.server)
        with before_sending(b"SET", redrive_key(DEAD), act=lambda *_: fill(cluster.server, 1, first=-1)) as busy:
            assert redrive(cluster.server).moved == COUNT
    assert len(busy) > 5
    assert numbers(cluster.server) == list(range(COUNT))


def test_a_consumer_without_spark_writes_within_one_slot(cluster: RedisCluster) -> None:
    cluster.flushed()
    port = cluster.ports[0]
    with redis.RedisCluster(host="127.0.0.1", port=port) as client:
        client.xgroup_create("{orders}", "billing", 0, mkstream=True)
        entries = [client.xadd("{orders}", {"n": n}) for n in range(2)]
        client.xreadgroup("billing", "c1", {"{orders}": ">"})
        with pytest.raises(UnsupportedError, match="the same hash tag, such as {orders} and {orders}:dead"):
            dead_letters.write(client, "{orders}", "billing", entries[0], {"n": 0}, to="orders:dead")
        dead_letters.write(client, "{orders}", "billing", entries[0], {"n": 0}, to="{orders}:dead", reason="bad")

        async def write_second() -> None:
            async with redis.asyncio.RedisCluster(host="127.0.0.1", port=port) as client:
                await dead_letters.write_async(
                    client, "{orders}", "billing", entries[1], {"n": 1}, to="{orders}:dead", reason="bad"
                )

        asyncio.run(write_second())
        assert client.xpending("{orders}", "billing")["pending"] == 0
        assert [letter[b"n"] for _, letter in client.xrange("{orders}:dead")] == [b"0", b"1"]


@pytest.mark.parametrize("is_async", [False, True])
def test_an_entry_of_a_consumer_without_spark_is_pending_again_if_ids_run_out_within_the_transaction(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    cluster.flushed()
    port = cluster.ports[0]
    with redis.RedisCluster(host="127.0.0.1", port=port) as client:
        client.xgroup_create("{orders}", "billing", 0, mkstream=True)
        entry = client.xadd("{orders}", {"n": 1})
        client.xreadgroup("billing", "c1", {"{orders}": ">"})
        client.xadd("{orders}:dead", {"n": 0})
        queue = dead_letters._DeadLetter.queue

        def queue_late(letter: Any, pipe: Any, failed: Any) -> None:
            queue(letter, pipe, failed)
            client.execute_command("XSETID", "{orders}:dead", str(MAX_ID))

        async def write_async() -> None:
            async with redis.asyncio.RedisCluster(host="127.0.0.1", port=port) as client:
                await dead_letters.write_async(client, "{orders}", "billing", entry, {"n": 1}, to="{orders}:dead")

        def write() -> None:
            dead_letters.write(client, "{orders}", "billing", entry, {"n": 1}, to="{orders}:dead")

        monkeypatch.setattr(dead_letters._DeadLetter, "queue", queue_late)
        with pytest.raises(ServerReplyError, match="refused the dead letter of entry"):
            asyncio.run(write_async()) if is_async else write()
        (pending,) = client.xpending_range("{orders}", "billing", "-", "+", 9)
        assert (pending["message_id"], pending["consumer"]) == (entry, b"c1")
