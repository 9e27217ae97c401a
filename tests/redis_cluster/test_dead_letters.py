"""Dead letters and their way back where entries, dead letters and destinations stand in several slots: each once,
wherever a process dies."""

from __future__ import annotations

from unittest import mock

from spark_streams.keys import slot_of
from spark_streams.source.membership import Membership
from spark_streams.source.task_notes import collect, notes_key
from spark_streams.wire.address import Address
from spark_streams.wire.connect import connect
from spark_streams.wire.connection import pack
from tests.deadletter.making import DEAD, envelopes, fill, marks, numbers, redrive
from tests.redis_cluster.processes import RedisCluster
from tests.sending import at_each_point
from tests.source.driving import drain, reader

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
