"""The end of a batch: replicas have it, and a display counts its rows before."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from spark_streams.connector.errors import LedgerError, ReplicationError
from spark_streams.connector.sink.batch_commit import begin_job, rows_written
from spark_streams.connector.sink.chunk_writer import SinkTask, append
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection, pack
from tests.connector.sink.writing import batch_of, close, frame, killed_before_chunk, numbers, options, write
from tests.proxy import Proxy
from tools.sending import before_sending, reply_lost
from tools.servers.server import Server, running_redis, skip_without_redis
from tools.waiting import until

ROWS = list(range(60))
ONCE = Counter(ROWS)


@contextlib.contextmanager
def with_a_replica() -> Iterator[Server]:
    """A master whose one replica has caught up."""
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(running_redis("--repl-diskless-sync-delay", "0"))
        replica = stack.enter_context(running_redis("--replicaof", "127.0.0.1", str(urlsplit(master.url).port)))
        with replica.client() as client:
            until(lambda: client.info("replication")["master_link_status"] == "up", "the replica does not connect")
        yield master


@pytest.fixture(scope="module")
def master_and_replica() -> Iterator[tuple[Server, Server]]:
    skip_without_redis()
    with with_a_replica() as one, with_a_replica() as other:
        yield one, other


@pytest.fixture
def masters(master_and_replica: tuple[Server, Server]) -> tuple[Server, Server]:
    """The master that is lost, and the one that takes over; both empty."""
    for server in master_and_replica:
        with server.client() as client:
            client.flushall()
    return master_and_replica


def copy(old: Server, new: Server) -> None:
    """The new master is a replica of the old one that has come to here: all keys are of one moment."""
    with old.client() as here, new.client() as there:
        keys, now = list[bytes](), here.keys("*")
        while set(keys) != set(now):  # a key that appears meanwhile belongs to a later moment
            keys = now
            pipe = here.pipeline(transaction=True)
            for key in keys:
                pipe.dump(key)
            *dumps, now = pipe.keys("*").execute()
        dumped = dict(zip(keys, dumps, strict=True))
        for key, dump in dumped.items():
            there.restore(key, 0, dump, replace=True)


@contextlib.contextmanager
def failing_over(masters: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch, at: int = 0) -> Iterator[Proxy]:
    """The old master is lost just before it is asked for WAIT, number `at`."""
    old, new = masters
    honest = Connection.send
    waits = 0

    def send(self: Connection, data: Any) -> None:
        nonlocal waits
        if b"$4\r\nWAIT\r\n" in bytes(data):
            if waits == at:
                proxy.lead_to(new.url)
            waits += 1
        honest(self, data)

    monkeypatch.setattr(Connection, "send", send)
    with Proxy(old.url) as proxy:
        yield proxy


LOST = {
    "exactly-once": (LedgerError, "chunks that .* wrote to stream 'out' are not on the server any"),
    "at-least-once": (
        ReplicationError,
        "lost while rows of this task were written.* for example those of stream 'out'",
    ),
}


@pytest.mark.parametrize("delivery", LOST)
def test_what_only_the_lost_master_had_is_written_by_the_next_attempt(
    masters: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch, delivery: str
) -> None:
    """The next one has nothing at all, and its replicas have all of that."""
    error, why = LOST[delivery]
    with failing_over(masters, monkeypatch) as proxy:
        checked, batch = options(proxy.url, chunkSize="10", waitReplicas="1"), batch_of(0)
        task = SinkTask(batch) if delivery == "exactly-once" else None
        with pytest.raises(error, match=why):
            append([frame(ROWS)], checked, task)
        result = append([frame(ROWS)], checked, task and SinkTask(batch))
        if task is not None:
            close(checked, batch, result)
    assert numbers(masters[1]) == ONCE


def test_a_replica_that_has_not_confirmed_may_become_the_master(masters: tuple[Server, Server]) -> None:
    """waitReplicas asks for a number of replicas: the one that takes over is another. The next batch notices it, if
    there is one."""
    checked, batch = options(masters[0].url, waitReplicas="1"), batch_of(0)
    close(checked, batch, write([frame(ROWS)], checked, batch))
    assert numbers(masters[0]) == ONCE
    checked, batch = options(masters[1].url, waitReplicas="1"), batch_of(1)
    with pytest.raises(LedgerError):
        close(checked, batch, write([frame([60])], checked, batch))
    assert numbers(masters[1]) == {}


@pytest.mark.parametrize("delivery", LOST)
def test_what_a_lagging_replica_misses_is_written_by_the_next_attempt(
    masters: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch, delivery: str
) -> None:
    def rows() -> Iterator[Any]:
        yield frame(ROWS[:20])
        yield frame(ROWS[20:40])
        copy(*masters)
        yield frame(ROWS[40:])

    error, why = LOST[delivery]
    with failing_over(masters, monkeypatch) as proxy:
        checked, batch = options(proxy.url, chunkSize="10", waitReplicas="1"), batch_of(0)
        task = SinkTask(batch) if delivery == "exactly-once" else None
        with pytest.raises(error, match=why):
            append(rows(), checked, task)
        result = append([frame(ROWS)], checked, task and SinkTask(batch))
        if task is not None:
            close(checked, batch, result)
    found = numbers(masters[1])
    assert found.keys() == ONCE.keys()
    assert found == ONCE or delivery == "at-least-once"


def test_without_waiting_a_task_says_what_a_failover_has_lost(
    masters: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another attempt can write it; the driver, when all tasks have ended, could not."""
    batch = batch_of(0)
    with failing_over(masters, monkeypatch) as proxy:
        checked = options(proxy.url, chunkSize="10")

        def rows() -> Iterator[Any]:
            yield frame(ROWS[:20])
            copy(*masters)
            yield frame(ROWS[20:40])
            proxy.lead_to(masters[1].url)
            yield frame(ROWS[40:])

        with pytest.raises(LedgerError, match="another attempt writes the missing rows, and no row twice"):
            write(rows(), checked, batch)
        close(checked, batch, write([frame(ROWS[::-1])], checked, batch))
    assert numbers(masters[1]) == ONCE


