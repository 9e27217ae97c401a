"""Where a row goes and under which id, what is said about rows that cannot be written, and servers that go and come."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import redis
from pyspark.sql.types import IntegerType, StructType

from spark_streams.base.ids import MAX_ID
from spark_streams.connector.errors import (
    EntryIdError,
    IdsExhaustedError,
    ReplicationError,
    RetriesExhaustedError,
    RStreamError,
    SchemaError,
    ServerUnreachableError,
    WrongKeyTypeError,
)
from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.sink.chunk_writer import SinkTask, TaskResult, append
from spark_streams.connector.sink.chunks import OwnIds
from spark_streams.connector.sink.row_errors import error_of_row
from spark_streams.connector.sink.writers import BatchWriter
from spark_streams.connector.wire.address import DEFAULT_PATIENCE, Address, Patience
from spark_streams.connector.wire.connection import Connection, ReplyError
from tests.connector.sink.writing import batch_of, close, frame, ledger_keys, numbers, options, write
from tests.proxy import Proxy
from tools.patience import with_patience
from tools.sending import before_sending, killed, reply_lost
from tools.servers.server import Server, free_port, running_redis, skip_without_redis
from tools.waiting import until


def started(kind: str, arguments: list[str]) -> subprocess.Popen[bytes]:
    """A server in a process that may be stopped and killed."""
    program = ["redis-server", "--save", ""] if kind == "redis" else [sys.executable, "-m", "spark_streams.engine"]
    quiet = subprocess.DEVNULL
    return subprocess.Popen([*program, *arguments], stdout=quiet, stderr=quiet)


def wait_for(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        until(client.ping, "the server has not started", 60)


@contextlib.contextmanager
def running_process(kind: str) -> Iterator[tuple[Server, int]]:
    """A server and its process id."""
    port = free_port()
    process = started(kind, ["--port", str(port)])
    url = f"redis://127.0.0.1:{port}/0"
    try:
        wait_for(url)
        yield Server(kind, url), process.pid
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=["exactly-once", "at-least-once"])
def delivery(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def put(server: Server, rows: dict[str, Any] | pa.RecordBatch, delivery: str, **given: str) -> TaskResult:
    batch = rows if isinstance(rows, pa.RecordBatch) else pa.RecordBatch.from_pydict(rows)
    task = SinkTask(batch_of(0)) if delivery == "exactly-once" else None
    return append([batch], options(server.url, **given), task)


def test_each_row_goes_to_the_stream_that_it_names(server: Server, delivery: str) -> None:
    """Many streams in one batch, each in the order of its rows; nulls go to the option's stream."""
    streams = [None if n % 10 == 0 else f"s{n % 7}" for n in range(700)]
    put(server, frame(list(range(700)), streams), delivery, chunkSize="100", streamColumn="to")
    with server.client() as client:
        for name in [*{stream for stream in streams if stream}, "out"]:
            mine = [int(fields[b"n"]) for _, fields in client.xrange(name)]
            assert mine == [n for n in range(700) if (streams[n] or "out") == name]
            assert b"to" not in client.xrange(name)[0][1]


@pytest.mark.usefixtures("small_nodes")
def test_each_stream_of_a_batch_is_trimmed(server: Server, delivery: str) -> None:
    streams = [f"s{n % 3}" for n in range(900)]
    given = {"maxlen": "20", "chunkSize": "300", "streamColumn": "to"}
    put(server, frame(list(range(900)), streams), delivery, **given)
    with server.client() as client:
        assert [client.xlen(f"s{n}") for n in range(3)] == [20] * 3


def test_a_row_without_a_stream_is_named(server: Server, delivery: str) -> None:
    rows = frame([1, 2, 3], ["a", None, "b"])
    checked = SinkOptions.parse({"url": server.url, "streamColumn": "to"})
    with pytest.raises(SchemaError, match="row 1 of this task names no stream in column 'to'. Fill"):
        append([rows], checked, SinkTask(batch_of(0)) if delivery == "exactly-once" else None)


def test_explicit_ids_are_the_entries_ids(server: Server, delivery: str) -> None:
    put(server, {"n": [1, 2, 3, 4], "_id": ["5", "5-7", "6-*", None]}, delivery, idColumn="_id")
    with server.client(decode_responses=True) as client:
        entries = client.xrange("out")
    assert [entry for entry, _ in entries][:3] == ["5-0", "5-7", "6-0"]
    assert entries[3][1] == {"n": "4"}
    assert int(entries[3][0].split("-")[0]) > 10**12


