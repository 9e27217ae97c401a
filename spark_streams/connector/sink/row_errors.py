"""Rows that a server does not take: named errors for refused XADDs, and limits of one argument or one request.

The writer asks for the limits (CONFIG GET) before its first large chunk. If the user may not read them, chunks are sent
unchecked: the server closes the connection if one exceeds a limit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.base.ids import MAX_ID, InvalidStreamId, StreamId
from spark_streams.connector.errors import EntryIdError, RowTooLargeError, RStreamError
from spark_streams.connector.sink.chunks import Chunk, cut
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import NAMES, SMALL, fetch_limits
from spark_streams.connector.wire.connection import ReplyError, Server, parse_replies
from spark_streams.connector.wire.named_errors import ids_exhausted
from spark_streams.connector.wire.replies import (
    ID_TOO_LOW,
    IDS_EXHAUSTED,
    is_exhausted,
    is_id_form_unknown,
    is_id_refusal,
)
from spark_streams.connector.wire.xinfo import stream_states

_ROWS_PER_REQUEST = 200  # entries may be large


def error_of_row(server: Server, chunk: Chunk, place: int, refusal: ReplyError) -> RStreamError:
    """Return the named error for the row at this index of the chunk, whose XADD was refused with `refusal`."""
    stream, row = chunk.streams[chunk.codes[place]], int(chunk.rows[place])
    if is_exhausted(refusal):
        return ids_exhausted(server.address, stream.decode("utf-8", "replace"), f"row {row} of this task")
    if chunk.ids is not None and refuses_own_id(chunk, place, refusal):
        own_id = chunk.ids.values[place].as_py()
        if own_id.endswith("-*") and is_id_form_unknown(refusal):
            return EntryIdError(
                f"row {row} of this task has the ID {own_id!r}, but the server at {server.address} cannot complete it "
                f"(Redis before 7.0). Write <milliseconds>-<sequence> into column {chunk.ids.column!r}, or null"
            )
        return EntryIdError(
            f"row {row} of this task has the ID {own_id!r}, which is not above the last ID of stream "
            f"{stream.decode('utf-8', 'replace')!r} at {server.address}. IDs must rise in the order of the rows, and a "
            "replay with delivery=at-least-once finds its rows only by complete IDs and the same fields. Sort the rows "
            f"by ID in one partition, or leave column {chunk.ids.column!r} null"
        )
    return server.error_of(refusal, ("XADD", stream, f"(row {row} of this task)"))


def id_refused(server: Server, chunk: Chunk, place: int) -> RStreamError:
    """Return the named error for a row whose ID the server would refuse."""
    stream = chunk.streams[chunk.codes[place]]
    state = stream_states(server, [stream])[stream]
    has_own_id = chunk.ids is not None and chunk.ids.values[place].is_valid
    is_full = not has_own_id or state.last == MAX_ID
    return error_of_row(server, chunk, place, ReplyError(IDS_EXHAUSTED if is_full else ID_TOO_LOW))


def first_unwritten(server: Server, chunk: Chunk) -> int | None:
    """Return the index of the first row that its stream does not hold under its ID with the same fields. Raises
    ServerError."""
    for start in range(0, len(chunk), _ROWS_PER_REQUEST):
        page = chunk.slice(start, min(start + _ROWS_PER_REQUEST, len(chunk)))
        commands = [words_of(page, place) for place in range(len(page))]
        ids = [None if words[2].endswith(b"*") else StreamId.parse(words[2]) for words in commands]
        bounds = [bytes(entry) if entry is not None else b"+" for entry in ids]
        replies = server.execute_all([
            ("XRANGE", words[1], entry, entry, "COUNT", 1) for words, entry in zip(commands, bounds, strict=True)
        ])  # fmt: skip
        for place, (words, entry, entries) in enumerate(zip(commands, ids, replies, strict=True)):
            if entry is None or not entries or entries[0][1] != words[3:]:
                return start + place
    return None


def words_of(chunk: Chunk, place: int) -> list[bytes]:
    """Return the command of one row: XADD, stream, ID, fields and values."""
    words: list[bytes] = parse_replies(chunk.requests.slice(place, place + 1))[0]  # a request looks like such a reply
    return words


def split_after_generated_ids(chunk: Chunk) -> Iterator[Chunk]:
    """Yield the chunk in pieces in which no explicit ID follows an ID that the server generates. So the task can check
    before it sends a piece whether the server will accept its IDs."""
    if chunk.ids is None or not chunk.ids.values.null_count:
        yield chunk
        return
    valid = chunk.ids.values.is_valid().to_numpy(zero_copy_only=False)
    follows = valid[1:] & ~valid[:-1] & (chunk.codes[1:] == chunk.codes[:-1])
    cuts = [0, *(np.flatnonzero(follows) + 1).tolist(), len(chunk)]
    yield from (chunk.slice(start, stop) for start, stop in itertools.pairwise(cuts))


def first_refused(ids: pa.Array, top: StreamId) -> int | None:
    """Return the index of the first ID that a stream with the last ID `top` would refuse. Null IDs, which the server
    generates, may only be at the end, because the task does not know the server's clock."""
    if top == MAX_ID:
        return 0 if len(ids) else None
    if pc.any(pc.ends_with(ids, "-*")).as_py():
        return _first_refused_of_partial(ids.to_pylist(), top)
    explicit = ids.drop_null()
    parts = pc.extract_regex(explicit, r"^(?P<ms>[0-9]+)-?(?P<seq>[0-9]*)$")
    try:
        ms = parts.field("ms").cast(pa.uint64()).to_numpy()
        seq = pc.if_else(pc.equal(parts.field("seq"), ""), "0", parts.field("seq")).cast(pa.uint64()).to_numpy()
    except pa.ArrowInvalid:
        return _first_refused_of_partial(explicit.to_pylist(), top)
    if len(ms) and StreamId(int(ms[0]), int(seq[0])) <= top:
        return 0
    falls = (ms[1:] < ms[:-1]) | ((ms[1:] == ms[:-1]) & (seq[1:] <= seq[:-1]))
    if falls.any():
        return int(falls.argmax()) + 1
    is_last = len(ms) and (int(ms[-1]), int(seq[-1])) == MAX_ID
    return len(explicit) if is_last and len(explicit) < len(ids) else None


