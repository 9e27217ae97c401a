"""Runs are ordered by the server, whatever the clocks of drivers say; and what the ledger needs of a server."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from pyspark.sql.types import LongType, StructType

from spark_streams.connector.errors import LedgerError, NotPermittedError, UnsupportedError
from spark_streams.connector.keys import RUNS, MicroBatchName
from spark_streams.connector.sink.batch import Batch
from spark_streams.connector.sink.batch_commit import begin_job, begin_run
from spark_streams.connector.sink.writers import BatchWriter
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection, pack
from tests.connector.sink.writing import KilledError, batch_of, close, dying, frame, numbers, options, write
from tools.servers.server import Server
from tools.waiting import until

ROWS = list(range(100))
ONCE = Counter(ROWS)


def begun(server: Server) -> Batch:
    """What a driver makes for one execution of batch 0."""
    checked = options(server.url, transaction="name")
    return BatchWriter(checked, StructType().add("n", LongType()), False).batch_of(MicroBatchName("q", 0))


def test_a_driver_whose_clock_is_behind_takes_over_from_the_killed_run(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour behind: its run is the later one all the same."""
    checked = options(server.url, chunkSize="10")
    with pytest.raises(KilledError):
        write(dying([frame(ROWS[:50])]), checked, begun(server))
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 3600)
    monkeypatch.setattr(time, "time_ns", lambda: int((now() - 3600) * 1e9))
    batch = begun(server)
    close(checked, batch, write([frame(ROWS)], checked, batch))
    assert numbers(server) == ONCE


def test_a_task_of_the_earlier_run_that_was_never_entered_does_not_take_over(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver was killed before one of its tasks had a row; and its driver's clock was ahead."""
    checked, now = options(server.url, chunkSize="10"), time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 3600 * 10**9)
    old = begun(server)
    monkeypatch.setattr(time, "time_ns", now)
    new = begun(server)

    def interrupted():  # type: ignore[no-untyped-def]
        yield frame(ROWS[:50])
        with pytest.raises(LedgerError, match="another run of batch 0 of query q has taken over"):
            write([frame(ROWS)], checked, old)
        yield frame(ROWS[50:])

    close(checked, new, write(interrupted(), checked, new))
    assert numbers(server) == ONCE


def test_a_run_that_the_version_before_has_begun_is_taken_over(server: Server) -> None:
    """Its name was the time of its driver, which may have been ahead by years."""
    checked = options(server.url, chunkSize="10")
    old = Batch("q", 0, f"{4 * 10**18:020d}-0123abcd", expires=False)
    with pytest.raises(KilledError):
        write(dying([frame(ROWS[:50])]), checked, old)
    batch = begun(server)
    with pytest.raises(KilledError):
        write(dying([frame(ROWS[:70])]), checked, batch)
    with pytest.raises(LedgerError, match="has taken over"):
        write([frame(ROWS)], checked, old)
    close(checked, batch, write([frame(ROWS)], checked, batch))
    assert numbers(server) == ONCE


def test_names_of_runs_rise_when_the_clock_of_the_server_falls_and_when_their_key_is_lost(server: Server) -> None:
    address = Address.parse(server.url)
    names = [begin_run(address) for _ in range(3)]
    with server.client() as client:
        ahead = int(client.get(RUNS)) + 3600 * 10**6  # as if the clock had been set back by an hour
        client.set(RUNS, ahead)
        names += [begin_run(address) for _ in range(3)]
        assert int(client.get(RUNS)) == ahead + 3
    assert names == sorted(set(names))
    with server.client() as client:
        client.delete(RUNS)
    assert names[2] < begin_run(address)


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
def test_a_server_that_may_drop_the_ledger_is_refused(redis_server: Server, policy: str) -> None:
    with redis_server.client() as client:
        client.config_set("maxmemory-policy", policy)
        try:
            begun(redis_server)  # it has no maxmemory
            client.config_set("maxmemory", 10**9)
            for begin in (begin_run, begin_job):
                with pytest.raises(UnsupportedError, match=rf"maxmemory-policy {policy}.*delivery=at-least-once"):
                    begin(Address.parse(redis_server.url))
            plain = options(redis_server.url, delivery="at-least-once")
            BatchWriter(plain, StructType().add("n", LongType()), False)
        finally:
            client.config_set("maxmemory", 0)
            client.config_set("maxmemory-policy", "noeviction")


def test_a_job_says_that_its_ledger_may_be_dropped(redis_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """volatile-lru: only what expires is dropped, and only jobs have that."""
    with redis_server.client() as client:
        client.config_set("maxmemory-policy", "volatile-lru")
        client.config_set("maxmemory", 10**9)
        try:
            with caplog.at_level(logging.WARNING):
                begin_run(Address.parse(redis_server.url))
                assert not caplog.messages
                begin_job(Address.parse(redis_server.url))
        finally:
            client.config_set("maxmemory", 0)
            client.config_set("maxmemory-policy", "noeviction")
    assert re.search("maxmemory-policy volatile-lru.*keys of a job's ledger expire", caplog.text)


@pytest.fixture
def unasked(redis_server: Server) -> Iterator[Server]:
    """For a user who may not ask what the server's policy is."""
    with redis_server.client() as admin:
        admin.flushall()
        admin.execute_command("ACL", "SETUSER", "plain", "reset", "on", ">pw", "~*", "+@all", "-@dangerous")
        yield Server("redis", redis_server.url.replace("://", "://plain:pw@"))
        admin.acl_deluser("plain")


def test_a_user_who_may_not_ask_for_the_policy_goes_on(unasked: Server) -> None:
    address = Address.parse(unasked.url)
    assert begin_run(address) < begin_run(address)
    batch = begin_job(address)
    close(options(unasked.url), batch, write([frame(ROWS)], options(unasked.url), batch))
    assert numbers(unasked) == ONCE


def test_a_right_that_is_taken_away_within_the_transaction_that_closes_a_batch_is_an_error(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server puts NOPERM among the replies to EXEC (FACTS R40)."""
    end, honest, batch = pack("EXEC"), Connection.send, batch_of(0)
    with redis_server.client() as admin:
        admin.flushall()
        admin.execute_command("ACL", "SETUSER", "plain", "reset", "on", ">pw", "~*", "+@all")

        def send(self: Connection, data: bytes | memoryview) -> None:
            request = bytes(data)
            if not request.startswith(pack("MULTI")) or batch.record.encode() + b"\r\n" not in request:
                honest(self, data)
                return
            honest(self, request.removesuffix(end))
            until(lambda: any(int(one["multi"]) > 0 for one in admin.client_list()), "no client is in a transaction")
            admin.execute_command("ACL", "SETUSER", "plain", "-hset")
            honest(self, end)

        checked = options(redis_server.url.replace("://", "://plain:pw@"))
        result = write([frame(ROWS)], checked, batch)
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "send", send)
            with pytest.raises(NotPermittedError, match="^.RSTREAM_NOT_PERMITTED. HSET rstream:sink:q"):
                close(checked, batch, result)
        assert admin.hget(batch.record, "") is None
        admin.execute_command("ACL", "SETUSER", "plain", "+hset")
        close(checked, batch, result)
        assert admin.hget(batch.record, "") == b"0"
        admin.acl_deluser("plain")
    assert numbers(redis_server) == ONCE
