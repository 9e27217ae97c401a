"""Rows and requests that are larger than the server takes: it closes the connection, and the row is named at once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_streams.connector.errors import RowTooLargeError, SchemaError
from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.sink.chunk_writer import SinkTask, TaskResult, append
from spark_streams.connector.sink.chunks import Destination, encode_chunks
from spark_streams.connector.sink.row_errors import ServerLimits
from spark_streams.connector.wire.address import DEFAULT_PATIENCE
from spark_streams.connector.wire.connect import connect
from tests.connector.sink.writing import batch_of, close, numbers, options
from tools.servers.server import Server

MB = 1 << 20


@pytest.fixture(params=["exactly-once", "at-least-once"])
def delivery(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def limited(server: Server) -> Iterator[Server]:
    """A server that takes arguments of one megabyte, and requests of two."""
    with server.client() as client:
        before = {name: client.config_get(name)[name] for name in ("proto-max-bulk-len", "client-query-buffer-limit")}
        client.config_set("proto-max-bulk-len", MB)
        client.config_set("client-query-buffer-limit", 2 * MB)
        yield server
        for name, value in before.items():
            client.config_set(name, value)


@pytest.fixture
def unasked(redis_server: Server) -> Iterator[Server]:
    """The same for a user who may not ask what its limits are."""
    with redis_server.client() as admin:
        admin.flushall()
        admin.execute_command("ACL", "SETUSER", "plain", "reset", "on", ">pw", "~*", "+@all", "-@dangerous")
        admin.config_set("proto-max-bulk-len", MB)
        yield Server("redis", redis_server.url.replace("://", "://plain:pw@"))
        admin.config_set("proto-max-bulk-len", 512 * MB)
        admin.config_set("client-query-buffer-limit", 1024 * MB)
        admin.acl_deluser("plain")


def sizes(*of: int) -> pa.RecordBatch:
    """Rows with a text of these sizes."""
    return pa.RecordBatch.from_pydict({"n": list(range(len(of))), "text": ["x" * size for size in of]})


def put(checked: SinkOptions, rows: pa.RecordBatch, delivery: str) -> TaskResult:
    batch = batch_of(0)
    result = append([rows], checked, SinkTask(batch) if delivery == "exactly-once" else None)
    if delivery == "exactly-once":
        close(checked, batch, result)
    return result


def test_a_value_beyond_the_limit_is_named_with_its_row_size_and_limit(limited: Server, delivery: str) -> None:
    begun = time.monotonic()
    expected = (
        r"row 2 of this task has 15729\d\d bytes, with a value of 1572864 bytes in field 'text', for stream 'out', "
        r"but the server at .* "
        r"takes 1048576 \(proto-max-bulk-len\)"
    )
    with pytest.raises(RowTooLargeError, match=expected) as error:
        put(options(limited.url, chunkSize="2"), sizes(10, 10, MB + MB // 2, 10), delivery)
    assert isinstance(error.value, SchemaError)
    assert time.monotonic() - begun < DEFAULT_PATIENCE.limit / 2


def test_a_value_at_the_limit_is_written(limited: Server, delivery: str) -> None:
    put(options(limited.url), sizes(10, MB, MB - 1, 10), delivery)
    assert numbers(limited) == Counter(range(4))


def test_a_row_beyond_what_a_request_may_be_is_named(limited: Server, delivery: str) -> None:
    with limited.client() as client:
        client.config_set("proto-max-bulk-len", 512 * MB)
    with pytest.raises(RowTooLargeError, match=r"row 1 of this task has 3145\d{3} bytes.*2097152 \(client-query-"):
        put(options(limited.url), sizes(10, 3 * MB, 10), delivery)


def test_a_chunk_beyond_what_a_request_may_be_is_sent_in_pieces(limited: Server, delivery: str) -> None:
    """Many rows, none of them large: what waits in a transaction counts, too, on newer servers."""
    rows = sizes(*[50_000] * 160)
    checked = options(limited.url)
    limits = ServerLimits(checked.address)
    with connect(checked.address) as connection:
        limits.read_limits(connection)
    [whole] = encode_chunks([rows], Destination("out"), "omit", 5000, True)
    pieces = list(limits.split(whole))
    assert [row for piece in pieces for row in piece.rows.tolist()] == list(range(160))
    assert max(int(piece.requests.offsets[-1] - piece.requests.offsets[0]) for piece in pieces) <= MB
    put(checked, rows, delivery)
    assert numbers(limited) == Counter(range(160))


def test_where_the_limit_may_not_be_asked_for_what_is_not_beyond_it_is_written(unasked: Server, delivery: str) -> None:
    put(options(unasked.url), sizes(10, MB, *[50_000] * 100), delivery)
    assert numbers(unasked) == Counter(range(102))
