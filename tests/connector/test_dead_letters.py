"""spark_streams.dead_letters: consumers in plain Python write dead letters like the source's own."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector import dead_letters
from spark_streams.connector.deadletter.envelope import NAMES, open_envelope
from spark_streams.connector.errors import IdsExhaustedError, InvalidOptionError, ServerReplyError, UnsupportedError
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from tests.proxy import Proxy
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


def state(client: Any) -> tuple[int, int]:
    """How many entries are pending, and how many dead letters there are."""
    return client.xpending("orders", "billing")["pending"], client.xlen("orders:dead")


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


@pytest.mark.parametrize(("direction", "step"), [("up", 61), ("late", 61), ("down", 13)])
def test_wherever_the_connection_is_cut_the_entry_is_pending_or_has_its_one_dead_letter(
    client: Any, server: Server, direction: str, step: int
) -> None:
    """`late`: the server carries out what it has received a moment after the client lost the connection."""
    outcomes = set()
    with Proxy(server.url) as proxy:
        for after in range(1, 20 * step, step):
            client.delete("orders:dead")
            client.xadd("orders", {"n": 1})
            entry = read(client)
            proxy.cut(direction, after)
            with redis.Redis.from_url(proxy.url, retry=None, protocol=2) as cut:
                with contextlib.suppress(redis.RedisError):
                    dead_letters.write(cut, "orders", "billing", *entry, to="orders:dead")
                proxy.wait_for_late()
                outcomes.add(state(client))
            proxy.forget_cuts()
            dead_letters.write(client, "orders", "billing", *entry, to="orders:dead")
            assert state(client) == (0, 1), after
        assert proxy.cut_so_far > 5
    assert outcomes == {(1, 0), (0, 1)}


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


def test_an_entry_is_pending_again_if_ids_run_out_within_the_transaction(
    client: Any, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By XSETID, which WATCH does not notice: EXEC executes the XACK without the XADD."""
    client.xadd("orders", {"n": 1})
    client.xadd("orders:dead", {"n": 0})
    entry = read(client)
    client.xclaim("orders", "billing", "c1", 0, [entry[0]], retrycount=7)
    queue = dead_letters._DeadLetter.queue

    def queue_late(letter: Any, pipe: Any, failed: Any) -> None:
        queue(letter, pipe, failed)
        client.execute_command("XSETID", "orders:dead", "18446744073709551615-18446744073709551615")

    monkeypatch.setattr(dead_letters._DeadLetter, "queue", queue_late)
    with pytest.raises(ServerReplyError, match=r"'orders:dead' refused the dead letter of entry .* pending as before"):
        write("orders", "billing", *entry, to="orders:dead")
    monkeypatch.undo()
    assert state(client) == (1, 1)
    (pending,) = client.xpending_range("orders", "billing", "-", "+", 9)
    assert (pending["consumer"], pending["times_delivered"]) == (b"c1", 7)
    assert write("orders", "billing", *entry, to="other") is not None


def test_what_cannot_be_written_is_refused_and_the_entry_stays_pending(client: Any, write: Write) -> None:
    client.xadd("orders", {"n": 1})
    entry_id, fields = read(client)
    with pytest.raises(InvalidOptionError, match="to='orders' is the stream of the entry"):
        write("orders", "billing", entry_id, fields, to=b"orders")
    with pytest.raises(redis.DataError, match="NoneType"):
        write("orders", "billing", entry_id, {"n": None}, to="orders:dead")
    assert (state(client), client.xlen("orders")) == ((1, 0), 1)


