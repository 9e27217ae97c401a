"""MOVE: a key of any type goes to another database, with all that is known of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.engine.persistence.test_append_only import reopened, rewrite, texts, written
from tests.engine.state import Inside, state
from tests.engine.wire import Wire, wait_blocked, wire
from tools.servers.server import Server

# Sent in this order to both servers, which must answer with the same bytes.
SAME = """
MOVE k 0 | MOVE k 1 | MOVE k 16 | MOVE k -1 | MOVE k x | MOVE k 1.0 | MOVE k 99999999999 | MOVE k -2147483649
MOVE k 99999999999999999999999 | MOVE k | MOVE k 1 2 | MOVE k 2147483647
COPY k n DB 99999999999 | COPY k n DB 99999999999999999999 | COPY k n DB -1 | SELECT 99999999999 | SELECT x | SELECT -1
SET k v | MOVE k 0 | MOVE k 1 | EXISTS k | MOVE k 1 | SET k w | MOVE k 1 | GET k | SELECT 1 | GET k | TTL k | SELECT 0
SET t x EX 1000 | MOVE t 1 | TTL t | SELECT 1 | TTL t | PERSIST t | MOVE t 0 | SELECT 0 | TTL t | GET t
SET late x PX 1 | SELECT 1 | SET late y | SELECT 0 | MOVE late 1 | SELECT 1 | GET late | SELECT 0
HSET h a 1 b 2 | MOVE h 2 | HGETALL h | SELECT 2 | HGETALL h | SELECT 0 | SADD z a | MOVE z 2 | LPUSH l b a | MOVE l 2
TYPE z | SELECT 2 | TYPE z | LRANGE l 0 -1 | DBSIZE | KEYS h | SCAN 0 COUNT 100 TYPE list | SELECT 0 | KEYS h
XADD s 1-1 a 1 | XADD s 2-1 b 2 | XADD s 3-1 c 3 | XDEL s 2-1 | XGROUP CREATE s g 0 | XGROUP CREATE s other $
XREADGROUP GROUP g c COUNT 1 STREAMS s > | MOVE s 3 | XLEN s | XINFO GROUPS s | SELECT 3 | XRANGE s - + | XPENDING s g
XINFO GROUPS s | XREADGROUP GROUP g c STREAMS s > | XACK s g 1-1 | XADD s 2-9 a 1 | XADD s 4-1 d 4 | XLEN s | SELECT 0
XADD s 1-1 new 1 | XLEN s | MOVE s 3 | XLEN s | SELECT 3 | XLEN s | SELECT 0
SELECT 4 | SET k late | SELECT 0 | MULTI | SET m 1 | MOVE m 4 | GET m | SELECT 4 | GET m | MOVE m 4 | MOVE k 4 | EXEC
SELECT 0 | FLUSHALL
"""


def test_the_same_bytes_as_redis(engine_server: Server, redis_server: Server) -> None:
    """Each of these commands, error texts included."""
    with wire(engine_server) as engine, wire(redis_server) as redis:
        for client in (engine, redis):
            client.call("FLUSHALL")
        for line in SAME.strip().replace("\n", " | ").split(" | "):
            words = line.split()
            assert engine.raw(*words) == redis.raw(*words), line


def test_it_is_described_as_redis_describes_it(server: Server) -> None:
    with wire(server) as client:
        (described,) = client.call("COMMAND", "INFO", "MOVE")
        assert described[0] == b"move"
        assert described[1] == 3
        assert {str(flag) for flag in described[2]} == {str(flag) for flag in (b"write", b"fast")}
        assert described[3:6] == [1, 1, 1]
        assert client.call("COMMAND", "GETKEYS", "MOVE", "k", "1") == [b"k"]


def _in(server_database: int, client: Wire) -> Wire:
    client.call("SELECT", server_database)
    return client


@pytest.mark.parametrize("name", ["MOVE", "COPY", "RESTORE", "SWAPDB", "FLUSHALL", "FLUSHDB"])
def test_a_change_of_another_database_serves_who_is_blocked_there(server: Server, name: str) -> None:
    """The reply comes with the change, not with the next command in that database."""
    with wire(server) as writer, wire(server) as blocked:
        writer.call("XADD", "s", "1-1", "a", "1")
        _in(1, blocked)
        if name.startswith("FLUSH"):
            blocked.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
            blocked.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "s", ">")
        else:
            blocked.send("XREAD", "BLOCK", "0", "STREAMS", "s", "0")
        wait_blocked(writer, 1)
        if name == "RESTORE":
            payload = writer.call("DUMP", "s")
            _in(1, writer).call("RESTORE", "s", "0", payload)
        elif name == "FLUSHDB":
            _in(1, writer).call("FLUSHDB")
        else:
            writer.call(*{"MOVE": ["MOVE", "s", 1], "COPY": ["COPY", "s", "s", "DB", 1], "SWAPDB": ["SWAPDB", 0, 1],
                          "FLUSHALL": ["FLUSHALL"]}[name])  # fmt: skip
        if name.startswith("FLUSH"):
            assert str(blocked.reply()).startswith(("NOGROUP", "UNBLOCKED"))
        else:
            assert blocked.reply() == [[b"s", [[b"1-1", [b"a", b"1"]]]]]


@pytest.mark.parametrize("in_transaction", [False, True])
def test_readers_of_both_databases(server: Server, in_transaction: bool) -> None:
    """Who waits in the target gets the entries; a group reader of the source hears that its stream is gone."""
    with wire(server) as writer, wire(server) as reader, wire(server) as member, wire(server) as popper:
        writer.call("XADD", "s", "1-1", "a", "1")
        writer.call("XGROUP", "CREATE", "s", "g", "$")
        _in(1, reader).send("XREAD", "BLOCK", "0", "STREAMS", "s", "0")
        wait_blocked(writer, 1)
        member.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "s", ">")
        wait_blocked(writer, 2)
        _in(1, popper).send("BLPOP", "l", "0")
        wait_blocked(writer, 3)
        writer.call("LPUSH", "l", "x")
        if in_transaction:
            writer.call("MULTI")
        writer.call("MOVE", "l", 1)
        writer.call("MOVE", "s", 1)
        if in_transaction:
            assert writer.call("EXEC") == [1, 1]
        assert popper.reply() == [b"l", b"x"]
        assert reader.reply() == [[b"s", [[b"1-1", [b"a", b"1"]]]]]
        assert str(member.reply()).startswith(("NOGROUP", "UNBLOCKED"))
        _in(1, writer)
        assert writer.call("EXISTS", "l") == 0
        assert writer.call("XINFO", "GROUPS", "s")[0][1] == b"g"


@pytest.mark.parametrize(("database", "key", "reply"), [(0, "k", None), (1, "k", None), (2, "k", []), (1, "o", [])])
def test_both_keys_have_changed_for_watch(server: Server, database: int, key: str, reply: object) -> None:
    with wire(server) as watcher, wire(server) as mover:
        mover.call("SET", "k", "v")
        _in(database, watcher).call("WATCH", key)
        assert mover.call("MOVE", "k", 1) == 1
        watcher.call("MULTI")
        assert watcher.call("EXEC") == reply


def test_a_move_that_does_nothing_changes_no_watched_key(server: Server) -> None:
    with wire(server) as watcher, wire(server) as mover:
        mover.call("SET", "k", "v")
        _in(1, watcher).call("SET", "k", "w")
        watcher.call("WATCH", "k", "none")
        assert mover.call("MOVE", "k", 1) == 0
        assert mover.call("MOVE", "none", 1) == 0
        watcher.call("MULTI")
        assert watcher.call("EXEC") == []


def test_remembered_messages_go_along() -> None:
    """IDMP: a repeated message finds its entry in the other database, and expires there."""
    now = [1_700_000_000_000]
    inside = Inside(clock=lambda: now[0])
    call = inside.call
    call("XADD", "s", "IDMP", "p", "init", "*", "a", "0")
    call("XCFGSET", "s", "IDMP-DURATION", 2)
    entry = call("XADD", "s", "IDMP", "p", "m", "*", "a", "1")
    assert call("MOVE", "s", 1) == 1
    assert call("XADD", "s", "NOMKSTREAM", "IDMP", "p", "m", "*", "a", "1") is None
    call("SELECT", 1)
    assert call("XADD", "s", "IDMP", "p", "m", "*", "a", "2") == entry
    now[0] += 3_000
    assert call("XADD", "s", "IDMP", "p", "m", "*", "a", "2") != entry
    assert call("XLEN", "s") == 3


def test_a_moved_stream_has_its_released_entries() -> None:
    inside = Inside()
    call = inside.call
    call("XADD", "s", "1-1", "a", "1")
    call("XGROUP", "CREATE", "s", "g", "0")
    call("XREADGROUP", "GROUP", "g", "ann", "STREAMS", "s", ">")
    call("XNACK", "s", "g", "FAIL", "IDS", 1, "1-1")
    assert call("MOVE", "s", 5) == 1
    call("SELECT", 5)
    assert call("XPENDING", "s", "g", "-", "+", 9) == [[b"1-1", b"", -1, 1]]
    ((_, (entry,)),) = call("XREADGROUP", "GROUP", "g", "bob", "CLAIM", 0, "STREAMS", "s", ">")
    assert entry[:2] == [b"1-1", [b"a", b"1"]]


def test_the_file_records_a_move(tmp_path: Path) -> None:
    """As it was sent; what expired meanwhile comes before it; a move that did nothing is not recorded."""
    now = [1_700_000_000_000]
    inside = Inside(tmp_path, clock=lambda: now[0])
    call = inside.call
    call("SELECT", 3)
    call("SET", "k", "expires", "PX", 5)
    call("SELECT", 0)
    call("XADD", "s", "1-1", "a", 1)
    call("XGROUP", "CREATE", "s", "g", "0")
    call("XREADGROUP", "GROUP", "g", "ann", "STREAMS", "s", ">")
    call("SET", "k", "v", "EX", 100)
    now[0] += 10
    call("MOVE", "k", 3)
    call("MOVE", "k", 3)
    call("MOVE", "s", 3)
    call("SET", "s", "other")
    before = state(call, (0, 3))
    assert len(before) == 3
    for rewritten in (False, True):
        if rewritten:
            rewrite(inside)
        inside = reopened(inside, tmp_path)
        inside.engine.clock = lambda: now[0]
        assert state(inside.call, (0, 3)) == before
        if not rewritten:
            lines = texts(written(tmp_path))
            assert [line for line in lines if line.startswith(("MOVE", "DEL"))] == ["DEL k", "MOVE k 3", "MOVE s 3"]
    inside.stop()


@pytest.mark.parametrize("words", [("FLUSHALL",), ("SWAPDB", 0, 1), ("MSET", *["v"] * 100_000), ("MSET",)])
def test_a_client_that_waits_for_many_keys_stops_nobody(engine_server: Server, words: tuple[object, ...]) -> None:
    """Each change attempts its command once, not once for each of its keys."""
    keys = [f"k{number}" for number in range(10_000)]
    if words == ("MSET",):
        words = ("MSET", *[word for key in keys for word in (key, "v")])
    with wire(engine_server) as client, wire(engine_server) as blocked:
        client.call("FLUSHALL")
        client.call("SET", "k1", "not a list")
        client.call("DEL", "k1")
        blocked.send("BLPOP", *keys, "0")
        wait_blocked(client, 1)
        begun = time.monotonic()
        client.call(*words)
        assert time.monotonic() - begun < 2
        client.call("FLUSHALL")


def test_memory_does_not_grow(engine_server: Server) -> None:
    """MOVE is allowed above maxmemory, as in Redis: it takes none."""
    with wire(engine_server) as client:
        client.call("FLUSHALL")
        client.call("SET", "k", "v" * 1_000_000)
        client.call("CONFIG", "SET", "maxmemory", 500_000)
        try:
            assert str(client.call("SET", "o", "v")).startswith("OOM")
            assert client.call("MOVE", "k", 1) == 1
        finally:
            client.call("CONFIG", "SET", "maxmemory", 0)
            client.call("FLUSHALL")
