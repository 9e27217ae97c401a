"""Dead letters and their way back where entries, dead letters and destinations stand in several slots: each once,
wherever a process dies."""

from __future__ import annotations

import contextlib
import time
from typing import Any
from unittest import mock

from spark_streams.keys import retry_stream, returned_stream, slot_of
from spark_streams.source.membership import Membership
from spark_streams.source.task_notes import collect, notes_key
from spark_streams.wire.address import Address
from spark_streams.wire.connect import connect
from spark_streams.wire.connection import pack
from tests.deadletter.making import DEAD, envelopes, fill, marks, numbers, redrive
from tests.redis_cluster.processes import RedisCluster
from tests.sending import KilledError, at_each_point, dying_at
from tests.source.driving import ALL, drain, forget_all, reader, rows

MEMBER = Membership(("s",), "g", "spark")
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
            collect(server, MEMBER, ["s"], "t", DEAD)

    def check() -> None:
        assert sorted(numbers(cluster.server, DEAD)) == list(range(COUNT))
        with connect(Address.parse(cluster.url)) as server:
            assert server.execute("XPENDING", "s", "g")[0] == 0
            assert server.execute("EXISTS", notes_key("s", MEMBER)) == 0

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
        with mock.patch("spark_streams.lease.Lease._take"):  # whoever died has one for ten seconds
            one = reader(cluster.server, **given)
            log.setdefault("committed", one.initialOffset())
            deadline = time.monotonic() + 30
            while log.get("idle", 0) < 3:
                end = log.get("logged", log["committed"])
                if end == log["committed"]:
                    end = log["logged"] = one.latestOffset(end, ALL)
                log["idle"] = log.get("idle", 0) + 1 if end == log["committed"] and not waiting() else 0
                if end != log["committed"]:
                    log["rows"] |= {(row["_id"], row["n"]) for row in rows(one, log["committed"], end)}
                    log["committed"] = end
                    one.commit(end)
                assert time.monotonic() < deadline

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
        with mock.patch("spark_streams.lease.Lease._take"):  # whoever died has one for ten seconds
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
