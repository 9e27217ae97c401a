"""spark_streams.dead_letters: consumers in plain Python write dead letters like the source's own."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from spark_streams import dead_letters
from spark_streams.cli import main
from spark_streams.deadletter.envelope import FIELDS, NAMES, open_envelope
from spark_streams.errors import IdsExhaustedError
from spark_streams.wire.address.address import Address
from spark_streams.wire.connection.connection import Connection
from tools.servers.server import Server

FAILED = ValueError("amount: 'a lot' is no number")
Write = Callable[..., Any]
_BLOCK = re.compile(r"```\n(.*?)```", re.DOTALL)
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"')


@pytest.fixture
def client(server: Server) -> Any:
    with server.client() as client:
        client.xgroup_create("orders", "billing", 0, mkstream=True)
        yield client


@pytest.fixture(params=["sync", "async"])
def write(request: pytest.FixtureRequest, server: Server) -> Write:
    """`write` or `write_async`, for a client of the server."""

    def write_sync(*words: Any, **named: Any) -> Any:
        with server.client() as client:
            return dead_letters.write(client, *words, **named)

    async def write_once(*words: Any, **named: Any) -> Any:
        async with redis.asyncio.Redis.from_url(server.url) as client:
            return await dead_letters.write_async(client, *words, **named)

    return write_sync if request.param == "sync" else lambda *words, **named: asyncio.run(write_once(*words, **named))


def read(client: Any, consumer: str = "c1") -> tuple[bytes, dict[bytes, bytes]]:
    """The next entry of the group."""
    entry: tuple[bytes, dict[bytes, bytes]] = client.xreadgroup("billing", consumer, {"orders": ">"}, count=1)[0][1][0]
    return entry


def literal(word: str) -> bytes:
    """A word in double quotes, as redis-cli prints and reads it."""
    value: bytes = ast.literal_eval(f"b{word}")
    return value


def test_both_functions_have_the_same_parameters() -> None:
    names = [list(inspect.signature(f).parameters) for f in (dead_letters.write, dead_letters.write_async)]
    assert names[0] == names[1]


def test_the_entry_is_acknowledged_and_its_dead_letter_has_the_whole_envelope(client: Any, write: Write) -> None:
    client.xadd("orders", {b"amount": b"a lot", b"raw": b"\xff\r\n"})
    entry_id, fields = read(client)
    added = write("orders", "billing", entry_id, fields, to="orders:dead", error=FAILED)
    assert client.xpending("orders", "billing")["pending"] == 0
    ((letter_id, letter),) = client.xrange("orders:dead")
    assert letter_id == added
    words = [word for pair in letter.items() for word in pair]
    own, envelope = open_envelope(words)
    assert own == [b"amount", b"a lot", b"raw", b"\xff\r\n"]
    assert tuple(envelope) == NAMES
    assert envelope["first-failed"] == envelope["last-failed"] > "2026"
    del envelope["first-failed"], envelope["last-failed"]
    assert {name: value for name, value in envelope.items() if value} == {
        "stream": "orders", "id": entry_id.decode(), "group": "billing", "consumer": "c1", "stage": "process",
        "reason": "ValueError", "error": "ValueError", "message": str(FAILED), "deliveries": "1", "redrives": "0",
    }  # fmt: skip


def test_an_entry_gets_one_dead_letter(client: Any, write: Write) -> None:
    """A second call, a consumer that no longer has the entry, and an entry that is acknowledged write nothing."""
    client.xadd("orders", {"n": 1})
    client.xadd("orders", {"n": 2})
    first, second = read(client), read(client)
    assert write("orders", "billing", *first, to="dead", reason="bad", consumer="c2") is None
    assert write("orders", "billing", *first, to="dead", reason="bad", consumer="c1") is not None
    assert write("orders", "billing", *first, to="dead", reason="bad") is None
    client.xack("orders", "billing", second[0])
    assert write("orders", "billing", *second, to="dead", reason="bad") is None
    assert client.xlen("dead") == 1


def test_two_consumers_that_give_up_an_entry_write_one_dead_letter(
    client: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one is done while the first one is between WATCH and EXEC."""
    client.xadd("orders", {"n": 1})
    entry = read(client)
    queue = dead_letters._DeadLetter.queue

    def queue_late(letter: Any, pipe: Any, pending: Any) -> None:
        monkeypatch.undo()
        assert dead_letters.write(client, "orders", "billing", *entry, to="dead") is not None
        queue(letter, pipe, pending)

    monkeypatch.setattr(dead_letters._DeadLetter, "queue", queue_late)
    with server.client() as late:
        assert dead_letters.write(late, "orders", "billing", *entry, to="dead") is None
    assert client.xlen("dead") == 1


