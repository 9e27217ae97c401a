"""One running query per group and consumer: the lease."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import pytest
import redis

from spark_streams.connector.errors import ConsumerTakenError
from spark_streams.connector.keys import session_key
from spark_streams.connector.source.group.streams import ConsumerLease
from spark_streams.connector.source.group_client import lease_key
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from spark_streams.connector.wire.lease import LeaseTerms, Processes
from tools.driving import ALL, LOOK_EACH_TIME, SMALL, add, another_reader, drain, read, reader
from tools.sending import before_sending, reply_lost
from tools.servers.server import Server
from tools.waiting import until

KEY = lease_key("s", "g", "spark")


class _Elsewhere(Processes):
    """A process of another machine."""

    @property
    def space(self) -> str:
        return "elsewhere"


PROCESSES = Processes()


@pytest.fixture
def server_connection(server: Server) -> Connection:
    return Connection(Address.parse(server.url))


def session_of(client: redis.Redis, key: bytes) -> str:
    """The session of the process that holds a lease."""
    return str(json.loads(str(client.get(key)))["session"])


def wait_for_renewal(client: redis.Redis, key: bytes, ttl: int) -> None:
    session = session_of(client, key)
    client.persist(session)
    until(lambda: 0 < client.pttl(session) <= ttl, "the lease is not renewed")


def left_behind(client: redis.Redis, ttl: int, **other: Any) -> None:
    """A lease that some process has left."""
    mine = PROCESSES.this()
    client.set(KEY, json.dumps({"holder": "someone", **mine, **other}), px=ttl)


def test_a_second_query_under_the_same_name_is_refused_and_others_are_not(server: Server, client: redis.Redis) -> None:
    add(client, 10)
    first = reader(server)
    start = first.initialOffset()
    for again in (another_reader(server), another_reader(server)):
        with pytest.raises(
            ConsumerTakenError,
            match="consumer 'spark' of group 'g' \\(process .* on .*\\), so this query is refused.*"
            "another group .both queries get all entries.*another consumer .they share the entries",
        ):
            again.initialOffset()
        with pytest.raises(ConsumerTakenError):
            again.latestOffset(start, ALL)
    another_reader(server, consumer="other").initialOffset()
    another_reader(server, group="h").initialOffset()
    assert drain(first) == [list(range(10))]


def test_a_query_that_ends_gives_its_lease_back(server: Server, client: redis.Redis) -> None:
    first = another_reader(server)
    first.initialOffset()
    assert client.exists(KEY)
    first.stop()
    assert not client.exists(KEY)


def test_the_lease_of_a_process_that_died_on_this_machine_is_taken_over_at_once(
    server: Server, client: redis.Redis
) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    left_behind(client, 60_000, pid=child.pid, born=PROCESSES.born(child.pid))
    with pytest.raises(ConsumerTakenError, match=f"process {child.pid} on"):
        reader(server).initialOffset()
    child.kill()
    until(lambda: not PROCESSES.born(child.pid), "the child is not dead")  # from here on it is a zombie
    reader(server).initialOffset()
    child.wait()
    assert json.loads(str(client.get(KEY)))["pid"] != child.pid


def test_a_pid_that_was_given_to_another_process_is_not_the_holder(server: Server, client: redis.Redis) -> None:
    left_behind(client, 60_000, born="1")
    reader(server).initialOffset()
    taken = json.loads(str(client.get(KEY)))
    assert taken == {"session": taken["session"], **PROCESSES.this()}


def test_a_lease_from_elsewhere_is_waited_for_and_taken_when_it_expires(server: Server, client: redis.Redis) -> None:
    left_behind(client, 300, space="another machine", host="elsewhere")
    began = time.monotonic()
    reader(server, limits=replace(SMALL, lease=LeaseTerms(poll=0.02))).initialOffset()
    assert time.monotonic() - began > 0.2
    assert "someone" not in str(client.get(KEY))


def test_a_lease_from_elsewhere_that_is_renewed_refuses(server: Server, client: redis.Redis) -> None:
    left_behind(client, 30_000, space="another machine", host="elsewhere")
    looks = 0

    def renewing(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            client.pexpire(KEY, 60_000)

    with pytest.raises(ConsumerTakenError, match="on elsewhere"):
        reader(server, limits=replace(SMALL, lease=LeaseTerms(sleep=renewing))).initialOffset()
    assert looks == 2


def test_it_is_renewed_while_the_query_runs_and_found_lost(server: Server, client: redis.Redis) -> None:
    address = Address.parse(server.url)
    held = ConsumerLease(address, "g", "spark", LeaseTerms(ttl=300))
    with Connection(address) as connection:
        held.hold(connection, ["s", "t"])
        before = client.get(KEY)
        time.sleep(0.4)  # longer than it would last
        wait_for_renewal(client, KEY, 300)
        assert client.get(KEY) == before
        client.delete(KEY)  # a FLUSHALL, say: nobody else has it, so it is taken again
        until(lambda: client.get(KEY) == before, "the deleted lease is not taken again")
        left_behind(client, 60_000)

        def lost() -> bool:
            try:
                held.hold(connection, ["s", "t"])
            except ConsumerTakenError:
                return True
            return False

        until(lost, "the query does not find that its lease is lost")
        held.release()
        assert "someone" in str(client.get(KEY))  # not ours any more: left alone
        assert not client.exists(lease_key("t", "g", "spark"))


def test_streams_that_are_not_read_any_more_are_let_go(server: Server, client: redis.Redis) -> None:
    """And taken again when they are read again, be it before they were given back."""
    address = Address.parse(server.url)
    held = ConsumerLease(address, "g", "spark", LeaseTerms(ttl=600))
    keys = [lease_key(stream, "g", "spark") for stream in "stu"]
    with Connection(address) as connection:
        held.hold(connection, ["s", "t", "u"])
        held.keep_only(["s"])
        held.hold(connection, ["s", "u"])
        until(lambda: not client.exists(keys[1]), "the lease of a stream that is not read any more is kept")
        client.set(keys[1], "another query's")
        wait_for_renewal(client, keys[0], 600)
        held.hold(connection, ["s", "u"])
        assert [client.exists(key) for key in keys] == [1, 1, 1]
        held.keep_only(["s", "u"])
        held.release()
    assert [client.exists(key) for key in keys] == [0, 1, 0]


def test_the_lease_of_a_stream_that_vanished_is_not_renewed(server: Server, client: redis.Redis) -> None:
    add(client, 3, "o:1")
    add(client, 3, "o:2")
    limits = replace(LOOK_EACH_TIME, lease=LeaseTerms(ttl=600))
    one = reader(server, limits=limits, streamsPattern="o:*", failOnDataLoss="false")
    start = one.initialOffset()
    start = one.latestOffset(start, ALL)
    client.delete("o:2")
    gone, kept = (lease_key(stream, "g", "spark") for stream in ("o:2", "o:1"))

    def is_let_go() -> bool:
        nonlocal start
        add(client, 1, "o:1")  # a batch, so that the checkpoint names the other one no more
        start = one.latestOffset(start, ALL)
        return not client.exists(gone)

    until(is_let_go, "the lease of the deleted stream is kept")
    wait_for_renewal(client, kept, 600)
    assert not client.exists(gone)
    assert client.exists(kept)


def test_giving_back_leaves_a_key_that_another_query_has_taken_meanwhile(server: Server, client: redis.Redis) -> None:
    """Ours when it was looked at; then it expired, another took it, and our DEL came."""
    address = Address.parse(server.url)
    held = ConsumerLease(address, "g", "spark")
    with Connection(address) as connection:
        held.hold(connection, ["s", "t"])
    with before_sending(b"DEL", act=lambda *_: client.set(KEY, "another query's"), times=1):
        held.release()
    assert client.get(KEY) == "another query's"
    assert not client.exists(lease_key("t", "g", "spark"))


def test_a_renewal_that_stood_still_for_too_long_is_no_proof_that_the_lease_is_ours(
    server: Server, client: redis.Redis
) -> None:
    """Between its question and its answer the lease expired, and another query took it."""
    address = Address.parse(server.url)
    held = ConsumerLease(address, "g", "spark", LeaseTerms(ttl=300, is_kept=False))

    def slow(*_: object) -> None:
        time.sleep(0.4)
        left_behind(client, 60_000)

    with Connection(address) as connection:
        held.hold(connection, ["s"])
        client.persist(session_of(client, KEY))
        time.sleep(0.4)
        with before_sending(b"GET", act=slow, times=1) as slowed, contextlib.suppress(ConsumerTakenError):
            held.hold(connection, ["s"])
        assert slowed
        with pytest.raises(ConsumerTakenError):
            held.hold(connection, ["s"])


def a_lease_from_elsewhere(client: redis.Redis, ttl: int) -> str:
    """A lease with a session, of a process that cannot be seen from here; the session's key."""
    session = session_key("g", "far")
    value = json.dumps({"session": session, **PROCESSES.this(), "space": "elsewhere", "host": "far"})
    client.set(KEY, value)
    client.set(session, value, px=ttl)
    return session


