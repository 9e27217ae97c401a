"""Streams that are kept at so many bytes of memory, and streams that expire."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from spark_streams.errors import DataLossError, InvalidOptionError, RStreamError
from spark_streams.model.counters import LOST
from spark_streams.sink.send.write import append
from spark_streams.sink.trim.entry_sizes import ASK_EVERY
from spark_streams.spark.read_limits import ReadMaxRows
from tests.proxy import Proxy
from tests.sink.writing import batch_of, close, frame, numbers, options, write
from tools.driving import ALL, NEVER_AHEAD, forget_all, read, reader
from tools.sending import before_sending
from tools.servers.server import Server


@pytest.fixture
def client(server: Server) -> redis.Redis:
    return server.client(decode_responses=True)


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


def test_nothing_goes_that_a_group_needs(server: Server, client: redis.Redis) -> None:
    client.xgroup_create("out", "g", "0", mkstream=True)
    checked = options(server.url, retentionBytes="100kb", trim="acked", approximate="false", chunkSize="500")
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
    append(frames(4), options(server.url, retentionBytes="100kb", approximate="false", chunkSize="500", **more), None)
    length = client.xlen("out")
    assert length == left if "maxlen" in more and left == 700 else 400 < length < 6_000


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"retentionBytes": "lots"}, "such as 64mb, 512kb, 2gb"),
        ({"retentionBytes": "0"}, "above 0"),
        ({"trim": "minid", "retentionBytes": "1mb"}, "trim=minid needs option minId or retention"),
        ({"trim": "acked", "streamTtl": "1h"}, "loses entries that groups still need"),
        ({"shards": "4", "shardBy": "k", "streamTtl": "1h"}, "a shard would expire"),
        ({"streamTtl": "5"}, "duration"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        options("redis://localhost", **given)


@pytest.mark.parametrize(("text", "size"), [("1", 1), ("64kb", 65_536), ("5 MB", 5 << 20), ("2gb", 2 << 30)])
def test_sizes_have_the_units_of_redis_conf(text: str, size: int) -> None:
    assert options("redis://localhost", retentionBytes=text).retention_bytes == size


# -- streams that expire -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exactly_once", [True, False])
def test_a_stream_without_new_entries_for_its_ttl_is_deleted(
    server: Server, client: redis.Redis, exactly_once: bool
) -> None:
    """Each chunk begins the time anew; and what is written once goes on being written once when it is gone."""
    checked = options(server.url, streamTtl="300ms")
    for number in range(4):
        batch = batch_of(number)
        if exactly_once:
            close(checked, batch, write([frame([number])], checked, batch))
        else:
            append([frame([number])], checked, None)
        assert 0 < client.pttl("out") <= 300
        if number != 2:
            time.sleep(0.1)
        else:
            while client.exists("out"):
                time.sleep(0.02)
    assert numbers(server) == {3: 1}


def test_a_batch_that_was_written_is_not_written_again_where_its_stream_has_expired(
    server: Server, client: redis.Redis
) -> None:
    checked = options(server.url, streamTtl="150ms")
    first = batch_of(0)
    result = write([frame([1, 2])], checked, first)
    while client.exists("out"):
        time.sleep(0.02)
    close(checked, first, result)
    again = batch_of(0)
    close(checked, again, write([frame([1, 2])], checked, again))
    assert not client.exists("out")


@pytest.mark.parametrize("chunks", [1, 5])
def test_it_goes_along_in_the_transaction(server: Server, chunks: int) -> None:
    with Proxy(server.url) as proxy:
        checked = options(proxy.url, streamTtl="1h", chunkSize="10")
        write(frames(chunks, 10), checked, batch_of(0))
        sent = bytes(proxy.requests)
    transactions = sent.split(b"\r\nMULTI\r\n")[1:]
    with_rows = [part.partition(b"\r\nEXEC\r\n")[0] for part in transactions if b"XADD" in part]
    assert [(part.count(b"XADD"), part.count(b"PEXPIRE")) for part in with_rows] == [(10, 1)] * chunks


def test_a_right_that_is_missing_is_named(server: Server, client: redis.Redis) -> None:
    if server.kind == "engine":
        pytest.skip("it has no users with rights of their own")
    user = ["ACL", "SETUSER", "writer", "reset", "on", ">pw", "~*", "+@all", "-pexpire"]
    client.execute_command(*user)
    try:
        for given in ({}, {"delivery": "at-least-once"}):
            checked = options(server.url, streamTtl="1h", username="writer", password="pw", **given)
            with pytest.raises(RStreamError, match=r"pexpire"):
                write([frame([1])], checked, batch_of(0)) if not given else append([frame([1])], checked, None)
    finally:
        client.execute_command("ACL", "DELUSER", "writer")


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("all_read", [False, True])
def test_what_a_query_says_whose_stream_expires(
    server: Server, client: redis.Redis, lenient: bool, all_read: bool
) -> None:
    """It cannot tell whether something came after its last look; a lenient one goes on, and counts what it knows of."""
    checked = options(server.url, streamTtl="2s")
    try:
        append([frame([1, 2, 3])], checked, None)
        given = {"streams": "out", "failOnDataLoss": str(not lenient).lower()}
        one = reader(server, limits=NEVER_AHEAD, **given)
        at = one.latestOffset(one.initialOffset(), ReadMaxRows(3 if all_read else 2))
        one.commit(at)
        while client.exists("out"):
            time.sleep(0.02)
        if not lenient:
            with pytest.raises(DataLossError, match="stream 'out' at .* is missing, and so is its group 'g'"):
                one.latestOffset(at, ALL)
            return
        again = one.latestOffset(at, ALL)
        assert one.batches.counters.entries(LOST) == ({} if all_read else {"out": 1})
        append([frame([7])], options(server.url), None)  # without streamTtl: it is there when it is read
        after = one.latestOffset(again, ALL)
        assert read(one, again, after) == [7]
    finally:
        forget_all()
