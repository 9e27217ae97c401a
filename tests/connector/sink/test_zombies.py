"""Tasks and drivers that stand still for any time and wake up: what is done is not written again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from spark_streams.connector.errors import LedgerError
from spark_streams.connector.sink.batch import Batch
from spark_streams.connector.sink.batch_commit import begin_job, void_batch
from tests.connector.sink.paused_task import paused_task
from tests.connector.sink.writing import batch_of, came_before, close, frame, ledger_keys, numbers, options, write
from tests.proxy import Proxy
from tools.servers.server import Server

ROWS = list(range(60))
ONCE = Counter(ROWS)
STEPS = range(9)  # requests of a task before and around its first chunk


def sleepily(url: str, batch: Batch) -> None:
    """The task of one partition with all rows."""
    write([frame(ROWS)], options(url, chunkSize="20"), batch)


def batch_done(url: str, batch: Batch, rows: list[int], stream: str = "out") -> None:
    checked = options(url, stream=stream, chunkSize="20")
    close(checked, batch, write([frame(rows)] if rows else [], checked, batch))


@pytest.mark.parametrize("between", [1, 2, 5])
def test_a_task_that_wakes_up_batches_later_writes_nothing(server: Server, between: int) -> None:
    """Its twin has written the rows; the batches since had no rows, or rows for another stream."""
    came_before(server, 3)
    batch = batch_of(3)
    batch_done(server.url, batch, ROWS)
    for number in range(4, 4 + between):
        batch_done(server.url, batch_of(number), [] if number % 2 else [1000 + number], "other")
    with pytest.raises(LedgerError, match="batch 3 of query q"):
        sleepily(server.url, batch)
    assert numbers(server) == ONCE


@pytest.mark.parametrize("at", STEPS)
@pytest.mark.parametrize("between", [0, 1, 2])
def test_wherever_a_task_stands_still_its_twin_has_written_the_rows(server: Server, at: int, between: int) -> None:
    """Before any of its requests: what it has seen of the ledger before counts no more."""
    came_before(server, 3)
    batch = batch_of(3)
    with paused_task(lambda: sleepily(server.url, batch), at) as zombie:
        assert zombie.stood
        batch_done(server.url, batch, ROWS)
        for number in range(4, 4 + between):
            batch_done(server.url, batch_of(number), [])
    assert numbers(server) == ONCE


@pytest.mark.parametrize("at", STEPS)
@pytest.mark.parametrize("between", [0, 1, 2])
def test_wherever_a_task_of_a_killed_run_stands_still_the_next_run_has_written_the_rows(
    server: Server, at: int, between: int
) -> None:
    came_before(server, 3)
    old = batch_of(3)
    with paused_task(lambda: sleepily(server.url, old), at) as zombie:
        assert zombie.stood
        batch_done(server.url, batch_of(3), ROWS[::-1])
        for number in range(4, 4 + between):
            batch_done(server.url, batch_of(number), [])
    assert numbers(server) == ONCE


@pytest.mark.parametrize("at", STEPS)
@pytest.mark.parametrize("between", [0, 1, 2])
@pytest.mark.parametrize("how", ["lossy", "plain"])
def test_wherever_a_task_stands_still_a_batch_that_was_closed_without_its_rows_gets_no_more(
    server: Server, at: int, between: int, how: str
) -> None:
    """The next run had no entries to read, or wrote them at least once."""
    came_before(server, 2)
    batch_done(server.url, batch_of(2), [])
    with paused_task(lambda: sleepily(server.url, batch_of(3)), at) as zombie:
        assert zombie.stood
        if how == "lossy":
            with server.client() as client:
                client.hset("rstream:told:q", "lossy 3:", 1)
            batch_done(server.url, batch_of(3), [])
        else:
            void_batch(options(server.url).address, batch_of(3))
        before = numbers(server)
        for number in range(4, 4 + between):
            batch_done(server.url, batch_of(number), [])
    assert numbers(server) == before
    if how == "lossy":
        batch_done(server.url, batch_of(4 + between), [])
        assert ledger_keys(server) == {"rstream:sink:q", "rstream:told:q"}


@pytest.mark.parametrize("at", range(8))
@pytest.mark.parametrize("between", [0, 1, 3])
def test_a_driver_that_stands_still_while_it_closes_a_batch_undoes_nothing(
    server: Server, at: int, between: int
) -> None:
    """Another one has run the batch again, and later ones; their ledger stays as they left it."""
    came_before(server, 3)
    checked, old = options(server.url, chunkSize="20"), batch_of(3)
    result = write([frame(ROWS)], checked, old)
    with paused_task(lambda: close(checked, old, result), at) as zombie:
        batch_done(server.url, batch_of(3), ROWS[::-1])
        for number in range(4, 4 + between):
            batch_done(server.url, batch_of(number), [100 * number])
        with server.client() as client:
            before = client.hgetall("rstream:sink:{out}:q"), client.hgetall("rstream:sink:q")
    assert zombie.stood == (at < 6)  # it has so many requests to make
    with server.client() as client:
        assert before == (client.hgetall("rstream:sink:{out}:q"), client.hgetall("rstream:sink:q"))
    last = [100 * (3 + between)] if between else ROWS
    batch_done(server.url, batch_of(3 + between), last)  # a replay of the last batch finds it done
    assert numbers(server) == ONCE + Counter(100 * number for number in range(4, 4 + between))


@pytest.mark.parametrize("at", STEPS)
def test_a_job_that_is_done_is_not_written_again_and_leaves_no_key(server: Server, at: int) -> None:
    """However long its task stands still: the job's record is gone then."""
    batch = begin_job(options(server.url).address)
    with paused_task(lambda: sleepily(server.url, batch), at) as zombie:
        assert zombie.stood
        batch_done(server.url, batch, ROWS)
        assert ledger_keys(server) == set()
    assert numbers(server) == ONCE
    assert ledger_keys(server) == set()


def test_a_driver_that_loses_its_connection_while_it_closes_a_job_closes_it(
    server: Server,
) -> None:
    """Cut at any byte of what it sends: what it has done already it does not miss."""
    for after in range(40, 1400, 50):
        direct, batch = options(server.url), begin_job(options(server.url).address)
        result = write([frame(ROWS)], direct, batch)
        with Proxy(server.url) as proxy:
            for direction in ("up", "down"):
                proxy.cut(direction, after)
            close(options(proxy.url), batch, result)
        assert ledger_keys(server) == set()


@pytest.mark.in_turn
def test_the_ledger_does_not_grow_with_the_names_of_streams(server: Server) -> None:
    """Each batch writes to other streams: what is left is the record, and the heads of the last batch."""
    for number in range(12):
        checked, batch = options(server.url, streamColumn="to"), batch_of(number)
        names = [f"user{100 * number + at}" for at in range(100)]
        zombie = batch_of(number)
        close(checked, batch, write([frame(range(100), names)], checked, batch))
        with pytest.raises(LedgerError, match="is done"):
            write([frame([1], [f"elsewhere{number}"])], checked, replace(zombie, number=number - 1))
    assert len(ledger_keys(server)) == 101


def test_a_checkpoint_that_was_set_back_goes_on_as_the_error_says(server: Server) -> None:
    for number in (0, 1):
        batch_done(server.url, batch_of(number), [number])
    with pytest.raises(LedgerError, match="Running the batch with delivery=at-least-once writes"):
        batch_done(server.url, batch_of(0), [0])
    void_batch(options(server.url).address, batch_of(0))
