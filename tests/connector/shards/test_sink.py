"""The sink into shards: which shard, in which order, and once, whatever happens to tasks, drivers and connections."""

from __future__ import annotations

import random
import threading
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from spark_streams.connector.errors import InvalidOptionError, SchemaError
from spark_streams.connector.sink.chunk_writer import append
from spark_streams.connector.sink.chunks import Destination
from spark_streams.connector.wire.connection import Connection
from tests.connector.shards.making import Row, by_key, frame, sequence, sharded, shards_there
from tests.connector.shards.rule import shard_of
from tests.connector.sink.writing import KilledError, batch_of, close, dying, killed_before_chunk, options, write
from tools.sending import before_sending, killed, lost, reply_lost
from tools.servers.server import Server

ROWS = sequence(300, keys=30)
IN_ORDER = {f"k{key}": list(range(key, 300, 30)) for key in range(30)}


def test_each_key_is_in_one_shard_in_the_order_of_the_rows(server: Server) -> None:
    checked, batch = sharded(server.url, chunkSize="64"), batch_of(0)
    result = write([frame(ROWS[:100]), frame(ROWS[100:])], checked, batch)
    close(checked, batch, result)
    shards = shards_there(server)
    assert all(shards.values())
    assert by_key(shards) == IN_ORDER


def test_at_least_once_goes_to_the_same_shards(server: Server) -> None:
    checked = sharded(server.url, delivery="at-least-once", chunkSize="64")
    append([frame(ROWS)], checked, None)
    assert by_key(shards_there(server)) == IN_ORDER


def test_a_key_of_any_type_is_sharded_by_its_text(server: Server) -> None:
    """As it is written into the field; null as an empty key."""
    columns = {
        "number": (pa.array([7, -3], pa.int32()), ["7", "-3"]),
        "binary": (pa.array([b"\xc3\x86", b"x"], pa.binary()), ["Æ", "x"]),
        "flag": (pa.array([True, False]), ["true", "false"]),
        "time": (pa.array([datetime(2013, 1, 31, 10, tzinfo=UTC)] * 2, pa.timestamp("us", tz="UTC")),
                 ["2013-01-31T10:00:00.000000Z"] * 2),
        "list": (pa.array([[1, 2], []], pa.list_(pa.int64())), ["[1,2]", "[]"]),
        "null": (pa.array([None, ""], pa.string()), ["", ""]),
    }  # fmt: skip
    for name, (column, texts) in columns.items():
        checked = options(server.url, stream=name, shards="5", shardBy="key")
        rows = pa.RecordBatch.from_pydict({"key": column, "n": pa.array([0, 1])})
        Destination.from_options(checked).check_columns(rows.schema)
        append([rows], checked, None)
        with server.client(decode_responses=True) as client:
            for n, text in enumerate(texts):
                there = [fields["n"] for _, fields in client.xrange(shard_of(name, text, 5))]
                assert str(n) in there, (name, text)


def test_columns_that_do_not_fit(server: Server) -> None:
    to = Destination.from_options(options(server.url, shards="4", shardBy="kye"))
    with pytest.raises(InvalidOptionError, match="shardBy='kye' names a column .* Did you mean 'key'"):
        to.check_columns(frame(ROWS).schema)
    fields = pa.schema([("_fields", pa.map_(pa.string(), pa.string()))])
    with pytest.raises(SchemaError, match="holds several fields"):
        Destination.from_options(options(server.url, shards="4", shardBy="_fields")).check_columns(fields)


@pytest.mark.parametrize("chunk", [1, 2, 5, 9])
def test_a_task_that_is_killed_before_any_chunk_goes_on_in_order(server: Server, chunk: int) -> None:
    """The retry finds what is there, wherever the first attempt ended, and writes the rest behind it."""
    checked, batch = sharded(server.url, chunkSize="30"), batch_of(0)
    killed_before_chunk(chunk, [frame(ROWS[:150]), frame(ROWS[150:])], checked, batch)
    assert len([n for numbers in by_key(shards_there(server)).values() for n in numbers]) == 30 * (chunk - 1)
    close(checked, batch, write([frame(ROWS[:150]), frame(ROWS[150:])], checked, batch))
    assert by_key(shards_there(server)) == IN_ORDER


def test_connections_that_break_at_any_point_keep_the_order(server: Server) -> None:
    """Before EXEC is sent, and after it is carried out unheard, again and again."""
    checked, batch = sharded(server.url, chunkSize="10"), batch_of(0)
    chance = random.Random(7)

    def act(connection: Connection, request: bytes) -> None:
        if chance.random() < 0.3:
            chance.choice([lost, reply_lost])(connection, request)

    with before_sending(b"EXEC", act=act) as met:
        result = write([frame(ROWS)], checked, batch)
    assert len(met) > len(ROWS) / 10
    close(checked, batch, result)
    assert by_key(shards_there(server)) == IN_ORDER


def test_a_driver_that_is_killed_and_one_that_runs_the_batch_again_in_other_tasks(server: Server) -> None:
    """Tasks of the first run end anywhere; those of the second have other keys each."""
    checked, first = sharded(server.url, chunkSize="16"), batch_of(0)
    even = [row for row in ROWS if row[1] % 2 == 0]
    odd = [row for row in ROWS if row[1] % 2]
    for partition, rows in enumerate((even, odd)):
        with pytest.raises(KilledError):
            write(dying([frame(rows[: 40 + 50 * partition])]), checked, first, partition)
    again = batch_of(0)
    low = [row for row in ROWS if row[1] % 30 < 11]
    high = [row for row in ROWS if row[1] % 30 >= 11]
    close(checked, again, *[write([frame(rows)], checked, again, part) for part, rows in enumerate((low, high))])
    assert by_key(shards_there(server)) == IN_ORDER


def test_twins_side_by_side_keep_the_order(server: Server) -> None:
    """Attempts of one partition at once, with chunks of other sizes."""
    batch = batch_of(0)
    several = [sharded(server.url, chunkSize=size) for size in ("7", "10", "23")]
    results: list[object] = []
    threads = [
        threading.Thread(target=lambda checked=one: results.append(write([frame(ROWS)], checked, batch)))  # type: ignore[misc]
        for one in several
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == len(several)
    assert by_key(shards_there(server)) == IN_ORDER


def test_a_driver_that_is_killed_while_it_makes_the_shards(server: Server) -> None:
    """Whoever comes next makes those that are missing, and no group is left in them."""
    with pytest.raises(KilledError), before_sending(b"DESTROY", act=killed, times=1):
        sharded(server.url)
    sharded(server.url)
    with server.client(decode_responses=True) as client:
        for name in shards_there(server):
            told = client.xinfo_stream(name)
            assert (told["length"], told["groups"], told["last-generated-id"]) == (0, 0, "0-0")


def test_rows_with_ids_of_their_own(server: Server) -> None:
    checked, batch = sharded(server.url, idColumn="id"), batch_of(0)
    rows: list[Row] = ROWS[:60]
    ids = pa.array([f"{n + 1}-0" for _, n in rows])
    close(checked, batch, write([frame(rows).append_column("id", ids)], checked, batch))
    assert by_key(shards_there(server)) == {f"k{key}": [key, key + 30] for key in range(30)}
