"""redis-py's Lock on both servers, and the scripts that the engine refuses."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio
from redis.exceptions import LockError, LockNotOwnedError, NoScriptError
from redis.lock import Lock

from tests.engine.state import Inside
from tests.engine.wire import wire
from tools.servers.server import Server

TEXTS = [Lock.LUA_RELEASE_SCRIPT, Lock.LUA_EXTEND_SCRIPT, Lock.LUA_REACQUIRE_SCRIPT]
SHAS = [hashlib.sha1(text.encode()).hexdigest() for text in TEXTS]


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with server.client(decode_responses=True) as client:
        client.flushall()
        client.script_flush()
        yield client


def test_a_lock_is_taken_by_one_client_at_a_time(client: redis.Redis) -> None:
    mine, other = client.lock("l", timeout=60), client.lock("l", timeout=60, blocking=False)
    assert mine.acquire()
    assert not other.acquire()
    mine.release()
    assert client.get("l") is None
    assert other.acquire()
    with pytest.raises(LockError, match="not owned or is already unlocked|Cannot release an unlocked lock"):
        mine.release()


def test_a_lock_is_extended_or_its_time_is_replaced(client: redis.Redis) -> None:
    lock = client.lock("l", timeout=60)
    assert lock.acquire()
    assert lock.extend(60)
    assert 110_000 < client.pttl("l") <= 120_000
    assert lock.extend(30, replace_ttl=True)
    assert 20_000 < client.pttl("l") <= 30_000
    assert lock.reacquire()
    assert 50_000 < client.pttl("l") <= 60_000


@pytest.mark.parametrize("method", ["release", "reacquire", "extend"])
@pytest.mark.parametrize("holder", ["nobody", "another"])
def test_who_does_not_hold_the_lock_changes_nothing(client: redis.Redis, method: str, holder: str) -> None:
    lock = client.lock("l", timeout=60)
    assert lock.acquire()
    if holder == "nobody":
        client.delete("l")
    else:
        client.set("l", "another token", px=5_000)
    with pytest.raises(LockNotOwnedError):
        getattr(lock, method)(*[10] * (method == "extend"))
    assert client.pttl("l") <= 5_000


def test_a_lock_without_time_is_not_extended(client: redis.Redis) -> None:
    client.set("l", "token")
    assert client.eval(TEXTS[1], 1, "l", "token", 1000, "0") == 0
    assert client.pttl("l") == -1


def test_a_lock_of_asyncio(server: Server) -> None:
    async def use() -> None:
        async with redis.asyncio.Redis.from_url(server.url) as client:
            await client.flushall()
            async with client.lock("l", timeout=60) as lock:
                assert await lock.extend(60)
                assert not await client.lock("l", blocking=False).acquire()
            assert await client.get("l") is None

    asyncio.run(use())


def test_scripts_are_loaded_and_forgotten(client: redis.Redis) -> None:
    with pytest.raises(NoScriptError, match="No matching script"):
        client.evalsha(SHAS[0], 1, "l", "token")
    assert [client.script_load(text) for text in TEXTS] == SHAS
    assert client.script_exists(*SHAS, "0" * 40) == [True, True, True, False]
    client.set("l", "token")
    assert client.evalsha(SHAS[0].upper(), 1, "l", "token") == 1
    client.script_flush()
    assert client.script_exists(*SHAS) == [False] * 3


def test_within_a_transaction(client: redis.Redis) -> None:
    client.set("l", "token")
    with client.pipeline() as pipe:
        pipe.set("k", 1)
        pipe.eval(TEXTS[0], 1, "l", "token")
        pipe.get("l")
        assert pipe.execute() == [True, 1, None]


def test_a_client_that_watches_the_lock_notices_its_release(client: redis.Redis) -> None:
    client.set("l", "token")
    with client.pipeline() as pipe:
        pipe.watch("l")
        pipe.multi()
        pipe.set("k", 1)
        assert client.eval(TEXTS[0], 1, "l", "token") == 1
        with pytest.raises(redis.WatchError):
            pipe.execute()


@pytest.mark.parametrize(
    "words",
    [
        *(["EVAL", TEXTS[0], count, "l", "token"] for count in ("x", "-1", "3")),
        ["EVAL", TEXTS[0]],
        ["EVALSHA", "short", "1", "l", "token"],
        ["SCRIPT", "LOAD"],
        ["SCRIPT", "FLUSH", "NOW"],
    ],
    ids=lambda words: " ".join(words)[-20:],
)
def test_wrong_arguments_have_the_same_error(engine_server: Server, redis_server: Server, words: list[str]) -> None:
    with wire(engine_server) as engine, wire(redis_server) as other:
        assert engine.call(*words) == other.call(*words)


CALLS = [(TEXTS[0], "t"), (TEXTS[1], "t", 1, "0"), (TEXTS[1], "t", "x", "1"), (TEXTS[2], "t", 1), (TEXTS[2], "t", "x")]


@pytest.mark.parametrize("kind", ["stream", "lock"])
def test_an_error_of_a_command_has_the_script_and_its_line(
    engine_server: Server, redis_server: Server, kind: str
) -> None:
    """A key of another type, and a time that is no number."""
    replies = []
    for server in (engine_server, redis_server):
        with wire(server) as client:
            client.call("FLUSHALL")
            calls = CALLS if kind == "stream" else [words for words in CALLS if "x" in words]
            for words in calls:
                client.call(*(["XADD", "l", "1-1", "a", 1] if kind == "stream" else ["SET", "l", "t", "PX", 60_000]))
                replies.append(client.call("EVAL", words[0], 1, "l", *words[1:]))
    half = len(replies) // 2
    assert replies[:half] == replies[half:]
    assert all("on @user_script:" in reply for reply in replies)


@pytest.mark.parametrize("words", [["EVAL", "return 1", "0"], ["SCRIPT", "LOAD", "return 1"]])
def test_another_script_is_refused_by_name(engine_server: Server, words: list[str]) -> None:
    with wire(engine_server) as client:
        assert client.call(*words) == (
            "ERR this engine runs no scripts except those of redis-py's Lock (release, extend, reacquire). Test other "
            "scripts on Redis"
        )


def test_what_a_script_has_done_is_in_the_file(tmp_path: Path) -> None:
    inside = Inside(tmp_path)
    for name in ("released", "extended"):
        inside.call("SET", name, "token", "PX", 60_000)
    assert inside.call("EVAL", TEXTS[0], 1, "released", "token") == 1
    assert inside.call("EVAL", TEXTS[1], 1, "extended", "token", 3_600_000, "1") == 1
    inside.stop()
    again = Inside(tmp_path)
    assert again.call("KEYS", "*") == [b"extended"]
    assert 3_000_000 < again.call("PTTL", "extended") <= 3_600_000
    again.stop()
