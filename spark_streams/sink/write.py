"""Record batches to pipelined XADDs: encoded whole, sent in chunks, trimmed once a chunk (FACTS A3, R7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from spark_streams.errors import SchemaError
from spark_streams.options import Options
from spark_streams.sink.fields import text_columns
from spark_streams.wire.connection import Connection, ReplyError, pack
from spark_streams.wire.encode import Requests, encode_xadd
from spark_streams.wire.replies import first_error


def append(server: Connection, batches: Iterable[pa.RecordBatch], options: Options) -> int:
    """Append every row to the stream and return how many; each chunk is answered before the next one is sent.

    Raises SchemaError for a row that cannot be an entry, ServerReplyError (or kin) for what the server refused: the
    entries of a chunk before the refused one are written.
    """
    stream: str = options["stream"]
    written = 0
    for batch in batches:
        fields = text_columns(batch, options["nulls"])
        requests, filled = encode_xadd(stream.encode(), fields.names, fields.values, fields.first)
        _refuse_empty(filled, written)
        for start, stop in _chunks(len(requests), options["chunkSize"]):
            _send(server, requests, start, stop, options, written)
            written += stop - start
    return written


def _chunks(rows: int, size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, rows, size):
        yield start, min(start + size, rows)


def _send(server: Connection, requests: Requests, start: int, stop: int, options: Options, before: int) -> None:
    stream, maxlen = options["stream"], options["maxlen"]
    server.send(requests.slice(start, stop))
    trim = pack("XTRIM", stream, "MAXLEN", "~" if options["approximate"] else "=", maxlen) if maxlen else b""
    server.request(trim)
    error = first_error(server.receive())
    if error is None:
        return
    at, text = error
    if at == stop - start:
        raise server.error_of(ReplyError(text), ("XTRIM", stream, "MAXLEN", str(maxlen)))
    raise server.error_of(ReplyError(text), ("XADD", stream, f"(row {before + at} of this task)"))


def _refuse_empty(fields: pa.Array, before: int) -> None:
    empty = np.flatnonzero(fields.to_numpy() == 0)
    if len(empty):
        raise SchemaError(
            f"row {before + int(empty[0])} of this task has only nulls, and an entry needs a field; "
            "filter such rows out, or set nulls=empty"
        )