def test_a_lease_is_taken_over_when_the_session_of_its_holder_has_expired(server: Server, client: redis.Redis) -> None:
    a_lease_from_elsewhere(client, 300)
    began = time.monotonic()
    reader(server, limits=replace(SMALL, lease=LeaseTerms(poll=0.02))).initialOffset()
    assert time.monotonic() - began > 0.2
    assert "far" not in str(client.get(KEY))


def test_the_lease_of_a_process_that_stands_still_is_taken_over(server: Server, client: redis.Redis) -> None:
    """It lives on this machine, and does not renew its session."""
    held = ConsumerLease(Address.parse(server.url), "g", "spark", LeaseTerms(ttl=2_000, is_kept=False))
    with Connection(Address.parse(server.url)) as connection:
        held.hold(connection, ["s"])
        with pytest.raises(ConsumerTakenError):
            another_reader(server).initialOffset()
        time.sleep(2.1)
        another_reader(server).initialOffset()


def test_a_lease_whose_session_is_renewed_elsewhere_refuses(server: Server, client: redis.Redis) -> None:
    session = a_lease_from_elsewhere(client, 30_000)
    looks = 0

    def renewing(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            client.pexpire(session, 60_000)

    with pytest.raises(ConsumerTakenError, match="on far"):
        reader(server, limits=replace(SMALL, lease=LeaseTerms(sleep=renewing))).initialOffset()
    assert looks == 2


def test_a_process_that_wakes_up_after_its_session_expired_takes_nothing_back(
    server: Server, client: redis.Redis, server_connection: Connection
) -> None:
    """Two leases; another process has taken one of them over meanwhile."""
    held = ConsumerLease(Address.parse(server.url), "g", "spark", LeaseTerms(ttl=100, is_kept=False))
    held.hold(server_connection, ["s", "t"])
    time.sleep(0.2)
    left_behind(client, 60_000)
    with pytest.raises(ConsumerTakenError):
        held.hold(server_connection, ["s", "t"])
    assert "someone" in str(client.get(KEY))


def test_the_lease_of_a_dead_process_that_a_server_has_again_is_written_again(
    server: Server, client: redis.Redis, server_connection: Connection
) -> None:
    """The server returns to an older state, without the session of the present holder and with it."""
    left_behind(client, 60_000, born="1")
    before = str(client.get(KEY))
    held = ConsumerLease(Address.parse(server.url), "g", "spark", LeaseTerms(ttl=100, is_kept=False))
    held.hold(server_connection, ["s"])
    mine = client.get(KEY)
    for is_session_there in (False, True):
        client.set(KEY, before)
        session = json.loads(str(mine))["session"]
        if is_session_there:
            client.persist(session)
        else:
            client.delete(session)
        time.sleep(0.2)
        held.hold(server_connection, ["s"])
        assert client.get(KEY) == mine


def test_a_dead_process_that_may_have_held_the_lease_since_shows_no_older_state(
    server: Server, client: redis.Redis, server_connection: Connection
) -> None:
    """Only the value that this process has taken over shows that the server was set back."""
    left_behind(client, 60_000, born="1")
    held = ConsumerLease(Address.parse(server.url), "g", "spark", LeaseTerms(ttl=100, is_kept=False))
    held.hold(server_connection, ["s"])
    left_behind(client, 60_000, born="2")
    time.sleep(0.2)
    with pytest.raises(ConsumerTakenError):
        held.hold(server_connection, ["s"])


def test_a_process_that_a_server_has_again_with_its_session_may_live(
    server: Server, client: redis.Redis, server_connection: Connection
) -> None:
    a_lease_from_elsewhere(client, 1)
    time.sleep(0.01)
    held = ConsumerLease(Address.parse(server.url), "g", "spark", LeaseTerms(ttl=100, is_kept=False))
    held.hold(server_connection, ["s"])
    a_lease_from_elsewhere(client, 60_000)
    time.sleep(0.2)
    with pytest.raises(ConsumerTakenError):
        held.hold(server_connection, ["s"])


def test_who_takes_a_lease_over_while_its_holder_wakes_up_fails(
    server: Server, client: redis.Redis, server_connection: Connection
) -> None:
    """The one has seen no session; before its EXEC the other has written its session and its lease again."""
    held = ConsumerLease(
        Address.parse(server.url), "g", "spark", LeaseTerms(ttl=100, is_kept=False, processes=_Elsewhere())
    )
    held.hold(server_connection, ["s"])
    time.sleep(0.2)
    woken = []

    def wake(*_: object) -> None:
        woken.append(held.hold(server_connection, ["s"]))

    second = ConsumerLease(Address.parse(server.url), "g", "spark", LeaseTerms(ttl=60_000, is_kept=False, poll=0.01))
    with Connection(Address.parse(server.url)) as connection, before_sending(b"EXEC", act=wake, times=1):
        try:
            second.hold(connection, ["s"])
        except ConsumerTakenError:
            pass
        else:
            assert len(woken) == 1
            time.sleep(0.2)  # the first one did not renew: its session expired once more
            with pytest.raises(ConsumerTakenError):
                held.hold(server_connection, ["s"])


def test_a_thousand_leases_are_renewed_by_a_few_commands(
    server: Server, client: redis.Redis, server_connection: Connection
) -> None:
    held = ConsumerLease(Address.parse(server.url), "g", "spark", LeaseTerms(ttl=600))
    held.hold(server_connection, [f"s{n}" for n in range(1_000)])
    wait_for_renewal(client, KEY.replace(b"{s}", b"{s0}"), 600)
    before = sum(one["calls"] for one in client.info("commandstats").values())
    time.sleep(1.0)  # five renewals
    sent = sum(one["calls"] for one in client.info("commandstats").values()) - before
    assert 11 <= sent <= 120
    held.release()
    assert client.keys("rstream:*") == []


def test_live_consumers_are_those_with_a_lease_of_a_living_process(
    server: Server, client: redis.Redis, server_connection: Connection
) -> None:
    asked = [("s", "spark"), ("s", "nobody"), ("t", "spark")]
    held = ConsumerLease(Address.parse(server.url), "g", "another")
    assert held.live(server_connection, asked) == set()
    left_behind(client, 60_000)
    assert held.live(server_connection, asked) == {("s", "spark")}
    left_behind(client, 60_000, born="1")
    assert held.live(server_connection, asked) == set()
    left_behind(client, 60_000, space="elsewhere")
    assert held.live(server_connection, asked) == {("s", "spark")}


@pytest.mark.parametrize("value", ["x", '{"pid": [' * 1_000], ids=["text", "deep"])
def test_a_lease_that_nobody_can_read_is_held(
    server: Server, client: redis.Redis, server_connection: Connection, value: str
) -> None:
    client.set(KEY, value)
    held = ConsumerLease(Address.parse(server.url), "g", "another")
    assert held.live(server_connection, [("s", "spark")]) == {("s", "spark")}
    with pytest.raises(ConsumerTakenError):
        reader(server, limits=replace(SMALL, lease=LeaseTerms(ttl=200, poll=0.02))).initialOffset()


def test_a_lease_that_was_taken_when_the_connection_broke_is_ours(server: Server, client: redis.Redis) -> None:
    add(client, 3)
    one = reader(server)
    with before_sending(b"SET", b"NX", act=reply_lost, times=1) as broken:
        assert drain(one) == [[0, 1, 2]]
    assert broken
    one.stop()
    assert not client.exists(KEY)


def test_a_query_that_is_refused_on_one_stream_keeps_none_of_the_others(server: Server, client: redis.Redis) -> None:
    add(client, 3)
    other = another_reader(server, streams="t")
    other.initialOffset()
    refused = another_reader(server, streams="s,t")
    with pytest.raises(ConsumerTakenError, match="stream 't'"):
        refused.initialOffset()
    assert drain(another_reader(server)) == [[0, 1, 2]]


def test_a_replay_needs_no_lease_of_a_stream_that_is_neither_listed_nor_in_its_batch(
    server: Server, client: redis.Redis
) -> None:
    """The checkpoint still names it, and another query may read it by now."""
    add(client, 3)
    add(client, 1, "t")
    one = reader(server, streams="s,t")
    start = one.initialOffset()
    both = one.latestOffset(start, ALL)
    one.commit(both)
    add(client, 2, first=3)
    of_s = one.latestOffset(both, ALL)
    one.stop()
    other = another_reader(server, streams="t")
    other.initialOffset()
    successor = another_reader(server)
    assert read(successor, both, of_s) == [3, 4]
    successor.stop()
    with pytest.raises(ConsumerTakenError, match="stream 't'"):
        read(another_reader(server), start, both)
