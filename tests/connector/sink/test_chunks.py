"""Where rows go and under which ids: only where an option says so, never because of a column's name."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, DataType, IntegerType, MapType, StringType, StructType, TimestampType

from spark_streams.connector.errors import RStreamError, SchemaError
from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.sink import writers
from spark_streams.connector.sink.chunks import Chunk, Destination, encode_chunks
from spark_streams.connector.sink.fields import text_columns
from spark_streams.connector.sink.writers import BatchWriter, StreamWriter
from spark_streams.connector.wire.connection import parse_replies

# Metadata columns as the source gives them, beside fields.
ROWS = pa.RecordBatch.from_pydict(
    {
        "n": pa.array([1, 2, 3], pa.int64()),
        "_stream": pa.array(["b", "a", None]),
        "_fields": pa.array([[("k", "v")], [], None], pa.map_(pa.string(), pa.string())),
        "_id": pa.array(["5-1", None, "7"]),
        "text": pa.array(["x", None, "ü"]),
    }
)
# What version 0.1 wrote into its ledger for these rows, whose `_stream` and `_id` it used because of their names.
FINGERPRINTS = [0x7EA5270645E80733, 0x7EBBFEED6C232B7A, 0x35C8E0131DE6E2D1]


@pytest.fixture(autouse=True)
def no_server_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at here is looked at before the server is."""
    monkeypatch.setattr(writers, "connect_once", lambda address, is_known, ready: None)


def single_chunk(rows: pa.RecordBatch, to: Destination) -> Chunk:
    (chunk,) = encode_chunks([rows], to, "omit", 100, fingerprints=True)
    return chunk


def commands(chunk: Chunk) -> list[list[bytes]]:
    return parse_replies(chunk.requests.slice(0, len(chunk)))  # a request looks like such a reply


TYPES: dict[str, DataType] = {
    "n": IntegerType(),
    "_deliveries": IntegerType(),
    "_timestamp": TimestampType(),
    "_fields": MapType(BinaryType(), BinaryType()),
}


def rows_of(columns: str) -> StructType:
    """Columns by their names, separated by commas; strings where TYPES does not say otherwise."""
    schema = StructType()
    for name in columns.split(", "):
        schema.add(name, TYPES.get(name, StringType()))
    return schema


def sink_options(**given: str) -> SinkOptions:
    """At least once: no server is asked."""
    return SinkOptions.parse({"url": "redis://h", "delivery": "at-least-once", **given})


def refused(columns: str, **given: str) -> str:
    """What both writers say to such rows."""
    told = set()
    for writer in (BatchWriter, StreamWriter):
        with pytest.raises(RStreamError) as caught:
            writer(sink_options(**given), rows_of(columns), False)
        told.add(str(caught.value))
    (message,) = told
    assert "\n" not in message
    return message


def accepted(columns: str, **given: str) -> None:
    BatchWriter(sink_options(**given), rows_of(columns), False)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_metadata_column_that_no_option_names_is_refused_with_both_ways_out() -> None:
    assert refused("n, _stream", stream="out") == (
        "[RSTREAM_SCHEMA] column '_stream' begins with '_', which is reserved for the source's columns. Drop it "
        '(`.drop("_stream")`), rename it, or set `.option("streamColumn", "_stream")` to send each row to the stream '
        "it names"
    )
    assert refused("n, _id", stream="out") == (
        "[RSTREAM_SCHEMA] column '_id' begins with '_', which is reserved for the source's columns. Drop it "
        '(`.drop("_id")`), rename it, or set `.option("idColumn", "_id")` to write each row under the id it names'
    )


def test_all_columns_that_cannot_be_written_are_named_at_once() -> None:
    """So that nobody starts Spark four times to learn of four columns."""
    columns = "n, _stream, _id, _timestamp, _deliveries, _fields"
    told = refused(columns, stream="out")
    assert "columns '_stream', '_id', '_timestamp', '_deliveries' begin with '_'" in told
    assert '`.drop("_stream", "_id", "_timestamp", "_deliveries")`' in told
    told = refused(columns, streamColumn="_stream", idColumn="_id")
    assert told.endswith('Drop them (`.drop("_timestamp", "_deliveries")`), or rename them')


def test_a_name_that_is_given_is_no_leave_for_the_others() -> None:
    assert "column '_id' begins with '_'" in refused("n, _stream, _id", streamColumn="_stream")
    assert "column '_stream' begins with '_'" in refused("n, _stream, to", streamColumn="to")


