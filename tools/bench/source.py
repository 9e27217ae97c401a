"""P1 … P6: the source, compared with redis-py, with the limit of the server, and with other options of itself."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any

import redis

from tools.bench import decode
from tools.bench.client import RawClient, request
from tools.bench.constant import ConstantSource
from tools.bench.row import Row
from tools.bench.servers import Running, running
from tools.bench.spark import entries, load, rate_of_one_batch, session, steady_rate, stream, trigger_time

BATCH = 500_000
STEADY = 2_000_000
_PEER = 500_000  # entries that a peer reads
_STEP = 10_000
_PAGE = 8_000
_PONG = b"+PONG\r\n"
_STREAMS = 1_000


def _empty_group(server: Running, names: list[str]) -> None:
    """Create group `g` before the first entry of each stream, without pending entries."""
    client = server.client()
    for name in names:
        if client.call("EXISTS", name):
            client.call("XGROUP", "DESTROY", name, "g")
        client.call("XGROUP", "CREATE", name, "g", "0", "MKSTREAM")
    client.close()


def _pending(server: Running) -> int:
    client = server.client()
    count = client.call("XPENDING", "s", "g")[0]
    client.close()
    return int(count)


def drain(server: Running, **options: str) -> float:
    """Return entries per second of Spark, from the second batch to the end of an AvailableNow run."""
    _empty_group(server, ["s"])
    frame = stream(server, "s", **{"maxEntriesPerTrigger": str(BATCH), **options})
    rate = steady_rate(frame, BATCH + STEADY)
    assert _pending(server) == 0
    return rate


def drain_at_once(server: Running) -> float:
    """Return entries per second of Spark, of an AvailableNow run of one batch, without a pending list."""
    _empty_group(server, ["s"])
    return rate_of_one_batch(stream(server, "s", noAck="true"), BATCH + STEADY)


def drain_with_redis_py(server: Running) -> float:
    """Return entries per second of a loop of XREADGROUP and XACK."""
    _empty_group(server, ["s"])
    client = redis.Redis(port=server.port, protocol=2)
    done = 0
    begun = time.perf_counter()
    while done < _PEER:
        reply: Any = client.xreadgroup("g", "c", {"s": ">"}, count=1000)
        done += client.xack("s", "g", *[entry_id for entry_id, _ in reply[0][1]])
    rate = done / (time.perf_counter() - begun)
    client.close()
    return rate


class Raw:
    """The four commands that the source sends, prepared as bytes. Replies are received and dropped."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self._commands: tuple[list[bytes], list[bytes], list[bytes]] | None = None

    def rate(self) -> float:
        """Return entries per second of reserving, reading, listing as pending and acknowledging."""
        _empty_group(self._server, ["s"])
        ranges, pending, acks = self._commands or self._prepare()
        client = self._server.client()
        begun = time.perf_counter()
        client.socket.sendall(self._reserve_command() * (_PEER // _STEP))
        _receive_pongs(client, _PEER // _STEP)
        for part in (ranges, pending, acks):
            for command in part:
                client.socket.sendall(command)
                _receive_pongs(client, 1)
        rate = _PEER / (time.perf_counter() - begun)
        assert client.call("XPENDING", "s", "g")[0] == 0
        client.close()
        return rate

    @staticmethod
    def _reserve_command() -> bytes:
        read = request("XREADGROUP", "GROUP", "g", "c", "COUNT", _STEP, "STREAMS", "s", ">")
        return request("CLIENT", "REPLY", "SKIP") + read + request("PING")

    def _prepare(self) -> tuple[list[bytes], list[bytes], list[bytes]]:
        client = redis.Redis(port=self._server.port, protocol=2)
        ids: list[bytes] = []
        while len(ids) < _PEER:
            start = b"(" + ids[-1] if ids else b"-"
            page: Any = client.xrange("s", start, count=_STEP)
            ids += [entry_id for entry_id, _ in page]
        client.close()
        ping = request("PING")
        edges = [b"0-0", *ids[_PAGE - 1 :: _PAGE]]
        ranges = [request("XRANGE", "s", b"(" + edge, ids[-1], "COUNT", _PAGE) + ping for edge in edges]
        edges = [b"0-0", *ids[_STEP - 1 : -1 : _STEP]]
        pending = [request("XPENDING", "s", "g", b"(" + edge, ids[-1], _STEP, "c") + ping for edge in edges]
        acks = [request("XACK", "s", "g", *ids[start : start + _STEP]) + ping for start in range(0, _PEER, _STEP)]
        self._commands = ranges, pending, acks
        return self._commands


def _receive_pongs(client: RawClient, pings: int) -> None:
    """Receive this number of PONGs, and drop the replies before each."""
    tail = b""
    buffer = bytearray(1 << 20)
    while pings:
        size = client.socket.recv_into(buffer)
        data = tail + buffer[:size]
        pings -= data.count(_PONG)
        tail = data[-len(_PONG) + 1 :] if not data.endswith(_PONG) else b""


def add_to(server: Running, names: list[str], count: int) -> Callable[[], None]:
    """Return a function that adds `count` entries to each stream in one transaction."""
    data = request("MULTI") + b"".join(entries(name, count) for name in names) + request("EXEC")
    replies = len(names) * count + 2

    def add() -> None:
        client = server.client()
        client.socket.sendall(data)
        client.take(replies)
        client.close()

    return add


def small_trigger(server: Running) -> float:
    """Return milliseconds of a trigger with 100 entries."""
    _empty_group(server, ["few"])
    return trigger_time(stream(server, "few"), 100, 7, add_to(server, ["few"], 100), "1 second")


def rate_source(_server: Running) -> float:
    """Return milliseconds of a trigger with 100 rows of Spark's rate source."""
    frame = session().readStream.format("rate").option("rowsPerSecond", 100).load()
    return trigger_time(frame, 100, 7, None, "1 second")


def constant_source(_server: Running) -> float:
    """Return milliseconds of a trigger of the Python source with constant rows."""
    session().dataSource.register(ConstantSource)
    return trigger_time(session().readStream.format("constant").load(), 100, 7, None, "1 second")


def large_trigger(server: Running, names: list[str]) -> float:
    """Return milliseconds of a trigger with 10,000 entries, spread over these streams."""
    _empty_group(server, names)
    add = add_to(server, names, 10_000 // len(names))
    return trigger_time(stream(server, ",".join(names)), 10_000, 7, add, "500 milliseconds")


def rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group. The server runs while the stack is open."""
    server = stack.enter_context(running("redis-server"))

    @functools.cache
    def loaded() -> Running:
        load(server, "s", BATCH + STEADY)
        for _ in range(2):
            drain(server)  # warm-up of the JVM, not measured
        return server

    def on(measure: Callable[[Running], float]) -> Callable[[], float]:
        return lambda: measure(loaded())

    @functools.cache
    def raw() -> Raw:
        return Raw(loaded())

    spark = f"local[2], noop, {STEADY:,} entries of 3 fields in batches of {BATCH:,}, after a first batch"
    redis_py = f"XREADGROUP COUNT 1000 + XACK, {_PEER:,} entries"
    raw_commands = f"reserve, XRANGE, XPENDING, XACK sent raw, nothing decoded, {_PEER:,} entries"
    streams, single = [f"m{number}" for number in range(_STREAMS)], ["m"]
    return [
        Row("P1", "drain, acknowledged", f"{spark}; peer: {redis_py}", "/s", None, on(drain),
            on(drain_with_redis_py), "redis-py"),
        Row("P2", "drain, acknowledged", f"{spark}; peer: {raw_commands}", "/s", 0.9, on(drain),
            on(lambda _: raw().rate()), "raw commands"),
        Row("P3", "drain, noAck, without a limit", f"one batch of {BATCH + STEADY:,}; peer: {redis_py}", "/s", 4.5,
            on(drain_at_once), on(drain_with_redis_py), "redis-py"),
        Row("P3", "drain, noAck, with a limit", f"{spark}; peer: {redis_py}", "/s", 3,
            on(lambda server: drain(server, noAck="true")), on(drain_with_redis_py), "redis-py"),
        *decode.rows(stack),
        Row("P5", "a trigger of 100 entries", "trigger every second, triggerExecution, median of 7", "ms", None,
            on(small_trigger), on(rate_source), "rate source", at_least=False, rounds=3),
        Row("P5", "against a Python source", "the same; peer: 100 constant rows from Python", "ms", 1.05,
            on(small_trigger), on(constant_source), "Python source", at_least=False, rounds=3),
        Row("P6", f"a trigger over {_STREAMS:,} streams", "10,000 new entries, triggerExecution, median of 7", "ms",
            1.4, on(lambda server: large_trigger(server, streams)), on(lambda server: large_trigger(server, single)),
            "one stream", at_least=False, rounds=3),
    ]  # fmt: skip