def test_a_server_that_makes_no_sequence_to_a_time_is_named(server: Server) -> None:
    """As Redis before 7.0 answers."""
    chunk: Any = SimpleNamespace(streams=[b"out"], codes=[0], rows=[7], ids=OwnIds(pa.array(["5-*"]), "key"))
    refusal = ReplyError("ERR Invalid stream ID specified as stream command argument")
    with Connection(Address.parse(server.url)) as connection:
        found = error_of_row(connection, chunk, 0, refusal)
    assert isinstance(found, EntryIdError)
    assert "row 7 of this task has the ID '5-*', but the server at " in str(found)
    assert "cannot complete it (Redis before 7.0). Write <milliseconds>-<sequence> into column 'key'" in str(found)


@pytest.mark.parametrize(
    ("ids", "row"), [(["9-1", "9-1"], 1), (["4-9", "5-0"], 0), (["6", "7", "3-1"], 2), ([None, "6-6"], 1)]
)
def test_an_id_that_is_not_above_the_top_is_named_with_its_row(
    server: Server, delivery: str, ids: list[str | None], row: int
) -> None:
    with server.client() as client:
        client.xadd("out", {"n": 0}, id="5-0")
    expected = f"row {row} of this task has the ID '{ids[row]}', which is not above .* or leave column 'key' null"
    with pytest.raises(EntryIdError, match=expected):
        put(server, {"n": list(range(len(ids))), "key": ids}, delivery, idColumn="key")


def test_a_row_that_is_refused_within_a_transaction_is_not_marked_as_written(server: Server) -> None:
    """A null among explicit ids makes the rest fall below the clock: the retry meets the same error, not silence."""
    rows = {"n": [1, 2, 3], "key": [None, "6-6", None]}
    checked, batch = options(server.url, idColumn="key"), batch_of(0)
    for _ in range(2):
        with pytest.raises(EntryIdError, match="row 1 of this task has the ID '6-6'"):
            write([pa.RecordBatch.from_pydict(rows)], checked, batch)
    assert numbers(server) == Counter([1])


@pytest.mark.parametrize(
    ("ids", "row"),
    [
        (["5-*", "5-*", "5-3"], None),
        (["5-*", "5-0"], 1),
        (["5-*", "5-*", "5-2"], 2),
        (["4-*"], 0),
        (["5-*", "4-*"], 1),
        (["7-9", "7-*", "7-10"], 2),
        ([None, None, "9-9"], 2),
        (["9-9", None, None], None),
        ([None, "99999999999999-*", None, "99999999999999-3"], None),
        ([None, "99999999999999-*", None, "99999999999999-1"], 3),
        (["18446744073709551615-18446744073709551615", None], 1),
    ],
)
def test_a_task_that_is_killed_when_a_row_is_refused_has_marked_none_that_is_not_there(
    server: Server, ids: list[str | None], row: int | None
) -> None:
    """Whatever is refused for its id is known before it is sent: nothing is to be taken back from a mark."""
    with server.client() as client:
        client.xadd("out", {"n": -1}, id="5-0")
    whole = pa.RecordBatch.from_pydict({"n": list(range(len(ids))), "key": ids})
    checked, batch = options(server.url, idColumn="key"), batch_of(0)
    if row is None:
        with before_sending(b"DECRBY", act=killed):
            close(checked, batch, write([whole], checked, batch))
        assert numbers(server) == Counter(range(-1, len(ids)))
        return
    for _ in range(2):
        with before_sending(b"DECRBY", act=killed), pytest.raises(RStreamError, match=f"row {row} of this task"):
            write([whole], checked, batch)
    assert set(numbers(server)) <= set(range(-1, row))


@pytest.mark.parametrize("ids", [None, ["6-1", "6-2"]])
def test_a_key_of_another_type_is_seen_before_a_row_is_marked(server: Server, ids: list[str] | None) -> None:
    rows, given = ({"n": [1, 2]}, {}) if ids is None else ({"n": [1, 2], "key": ids}, {"idColumn": "key"})
    checked, batch = options(server.url, **given), batch_of(0)
    with server.client() as client:
        client.set("out", "text")
        with before_sending(b"DECRBY", act=killed), pytest.raises(WrongKeyTypeError):
            write([pa.RecordBatch.from_pydict(rows)], checked, batch)
        client.delete("out")
    close(checked, batch, write([pa.RecordBatch.from_pydict(rows)], checked, batch))
    assert numbers(server) == Counter([1, 2])