def test_where_nothing_says_where_rows_go_the_message_names_both_options() -> None:
    nowhere = "[RSTREAM_INVALID_OPTION] neither option stream nor streamColumn is set, so rows have no stream. "
    assert refused("n, _stream") == (
        f"{nowhere}Set option stream and drop column '_stream', or set "
        '`.option("streamColumn", "_stream")` to send each row to the stream it names'
    )
    assert refused("n, target") == (
        f"{nowhere}Set option stream to a stream, or streamColumn to a column with the stream of each row"
    )
    assert refused("n, id", idColumn="id").startswith(nowhere)


@pytest.mark.parametrize("option", ["streamColumn", "idColumn"])
def test_a_column_that_is_not_there_or_no_string_is_named(option: str) -> None:
    assert refused("n, target", stream="out", **{option: "Traget"}) == (
        f"[RSTREAM_INVALID_OPTION] sink option {option}='Traget' names a column that the rows do not have. Did you "
        f"mean 'target'? They have n, target (rstream help options#{option})"
    )
    assert refused("n, target", stream="out", **{option: "n"}) == (
        f"[RSTREAM_SCHEMA] column 'n', which option {option} names, must be a string, not int32. Cast it"
    )
    assert "the rows have 2 columns 'a'" in refused("a, n, a", stream="out", **{option: "a"})


def test_a_row_needs_a_field_beside_its_place() -> None:
    told = refused("target, key", streamColumn="target", idColumn="key")
    assert told.endswith("Select at least one column beside 'target' and 'key'")


def test_any_name_will_do() -> None:
    accepted("n, target", streamColumn="target")
    accepted("n, _to here, dl.id", stream="out", streamColumn="_to here", idColumn="dl.id")
    accepted("n, _stream, _id", streamColumn="_stream", idColumn="_id")
    # `_fields` is written field by field, as ever; a string of that name is a column like any other.
    accepted("_fields", stream="out")
    BatchWriter(sink_options(streamColumn="_fields"), rows_of("n").add("_fields", StringType()), False)
    with pytest.raises(SchemaError, match="column '_fields' begins with '_'"):
        BatchWriter(sink_options(stream="out"), rows_of("n").add("_fields", StringType()), False)


# -- what is written ---------------------------------------------------------------------------------------------------


def test_named_columns_say_where_a_row_goes_and_are_no_fields() -> None:
    chunk = single_chunk(ROWS, Destination("out", "_stream", "_id"))
    assert commands(chunk) == [
        [b"XADD", b"b", b"5-1", b"k", b"v", b"n", b"1", b"text", b"x"],
        [b"XADD", b"a", b"*", b"n", b"2"],
        [b"XADD", b"out", b"7", b"n", b"3", b"text", "ü".encode()],
    ]
    assert [part.ids and part.ids.column for part in (chunk, chunk.slice(1, 2))] == ["_id", "_id"]


def test_a_column_that_is_not_named_is_a_field() -> None:
    """Also beside one that is: only names in options count."""
    rows = pa.RecordBatch.from_pydict({"n": [1], "stream": ["b"], "id": ["5-1"], "target": ["c"]})
    here = [b"n", b"1", b"stream", b"b", b"id", b"5-1"]
    assert commands(single_chunk(rows, Destination("out"))) == [[b"XADD", b"out", b"*", *here, b"target", b"c"]]
    assert commands(single_chunk(rows, Destination("out", "target"))) == [[b"XADD", b"c", b"*", *here]]


@pytest.mark.parametrize("names", [("_stream", "_id"), ("target", "key")])
def test_a_row_has_the_fingerprint_that_version_0_1_gave_it(names: tuple[str, str]) -> None:
    """By that a batch which it has written is recognised when it is replayed under the option's name."""
    stream, entry = names
    rows = ROWS.rename_columns({"_stream": stream, "_id": entry})
    hashes = single_chunk(rows, Destination("out", stream, entry)).hashes
    assert hashes is not None
    assert hashes.tolist() == FINGERPRINTS


def test_a_string_called_fields_can_name_the_stream() -> None:
    rows = pa.RecordBatch.from_pydict({"n": [1], "_fields": ["s"]})
    assert text_columns(rows, "omit", ("_fields",)).first is None
    assert commands(single_chunk(rows, Destination(None, "_fields"))) == [[b"XADD", b"s", b"*", b"n", b"1"]]


def test_a_row_that_names_no_stream_is_an_error_without_option_stream() -> None:
    with pytest.raises(SchemaError, match="row 2 of this task names no stream in column '_stream'. Fill the column"):
        single_chunk(ROWS, Destination(None, "_stream", "_id"))