@pytest.mark.parametrize("is_executed", [False, True])
def test_a_lost_connection_leaves_the_entry_pending_or_its_dead_letter_complete(
    client: Any, monkeypatch: pytest.MonkeyPatch, is_executed: bool
) -> None:
    """EXEC is lost on its way, or its reply: the call is repeated."""
    client.xadd("orders", {"n": 1})
    entry = read(client)
    execute = redis.client.Pipeline.execute

    def execute_and_break(pipe: Any, raise_on_error: bool = True) -> Any:
        if is_executed:
            execute(pipe, raise_on_error)
        raise redis.ConnectionError("lost")

    monkeypatch.setattr(redis.client.Pipeline, "execute", execute_and_break)
    with pytest.raises(redis.ConnectionError):
        dead_letters.write(client, "orders", "billing", *entry, to="dead")
    monkeypatch.undo()
    assert (client.xpending("orders", "billing")["pending"], client.xlen("dead")) == ((0, 1) if is_executed else (1, 0))
    dead_letters.write(client, "orders", "billing", *entry, to="dead")
    assert (client.xpending("orders", "billing")["pending"], client.xlen("dead")) == (0, 1)


def test_a_stream_that_cannot_take_it_leaves_the_entry_pending(client: Any, write: Write) -> None:
    client.xadd("orders", {"n": 1})
    entry = read(client)
    client.set("text", "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        write("orders", "billing", *entry, to="text")
    client.xadd("full", {"n": 1}, id="18446744073709551615-18446744073709551615")
    with pytest.raises(IdsExhaustedError, match="'full' cannot take a dead letter"):
        write("orders", "billing", *entry, to="full")
    assert client.xpending("orders", "billing")["pending"] == 1


def test_a_client_that_decodes_replies_and_fields_that_occur_twice(server: Server, client: Any) -> None:
    client.execute_command("XADD", "orders", "*", "n", "1", "n", "2", "ü", "ü")
    with redis.Redis.from_url(server.url, decode_responses=True) as decoding:
        entry_id, _ = read(decoding)
        assert isinstance(entry_id, str)
        pairs = [("n", 1), ("n", "2"), ("ü", "ü")]
        added = dead_letters.write(decoding, "orders", "billing", entry_id, pairs, to="dead", reason="twice")
    assert isinstance(added, str)
    with Connection(Address.parse(server.url)) as connection:
        ((_, letter),) = connection.execute("XRANGE", "dead", "-", "+")
    assert letter[:6] == [b"n", b"1", b"n", b"2", "ü".encode(), "ü".encode()]


def test_rstream_sends_it_back_once_and_its_next_dead_letter_has_its_past(
    client: Any, server: Server, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    client.xadd("orders", {"n": "x"})
    entry_id, fields = read(client)
    first = write("orders", "billing", entry_id, fields, to="orders:dead", error=FAILED)
    with pytest.raises(SystemExit) as ended:
        main(["dead", "redrive", "orders:dead", "--url", server.url], prog_name="rstream")
    assert ended.value.code == 0, capsys.readouterr()
    assert client.xlen("orders:dead") == 0
    entry_id, fields = read(client)
    assert [*fields] == [b"n", b"dl.redriven"]
    write("orders", "billing", entry_id, fields, to="orders:dead", error=FAILED)
    ((_, letter),) = client.xrange("orders:dead")
    assert (letter[b"dl.redrives"], letter[b"dl.previous"]) == (b"1", b"orders:dead/" + first)


def test_the_documented_example_is_what_is_written(client: Any) -> None:
    """docs/reference/dead-letters.md: the test vector for other languages."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "dead-letters.md").read_text()
    vector = page.partition("### Test vector")[2]
    entry, letter = (list(map(literal, _WORD.findall(block))) for block in _BLOCK.findall(vector)[:2])
    client.xadd("orders", dict(zip(entry[::2], entry[1::2], strict=True)), id="1795440000000-7")
    entry_id, fields = read(client, "worker-1")
    dead_letters.write(
        client, "orders", "billing", entry_id, fields, to="orders:dead", reason="no amount", error=FAILED
    )
    ((_, written),) = client.xrange("orders:dead")
    documented = dict(zip(letter[::2], letter[1::2], strict=True))
    assert [*written] == [*documented]
    assert tuple(documented)[-len(FIELDS) :] == FIELDS
    times = {b"dl.first-failed", b"dl.last-failed"}
    assert {name: value for name, value in written.items() if name not in times} == {
        name: value for name, value in documented.items() if name not in times
    }
    assert all(len(written[name]) == len(documented[name]) for name in times)
