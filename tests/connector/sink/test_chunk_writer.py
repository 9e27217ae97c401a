"""Record batches appended to a stream, on both servers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import redis

from spark_streams.connector.errors import (
    IdsExhaustedError,
    SchemaError,
    ServerUnreachableError,
    UnsupportedError,
    WrongKeyTypeError,
)
from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.sink.batch import Batch
from spark_streams.connector.sink.batch_commit import begin_job, close_batch, run_name
from spark_streams.connector.sink.chunk_writer import SinkTask, append
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from tests.trimming import nodes_of_one_entry
from tools.sending import before_sending, in_turn
from tools.servers.server import Server, free_port


@pytest.fixture(params=["at-least-once", "exactly-once"])
def delivery(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def options(server: Server, **given: str) -> SinkOptions:
    return SinkOptions.parse({"url": server.url, "stream": "out", **given})


def write(server: Server, rows: dict[str, Any], delivery: str, **given: str) -> int:
    checked = options(server, **given)
    task = SinkTask(begin_job(checked.address)) if delivery == "exactly-once" else None
    return append([pa.RecordBatch.from_pydict(rows)], checked, task).rows


@pytest.fixture
def client(server: Server) -> redis.Redis:
    return server.client()


def test_rows_become_entries_in_their_order(server: Server, client: redis.Redis, delivery: str) -> None:
    assert write(server, {"n": list(range(1000)), "é": ["ü\r\n"] * 1000}, delivery, chunkSize="64") == 1000
    entries = client.xrange("out")
    assert [int(fields[b"n"]) for _, fields in entries] == list(range(1000))
    assert entries[0][1]["é".encode()] == "ü\r\n".encode()


def test_readers_see_all_of_a_chunk_or_nothing(server: Server, client: redis.Redis) -> None:
    """Also while half of its request is on its way, and if the connection breaks then."""
    seen = set()

    def break_in_the_middle(connection: Connection, request: bytes) -> None:
        connection.send(request[: len(request) // 2])
        seen.add(client.xlen("out"))
        raise connection.lost(None)

    def look(connection: Connection, request: bytes) -> None:
        seen.add(client.xlen("out"))

    acts = in_turn(break_in_the_middle, look, break_in_the_middle, *[look] * 20)
    with before_sending(b"EXEC", act=acts) as requests:
        write(server, {"n": list(range(100))}, "exactly-once", chunkSize="10")
    assert len(requests) >= 10
    assert len(seen) > 5
    assert {length % 10 for length in seen} == {0}


def test_nulls_are_left_out_or_written_empty(server: Server, client: redis.Redis, delivery: str) -> None:
    rows = {"a": [1, None], "b": ["x", "y"]}
    write(server, rows, delivery)
    write(server, rows, delivery, nulls="empty")
    assert [fields for _, fields in client.xrange("out")] == [
        {b"a": b"1", b"b": b"x"},
        {b"b": b"y"},
        {b"a": b"1", b"b": b"x"},
        {b"a": b"", b"b": b"y"},
    ]


def test_a_row_of_nulls_is_named_and_nothing_of_its_batch_is_written(
    server: Server, client: redis.Redis, delivery: str
) -> None:
    with pytest.raises(SchemaError, match="row 1 of this task has only nulls"):
        write(server, {"a": [1, None, 3]}, delivery)
    assert client.xlen("out") == 0


def test_the_stream_is_trimmed_as_it_grows(server: Server, client: redis.Redis, delivery: str) -> None:
    write(server, {"n": list(range(3000))}, delivery, maxlen="500", chunkSize="250")
    assert 500 <= client.xlen("out") < 700
    with nodes_of_one_entry(server):
        client.delete("out")
        write(server, {"n": list(range(3000))}, delivery, maxlen="500")
    assert client.xlen("out") == 500
    assert client.xinfo_stream("out")["last-entry"][1] == {b"n": b"2999"}


def test_a_key_of_another_type_is_named_and_untouched(server: Server, client: redis.Redis, delivery: str) -> None:
    client.set("out", "text")
    with pytest.raises(WrongKeyTypeError, match="key 'out' at .* holds another type than a stream"):
        write(server, {"n": [1]}, delivery)
    assert client.get("out") == b"text"


def test_what_the_server_refuses_is_traced_to_its_row(server: Server, client: redis.Redis, delivery: str) -> None:
    client.xadd("out", {"n": "top"}, id=f"{2**64 - 1}-{2**64 - 1}")
    with pytest.raises(IdsExhaustedError, match=r"stream 'out' at .* cannot take row 0 of this task: its last ID is"):
        write(server, {"n": [1, 2]}, delivery)


def test_no_server_is_one_clear_error() -> None:
    url = f"redis://:secret@127.0.0.1:{free_port()}"
    with pytest.raises(ServerUnreachableError, match="no stream server answers at redis://\\*\\*\\*@") as caught:
        Connection(Address.parse(url))
    assert "secret" not in str(caught.value)


def test_overwriting_is_refused(server: Server) -> None:
    from pyspark.sql.types import IntegerType, StructType

    from spark_streams.connector.sink.writers import BatchWriter

    with pytest.raises(UnsupportedError, match="stream 'out' cannot be overwritten"):
        BatchWriter(options(server), StructType().add("a", IntegerType()), overwrite=True)


def test_the_ledger_takes_the_bytes_that_the_page_says(redis_server: Server) -> None:
    """docs/reference/guarantees.md: between batches a key for each query and one for each stream; during a batch eight
    bytes a row more."""
    count, checked = 40_000, options(redis_server)
    batch = Batch("7c9e6679-7425-40de-944b-e07fc1f90ae7", 0, run_name(1), expires=False)

    def sizes(client: redis.Redis) -> list[int]:
        keys = sorted(client.keys("rstream:sink:*"))
        return [int(client.memory_usage(key, samples=0) or 0) for key in keys]

    with redis_server.client() as client:
        client.flushall()
        result = append([pa.RecordBatch.from_pydict({"n": list(range(count))})], checked, SinkTask(batch))
        assert sum(sizes(client)) == pytest.approx(8 * count, rel=0.05)
        close_batch(checked.address, batch, result.totals, 0)
        assert sizes(client) == pytest.approx([140, 170], rel=0.05)
