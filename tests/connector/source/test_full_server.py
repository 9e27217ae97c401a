"""The server's memory is full when a query starts, or while it runs: the query waits, then ends with one error that
says how full it is. With memory, the next run goes on; nothing is lost, and nothing is read twice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from spark_streams.connector.errors import RetriesExhaustedError
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.wire.address import Patience
from tests.full_server import full
from tools import driving
from tools.driving import ALL, NEVER_AHEAD, add, drain, read, stop_all
from tools.servers.server import Server

HASTY = Patience(limit=0.3, longest_pause=0.05)
PATIENT = Patience(limit=30.0, longest_pause=0.05)
SAID = (
    r"^\[RSTREAM_RETRIES_EXHAUSTED\] .* was tried for \d+ s without success, at last: .*: the server's memory is full "
    r"\([0-9.,]+ [KM]B used of maxmemory 488 KB\)"
)


def reader(server: Server, patience: Patience = HASTY, **options: str) -> StreamReader:
    return driving.reader(server, patience=patience, limits=NEVER_AHEAD, **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"noAck": "true"}, {"mode": "DEADLETTER", "deadLetterStream": "d"}, {"onCommit": "trim"}],
)
def test_a_query_that_starts_waits_and_then_says_that_the_memory_is_full(
    server: Server, client: redis.Redis, options: dict[str, str]
) -> None:
    """For each kind of query; the next start, with memory, reads all."""
    add(client, 20)
    with full(server), pytest.raises(RetriesExhaustedError, match=SAID) as caught:
        reader(server, **options).initialOffset()
    assert "{" not in caught.value.message.replace("{s}", ""), "no value of a key"
    assert caught.value.__suppress_context__
    stop_all()
    assert drain(reader(server, **options)) == [list(range(20))]


def test_a_query_that_starts_goes_on_as_soon_as_there_is_memory(server: Server, client: redis.Redis) -> None:
    add(client, 20)
    one, begun = reader(server, PATIENT), threading.Event()
    offsets: list[dict[str, Any]] = []

    def start() -> None:
        begun.set()
        offsets.append(one.initialOffset())

    with full(server):
        thread = threading.Thread(target=start)
        thread.start()
        begun.wait()
        thread.join(0.3)
        assert thread.is_alive()
    thread.join(30)
    assert drain(one, start=offsets[0]) == [list(range(20))]


def until_it_ends(step: Callable[[], object]) -> None:
    """Run a step of a query on a full server until it ends with an error."""
    for _ in range(20):
        step()
    pytest.fail("the query goes on although nothing of it can be recorded")


@pytest.mark.parametrize("options", [{}, {"noAck": "true"}, {"mode": "DEADLETTER", "deadLetterStream": "d"}])
def test_a_query_that_runs_when_the_memory_becomes_full_ends_with_the_same_error(
    server: Server, client: redis.Redis, options: dict[str, str]
) -> None:
    """Its commit marks cannot be written. Entries of the batches that Spark has committed are not read again."""
    add(client, 60)
    one = reader(server, **options)
    offset = one.initialOffset()
    seen: list[int] = []

    def step() -> None:
        nonlocal offset
        end = one.latestOffset(offset, driving.ReadMaxRows(3))
        seen.extend(read(one, offset, end))
        offset = end  # Spark has written its commit log
        one.commit(end)

    step()
    with full(server), pytest.raises(RetriesExhaustedError, match=SAID):
        until_it_ends(step)
    stop_all()
    rest = [n for batch in drain(reader(server, **options), start=offset) for n in batch]
    assert seen + rest == list(range(60))


def test_dead_letters_wait_for_memory(server: Server, client: redis.Redis) -> None:
    """Nothing of the entry is acknowledged before its dead letter is written."""
    options = {"mode": "DEADLETTER", "deadLetterStream": "d"}
    for value in ("0", "bad", "2"):
        client.xadd("s", {"n": value})
    one = reader(server, **options)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [0, 2]
    with full(server), pytest.raises(RetriesExhaustedError, match="the server's memory is full"):
        one.latestOffset(end, ALL)
    assert (client.exists("d"), client.xpending("s", "g")["pending"]) == (0, 3)
    stop_all()
    again = reader(server, **options)
    assert again.latestOffset(end, ALL) == end
    again.stop()
    assert (client.xlen("d"), client.xpending("s", "g")["pending"]) == (1, 0)
