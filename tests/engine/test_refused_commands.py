"""DEBUG FAULT REFUSE gives the replies of a real server in the same state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.lock import Lock

from tests.engine.wire import Failed, Wire, wire
from tools.servers.server import Server, running_redis, skip_without_redis
from tools.waiting import until

RELEASE, EXTEND, REACQUIRE = Lock.LUA_RELEASE_SCRIPT, Lock.LUA_EXTEND_SCRIPT, Lock.LUA_REACQUIRE_SCRIPT
CALLS: list[list[Any]] = [
    *(["PING"], ["ECHO", 1], ["SELECT", 0], ["CLIENT", "SETNAME", "x"], ["AUTH", "x"], ["SCRIPT", "EXISTS", "a"]),
    *(["XADD", "s", "9-1", "a", 1], ["XADD", "s"], ["UNKNOWN", "x"], ["XLEN", "s"], ["XREAD", "STREAMS", "s", 0]),
    *(["XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"], ["XACK", "s", "g", "1-1"], ["XDEL", "s", "5-5"]),
    *(["XTRIM", "s", "MAXLEN", 9], ["XGROUP", "CREATE", "s", "h", 0], ["XSETID", "s", "9-9"]),
    *(["SET", "k", 1], ["GET", "k"], ["DEL", "k"], ["EXPIRE", "k", 100], ["SWAPDB", 1, 2], ["WATCH", "k"], ["UNWATCH"]),
    *(["EXEC"], ["DISCARD"], ["SCRIPT", "LOAD", RELEASE]),
    *(["EVAL", EXTEND, 1, "lock", "t", 9_000, "0"], ["EVAL", REACQUIRE, 1, "lock", "t", 9_000]),
    *(["EVAL", RELEASE, 1, "lock", "t"], ["EVAL", RELEASE, 1, "lock", "t"]),
    # a transaction that begins in the state
    *(["MULTI"], ["XADD", "s", "9-2", "a", 1], ["XLEN", "s"], ["EXEC"]),
    *(["MULTI"], ["XLEN", "s"], ["EXEC"], ["DISCARD"], ["MULTI"], ["DISCARD"], ["RESET"]),
]
# Transactions that were queued before the state began.
QUEUED: list[list[Any]] = [["XADD", "s", "9-3", "a", 1], ["XLEN", "s"], ["PING"], ["EVAL", RELEASE, 1, "lock", "t"]]


@pytest.fixture(scope="module")
def real() -> Iterator[Server]:
    skip_without_redis()
    with running_redis("--enable-debug-command", "yes") as server:
        yield server


@contextlib.contextmanager
def _configured(server: Server, name: str, value: int) -> Iterator[None]:
    with wire(server) as client:
        assert client.call("CONFIG", "SET", name, value) == b"OK"
        yield
        assert client.call("CONFIG", "SET", name, 0) == b"OK"


@contextlib.contextmanager
def _replica(server: Server) -> Iterator[None]:
    """It does not find its master, and serves what it has."""
    with wire(server) as client:
        client.call("REPLICAOF", "127.0.0.1", 1)
        yield
        client.call("REPLICAOF", "NO", "ONE")


@contextlib.contextmanager
def _runs_a_script(server: Server) -> Iterator[None]:
    with wire(server) as running, wire(server) as client:
        client.call("CONFIG", "SET", "busy-reply-threshold", 1)
        running.send("EVAL", "while true do end", 0)
        until(lambda: client.call("PING") != b"PONG", "the script does not run")
        yield
        client.call("SCRIPT", "KILL")
        running.reply()


@contextlib.contextmanager
def _loads(server: Server) -> Iterator[None]:
    """A thousand bytes in a millisecond, until the block ends."""
    with wire(server) as loading, wire(server) as client:
        client.call("EVAL", "for n = 1, 20000 do redis.call('set', 'k' .. n, string.rep('x', 1000)) end", 0)
        client.call("CONFIG", "SET", "loading-process-events-interval-bytes", 1024)
        client.call("CONFIG", "SET", "key-load-delay", 1000)
        loading.send("DEBUG", "RELOAD")
        until(lambda: b"\r\nloading:1" in client.call("INFO", "persistence"), "nothing is loaded")
        yield
        client.call("CONFIG", "SET", "key-load-delay", 0)
        loading.reply()


@contextlib.contextmanager
def _fault(server: Server, error: str) -> Iterator[None]:
    with wire(server) as client:
        assert client.call("DEBUG", "FAULT", "REFUSE", error) == b"OK"
        yield
        client.call("DEBUG", "FAULT", "END")


STATES: dict[str, Callable[[Server], contextlib.AbstractContextManager[None]]] = {
    "OOM": lambda server: _configured(server, "maxmemory", 1),
    "NOREPLICAS": lambda server: _configured(server, "min-replicas-to-write", 1),
    "READONLY": _replica,
    "BUSY": _runs_a_script,
    "LOADING": _loads,
}


def replies_in(server: Server, state: contextlib.AbstractContextManager[None]) -> list[str]:
    """The commands and their replies in this state."""
    with contextlib.ExitStack() as closing:
        before, client, *queues = (closing.enter_context(wire(server)) for _ in range(2 + len(QUEUED)))
        before.call("FLUSHALL")
        before.call("XADD", "s", "1-1", "a", 1)
        before.call("XGROUP", "CREATE", "s", "g", 0)
        before.call("SET", "lock", "t", "PX", 60_000)
        for queue, words in zip(queues, QUEUED, strict=True):
            queue.call("MULTI")
            assert queue.call(*words) == b"QUEUED"
        with state:
            replies = [_reply(client, words) for words in CALLS]
            replies += [_reply(queue, words) for queue in queues for words in (["EXEC"], ["DISCARD"])]
        return [*replies, _reply(client, ["PING"]), _reply(client, ["XLEN", "s"])]


def _reply(client: Wire, words: list[Any]) -> str:
    reply = client.call(*words)
    # Valkey calls itself by its name.
    shown = str(reply).replace("Valkey", "Redis") if isinstance(reply, Failed) else repr(reply)
    return f"{' '.join(' '.join(map(str, words)).split())[:60]} -> {shown}"


@pytest.mark.parametrize("error", STATES)
def test_the_engine_refuses_what_a_server_in_this_state_refuses(
    engine_server: Server, real: Server, error: str
) -> None:
    expected = replies_in(real, STATES[error](real))
    assert sum(error in line for line in expected) > 5
    assert replies_in(engine_server, _fault(engine_server, error)) == expected