@pytest.mark.parametrize("bad", ["x", "1-2-3", "-1", "5-", "1" * 30])
def test_what_is_no_id_is_named(server: Server, delivery: str, bad: str) -> None:
    with pytest.raises(
        EntryIdError, match="row 1 of this task has the ID .* in column 'key', which is not an entry ID. Write"
    ):
        put(server, {"n": [1, 2], "key": ["1-1", bad]}, delivery, idColumn="key")
    assert not numbers(server)


def test_a_retry_with_explicit_ids_goes_on_where_it_was(server: Server) -> None:
    """Rows that are marked are not sent again, so their ids are not refused."""
    rows = {"n": list(range(50)), "key": [f"{n + 1}-0" for n in range(50)]}
    whole = pa.RecordBatch.from_pydict(rows)
    checked, batch = options(server.url, chunkSize="10", idColumn="key"), batch_of(0)
    write([whole.slice(0, 30)], checked, batch)
    write([whole], checked, batch)
    assert numbers(server) == Counter(range(50))


def test_a_key_that_becomes_something_else_meanwhile_is_named_each_time(server: Server) -> None:
    """EXEC goes through and its XADDs do not: no row counts as written that is not."""
    checked, batch = options(server.url, chunkSize="10"), batch_of(0)

    def spoiling():  # type: ignore[no-untyped-def]
        yield frame(list(range(30)))
        with server.client() as client:
            client.delete("out")
            client.set("out", "text")
        yield frame(list(range(30, 60)))

    for _ in range(2):
        with pytest.raises(WrongKeyTypeError, match="key 'out'"):
            write(spoiling(), checked, batch)
    with server.client() as client:
        client.delete("out")
    write([frame(list(range(60)))], checked, batch)
    assert set(range(30, 60)) <= set(numbers(server))


def test_a_mark_is_corrected_once_if_the_connection_is_lost_meanwhile(server: Server) -> None:
    """The count of written rows is corrected along with the mark: twice, and the batch would seem to lack rows."""
    checked, batch = options(server.url, chunkSize="10"), batch_of(0)

    def spoiling() -> Iterator[pa.RecordBatch]:
        yield frame(list(range(30)))
        with server.client() as client:
            client.set("out", "text")
        yield frame(list(range(30, 60)))

    with before_sending(b"DECRBY", act=reply_lost, times=1) as met, pytest.raises(WrongKeyTypeError, match="key 'out'"):
        write(spoiling(), checked, batch)
    assert met
    with server.client() as client:
        client.delete("out")
    close(checked, batch, write([frame(list(range(60)))], checked, batch))


def test_fewer_replicas_than_asked_for_is_an_error_and_a_retry_does_not_double(
    server: Server,
) -> None:
    checked, batch = options(server.url, Patience(replicas=0.05), waitReplicas="1"), batch_of(0)
    for _ in range(2):
        with pytest.raises(ReplicationError, match="0 of 1 replicas"):
            write([frame([1, 2])], checked, batch)
    assert numbers(server) == Counter([1, 2])


def test_the_time_of_the_url_also_holds_while_the_server_waits_for_replicas(server: Server) -> None:
    """Each WAIT ends before the connection counts as broken."""
    checked = SinkOptions.parse({"url": f"{server.url}?socket_timeout=0.5", "stream": "out", "waitReplicas": "1"})
    patience = replace(checked.address.patience, limit=3.0, replicas=1.5)
    with pytest.raises(ReplicationError, match="0 of 1 replicas"):
        write([frame([1])], with_patience(checked, patience), batch_of(0))


def test_a_replica_that_has_everything_lets_the_task_end(redis_server: Server) -> None:
    with redis_server.client() as client:
        client.flushall()
        client.config_set("repl-diskless-sync-delay", 0)
    port = redis_server.url.split(":")[2].split("/")[0]
    with running_redis("--replicaof", "127.0.0.1", port) as replica:
        write([frame([1, 2])], options(redis_server.url, waitReplicas="1"), batch_of(0))
        assert numbers(replica) == Counter([1, 2])


def test_a_server_where_nobody_has_ever_answered_is_named_soon_on_the_driver(delivery: str) -> None:
    url = f"redis://:secret@127.0.0.1:{free_port()}"
    begun = time.monotonic()
    with pytest.raises(ServerUnreachableError, match="no stream server answers at redis://\\*\\*\\*@") as caught:
        BatchWriter(
            options(url, Patience(first_connection=0.3), delivery=delivery), StructType().add("a", IntegerType()), False
        )
    assert 0.3 <= time.monotonic() - begun < DEFAULT_PATIENCE.limit / 2
    assert "secret" not in str(caught.value)


