"""The append-only file: what is written, that it comes back, that a real Redis takes it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_streams.engine.resp.request_parser import RequestParser
from tests.engine.state import Inside, state
from tests.engine.test_against_redis import (
    EXAMPLES,
    GROUPS,
    Command,
    acknowledging,
    adds,
    claims,
    commands,
    group_reads,
    idempotent,
    removals,
    trimming,
)
from tests.engine.wire import Wire, wire
from tools.servers.server import Server
from tools.waiting import until

EVERYTHING = (0, 3)


def written(directory: Path) -> list[list[bytes]]:
    """The commands in the file."""
    return RequestParser().feed((directory / "appendonly.aof").read_bytes()) if size(directory) else []


def size(directory: Path) -> int:
    return (directory / "appendonly.aof").stat().st_size


def texts(commands: list[list[bytes]]) -> list[str]:
    return [b" ".join(one).decode() for one in commands]


def reopened(inside: Inside, directory: Path) -> Inside:
    """Another engine on the same file, after the first has gone."""
    inside.stop()
    return Inside(directory)


def rewrite(inside: Inside) -> None:
    """Rewrite the append-only file (BGREWRITEAOF), and wait until it is rewritten."""
    persistence = inside.engine.persistence

    def is_done() -> bool:
        persistence.cron()
        return not persistence.rewriter.busy

    assert inside.call("BGREWRITEAOF") == b"Background append only file rewriting started"
    until(is_done, "the append-only file is not rewritten", interval=0.002)
    assert persistence.rewriter.ok


def pipe(redis: Wire, data: bytes) -> None:
    """As `redis-cli --pipe`: everything at once, and no error among the replies."""
    redis.call("FLUSHALL")
    redis.socket.sendall(data + b"*2\r\n$4\r\nECHO\r\n$3\r\nend\r\n")
    while (reply := redis.reply()) != b"end":
        assert "ERR" not in str(reply), reply
    redis.call("SELECT", 0)


def test_what_is_written_is_the_effect(tmp_path: Path) -> None:
    """Ids as given, exact trimming, claims with their times, moments instead of spans."""
    inside = Inside(tmp_path, clock=lambda: 1_700_000_000_000)
    call = inside.call
    call("XADD", "s", "*", "a", 1)
    call("XADD", "s", "MAXLEN", "~", "100", "*", "a", 2)
    call("XADD", "s", "MAXLEN", "1", "1700000000000-*", "a", 3)
    call("XGROUP", "CREATE", "s", "g", "0")
    call("XREADGROUP", "GROUP", "g", "ann", "COUNT", 5, "STREAMS", "s", ">")
    call("XREADGROUP", "GROUP", "g", "ann", "STREAMS", "s", ">")
    call("XAUTOCLAIM", "s", "g", "bob", 0, "-")
    call("XACK", "s", "g", "1700000000000-2", "5-5")
    call("XACK", "s", "g", "1700000000000-2")
    call("SELECT", 3)
    call("SET", "k", "v", "EX", 10)
    call("EXPIRE", "k", 20)
    call("GET", "k")
    inside.stop()
    assert texts(written(tmp_path)) == [
        "SELECT 0",
        "XADD s 1700000000000-0 a 1",
        "XADD s 1700000000000-1 a 2",
        "XADD s MAXLEN = 1 1700000000000-2 a 3",
        "XGROUP CREATE s g 0",
        "XGROUP CREATECONSUMER s g ann",
        "MULTI",
        "XCLAIM s g ann 0 1700000000000-2 TIME 1700000000000 RETRYCOUNT 1 FORCE JUSTID LASTID 1700000000000-2",
        "XGROUP SETID s g 1700000000000-2 ENTRIESREAD 3",
        "EXEC",
        "XGROUP CREATECONSUMER s g bob",
        "XCLAIM s g bob 0 1700000000000-2 TIME 1700000000000 RETRYCOUNT 2 FORCE JUSTID LASTID 1700000000000-2",
        "XACK s g 1700000000000-2 5-5",
        "SELECT 3",
        "SET k v PXAT 1700000010000",
        "PEXPIREAT k 1700000020000",
    ]


def test_a_transaction_is_kept_together(tmp_path: Path) -> None:
    """MULTI and EXEC around what changed; one command alone needs neither."""
    inside = Inside(tmp_path)
    for words in (["MULTI"], ["SET", "a", "1"], ["GET", "a"], ["SET", "b", "2"], ["EXEC"]):
        inside.call(*words)
    for words in (["MULTI"], ["SET", "a", "3"], ["GET", "a"], ["EXEC"]):
        inside.call(*words)
    inside.stop()
    assert texts(written(tmp_path)) == ["MULTI", "SELECT 0", "SET a 1", "SET b 2", "EXEC", "SET a 3"]


def test_expired_keys_stay_deleted(tmp_path: Path) -> None:
    """A key that expires leaves a DEL; while a file is read back nothing expires before its DEL."""
    now = 1000
    inside = Inside(tmp_path, clock=lambda: now)
    inside.call("HSET", "h", "a", 1)
    inside.call("PEXPIRE", "h", 500)
    inside.call("HSET", "h", "b", 2)
    inside.call("SET", "other", "x", "PX", 500)
    now = 2000
    assert inside.call("HGETALL", "h") == []
    inside.call("HSET", "h", "c", 3)
    inside.stop()
    assert texts(written(tmp_path))[-2:] == ["DEL h", "HSET h c 3"]
    again = Inside(tmp_path, clock=lambda: now)
    assert again.call("HGETALL", "h") == [b"c", b"3"]
    assert again.call("EXISTS", "other") == 0
    again.stop()


def test_a_blocked_reader_is_written_down_when_it_is_served(tmp_path: Path) -> None:
    """What it gets, it gets after the command that woke it."""
    inside = Inside(tmp_path)
    inside.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    other = inside.engine.connect("other:0", "other:0")
    words = [b"XREADGROUP", b"GROUP", b"g", b"ann", b"BLOCK", b"0", b"STREAMS", b"s", b">"]
    inside.engine.run(other, [words], [], 1000)
    inside.call("XADD", "s", "5-1", "a", 1)
    again = reopened(inside, tmp_path)
    assert again.call("XPENDING", "s", "g") == [1, b"5-1", b"5-1", [[b"ann", b"1"]]]
    again.stop()


keys = st.sampled_from(["s", "t", "k", "h", "q"])
others = st.one_of(
    st.tuples(st.just("DEL"), keys),
    st.tuples(st.just("SET"), keys, st.sampled_from("xyz"), st.just("PX"), st.just("100000000")),
    st.tuples(st.just("INCR"), st.just("n")),
    st.tuples(st.just("HSET"), st.just("h"), st.sampled_from("ab"), st.sampled_from("xy")),
    st.tuples(st.just("SADD"), st.just("q"), st.sampled_from("abc")),
    st.tuples(st.just("LPUSH"), st.just("l"), st.sampled_from("abc"), st.sampled_from("abc")),
    st.tuples(st.just("RENAME"), keys, keys),
    st.tuples(st.just("PEXPIRE"), keys, st.just("500000000")),
    st.tuples(st.just("PERSIST"), keys),
    st.tuples(st.just("SELECT"), st.sampled_from("03")),
    st.just(("MULTI",)), st.just(("EXEC",)), st.just(("FLUSHDB",)),
)  # fmt: skip


@pytest.mark.in_turn
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(commands, commands, commands, others), min_size=5, max_size=60), st.sampled_from([0, 2, 100]))
def test_all_data_is_restored(
    tmp_path_factory: pytest.TempPathFactory, redis_server: Server, program: list[Command], node: int
) -> None:
    """Whatever was done: from the file, from the rewritten file, and in a real Redis from either."""
    directory = tmp_path_factory.mktemp("aof")
    inside = Inside(directory)
    inside.call("CONFIG", "SET", "stream-node-max-entries", node)
    for group in GROUPS:
        inside.call("XGROUP", "CREATE", "s", group, "0", "MKSTREAM")
    half = len(program) // 2
    for words in program[:half]:
        inside.call(*words)
    inside.call("DISCARD")
    rewrite(inside)
    for words in program[half:]:
        inside.call(*words)
    inside.call("DISCARD")
    before = state(inside.call, EVERYTHING)
    again = reopened(inside, directory)
    assert state(again.call, EVERYTHING) == before
    with wire(redis_server) as redis:
        pipe(redis, (directory / "appendonly.aof").read_bytes())
        assert state(redis.call, EVERYTHING) == before
        rewrite(again)
        again.call("DEBUG", "LOADAOF")
        assert state(again.call, EVERYTHING) == before
        pipe(redis, (directory / "appendonly.aof").read_bytes())
        assert state(redis.call, EVERYTHING) == before
    again.stop()
    shutil.rmtree(directory)


newer = st.one_of(adds(), adds(), idempotent, group_reads, claims, trimming, acknowledging, removals)


@pytest.mark.in_turn
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(newer.filter(lambda one: "BLOCK" not in one), min_size=5, max_size=50), st.sampled_from([0, 2, 100]))
def test_effects_of_newer_commands_are_restored(
    tmp_path_factory: pytest.TempPathFactory, program: list[Command], node: int
) -> None:
    """Reference policies, released entries, remembered messages: from the file, the rewritten file and a reload."""

    def holds(inside: Inside) -> list[object]:
        found: list[object] = [state(inside.call)]
        for key in ("s", "t"):
            reply = inside.call("XINFO", "STREAM", key)
            found.append(reply[reply.index(b"idmp-duration") :][:12] if isinstance(reply, list) else str(reply))
            groups = inside.call("XINFO", "STREAM", key, "FULL")
            if isinstance(groups, list):
                found += [group[group.index(b"nacked-count") + 1] for group in groups[-1]]
        return found

    directory = tmp_path_factory.mktemp("aof")
    inside = Inside(directory, clock=lambda: 50_000)
    inside.call("CONFIG", "SET", "stream-node-max-entries", node)
    for group in GROUPS:
        inside.call("XGROUP", "CREATE", "s", group, "0", "MKSTREAM")
    for words in program:
        inside.call(*words)
    before = holds(inside)
    for again in (["DEBUG", "LOADAOF"], ["DEBUG", "RELOAD"]):
        assert inside.call(*again) == b"OK"
        assert holds(inside) == before, again
    rewrite(inside)
    assert inside.call("DEBUG", "LOADAOF") == b"OK"
    assert holds(inside)[0] == before[0]
    inside.stop()
    shutil.rmtree(directory)