def test_a_chunk_that_was_found_written_and_is_lost_then_is_written_by_the_next_attempt(
    masters: tuple[Server, Server],
) -> None:
    """Nobody heard of its EXEC, its mark was found, and before the task went on another master took over."""
    old, new = masters
    copied = False
    met: list[bytes] = []

    def act(server: Connection, request: bytes) -> None:
        nonlocal copied
        if request == pack("UNWATCH"):
            met.append(request)
            proxy.lead_to(new.url)
            raise server.lost(None)
        if request.startswith(pack("EXEC")) and not copied:
            copy(old, new)
            copied = True
            reply_lost(server, request)

    with Proxy(old.url) as proxy:
        checked, batch = options(proxy.url), batch_of(0)
        with before_sending(act=act), pytest.raises(LedgerError, match="are not on the server any more"):
            write([frame(ROWS)], checked, batch)
        assert met
        close(checked, batch, write([frame(ROWS)], checked, batch))
    assert numbers(new) == ONCE


@pytest.mark.parametrize("delivery", LOST)
def test_replicas_are_waited_for_once(masters: tuple[Server, Server], delivery: str) -> None:
    old = masters[0]
    with old.client() as client:
        client.config_resetstat()
        task = SinkTask(batch_of(0)) if delivery == "exactly-once" else None
        append([frame(ROWS)], options(old.url, chunkSize="2", waitReplicas="1"), task)
        assert client.info("commandstats")["cmdstat_wait"]["calls"] == 1
    assert numbers(old) == ONCE


@contextlib.contextmanager
def writers_that_wait(first_is_lost: bool = False) -> Iterator[list[bool]]:
    """Yield for each WAIT whether its own connection has written before. first_is_lost: with its connection."""
    writers: set[Connection] = set()
    waits: list[bool] = []

    def act(server: Connection, request: bytes) -> None:
        if pack("EXEC") in request or b"\r\nINCRBY\r\n" in request:
            writers.add(server)
        if request.startswith(b"*3\r\n$4\r\nWAIT\r\n"):
            waits.append(server in writers)
            if first_is_lost and len(waits) == 1:
                raise server.lost(None)

    with before_sending(act=act):
        yield waits


# Since Redis 7.2 WAIT covers only what its own connection has written. Without that it is true at once, also if the
# replicas lack the end of the batch.


@pytest.mark.parametrize("kind", ["query", "job"])
def test_a_new_connection_writes_before_it_waits_for_replicas(masters: tuple[Server, Server], kind: str) -> None:
    checked = options(masters[0].url, waitReplicas="1")
    batch = batch_of(0) if kind == "query" else begin_job(checked.address)
    result = write([frame(ROWS)], checked, batch)
    with writers_that_wait(first_is_lost=True) as waits:
        close(checked, batch, result)
    assert waits == [True, True]


def test_who_replays_a_complete_batch_writes_before_it_waits_for_replicas(masters: tuple[Server, Server]) -> None:
    """Its driver was killed before Spark's commit log had the batch, and perhaps before its WAIT."""
    checked = options(masters[0].url, waitReplicas="1")
    for _ in range(2):
        batch = batch_of(0)
        with writers_that_wait() as waits:
            result = write([frame(ROWS)], checked, batch)
            close(checked, batch, result)
        assert waits == [True, True]
    assert numbers(masters[0]) == ONCE


FEW_ROWS = [frame(range(100))]


def test_rows_of_all_runs_count_and_those_of_other_batches_do_not(server: Server) -> None:
    checked = options(server.url, chunkSize="10")
    with Connection(Address.parse(server.url)) as connection:

        def rows(number: int) -> int:
            return rows_written(connection, "out", "q", number)

        assert rows(0) == 0
        killed_before_chunk(4, FEW_ROWS, checked, batch_of(0))
        assert rows(0) == 30
        killed_before_chunk(3, FEW_ROWS, checked, batch_of(0))
        assert rows(0) == 50
        batch = batch_of(0)
        result = write(FEW_ROWS, checked, batch)
        assert rows(0) == 100
        close(checked, batch, result)
        assert (rows(0), rows(1)) == (100, 0)
        killed_before_chunk(2, FEW_ROWS, checked, batch_of(1))
        assert (rows(0), rows(1)) == (100, 10)