def test_a_redis_py_without_transactions_in_a_cluster_is_refused(
    client: Any, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 6.1, and 6.2 for asyncio. Its pipeline fails in this way."""

    def refuse(*_: object, **__: object) -> None:
        raise redis.exceptions.RedisClusterException("transaction is deprecated in cluster mode")

    for kind in (redis.Redis, redis.asyncio.Redis):
        monkeypatch.setattr(kind, "pipeline", refuse)
    with pytest.raises(UnsupportedError, match=r"deprecated in cluster mode. Install redis-py 6.2 or newer"):
        write("orders", "billing", "1-0", {"n": 1}, to="orders:dead")


def test_an_error_whose_text_is_not_unicode_does_not_keep_the_entry(client: Any, write: Write) -> None:
    client.xadd("orders", {"n": 1})
    write("orders", "billing", *read(client), to="orders:dead", error=ValueError("bad \ud800"))
    ((_, letter),) = client.xrange("orders:dead")
    assert letter[b"dl.message"] == rb"bad \ud800"


@pytest.mark.parametrize("encoding", [{"encoding_errors": "surrogateescape"}, {"encoding": "latin-1"}])
def test_values_pass_through_a_decoding_client_byte_for_byte(
    server: Server, client: Any, encoding: dict[str, str]
) -> None:
    client.xadd("orders", {b"\xe9": b"\xff\r\n"})
    with redis.Redis.from_url(server.url, decode_responses=True, **encoding) as decoding:
        dead_letters.write(decoding, "orders", "billing", *read(decoding, "\xe9"), to="d\xe9")
    ((_, letter),) = client.xrange("d\xe9")
    assert next(iter(letter.items())) == (b"\xe9", b"\xff\r\n")
    assert letter[b"dl.consumer"] == "\xe9".encode()


def test_a_decoding_client_appends_to_a_stream_of_binary_dead_letters(server: Server, client: Any) -> None:
    """The check for IDs reads the first and the last of them, which the client could not decode."""
    client.xadd("orders:dead", {b"n": b"\xff"})
    client.xadd("orders", {"n": 1})

    async def write_async() -> Any:
        async with redis.asyncio.Redis.from_url(server.url, decode_responses=True) as decoding:
            return await dead_letters.write_async(decoding, "orders", "billing", entry_id, {"n": 2}, to="orders:dead")

    with redis.Redis.from_url(server.url, decode_responses=True) as decoding:
        assert dead_letters.write(decoding, "orders", "billing", *read(decoding), to="orders:dead") is not None
    client.xadd("orders", {"n": 2})
    client.xadd("orders:dead", {b"n": b"\xff"})
    entry_id, _ = read(client)
    assert asyncio.run(write_async()) is not None
    assert state(client) == (0, 4)


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
    first_id, fields = read(client)
    first = write("orders", "billing", first_id, fields, to="orders:dead", error=FAILED)
    with pytest.raises(SystemExit) as ended:
        main(["dead", "redrive", "orders:dead", "--yes", "--url", server.url], prog_name="rstream")
    assert ended.value.code == 0, capsys.readouterr()
    assert client.xlen("orders:dead") == 0
    entry_id, fields = read(client)
    assert [*fields] == [b"n", b"dl.redriven"]
    write("orders", "billing", entry_id, fields, to="orders:dead", error=FAILED)
    ((_, letter),) = client.xrange("orders:dead")
    assert (letter[b"dl.redrives"], letter[b"dl.previous"]) == (b"1", b"orders:dead/" + first + b" " + first_id)


def test_rstream_and_the_exporter_count_and_show_it(client: Any, server: Server, write: Write) -> None:
    client.xadd("orders", {"n": "x"})
    write("orders", "billing", *read(client), to="orders:dead", reason="no amount", error=FAILED)

    def run(*words: str) -> str:
        done = CliRunner().invoke(main, [*words, "--url", server.url])
        assert done.exit_code == 0, done.output
        return done.output

    assert "orders:dead" in run("dead", "list")
    shown = run("dead", "show", "orders:dead", "--reason", "no amount", "--stage", "process", "--error", "ValueError")
    assert "a lot" in shown
    waiting = 'rstream_dead_letters_waiting{reason="no amount",stream="orders:dead"} 1.0'
    assert waiting in run("exporter", "--once").splitlines()


@pytest.mark.parametrize(("heading", "count"), [("### Test vector", 1), ("#### A redriven entry", 2)])
def test_the_documented_examples_are_what_is_written(
    client: Any, write: Write, monkeypatch: pytest.MonkeyPatch, heading: str, count: int
) -> None:
    """docs/reference/dead-letters.md: test vectors for other languages, byte for byte."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "dead-letters.md").read_text()
    vector = page.partition(f"{heading}\n")[2]
    entry, letter = (list(map(literal, _WORD.findall(block))) for block in _BLOCK.findall(vector)[:2])
    documented = dict(zip(letter[::2], letter[1::2], strict=True))
    monkeypatch.setattr(dead_letters, "now", documented[b"dl.last-failed"].decode)
    client.xadd("orders", dict(zip(entry[::2], entry[1::2], strict=True)), id=documented[b"dl.id"])
    entry_id, fields = read(client, "worker-1")
    client.xclaim("orders", "billing", "worker-1", 0, [entry_id], retrycount=count)
    write("orders", "billing", entry_id, fields, to="orders:dead", reason="no amount", error=FAILED)
    ((_, written),) = client.xrange("orders:dead")
    assert list(written.items()) == list(documented.items())