def _first_refused_of_partial(ids: Sequence[str | None], top: StreamId) -> int | None:
    """The same for IDs whose sequence the server generates (`5-*`), or with numbers beyond 64 bits."""
    for place, text in enumerate(ids):
        if text is None:
            return None
        try:
            if text.endswith("-*"):
                entry_id = StreamId.parse(text.removesuffix("-*"))
                entry_id = top.next() if entry_id.ms == top.ms else entry_id
                if entry_id.ms != int(text.removesuffix("-*")):
                    return place
            else:
                entry_id = StreamId.parse(text)
        except InvalidStreamId:
            return place
        if entry_id <= top:
            return place
        top = entry_id
    return None


def refuses_own_id(chunk: Chunk, place: int, refusal: ReplyError) -> bool:
    """Whether a row was refused because its explicit ID is not above the IDs before it."""
    has_own_id = chunk.ids is not None and chunk.ids.values[place].is_valid
    return has_own_id and (is_id_refusal(refusal) or is_exhausted(refusal))


class ServerLimits:
    """Limits of the server, as far as a task knows them."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._limits: tuple[int, int] | None = None  # bytes of an argument, and of a request
        self._is_asked = False

    def needs_limits(self, chunk: Chunk) -> bool:
        """Whether the chunk is large, and the task has not asked for the limits yet."""
        return not self._is_asked and _bytes(chunk) > SMALL

    def read_limits(self, server: Server) -> None:
        """Read the limits, if the user may. Raises ServerError."""
        self._limits, self._is_asked = fetch_limits(server), True

    def split(self, chunk: Chunk) -> Iterator[Chunk]:
        """Yield the same rows in requests within the limits. Raises RowTooLargeError for a row beyond them."""
        if self._limits is None or _bytes(chunk) <= SMALL:
            yield chunk
            return
        argument, request = self._limits
        for place in np.flatnonzero(np.diff(chunk.requests.offsets) > min(argument, request)).tolist():
            row = chunk.slice(place, place + 1)
            if largest_value(row)[1] > argument:
                raise self._too_large(row, f"takes {argument} ({NAMES[0]})")
            if _bytes(row) > request:
                raise self._too_large(row, f"takes {request} ({NAMES[1]})")
        # The other half is for marks, and for other bytes that the server counts.
        yield from cut(chunk, len(chunk), request // 2)

    def _too_large(self, chunk: Chunk, cause: str) -> RowTooLargeError:
        field, size = largest_value(chunk)
        stream = chunk.streams[chunk.codes[0]].decode("utf-8", "replace")
        return RowTooLargeError(
            f"row {int(chunk.rows[0])} of this task has {_bytes(chunk)} bytes, with a value of {size} bytes in field "
            f"{field[:80].decode('utf-8', 'replace')!r}, for stream {stream!r}, but the server at "
            f"{self._address} {cause}. Raise this limit, write less, or send such rows elsewhere with "
            "route_dead_letters"
        )


def largest_value(row: Chunk) -> tuple[bytes, int]:
    """Return (the field, the size in bytes) of the largest value of one row."""
    words = words_of(row, 0)
    index = max(range(1, len(words)), key=lambda place: len(words[place]))
    return words[index - 1], len(words[index])


def _bytes(chunk: Chunk) -> int:
    offsets = chunk.requests.offsets
    return int(offsets[-1] - offsets[0])
