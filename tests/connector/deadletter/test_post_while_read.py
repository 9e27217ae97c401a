"""Streams that are watched while their groups are read: a newer Valkey breaks the WATCH with each such command."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa
import redis

from spark_streams.base.ids import MAX_ID
from spark_streams.connector.deadletter.post import FailedEntry, post
from spark_streams.connector.deadletter.waiting_entries import return_due_entries
from spark_streams.connector.keys import returned_stream
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from tests.connector.deadletter.making import DEAD, fill, redrive
from tests.connector.deadletter.test_waiting_entries import WAITING
from tests.connector.deadletter.test_waiting_entries import fill as wait
from tests.connector.sink.writing import batch_of, close, options, write
from tools.sending import before_sending
from tools.servers.server import Server

watches_streams = True


@contextlib.contextmanager
def reading(server: Server, stream: str) -> Iterator[None]:
    """A worker claims an entry of the stream before each EXEC of ours."""
    with server.client() as client:
        client.xgroup_create(stream, "workers", id="0", mkstream=True)
        entry = client.xadd(stream, {"n": 0}, id="0-1")
        client.xreadgroup("workers", "one", {stream: ">"})
        with before_sending(b"EXEC", act=lambda *_: client.xclaim(stream, "workers", "other", 0, [entry])):
            yield


def test_dead_letters_are_posted_while_workers_read_them(server: Server, client: redis.Redis) -> None:
    client.xgroup_create("s", "g", id="0", mkstream=True)
    for n in range(30):
        client.xadd("s", {"n": n}, id=f"{n + 1}-0")
    client.xreadgroup("g", "spark", {"s": ">"})
    entries = [
        FailedEntry("s", b"%d-0" % (n + 1), [b"n", b"%d" % n], {"stream": "s", "id": f"{n + 1}-0"}, None, "spark")
        for n in range(30)
    ]
    with Connection(Address.parse(server.url)) as connection, reading(server, DEAD):
        assert post(connection, DEAD, "g", entries) == 30
    assert client.xpending("s", "g")["pending"] == 0
    assert client.xlen(DEAD) == 31


def test_entries_come_back_while_others_read_those_that_came_back(server: Server, client: redis.Redis) -> None:
    back = returned_stream("s", "g")
    with server.client() as raw:
        wait(raw, 25)
    with Connection(Address.parse(server.url)) as connection, reading(server, back):
        assert return_due_entries(connection, WAITING, back, "g", MAX_ID) == 25
    assert client.xlen(WAITING) == 0
    assert client.xlen(back) == 26


def test_a_redrive_ends_while_workers_read_its_destination(server: Server, client: redis.Redis) -> None:
    fill(server, 130)
    with reading(server, "s"):
        assert redrive(server).moved == 130
    assert client.xlen("s") == 131


def test_rows_with_ids_are_written_while_workers_read_the_stream(server: Server, client: redis.Redis) -> None:
    checked, batch = options(server.url, idColumn="id"), batch_of(0)
    rows = pa.RecordBatch.from_pydict({"id": [f"{n + 1}-0" for n in range(40)], "n": list(range(40))})
    with reading(server, "out"):
        close(checked, batch, write([rows], checked, batch))
    assert client.xlen("out") == 41
