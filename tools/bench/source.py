"""P1 … P6: the source, compared with redis-py, with the limit of the server, and with other options of itself."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any

import redis

from tools.bench.decode import decode_rows
from tools.bench.own_source import OwnSource
from tools.bench.row import Row
from tools.bench.servers import RawClient, Running, request, running
from tools.bench.spark import entries, load, rate_of_one_batch, session, source, steady_rate, trigger_time

BATCH = 500_000
STEADY = 2_000_000
_PEER = 500_000  # entries that a peer reads
_STEP = 10_000
_PAGE = 8_000
_PONG = b"+PONG\r\n"
_STREAMS = [f"m{number}" for number in range(1_000)]


def empty_group(server: Running, *names: str) -> None:
    """Create group `g` before the first entry of each stream, without pending entries."""
    with server.client() as client:
        for name in names:
            if client.call("EXISTS", name):
                client.call("XGROUP", "DESTROY", name, "g")
            client.call("XGROUP", "CREATE", name, "g", "0", "MKSTREAM")


def drain(server: Running, **options: str) -> float:
    """Return entries per second of Spark, from the second batch to the end of an AvailableNow run."""
    empty_group(server, "s")
    rate = steady_rate(source(server.url, streams="s", maxEntriesPerTrigger=BATCH, **options), BATCH + STEADY)
    assert server.call("XPENDING", "s", "g")[0] == 0
    return rate


def drain_at_once(server: Running) -> float:
    """Return entries per second of Spark, of an AvailableNow run of one batch, without a pending list."""
    empty_group(server, "s")
    return rate_of_one_batch(source(server.url, streams="s", noAck="true"), BATCH + STEADY)


def drain_with_redis_py(server: Running) -> float:
    """Return entries per second of a loop of XREADGROUP and XACK."""
    empty_group(server, "s")
    done = 0
    with redis.Redis(port=server.port, protocol=2) as client:
        begun = time.perf_counter()
        while done < _PEER:
            reply: Any = client.xreadgroup("g", "c", {"s": ">"}, count=1000)
            done += client.xack("s", "g", *[entry_id for entry_id, _ in reply[0][1]])
        return done / (time.perf_counter() - begun)


def drain_raw(server: Running) -> float:
    """Return entries per second of the four commands that the source sends, prepared as bytes: reserving, reading,
    listing as pending and acknowledging. Replies are received and dropped."""
    empty_group(server, "s")
    read = request("XREADGROUP", "GROUP", "g", "c", "COUNT", _STEP, "STREAMS", "s", ">")
    reserve = request("CLIENT", "REPLY", "SKIP") + read + request("PING")
    commands = _commands(server.port)
    with server.client() as client:
        begun = time.perf_counter()
        client.socket.sendall(reserve * (_PEER // _STEP))
        _receive_pongs(client, _PEER // _STEP)
        for command in commands:
            client.socket.sendall(command)
            _receive_pongs(client, 1)
        rate = _PEER / (time.perf_counter() - begun)
        assert client.call("XPENDING", "s", "g")[0] == 0
    return rate


@functools.cache
def _commands(port: int) -> list[bytes]:
    """Return all commands of `drain_raw` but the first, each with a PING behind it."""
    ids: list[bytes] = []
    with redis.Redis(port=port, protocol=2) as client:
        while len(ids) < _PEER:
            page: Any = client.xrange("s", b"(" + ids[-1] if ids else b"-", count=_STEP)
            ids += [entry_id for entry_id, _ in page]
    edges = [b"0-0", *ids[_PAGE - 1 :: _PAGE]]
    ranges = [request("XRANGE", "s", b"(" + edge, ids[-1], "COUNT", _PAGE) for edge in edges]
    edges = [b"0-0", *ids[_STEP - 1 : -1 : _STEP]]
    pending = [request("XPENDING", "s", "g", b"(" + edge, ids[-1], _STEP, "c") for edge in edges]
    acks = [request("XACK", "s", "g", *ids[start : start + _STEP]) for start in range(0, _PEER, _STEP)]
    return [command + request("PING") for command in (*ranges, *pending, *acks)]


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

    def add() -> None:
        with server.client() as client:
            client.send(data, len(names) * count + 2)

    return add


def trigger(server: Running, names: list[str], count: int, interval: str) -> float:
    """Return milliseconds of a trigger with `count` new entries, spread over these streams."""
    empty_group(server, *names)
    add = add_to(server, names, count // len(names))
    return trigger_time(source(server.url, streams=",".join(names)), count, add, interval)


def rate_source(_server: Running) -> float:
    """Return milliseconds of a trigger with 100 rows of Spark's rate source."""
    frame = session().readStream.format("rate").option("rowsPerSecond", 100).load()
    return trigger_time(frame, 100, None, "1 second")


def constant_source(_server: Running) -> float:
    """Return milliseconds of a trigger of the Python source with constant rows."""
    session().dataSource.register(OwnSource)
    return trigger_time(session().readStream.format("own").load(), 100, None, "1 second")


def source_rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group. The server runs while the stack is open."""
    server = stack.enter_context(running("redis-server"))

    @functools.cache
    def loaded() -> Running:
        load(server, "s", BATCH + STEADY)
        for _ in range(2):
            drain(server)  # warm-up of the JVM, not measured
        return server

    def on(measure: Callable[..., float], *arguments: object, **options: str) -> Callable[[], float]:
        return lambda: measure(loaded(), *arguments, **options)

    spark = f"local[2], noop, {STEADY:,} entries of 3 fields in batches of {BATCH:,}, after a first batch"
    redis_py = f"XREADGROUP COUNT 1000 + XACK, {_PEER:,} entries"
    raw_commands = f"reserve, XRANGE, XPENDING, XACK sent raw, nothing decoded, {_PEER:,} entries"
    median = "triggerExecution, median of 7"
    small = on(trigger, ["few"], 100, "1 second")
    half_second = 10_000, "500 milliseconds"
    return [
        Row("P1", "drain, acknowledged", f"{spark}; peer: {redis_py}", "/s", None, on(drain),
            on(drain_with_redis_py), "redis-py"),
        Row("P2", "drain, acknowledged", f"{spark}; peer: {raw_commands}", "/s", 0.9, on(drain), on(drain_raw),
            "raw commands"),
        Row("P3", "drain, noAck, without a limit", f"one batch of {BATCH + STEADY:,}; peer: {redis_py}", "/s", 4.5,
            on(drain_at_once), on(drain_with_redis_py), "redis-py"),
        Row("P3", "drain, noAck, with a limit", f"{spark}; peer: {redis_py}", "/s", 3, on(drain, noAck="true"),
            on(drain_with_redis_py), "redis-py"),
        *decode_rows(stack),
        Row("P5", "a trigger of 100 entries", f"trigger every second, {median}", "ms", None, small, on(rate_source),
            "rate source", at_least=False, rounds=3),
        Row("P5", "against a Python source", "the same; peer: 100 constant rows from Python", "ms", 1.05,
            on(trigger, ["few"], 100, "1 second"), on(constant_source), "Python source", at_least=False, rounds=3),
        Row("P6", f"a trigger over {len(_STREAMS):,} streams", f"10,000 new entries, {median}", "ms", 1.4,
            on(trigger, _STREAMS, *half_second), on(trigger, ["m"], *half_second), "one stream", at_least=False,
            rounds=3),
    ]  # fmt: skip
