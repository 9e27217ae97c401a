"""Streams that are kept at so many bytes of memory."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from spark_streams.connector.sink.send.chunk_writer import append
from spark_streams.connector.sink.trim import ASK_EVERY
from tests.connector.sink.writing import batch_of, close, frame, options, write
from tools.sending import before_sending
from tools.servers.server import Server


def usage(client: redis.Redis, stream: str = "out") -> int:
    return int(client.execute_command("MEMORY", "USAGE", stream))


def frames(count: int, rows: int = 500) -> list[Any]:
    return [frame(list(range(at * rows, (at + 1) * rows))) for at in range(count)]


@pytest.mark.parametrize("exactly_once", [True, False])
@pytest.mark.parametrize("limit", [200_000])
def test_a_stream_is_kept_at_about_so_many_bytes(
    server: Server, client: redis.Redis, exactly_once: bool, limit: int
) -> None:
    checked = options(server.url, retentionBytes=str(limit), chunkSize="500")
    for number in range(3):
        rows = frames(40)
        if exactly_once:
            batch = batch_of(number)
            close(checked, batch, write(rows, checked, batch))
        else:
            append(rows, checked, None)
        if client.xlen("out") < 20_000 * (number + 1):  # else it is not full yet
            assert 0.5 * limit < usage(client) < 1.3 * limit
    assert client.xlen("out") < 60_000


def test_what_is_pending_does_not_make_it_shorter_than_what_was_sent_deserves(
    server: Server, client: redis.Redis
) -> None:
    """Some servers count a pending entry as half a kilobyte (docs/internals/facts.md)."""
    append(frames(40), options(server.url, chunkSize="500"), None)
    client.xgroup_create("out", "g", "0")
    client.xreadgroup("g", "c", {"out": ">"})
    append(frames(4), options(server.url, retentionBytes="500000", chunkSize="500"), None)
    assert client.xlen("out") > 4_000


def test_memory_is_asked_for_once_in_a_while(server: Server) -> None:
    with before_sending(b"MEMORY", b"USAGE", act=lambda *_: None) as asked:
        append(frames(2 * ASK_EVERY + 1, 5), options(server.url, retentionBytes="10mb", chunkSize="5"), None)
    assert len(asked) == 3


@pytest.mark.usefixtures("small_nodes")
def test_nothing_goes_that_a_group_needs(server: Server, client: redis.Redis) -> None:
    client.xgroup_create("out", "g", "0", mkstream=True)
    checked = options(server.url, retentionBytes="100kb", trim="acked", chunkSize="500")
    append(frames(40), checked, None)
    assert client.xlen("out") == 20_000
    found = client.xreadgroup("g", "c", {"out": ">"}, count=10_000)
    client.xack("out", "g", *[entry for _, entries in found for entry, _ in entries])
    append(frames(1), checked, None)
    assert client.xlen("out") == 10_500
    client.xreadgroup("g", "c", {"out": ">"}, noack=True)
    append(frames(1), checked, None)
    assert 500 < client.xlen("out") < 5_000


@pytest.mark.parametrize(
    ("more", "left"),
    [({"maxlen": "700"}, 700), ({"maxlen": "90000"}, 2_000), ({"retention": "1ms"}, 501), ({"minId": "0-1"}, 2_000)],
)
def test_it_holds_beside_the_other_thresholds(
    server: Server, client: redis.Redis, more: dict[str, str], left: int
) -> None:
    append(frames(20), options(server.url, chunkSize="500"), None)
    time.sleep(0.01)
    append(frames(4), options(server.url, retentionBytes="100kb", chunkSize="500", **more), None)
    length = client.xlen("out")
    assert length == left if "maxlen" in more and left == 700 else 400 < length < 6_000


@pytest.mark.parametrize(("text", "size"), [("1", 1), ("64kb", 65_536), ("5 MB", 5 << 20), ("2gb", 2 << 30)])
def test_sizes_have_the_units_of_redis_conf(text: str, size: int) -> None:
    assert options("redis://localhost", retentionBytes=text).retention_bytes == size
