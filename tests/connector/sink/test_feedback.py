"""The sink's check that a query does not read what it writes, without Spark."""

from __future__ import annotations

import functools

import pyarrow as pa
import pytest

from spark_streams.connector.errors import InvalidOptionError
from spark_streams.connector.keys import MicroBatchName, origin_field, origins_key, retry_stream
from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.sink.chunk_writer import append
from spark_streams.connector.source.stream_names import report_pattern
from spark_streams.connector.wire.connect import connect
from tests.connector.deadletter.making import fill, record_origin
from tools.servers.server import Server

QUERY = MicroBatchName("q", 0, "run 1")
ROWS = [{"n": 1, "dl.stream": "a b", "dl.group": ""}, {"n": 2, "dl.stream": "a b", "dl.group": "g"}]


def reads(server: Server, pattern: str, batch: MicroBatchName = QUERY, **options: str) -> None:
    """Report that the query reads a pattern."""
    told = {"url": server.url, "streamsPattern": pattern, "group": "g", **options}
    source = SourceOptions.parse(told)
    with connect(source.address) as connection:
        report_pattern(connection, source, batch)


def write(
    server: Server, query: MicroBatchName | None = QUERY, letters: bool = False, rows: list[dict[str, object]] = ROWS,
    **options: str,
) -> int:  # fmt: skip
    checked = SinkOptions.parse({"url": server.url, "stream": "out", **options})
    return append([pa.RecordBatch.from_pylist(rows)], checked, None, query=query, letters=letters).rows


def origins(server: Server, stream: str) -> set[bytes]:
    with server.client() as client:
        return set(client.hkeys(origins_key(stream).decode()))


def test_origins_of_dead_letters_are_recorded_by_the_stream_of_each_row(server: Server) -> None:
    """Also without a query; not beside a stream in which entries wait for a retry."""
    waits = retry_stream("s", "g", 1)
    rows = [{**row, "to": to} for row, to in zip(ROWS * 2, (None, None, "dead", waits), strict=True)]
    write(server, None, letters=True, rows=rows, streamColumn="to")
    assert origins(server, "out") == {origin_field("a b", ""), origin_field("a b", "g")}
    assert origins(server, "dead") == {origin_field("a b", "")}
    assert origins(server, waits) == set()
    write(server, None, letters=False, stream="copy")
    assert origins(server, "copy") == set()


@pytest.mark.parametrize(
    ("pattern", "options"),
    [
        ("*", {"streamsExcept": "o*"}),
        ("*", {"mode": "DEADLETTER", "deadLetterStream": "out"}),
        ("in*", {}),
    ],
)
def test_a_stream_that_the_source_leaves_out_is_written(server: Server, pattern: str, options: dict[str, str]) -> None:
    reads(server, pattern, **options)
    assert write(server) == 2


def test_a_recorded_stream_of_dead_letters_is_written_and_one_that_is_not_recorded_is_refused(server: Server) -> None:
    """The source reads a stream that begins with a dead letter of which no query has recorded the origin."""
    reads(server, "o*")
    fill(server, 1, into="out", has_group=False)
    refused = functools.partial(pytest.raises, InvalidOptionError, match=r"'out'.*'o\*'.*streamsExcept=out$")
    for letters in (False, True):
        with refused():
            write(server, letters=letters)
    assert origins(server, "out") == set()
    with server.client() as client:
        record_origin(client, "out", "s", "g")
    assert write(server, letters=True) == 2


def test_another_run_and_another_query_are_not_asked(server: Server) -> None:
    """A later run may have another pattern; what a query writes, another one may read."""
    reads(server, "o*")
    assert write(server, QUERY._replace(query_run="run 2")) == 2
    assert write(server, QUERY._replace(query="p")) == 2
    assert write(server, None) == 2
    with pytest.raises(InvalidOptionError):
        write(server, QUERY._replace(query_run=""))  # Spark does not tell it


def test_each_source_of_a_query_is_asked(server: Server) -> None:
    reads(server, "in*", consumer="a")
    reads(server, "o*", consumer="b")
    reads(server, "in*", consumer="c")
    with pytest.raises(InvalidOptionError, match="streamsExcept=out"):
        write(server)
    with server.client() as client:
        assert client.xlen("out") == 0
