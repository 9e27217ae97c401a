"""Acknowledging beside the tasks, in a thread of its own, on both servers."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import redis

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.connector.errors import GroupMissingError, ServerUnreachableError
from spark_streams.connector.source.group_client import GroupClient, Membership
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.pending_list import acknowledge
from spark_streams.connector.source.query.triggering import BackgroundWorker
from spark_streams.connector.source.trigger.run_state import Job
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from tools.machine_time import machine_seconds
from tools.servers.server import Server

MEMBER = Membership("g", "c")


@pytest.fixture
def client(server: Server) -> redis.Redis:
    """Streams s and t with 100 entries each, all pending."""
    client = server.client(decode_responses=True)
    pipe = client.pipeline(transaction=False)
    for stream in "st":
        pipe.xgroup_create(stream, "g", id="0", mkstream=True)
        for n in range(1, 101):
            pipe.xadd(stream, {"n": n}, id=f"{n}-0")
        pipe.xreadgroup("g", "c", {stream: ">"})
    pipe.execute()
    return client


@pytest.fixture
def worker(server: Server) -> Iterator[BackgroundWorker]:
    one = BackgroundWorker(Address.parse(server.url))
    yield one
    one.close()


def settling(*ranges: Range, then: Callable[[], None] = lambda: None) -> Job:
    """A job that settles these."""

    def job(server: Connection) -> None:
        then()
        acknowledge(GroupClient(server, MEMBER), ranges)

    return job


def pending_entries(client: redis.Redis, stream: str) -> int:
    return int(client.xpending(stream, "g")["pending"])


def test_what_is_submitted_is_done_in_order(client: redis.Redis, worker: BackgroundWorker) -> None:
    worker.wait()
    worker.submit(settling(Range("s", MIN_ID, StreamId(40, 0)), Range("t", MIN_ID, StreamId(10, 0))))
    seen: list[int] = []
    worker.submit(settling(Range("s", MIN_ID, StreamId(60, 0)), then=lambda: seen.append(pending_entries(client, "s"))))
    worker.wait()
    assert seen == [60]
    assert (pending_entries(client, "s"), pending_entries(client, "t")) == (40, 90)


def test_submitting_does_not_wait_for_the_server(client: redis.Redis, worker: BackgroundWorker) -> None:
    may_go, began = threading.Event(), threading.Event()

    def slowly() -> None:
        began.set()
        assert may_go.wait(60)

    worker.submit(settling(Range("s", MIN_ID, MAX_ID), then=slowly))
    assert began.wait(60)
    assert pending_entries(client, "s") == 100
    may_go.set()
    worker.wait()
    assert pending_entries(client, "s") == 0


def test_an_error_comes_out_where_it_is_waited_for_and_the_next_try_works(
    client: redis.Redis, worker: BackgroundWorker
) -> None:
    worker.submit(settling(Range("u", MIN_ID, MAX_ID)))
    worker.submit(settling(Range("s", MIN_ID, MAX_ID)))
    with pytest.raises(GroupMissingError, match="XPENDING u g"):
        worker.wait()
    assert pending_entries(client, "s") == 0, "what else was submitted is settled"
    worker.submit(settling(Range("t", MIN_ID, MAX_ID)))
    worker.wait()
    assert pending_entries(client, "t") == 0


def test_after_a_broken_connection_nothing_else_is_done_until_the_driver_has_looked(
    client: redis.Redis, worker: BackgroundWorker
) -> None:
    """The server that answers next may be an older state: a commit mark would hide what it has forgotten."""

    def broken(server: Connection) -> None:
        raise ServerUnreachableError("it closed the connection")

    worker.submit(broken)
    worker.submit(settling(Range("s", MIN_ID, MAX_ID)))
    with pytest.raises(ServerUnreachableError, match="closed the connection"):
        worker.wait()
    assert pending_entries(client, "s") == 100
    worker.submit(settling(Range("s", MIN_ID, MAX_ID)))
    worker.wait()
    assert pending_entries(client, "s") == 0


def test_the_first_job_uses_a_connection_that_is_older_than_the_look_of_the_driver(
    client: redis.Redis, worker: BackgroundWorker
) -> None:
    """Another server may have taken over since the driver has looked."""
    client.client_kill_filter(_type="normal", skipme=True)  # those of tests before
    worker.wait()
    assert client.client_kill_filter(_type="normal", skipme=True) == 1
    worker.submit(settling(Range("s", MIN_ID, MAX_ID)))
    with pytest.raises(ServerUnreachableError):
        worker.wait()
    assert pending_entries(client, "s") == 100


def test_a_server_that_is_not_there_is_an_error_when_it_is_waited_for() -> None:
    beside = BackgroundWorker(Address.parse("redis://127.0.0.1:1/0"))
    beside.submit(settling(Range("s", MIN_ID, MAX_ID)))
    with pytest.raises(ServerUnreachableError, match="no stream server answers"):
        beside.wait()
    beside.close()


def test_closing_finishes_what_was_submitted(client: redis.Redis, worker: BackgroundWorker) -> None:
    worker.submit(settling(Range("s", MIN_ID, MAX_ID)))
    worker.close()
    worker.close()
    assert pending_entries(client, "s") == 0


def test_a_copy_in_another_process_has_a_thread_of_its_own(client: redis.Redis, worker: BackgroundWorker) -> None:
    worker.submit(settling(Range("s", MIN_ID, StreamId(50, 0))))
    copy = pickle.loads(pickle.dumps(worker))
    copy.wait()
    copy.submit(settling(Range("t", MIN_ID, MAX_ID)))
    copy.wait()
    assert pending_entries(client, "t") == 0
    copy.close()
    worker.wait()
    assert pending_entries(client, "s") == 50


def test_a_process_ends_without_waiting_for_it() -> None:
    program = (
        "import time; from spark_streams.connector.source.query import triggering;"
        "from spark_streams.connector.source.query.triggering import *;"
        "triggering.connect = lambda address: time.sleep(60);"
        "BackgroundWorker(Address.parse('redis://127.0.0.1:1')).submit(lambda server: None)"
    )
    started = machine_seconds()
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ, timeout=120)
    assert machine_seconds() - started < 50