def test_a_task_that_begins_while_the_server_is_away_waits_for_it(server: Server, delivery: str) -> None:
    """Its driver has been connected, so the address is right."""
    with Proxy(server.url) as proxy:
        patience = Patience(first_connection=0.1, longest_pause=0.05)
        checked, batch = options(proxy.url, patience), batch_of(0)
        proxy.away(0.5)
        begun = time.monotonic()
        append([frame(range(10))], checked, SinkTask(batch) if delivery == "exactly-once" else None)
        assert time.monotonic() - begun >= 0.3
    assert numbers(server) == Counter(range(10))


def test_a_server_that_stays_away_from_a_task_is_named_after_the_limit(delivery: str) -> None:
    checked = options(f"redis://:secret@127.0.0.1:{free_port()}", Patience(limit=0.3))
    with pytest.raises(
        RetriesExhaustedError, match="was tried for [01] s without success, .* no stream server"
    ) as caught:
        append([frame([1])], checked, SinkTask(batch_of(0)) if delivery == "exactly-once" else None)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", ["engine", "redis"])
def test_a_server_that_stands_still_is_waited_for(kind: str, delivery: str) -> None:
    """SIGSTOP for longer than a reply may take: the connection is given up, the outcome is in the marks."""
    if kind == "redis":
        skip_without_redis()
    with running_process(kind) as (server, pid):
        checked, batch = options(server.url, Patience(reply=0.2), chunkSize="40"), batch_of(0)
        stops = 0

        def stopping():  # type: ignore[no-untyped-def]
            nonlocal stops
            for n in range(0, 200, 100):
                yield frame(list(range(n, n + 100)))
                os.kill(pid, signal.SIGSTOP)
                stops += 1
                threading.Timer(0.4, os.kill, (pid, signal.SIGCONT)).start()

        result = append(stopping(), checked, SinkTask(batch) if delivery == "exactly-once" else None)
        assert stops == 2
        found = numbers(server)
        assert set(found) == set(range(200))
        if delivery == "exactly-once":
            close(checked, batch, result)
            assert set(found.values()) == {1}
            assert len(ledger_keys(server)) == 2


@pytest.mark.parametrize("kind", ["engine", "redis"])
def test_the_sink_continues_after_the_server_is_killed_and_started_again(kind: str, tmp_path: Path) -> None:
    """SIGKILL between transactions, fsync always: rows and marks come back together; LOADING is waited out."""
    if kind == "redis":
        skip_without_redis()
    arguments = ["--dir", str(tmp_path), "--appendonly", "yes", "--appendfsync", "always", "--port", str(free_port())]
    process = started(kind, arguments)
    try:
        url = f"redis://127.0.0.1:{arguments[-1]}/0"
        checked, batch = options(url, chunkSize="20"), batch_of(0)
        wait_for(url)

        def killing():  # type: ignore[no-untyped-def]
            nonlocal process
            yield frame(list(range(100)))
            process.kill()
            process.wait()
            process = started(kind, arguments)
            yield frame(list(range(100, 200)))

        close(checked, batch, write(killing(), checked, batch))
        assert numbers(Server(kind, url)) == Counter(range(200))
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("cut", [0, 17, 40])
def test_rows_that_are_there_under_their_ids_are_passed_over_when_a_batch_is_replayed(server: Server, cut: int) -> None:
    """At least once: they are written; what is missing above them is added."""
    ids = [f"{n + 1}-{n % 3}" if n % 3 else f"{n + 1}" for n in range(40)]
    whole = pa.RecordBatch.from_pydict({"n": list(range(40)), "text": ["ü\r\n"] * 40, "key": ids})
    checked = options(server.url, chunkSize="7", idColumn="key")
    append([whole.slice(0, cut)], checked, None)
    append([whole], checked, None)
    assert numbers(server) == Counter(range(40))


def test_rows_of_many_streams_are_looked_for_each_in_its_own(server: Server) -> None:
    streams = ["a" if n % 2 else "b" for n in range(20)]
    rows = {"n": list(range(20)), "_id": [f"{n // 2 + 1}-0" for n in range(20)], "_stream": streams}
    for _ in range(2):
        put(server, rows, "at-least-once", chunkSize="6", streamColumn="_stream", idColumn="_id")
    assert numbers(server, "a") + numbers(server, "b") == Counter(range(20))


