"""Option rowsPerSecond: the tasks of one write share one rate, and only rows that are sent count."""

from __future__ import annotations

import threading
import time

import pytest

from spark_streams.connector.keys import pace_key
from spark_streams.connector.sink.chunk_writer import SinkTask, append
from tests.connector.sink.writing import batch_of, close, frame, killed_before_chunk, numbers, options
from tools.machine_time import machine_seconds
from tools.servers.server import Server

ROWS = list(range(120))


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_the_tasks_of_a_write_share_the_rate(server: Server, delivery: str) -> None:
    """120 rows at 100 a second take a second (all but the first ten have to wait), whatever the number of tasks."""
    checked = options(server.url, rowsPerSecond="100", delivery=delivery)
    batch = batch_of(0)

    def task(partition: int) -> None:
        mine = frame(ROWS[partition::3])
        append([mine], checked, SinkTask(batch, partition) if delivery == "exactly-once" else None, pace="one")

    began = time.monotonic()
    tasks = [threading.Thread(target=task, args=(partition,)) for partition in range(3)]
    for one in tasks:
        one.start()
    for one in tasks:
        one.join()
    assert 1.0 <= time.monotonic() - began < 30
    assert numbers(server) == dict.fromkeys(ROWS, 1)


def test_rows_that_an_earlier_run_has_written_do_not_wait(server: Server) -> None:
    """480 of 500 rows are there: the next run sends 20, in a fifth of a second and not in five."""
    rows = list(range(500))
    killed_before_chunk(49, [frame(rows)], options(server.url, chunkSize="10"), batch_of(0))
    assert len(numbers(server)) == 480
    checked, batch = options(server.url, rowsPerSecond="100"), batch_of(0)
    began = machine_seconds()
    result = append([frame(rows)], checked, SinkTask(batch), pace="one")
    assert machine_seconds() - began < 2
    close(checked, batch, result)
    assert numbers(server) == dict.fromkeys(rows, 1)


def test_the_pace_is_a_key_that_expires_and_without_the_option_there_is_none(server: Server) -> None:
    for given in ({}, {"rowsPerSecond": "100000"}):
        batch = batch_of(0, str(len(given)))
        append([frame(ROWS)], options(server.url, **given), SinkTask(batch), pace="one")
        with server.client(decode_responses=True) as client:
            keys = [key for key in client.keys("rstream:*") if "pace" in key]
            assert keys == (["rstream:pace:one"] if given else [])
            assert not given or 0 < client.ttl(keys[0]) <= 61


@pytest.mark.parametrize("hours", [1, -1], ids=["set back", "set forward"])
@pytest.mark.parametrize("ahead", [0, 500], ids=["nothing ahead", "half a second ahead"])
def test_a_clock_that_is_set_makes_no_task_wait(server: Server, hours: int, ahead: int) -> None:
    """The key is as a clock that was `hours` ahead has written it, with rows of `ahead` milliseconds."""
    with server.client() as client:
        seconds, microseconds = client.time()
        written = (seconds + 3600 * hours) * 1_000_000 + microseconds
        client.set(pace_key("one"), f"{written + 1000 * ahead} {written}")
    checked, batch = options(server.url, rowsPerSecond="100"), batch_of(0)
    began = machine_seconds()
    append([frame(list(range(10)))], checked, SinkTask(batch), pace="one")
    assert machine_seconds() - began < 5
    assert len(numbers(server)) == 10


def test_rows_ahead_are_waited_for_after_the_clock_was_set_back(server: Server) -> None:
    with server.client() as client:
        seconds, microseconds = client.time()
        written = (seconds + 3600) * 1_000_000 + microseconds
        client.set(pace_key("one"), f"{written + 1_000_000} {written}")
    began = time.monotonic()
    append([frame([1])], options(server.url, rowsPerSecond="100"), SinkTask(batch_of(0)), pace="one")
    assert time.monotonic() - began >= 0.9
