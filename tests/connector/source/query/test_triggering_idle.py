"""An idle query waits for the server instead of asking it: few commands, and the next entry ends the wait at once."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest
import redis

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import GroupMissingError
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.wire.connect import BlockedRead
from tools.driving import ALL, SMALL, add, forget_all, read, reader
from tools.machine_time import machine_seconds
from tools.servers.server import Server

IDLE = replace(SMALL, idle_check=5.0, idle_wait=0.05)


def stream_commands(client: redis.Redis) -> int:
    """Return the number of stream commands that the server has executed since it started.

    The renewal of the lease is not among them: it comes by the clock, so more often on a busy machine.
    """
    stats: dict[str, Any] = client.info("commandstats")
    return sum(one["calls"] for name, one in stats.items() if name.startswith("cmdstat_x"))


def offset_after(one: StreamReader, at: dict[str, Any], seconds: float = 10.0) -> dict[str, Any]:
    """The end of the next batch, asked for as Spark does: again and again."""
    deadline = machine_seconds() + seconds
    while machine_seconds() < deadline:
        end = one.latestOffset(at, ALL)
        if end != at:
            return end
    raise AssertionError(f"nothing was found within {seconds} s")


def idle(one: StreamReader, at: dict[str, Any]) -> None:
    """The query is idle at this checkpoint: one more call waits for an entry."""
    for _ in range(3):
        assert one.latestOffset(at, ALL) == at


@pytest.mark.in_turn
@pytest.mark.parametrize("streams", [1, 40])
def test_an_idle_query_sends_no_commands_while_it_waits(server: Server, client: redis.Redis, streams: int) -> None:
    names = [f"s{n}" for n in range(streams)]
    one = reader(server, limits=replace(IDLE, idle_check=600.0), streams=",".join(names))
    at = one.initialOffset()
    idle(one, at)
    before = stream_commands(client)
    for _ in range(20):
        assert one.latestOffset(at, ALL) == at
    assert stream_commands(client) == before


def test_an_entry_ends_the_wait_at_once(server: Server, client: redis.Redis) -> None:
    one = reader(server, limits=replace(IDLE, idle_wait=20.0))
    at = one.initialOffset()
    idle_since = machine_seconds()
    assert one.latestOffset(at, ALL) == at
    producer = threading.Timer(0.3, lambda: add(server.client(), 3))
    producer.start()
    end = offset_after(one, at)
    assert machine_seconds() - idle_since < 10
    assert read(one, at, end)[0] == 0
    producer.join()


def test_a_call_after_a_batch_of_another_source_waits_only_briefly(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark commits the offset of an idle source, too, if another source of the query has had a batch."""
    waits: list[float] = []
    monkeypatch.setattr(BlockedRead, "is_over", lambda self, seconds: waits.append(seconds))
    one = reader(server, limits=replace(IDLE, idle_wait=1.0, idle_check=600.0))
    add(client, 1)
    start = one.initialOffset()
    at = one.latestOffset(start, ALL)
    read(one, start, at)
    for _ in range(11):
        assert one.latestOffset(at, ALL) == at
    assert waits[:3] == [0.01, 0.02, 0.04]
    assert waits[-1] == 1.0
    for _ in range(5):
        one.commit(at)
        assert one.latestOffset(at, ALL) == at
    assert waits[-5:] == [0.01] * 5


def test_a_new_stream_of_the_pattern_ends_the_wait(server: Server, client: redis.Redis) -> None:
    add(client, 1, stream="a1")
    one = reader(server, limits=replace(IDLE, pattern_interval=0.2), streamsPattern="a*")
    start = one.initialOffset()
    at = one.latestOffset(start, ALL)
    assert read(one, start, at) == [0]
    idle(one, at)
    add(client, 2, stream="a2")
    assert read(one, at, offset_after(one, at)) == [0, 1]


def test_a_group_that_is_destroyed_is_noticed_though_no_entry_comes(server: Server, client: redis.Redis) -> None:
    one = reader(server, limits=replace(IDLE, idle_check=0.5, idle_check_each=0.0))
    add(client, 1)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    read(one, start, end)
    idle(one, end)
    client.xgroup_destroy("s", "g")
    with pytest.raises(GroupMissingError):
        offset_after(one, end)


def test_entries_that_are_held_back_for_more_are_read_when_the_delay_is_over(
    server: Server, client: redis.Redis
) -> None:
    one = reader(server, limits=IDLE, minEntriesPerTrigger="10", maxTriggerDelay="1s")
    at = one.initialOffset()
    add(client, 2)
    since = time.monotonic()
    assert read(one, at, offset_after(one, at)) == [0, 1]
    assert 0.9 < time.monotonic() - since < 30


def test_a_retry_that_is_due_ends_the_wait(server: Server, client: redis.Redis) -> None:
    client.xadd("s", {"n": "no number"})
    options = {"mode": "DEADLETTER", "deadLetterStream": "dead", "retryDelay": "1s"}
    one = reader(server, limits=IDLE, **options)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == []
    since = machine_seconds()
    offset_after(one, end)
    assert machine_seconds() - since < 4


def test_a_user_without_the_right_to_xread_reads_all_the_same(redis_server: Server) -> None:
    server, client = redis_server, redis_server.client(decode_responses=True)
    client.flushall()
    client.execute_command("ACL", "SETUSER", "reader", "on", ">secret", "~*", "&*", "+@all", "-xread")
    url = server.url.replace("redis://", "redis://reader:secret@", 1)
    one = reader(server, limits=IDLE, url=url)
    at = one.initialOffset()
    idle(one, at)
    add(client, 1)
    assert read(one, at, offset_after(one, at)) == [0]
    forget_all()


def test_a_large_entry_ends_the_wait_and_is_not_received(server: Server, client: redis.Redis) -> None:
    waits = BlockedRead(reader(server)._options.address)
    try:
        waits.begin({"large": StreamId(0, 0)}, 10.0)
        assert not waits.is_over(0.05)
        client.xadd("large", {"field": b"x" * (8 << 20)})
        assert waits.is_over(5.0)
        assert waits._servers == []  # closed: the rest of the entry was left to the server
    finally:
        waits.close()