@pytest.mark.parametrize("changed", ["fields", "trimmed", "partial"])
def test_a_row_whose_id_holds_something_else_is_named(server: Server, changed: str) -> None:
    """Other fields, or nothing any more, or an id that the server has completed."""
    rows = {"n": [1, 2, 3], "key": ["1-1", "2-1", "3-1"]}
    put(server, rows, "at-least-once", idColumn="key")
    again: dict[str, Any] = {**rows, "n": [1, 9, 3]} if changed == "fields" else dict(rows)
    if changed == "partial":
        again["key"] = ["1-1", "2-*", "3-1"]
    with server.client() as client:
        if changed == "trimmed":
            client.xdel("out", "2-1")
    with pytest.raises(EntryIdError, match="row 1 of this task has the ID '2-[1*]', which is not above"):
        put(server, again, "at-least-once", idColumn="key")


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_a_replay_finds_rows_whose_id_the_server_completes_only_by_the_ledger(server: Server, delivery: str) -> None:
    """Equal rows may be several entries, so an entry with the same fields does not prove that a row is there."""
    rows = {"n": [1, 1, 2], "key": ["5-*", "5-*", "6-*"]}
    put(server, rows, delivery, idColumn="key")
    if delivery == "exactly-once":
        put(server, rows, delivery, idColumn="key")
    else:
        with pytest.raises(EntryIdError, match="finds its rows only by complete IDs"):
            put(server, rows, delivery, idColumn="key")
    assert numbers(server)[1] == 2


def test_a_connection_that_is_cut_does_not_make_rows_with_ids_an_error(
    server: Server,
) -> None:
    """What arrived before the cut is sent again, and found."""
    rows = pa.RecordBatch.from_pydict({"n": list(range(200)), "key": [f"{n + 1}-0" for n in range(200)]})
    with Proxy(server.url) as proxy:
        for after in (300, 900, 2000, 2500):
            proxy.cut("down", after)
        append([rows], options(proxy.url, chunkSize="20", idColumn="key"), None)
        assert proxy.cut_so_far >= 3
    assert numbers(server) == Counter(range(200))


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize(
    "ids", [[None], ["5-1"], ["5-*"], [f"{MAX_ID}"]], ids=["generated", "own", "partial", "highest"]
)
def test_a_stream_that_has_used_its_last_id(server: Server, delivery: str, ids: list[str | None]) -> None:
    """The named error with its remedy, not the server's words; whatever ID the row has."""
    with server.client() as client:
        client.xadd("out", {"n": -1}, id=f"{MAX_ID}")
    rows = pa.RecordBatch.from_pydict({"n": [0] * len(ids), "key": pa.array(ids, pa.string())})
    checked = options(server.url, idColumn="key")
    with pytest.raises(IdsExhaustedError, match=r"stream 'out' at .* cannot take row 0 of this task: .*\(RENAME\)"):
        append([rows], checked, SinkTask(batch_of(0)) if delivery == "exactly-once" else None)
    assert numbers(server) == Counter([-1])


def test_the_highest_id_is_written_once_though_its_reply_is_lost(server: Server) -> None:
    rows = pa.RecordBatch.from_pydict({"n": [0], "key": [f"{MAX_ID}"]})
    with before_sending(b"XADD", act=reply_lost, times=1):
        append([rows], options(server.url, idColumn="key"), None)
    assert numbers(server) == Counter([0])


def test_a_pair_of_fields_that_is_null_is_not_written(server: Server) -> None:
    """As a column that is null; with nulls=empty both are written as an empty text. A row of nulls is no entry."""
    pairs = [[(b"a", b"1"), (b"b", None)], [(b"b", None), (b"c", b"")], None, [(b"a", None)]]
    maps = pa.array(pairs, pa.map_(pa.binary(), pa.binary()))
    batch = pa.RecordBatch.from_pydict({"_fields": maps, "n": pa.array([0, None, 2, 3], pa.int32())}).slice(1)
    append([batch], options(server.url), SinkTask(batch_of(0)))
    append([batch.slice(0, 1)], options(server.url, nulls="empty", stream="empty"), None)
    with server.client() as client:
        assert [fields for _, fields in client.xrange("out")] == [{b"c": b""}, {b"n": b"2"}, {b"n": b"3"}]
        assert [fields for _, fields in client.xrange("empty")] == [{b"b": b"", b"c": b"", b"n": b""}]
    with pytest.raises(SchemaError, match="row 0 of this task has only nulls"):
        append([pa.RecordBatch.from_pydict({"_fields": maps.slice(3)})], options(server.url), None)
