"""What a server's error says about a row: the named error for the XADD that it refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.errors import EntryIdError, RStreamError
from spark_streams.model.ids import MAX_ID, InvalidStreamId, StreamId
from spark_streams.sink.encode.chunks import Chunk
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.replies import parse_replies
from spark_streams.wire.replies.reply_errors import ID_TOO_LOW, IDS_EXHAUSTED, is_id_form_unknown, is_id_refusal

_LOOKED_FOR = 200  # rows in one round trip: entries may be large


def error_of_row(server: Server, chunk: Chunk, place: int, refusal: ReplyError) -> RStreamError:
    """The named error for the row at this place of the chunk, whose XADD was answered with `refusal`."""
    stream, row = chunk.streams[chunk.codes[place]], int(chunk.rows[place])
    if chunk.ids is not None and refuses_own_id(chunk, place, refusal):
        own_id = chunk.ids.values[place].as_py()
        if own_id.endswith("-*") and is_id_form_unknown(refusal):
            return EntryIdError(
                f"row {row} of this task has the id {own_id!r}, and the server at {server.address} makes no sequence "
                f"to a time (Redis before 7.0): write <milliseconds>-<sequence> into column {chunk.ids.column!r}, or "
                "leave it null"
            )
        return _id_refused(server, stream, row, own_id, chunk.ids.column)
    return server.error_of(refusal, ("XADD", stream, f"(row {row} of this task)"))


def id_refused(server: Server, chunk: Chunk, place: int) -> RStreamError:
    """The named error for a row whose id would be refused: as if the server had been asked."""
    has_own_id = chunk.ids is not None and chunk.ids.values[place].is_valid
    return error_of_row(server, chunk, place, ReplyError(ID_TOO_LOW if has_own_id else IDS_EXHAUSTED))


def _id_refused(server: Server, stream: bytes, row: int, explicit: str, column: str | None) -> EntryIdError:
    return EntryIdError(
        f"row {row} of this task has the id {explicit!r}, which is not above the last one of stream "
        f"{stream.decode('utf-8', 'replace')!r} at {server.address}: ids rise in the order of the rows; sort by them "
        f"in one partition, or leave column {column!r} null"
    )


def first_unwritten(server: Server, chunk: Chunk) -> int | None:
    """The place of the first row that its stream does not hold under its id, as it is. Raises ServerError."""
    for start in range(0, len(chunk), _LOOKED_FOR):
        page = chunk.slice(start, min(start + _LOOKED_FOR, len(chunk)))
        wanted = [words_of(page, place) for place in range(len(page))]
        ids = [None if words[2].endswith(b"*") else StreamId.parse(words[2]) for words in wanted]
        asked = [bytes(entry) if entry is not None else b"+" for entry in ids]
        replies = server.execute_all([
            ("XRANGE", words[1], entry, entry, "COUNT", 1) for words, entry in zip(wanted, asked, strict=True)
        ])  # fmt: skip
        for place, (words, entry, entries) in enumerate(zip(wanted, ids, replies, strict=True)):
            if entry is None or not entries or entries[0][1] != words[3:]:
                return start + place
    return None


def words_of(chunk: Chunk, place: int) -> list[bytes]:
    """The command of one row: XADD, stream, id, fields and values."""
    words: list[bytes] = parse_replies(chunk.requests.slice(place, place + 1))[0]  # a request looks like such a reply
    return words


def with_known_tops(chunk: Chunk) -> Iterator[Chunk]:
    """In pieces, so that no id of a row follows one that the server makes: of each it can be told before whether the
    server will take it."""
    if chunk.ids is None or not chunk.ids.values.null_count:
        yield chunk
        return
    valid = chunk.ids.values.is_valid().to_numpy(zero_copy_only=False)
    follows = valid[1:] & ~valid[:-1] & (chunk.codes[1:] == chunk.codes[:-1])
    cuts = [0, *(np.flatnonzero(follows) + 1).tolist(), len(chunk)]
    yield from (chunk.slice(start, stop) for start, stop in itertools.pairwise(cuts))


def first_refused(ids: pa.Array, top: StreamId) -> int | None:
    """The place of the first id that a stream whose last one is `top` would refuse. Null ids, which the server makes,
    may only stand at the end: where its clock is nobody else knows."""
    if top == MAX_ID:
        return 0 if len(ids) else None
    if pc.any(pc.ends_with(ids, "-*")).as_py():
        return _first_refused_of_partial(ids.to_pylist(), top)
    whole = ids.drop_null()
    parts = pc.extract_regex(whole, r"^(?P<ms>[0-9]+)-?(?P<seq>[0-9]*)$")
    try:
        ms = parts.field("ms").cast(pa.uint64()).to_numpy()
        seq = pc.if_else(pc.equal(parts.field("seq"), ""), "0", parts.field("seq")).cast(pa.uint64()).to_numpy()
    except pa.ArrowInvalid:
        return _first_refused_of_partial(whole.to_pylist(), top)
    if len(ms) and StreamId(int(ms[0]), int(seq[0])) <= top:
        return 0
    falls = (ms[1:] < ms[:-1]) | ((ms[1:] == ms[:-1]) & (seq[1:] <= seq[:-1]))
    if falls.any():
        return int(falls.argmax()) + 1
    is_last = len(ms) and (int(ms[-1]), int(seq[-1])) == MAX_ID
    return len(whole) if is_last and len(whole) < len(ids) else None


def _first_refused_of_partial(ids: Sequence[str | None], top: StreamId) -> int | None:
    """The same for ids whose sequence the server is to find (`5-*`), or with numbers beyond 64 bits."""
    for place, text in enumerate(ids):
        if text is None:
            return None
        try:
            if text.endswith("-*"):
                given = StreamId.parse(text.removesuffix("-*"))
                given = top.next() if given.ms == top.ms else given
                if given.ms != int(text.removesuffix("-*")):
                    return place
            else:
                given = StreamId.parse(text)
        except InvalidStreamId:
            return place
        if given <= top:
            return place
        top = given
    return None


def refuses_own_id(chunk: Chunk, place: int, refusal: ReplyError) -> bool:
    """Whether a row was refused because the id that it brings along is not above those before it."""
    return chunk.ids is not None and chunk.ids.values[place].is_valid and is_id_refusal(refusal)
