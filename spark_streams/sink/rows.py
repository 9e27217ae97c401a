"""What a server's error says about a row: the named error for the XADD that it refused."""

from __future__ import annotations

import hiredis
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.errors import EntryIdError, RStreamError
from spark_streams.ids import InvalidStreamId, StreamId
from spark_streams.sink.chunks import Chunk
from spark_streams.wire.connection import Connection, ReplyError

_ID_REFUSALS = ("ERR The ID specified in XADD", "ERR Invalid stream ID")


def errors_among(replies: bytes) -> list[tuple[int, str]]:
    """(position, text) of every error among replies back to back."""
    reader = hiredis.Reader(replyError=ReplyError)
    reader.feed(replies)
    found: list[tuple[int, str]] = []
    position = 0
    while (reply := reader.gets()) is not False:
        if isinstance(reply, ReplyError):
            found.append((position, str(reply)))
        position += 1
    return found


def error_of_row(server: Connection, chunk: Chunk, at: int, text: str) -> RStreamError:
    """The named error for the row at this place of the chunk."""
    stream, row = chunk.streams[chunk.codes[at]], int(chunk.rows[at])
    explicit = chunk.ids[at].as_py() if chunk.ids is not None else None
    if explicit is not None and text.startswith(_ID_REFUSALS):
        return id_refused(server, stream, row, explicit)
    return server.error_of(ReplyError(text), ("XADD", stream, f"(row {row} of this task)"))


def id_refused(server: Connection, stream: bytes, row: int, explicit: str) -> EntryIdError:
    """The row's id is not above what its stream has had."""
    return EntryIdError(
        f"row {row} of this task has the id {explicit!r}, which is not above the last one of stream "
        f"{stream.decode('utf-8', 'replace')!r} at {server.address}: ids rise in the order of the rows; sort by them "
        "in one partition, or leave column '_id' null"
    )


def first_not_above(ids: pa.Array, top: StreamId) -> int | None:
    """The place of the first id that is not above those before it, `top` first; ids that the server completes (null,
    `5-*`) are not looked at."""
    whole = pc.fill_null(pc.match_substring_regex(ids, r"^[0-9]+(-[0-9]+)?$"), False)
    places = pc.indices_nonzero(whole)
    parts = pc.extract_regex(ids.take(places), r"^(?P<ms>[0-9]+)-?(?P<seq>[0-9]*)$")
    try:
        ms = parts.field("ms").cast(pa.uint64()).to_numpy()
        seq = pc.if_else(pc.equal(parts.field("seq"), ""), "0", parts.field("seq")).cast(pa.uint64()).to_numpy()
    except pa.ArrowInvalid:
        return _first_beyond(ids)
    if len(ms) and StreamId(int(ms[0]), int(seq[0])) <= top:
        return int(places[0].as_py())
    falls = (ms[1:] < ms[:-1]) | ((ms[1:] == ms[:-1]) & (seq[1:] <= seq[:-1]))
    return int(places[int(falls.argmax()) + 1].as_py()) if falls.any() else None


def _first_beyond(ids: pa.Array) -> int | None:
    """The first one with a number beyond 64 bits."""
    for at, text in enumerate(ids.to_pylist()):
        try:
            StreamId.parse((text or "0").removesuffix("-*"))
        except InvalidStreamId:
            return at
    return None
