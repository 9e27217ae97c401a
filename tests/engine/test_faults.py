"""Faults that a test sets in an engine: each is met once, and ends with its block."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from spark_streams.engine import LocalEngine
from spark_streams.engine.launch.local import Error
from tests.engine.wire import command, wait_blocked, wire
from tools.driving import add, drain, forget_all, reader
from tools.servers.server import Server, serving


@pytest.fixture(scope="module")
def running() -> Iterator[LocalEngine]:
    with LocalEngine() as engine:
        yield engine


@pytest.fixture
def engine(running: LocalEngine) -> Iterator[LocalEngine]:
    with redis.Redis.from_url(running.url) as client:
        client.flushall()
    yield running
    forget_all()


@pytest.fixture
def client(engine: LocalEngine) -> Iterator[redis.Redis]:
    """It does not send a command again by itself."""
    with redis.Redis.from_url(engine.url, decode_responses=True, retry=None) as client:
        yield client


WRITE, READ, CONNECT = ["XADD", "s", "*", "n", "1"], ["XLEN", "s"], ["HELLO", "2"]
REFUSED: list[tuple[Error, str, list[bool]]] = [
    ("OOM", "OOM command not allowed when used memory > 'maxmemory'.", [True, False, False]),
    ("LOADING", "LOADING Redis is loading the dataset in memory", [True, True, False]),
    ("READONLY", "READONLY You can't write against a read only replica.", [True, False, False]),
    ("NOREPLICAS", "NOREPLICAS Not enough good replicas to write.", [True, False, False]),
    ("BUSY", "BUSY Redis is busy running a script.", [True, True, False]),
]


@pytest.mark.parametrize(("error", "text", "refused"), REFUSED, ids=[error for error, _, _ in REFUSED])
def test_commands_are_refused_while_the_state_lasts(
    engine: LocalEngine, client: redis.Redis, error: Error, text: str, refused: list[bool]
) -> None:
    raw = redis.Redis(connection_pool=client.connection_pool)
    client.ping()
    with engine.refuses(error):
        for words, is_refused in zip((WRITE, READ, CONNECT), refused, strict=True):
            if is_refused:
                with pytest.raises(redis.RedisError) as raised:
                    raw.execute_command(*words)
                assert text.removeprefix(f"{error} ") in str(raised.value)
            else:
                raw.execute_command(*words)
    raw.execute_command(*WRITE)
    assert client.xlen("s") == 1


def test_a_pipeline_of_adds_is_refused_one_by_one(engine: LocalEngine, client: redis.Redis) -> None:
    with engine.refuses("OOM"), client.pipeline(transaction=False) as pipe:
        for n in range(100):
            pipe.xadd("s", {"n": n})
        replies = pipe.execute(raise_on_error=False)
    assert [str(reply) for reply in replies] == ["command not allowed when used memory > 'maxmemory'."] * 100
    assert client.xlen("s") == 0


def test_a_refused_command_breaks_its_transaction(engine: LocalEngine, client: redis.Redis) -> None:
    with engine.refuses("READONLY"), client.pipeline() as pipe:
        pipe.xadd("s", {"n": 1})
        pipe.xlen("s")
        with pytest.raises(redis.RedisError):
            pipe.execute()
    assert client.xlen("s") == 0


@pytest.mark.parametrize(("before_effect", "length"), [(True, 2), (False, 3)])
def test_a_connection_is_closed_before_or_after_the_effect_of_a_command(
    engine: LocalEngine, client: redis.Redis, before_effect: bool, length: int
) -> None:
    client.ping()
    with engine.closes(after_commands=3, before_effect=before_effect):
        client.xadd("s", {"n": 0})
        client.xadd("s", {"n": 1})
        with pytest.raises(redis.ConnectionError):
            client.xadd("s", {"n": 2})
        client.ping()  # once
    assert client.xlen("s") == length


def test_a_connection_is_closed_within_a_reply(engine: LocalEngine) -> None:
    with Server("engine", engine.url).client() as client:
        client.set("k", "x" * 1000)
        connection = client.connection_pool.make_connection()
        connection.connect()
        assert connection._sock is not None
        with engine.closes(after_bytes=100):
            connection._sock.sendall(command("GET", "k"))
            received = b""
            while chunk := connection._sock.recv(4096):
                received += chunk
        assert received == b"$1000\r\n" + b"x" * 93
        connection.disconnect()


def test_the_connection_of_a_blocked_reader_is_closed_within_its_reply(
    engine: LocalEngine, client: redis.Redis
) -> None:
    server = Server("engine", engine.url)
    with wire(server) as reading, wire(server) as watching:
        reading.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
        wait_blocked(watching, 1)
        with engine.closes(after_bytes=30):
            assert watching.raw("XADD", "s", "1-1", "n", 1) == b"$3\r\n1-1\r\n"  # the first 9 of these bytes
            assert reading.rest() == b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2"
        assert watching.call("XLEN", "s") == 1


def test_script_kill_ends_busy_as_its_text_says(engine: LocalEngine, client: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="No scripts in execution right now"):
        client.execute_command("SCRIPT KILL")
    with engine.refuses("BUSY"):
        client.execute_command("SCRIPT KILL")
        client.xadd("s", {"n": 1})


def seconds_of_a_ping(client: redis.Redis) -> float:
    began = time.monotonic()
    client.ping()
    return time.monotonic() - began


def test_answers_are_slow(engine: LocalEngine, client: redis.Redis) -> None:
    client.ping()
    with engine.delays("50ms"):
        began = time.monotonic()
        client.ping()
        client.ping()
        assert time.monotonic() - began >= 0.1
    assert min(seconds_of_a_ping(client) for _ in range(20)) < 0.05


def test_faults_end_with_an_exception(engine: LocalEngine, client: redis.Redis) -> None:
    with pytest.raises(ZeroDivisionError), engine.refuses("OOM"):
        _ = 1 / 0
    client.xadd("s", {"n": 1})


@pytest.mark.in_turn
def test_a_query_reads_each_entry_once_although_its_connections_are_closed(
    engine: LocalEngine, client: redis.Redis
) -> None:
    """After any number of commands, before or after the effect."""
    add(client, 5)
    for before_effect in (True, False):
        for count in range(1, 30):
            group = f"g{count}{before_effect}"
            with engine.closes(after_commands=count, before_effect=before_effect):
                query = reader(Server("engine", engine.url), group=group)
                batches = drain(query)
            assert sorted(n for batch in batches for n in batch) == [0, 1, 2, 3, 4], (count, before_effect)


@pytest.mark.parametrize(("losing", "length"), [(0, 3), (1, 3), (2, 2), (4, 0)])
def test_a_restart_loses_the_last_commands(tmp_path: Path, losing: int, length: int) -> None:
    """The last one is a transaction, which is lost as a whole."""
    with LocalEngine(tmp_path) as engine, redis.Redis.from_url(engine.url) as client:
        for n in range(3):
            client.xadd("s", {"n": n})
        with client.pipeline() as pipe:
            pipe.set("a", 1)
            pipe.set("b", 2)
            pipe.execute()
        engine.restart(losing=losing)
        assert client.xlen("s") == length
        assert client.mget("a", "b") == ([b"1", b"2"] if losing == 0 else [None, None])
        client.xadd("s", {"n": 9})
        engine.restart()
        assert client.xlen("s") == length + 1


def test_an_engine_in_memory_is_not_restarted(engine: LocalEngine) -> None:
    with pytest.raises(RuntimeError, match=r"nothing to start from: use LocalEngine\(directory=…\)"):
        engine.restart()


@pytest.mark.parametrize(
    "words", ["REFUSE", "REFUSE NOTHING", "CLOSE 1", "CLOSE 1 NOW", "CUT -1", "DELAY x", "END 1", "BREAK"]
)
def test_wrong_words_are_refused(client: redis.Redis, words: str) -> None:
    with pytest.raises(redis.ResponseError):
        client.execute_command("DEBUG", "FAULT", *words.split())
    client.xadd("s", {"n": 1})


def test_faults_need_to_be_enabled_at_start() -> None:
    with serving() as server, server.client() as client:
        with pytest.raises(redis.ResponseError, match="DEBUG command not allowed"):
            client.execute_command("DEBUG", "FAULT", "REFUSE", "OOM")
        client.set("k", 1)


def test_the_set_up_of_a_connection_is_not_counted(engine: LocalEngine) -> None:
    """So that the first command is the test's own, also of a new client with a login name and a database."""
    with (
        engine.closes(after_commands=1, before_effect=True),
        redis.Redis.from_url(engine.url, db=1, protocol=3, client_name="job", retry=None) as client,
    ):
        with pytest.raises(redis.ConnectionError):
            client.set("k", "v")
        assert client.get("k") is None


def test_a_value_that_a_fault_does_not_know_is_named_with_the_choices(engine: LocalEngine) -> None:
    with pytest.raises(ValueError, match="'NOAUTH': use OOM, LOADING, READONLY, NOREPLICAS, BUSY"):
        engine.refuses("NOAUTH")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="duration '3 hours' .*"):
        engine.advance("3 hours")
    with pytest.raises(ValueError, match="not both of them"):
        engine.closes(after_commands=1, after_bytes=1)
