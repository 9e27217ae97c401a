"""Settling in a thread of its own, on both servers."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import redis

from spark_streams.errors import GroupMissingError, ServerUnreachableError
from spark_streams.ids import MAX_ID, StreamId
from spark_streams.source import settle as module
from spark_streams.source.group import Membership
from spark_streams.source.pending import PendingRange
from spark_streams.source.settle import Settler
from spark_streams.wire.address import Address
from tests.servers import Server

MEMBER = Membership((), "g", "c")


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
def settler(server: Server) -> Iterator[Settler]:
    one = Settler(Address.parse(server.url), MEMBER)
    yield one
    one.close()


def left(client: redis.Redis, stream: str) -> int:
    return int(client.xpending(stream, "g")["pending"])


def test_what_is_submitted_is_settled_and_counted(client: redis.Redis, settler: Settler) -> None:
    assert settler.wait() == 0
    settler.submit([PendingRange("s", StreamId(40, 0)), PendingRange("t", StreamId(10, 0))])
    settler.submit([PendingRange("s", StreamId(60, 0))])
    assert settler.wait() == 70
    assert (left(client, "s"), left(client, "t")) == (40, 90)
    settler.submit([PendingRange("s", StreamId(60, 0))])
    assert settler.wait() == 0


def test_submitting_does_not_wait_for_the_server(
    client: redis.Redis, settler: Settler, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go, began = threading.Event(), threading.Event()
    settle = module.settle

    def slowly(server: Any, member: Membership, ranges: Sequence[PendingRange]) -> int:
        began.set()
        assert may_go.wait(10)
        return settle(server, member, ranges)

    monkeypatch.setattr(module, "settle", slowly)
    settler.submit([PendingRange("s", MAX_ID)])
    assert began.wait(10)
    assert left(client, "s") == 100
    may_go.set()
    assert settler.wait() == 100


def test_an_error_comes_out_where_it_is_waited_for_and_the_next_try_works(
    client: redis.Redis, settler: Settler
) -> None:
    settler.submit([PendingRange("u", MAX_ID)])
    settler.submit([PendingRange("s", MAX_ID)])
    with pytest.raises(GroupMissingError, match="XPENDING u g"):
        settler.wait()
    assert left(client, "s") == 0, "what else was submitted is settled"
    settler.submit([PendingRange("t", MAX_ID)])
    assert settler.wait() == 100


def test_a_server_that_is_not_there_is_an_error_when_it_is_waited_for() -> None:
    settler = Settler(Address.parse("redis://127.0.0.1:1/0"), MEMBER)
    settler.submit([PendingRange("s", MAX_ID)])
    with pytest.raises(ServerUnreachableError, match="no stream server answers"):
        settler.wait()
    settler.close()


def test_closing_finishes_what_was_submitted(client: redis.Redis, settler: Settler) -> None:
    settler.submit([PendingRange("s", MAX_ID)])
    settler.close()
    settler.close()
    assert left(client, "s") == 0


def test_a_copy_in_another_process_has_a_thread_of_its_own(client: redis.Redis, settler: Settler) -> None:
    settler.submit([PendingRange("s", StreamId(50, 0))])
    copy = pickle.loads(pickle.dumps(settler))
    assert copy.wait() == 0
    copy.submit([PendingRange("t", MAX_ID)])
    assert copy.wait() == 100
    copy.close()
    assert settler.wait() == 50


def test_a_process_ends_without_waiting_for_it() -> None:
    program = (
        "import time; from spark_streams.source import settle; from spark_streams.source.settle import *;"
        "from spark_streams.ids import MAX_ID; settle.Connection = lambda address: time.sleep(60);"
        "Settler(Address.parse('redis://127.0.0.1:1'), Membership((), 'g', 'c')).submit([PendingRange('s', MAX_ID)])"
    )
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ, timeout=30)
    assert time.monotonic() - started < 20
