"""Page of a dead-letter stream as columns: the envelopes, and the original fields; and criteria for dead letters.

Arrow and numpy: no Python object is created per dead letter.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.base.given_text import duration, parse_assignment
from spark_streams.base.ids import MAX_ID, MIN_ID, U64_MAX, StreamId
from spark_streams.base.pattern import NamesAndPatterns
from spark_streams.connector.deadletter.envelope import FIELDS, NAMES, PREFIX, raw, text
from spark_streams.connector.deadletter.post import DEAD_LETTER_LIMITS, DeadLetterLimits, PageSize
from spark_streams.connector.deadletter.transform import (
    DeadLetter,
    Transform,
    call,
    encode_fields,
    without_mark,
)
from spark_streams.connector.errors import InvalidOptionError, StreamMissingError
from spark_streams.connector.wire.connection import ReplyError, ReplyTooLargeError, Server, pack
from spark_streams.connector.wire.entry_page import EntryPage, decode_entries
from spark_streams.connector.wire.lines import Index, Mask
from spark_streams.connector.wire.replies import is_no_such_key, milliseconds
from spark_streams.connector.wire.scan import hint_of_names, names_and_patterns
from spark_streams.connector.wire.session import Session
from spark_streams.connector.wire.xinfo import read_stream_state

KIND = ("stream", "stage", "reason", "error")
_PLACES = {name: place for place, name in enumerate(NAMES)}


class DeadLetterPage:
    """Rows are the entries of the page, in order. ids: binary, the dead letters' own IDs."""

    def __init__(self, entries: EntryPage) -> None:
        self.count = entries.count
        self.ids: pa.Array = entries.ids()
        self._entries = entries
        bounds, self._names, self._values = entries.fields()
        self._bounds: Index = bounds.to_numpy().astype(np.int64)
        self._where, self._tail = self._find_envelopes()
        self._columns: dict[str, pa.Array] = {}

    def _find_envelopes(self) -> tuple[npt.NDArray[np.int64], Index]:
        """Return (per name and row, the index of the envelope's field or -1; per row, the envelope's number of fields).

        The envelope is the longest tail of distinct names, as in envelope.open_envelope for one dead letter.
        """
        field_names = pa.array(FIELDS, pa.binary())
        place = pc.fill_null(pc.index_in(self._names, value_set=field_names), -1).to_numpy(zero_copy_only=False)
        place = np.append(place, -1)  # for rows without fields
        where = np.full((len(NAMES), self.count), -1, np.int64)
        tail = np.zeros(self.count, np.int64)
        rows = np.arange(self.count)
        seen = np.zeros(self.count, np.int64)
        for back in range(1, len(NAMES) + 1):
            positions = self._bounds[rows + 1] - back
            inside = positions >= self._bounds[rows]
            code = np.where(inside, place[np.maximum(positions, 0)], -1)
            is_field = (code >= 0) & ((seen[rows] >> np.maximum(code, 0)) & 1 == 0)
            rows, positions, code = rows[is_field], positions[is_field], code[is_field]
            where[code, rows] = positions
            seen[rows] |= 1 << code
            tail[rows] += 1
        return where, tail

    def envelope_column(self, name: str) -> pa.Array:
        """Return this field of the envelopes, binary; null if an envelope lacks it."""
        if name not in self._columns:
            positions = self._where[_PLACES[name]]
            self._columns[name] = self._values.take(pa.array(positions, mask=positions < 0))
        return self._columns[name]

    def kind(self) -> list[pa.Array]:
        """Return the columns by which dead letters are counted: KIND."""
        return [self.envelope_column(name) for name in KIND]

    def are_dead_letters(self) -> Mask:
        """Return which entries name the stream and the ID of their original entry."""
        mask: Mask = (self._where[_PLACES["stream"]] >= 0) & (self._where[_PLACES["id"]] >= 0)
        return mask

    def field(self, name: bytes) -> pa.Array:
        """Return the original field of this name, binary: null if there is none, the last one if there are several."""
        if not name.startswith(PREFIX.encode()):
            return self._entries.field(name)
        originals = self.originals(np.arange(self.count))
        pairs = pc.map_lookup(originals, pa.scalar(name, pa.binary()), "last")
        return pairs.cast(pa.binary())

    def originals(self, rows: Index) -> pa.MapArray:
        """Return map<binary, binary>: the original fields of these rows, in order and byte for byte."""
        return self._fields(rows, self._tail[rows])

    def all_fields(self, rows: Index) -> pa.MapArray:
        """Return the same with the envelope."""
        return self._fields(rows, np.zeros(len(rows), np.int64))

    def _fields(self, rows: Index, without: Index) -> pa.MapArray:
        begin, width = self._bounds[rows], self._bounds[rows + 1] - self._bounds[rows] - without
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(width, out=offsets[1:])
        positions = pa.array(np.arange(offsets[-1]) + np.repeat(begin - offsets[:-1], width))
        return pa.MapArray.from_arrays(
            pa.array(offsets.astype(np.int32)), self._names.take(positions), self._values.take(positions)
        )


def by_value(column: pa.Array, function: Callable[[str], int]) -> npt.NDArray[np.generic]:
    """Return the function's result for each row's text (empty for null); it is called once per distinct value."""
    coded = pc.fill_null(column, b"").dictionary_encode()
    results = np.array([function(text(value)) for value in coded.dictionary.to_pylist()])
    per_row: npt.NDArray[np.generic] = results[coded.indices.to_numpy()] if len(results) else np.empty(0)
    return per_row


T = TypeVar("T")


@dataclass(frozen=True)
class Criteria:
    """A dead letter must match all criteria that are set; of several texts for one name, any.

    Patterns are as in file names (* ? []). A reason also matches by the text before its colon: `decode` matches
    `decode: n does not fit INT`."""

    streams: tuple[str, ...] = ()  # names or Redis patterns for `dl.stream`
    reasons: tuple[str, ...] = ()  # patterns for `dl.reason`
    stages: tuple[str, ...] = ()  # patterns for `dl.stage`
    errors: tuple[str, ...] = ()  # patterns for `dl.error`
    fields: tuple[tuple[str, str], ...] = ()  # (name, value) of original fields
    first: StreamId = MIN_ID  # lowest ID of the dead letter itself
    last: StreamId = MAX_ID  # highest ID
    older: int | None = None  # minimum age in milliseconds
    newer: int | None = None  # maximum age
    ids: tuple[StreamId, ...] = ()  # own IDs; empty: any
    named: NamesAndPatterns | None = None  # `streams`, divided into streams that exist and patterns

    def range(self, now: int) -> tuple[StreamId, StreamId]:
        """Return (first, last) ID of dead letters that can match. now: the server's time, ms since the epoch."""
        first, last = self.first, self.last
        if self.newer is not None:
            first = max(first, StreamId(max(now - self.newer, 0), 0))
        if self.older is not None:
            last = min(last, StreamId(max(now - self.older, 0), 0))
        if self.ids:
            first, last = max(first, min(self.ids)), min(last, max(self.ids))
        return first, last

    def mask(self, page: DeadLetterPage) -> Mask:
        """Return per row whether it matches, without the range of IDs."""
        mask = np.ones(page.count, np.bool_)
        if self.streams:
            named = self.named or NamesAndPatterns.divide(self.streams, ())
            mask &= by_value(page.envelope_column("stream"), named.selects).astype(bool)
        patterns_of = {"reason": self.reasons, "stage": self.stages, "error": self.errors}
        for name, patterns in patterns_of.items():
            if patterns:
                mask &= by_value(page.envelope_column(name), partial(matches_value, name, patterns)).astype(bool)
        if self.ids:
            own = pc.is_in(page.ids, pa.array([bytes(entry) for entry in self.ids], page.ids.type))
            mask &= own.to_numpy(zero_copy_only=False)
        for name, value in self.fields:
            same = pc.equal(page.field(raw(name)), raw(value))
            mask &= pc.fill_null(same, False).to_numpy(zero_copy_only=False)
        return mask


def parse_criteria(
    streams: Sequence[str] = (),
    reasons: Sequence[str] = (),
    stages: Sequence[str] = (),
    errors: Sequence[str] = (),
    fields: Sequence[str] = (),
    first: str | None = None,
    last: str | None = None,
    older: str | None = None,
    newer: str | None = None,
    ids: Sequence[str] = (),
) -> Criteria:
    """Parse criteria from texts. fields: NAME=VALUE; first, last, ids: IDs; older, newer: `90m`, `7d`. Raises
    InvalidOptionError."""
    pairs = []
    for field in fields:
        pair = parse_assignment(field)
        if pair is None:
            raise InvalidOptionError(f"field {field[:100]!r} is not of the form NAME=VALUE")
        pairs.append(pair)
    return Criteria(
        tuple(streams),
        tuple(reasons),
        tuple(stages),
        tuple(errors),
        tuple(pairs),
        MIN_ID if first is None else _parsed("first id", StreamId.parse, first),
        MAX_ID if last is None else _parsed("last id", partial(StreamId.parse, missing_seq=U64_MAX), last),
        None if older is None else _parsed("older", duration, older),
        None if newer is None else _parsed("newer", duration, newer),
        tuple(_parsed("id", StreamId.parse, entry) for entry in ids),
    )


def _parsed(name: str, parse: Callable[[str], T], value: str) -> T:
    try:
        return parse(value)
    except ValueError as error:
        raise InvalidOptionError(f"{name}={value[:100]!r}: {error}") from None


def matches_value(name: str, patterns: Sequence[str], value: str) -> bool:
    """Whether a value of the envelope matches a pattern. A reason also matches by the text before `: `."""
    return matches(patterns, value) or (name == "reason" and matches(patterns, value.partition(": ")[0]))


def matches(patterns: Sequence[str], value: str) -> bool:
    """Whether the value equals one of the patterns, or matches one as a file name does."""
    return any(value == pattern or fnmatch.fnmatchcase(value, pattern) for pattern in patterns)


# -- read page by page, within a fixed range; memory does not depend on the number of dead letters ---------------------


@dataclass(frozen=True)
class Extent:
    first: StreamId  # included
    last: StreamId  # included
    length: int  # entries of the complete stream
    criteria: Criteria  # of dead letters; each stream is decided to be a name or a pattern


def extent(server: Server, stream: str | bytes, criteria: Criteria) -> Extent:
    """Return the range of the criteria, up to the stream's present last ID: later entries are not in it.

    Raises StreamMissingError, WrongKeyTypeError, ServerError.
    """
    clock, info = server.execute_all([("TIME",), ("XINFO", "STREAM", stream)], is_no_such_key)
    state = read_stream_state(server, stream, info)
    if not state.exists:
        name = stream if isinstance(stream, str) else stream.decode("utf-8", "backslashreplace")
        hint = hint_of_names(server, [name], "rstream dead list")
        raise StreamMissingError(f"no stream {name!r} at {server.address}; {hint}")
    first, last = criteria.range(milliseconds(clock))
    settled = replace(criteria, named=names_and_patterns(server, criteria.streams)) if criteria.streams else criteria
    return Extent(first, min(last, state.last), state.length, settled)


def read_page(
    server: Server, stream: str | bytes, first: StreamId, last: StreamId, size: PageSize, limit: int | None = None
) -> tuple[DeadLetterPage, int]:
    """Return (the page from `first` on, bytes of the reply). limit: dead letters that can be used. Raises
    ReplyTooLargeError, ServerError."""
    reply = request_page(server, stream, first, last, size.next(limit), size.limits.max_bytes)
    return DeadLetterPage(decode_entries(reply)), len(reply)


def request_page(
    server: Server, stream: str | bytes, first: StreamId, last: StreamId, count: int, max_bytes: int
) -> memoryview:
    """Return the reply to XRANGE. max_bytes: of the reply, unless it is a single entry. Raises ReplyTooLargeError,
    ServerError."""
    command = ("XRANGE", stream, bytes(first), bytes(last), "COUNT", count)
    node = server.connection_for(stream)
    node.request(pack(*command))
    reply = node.receive(None if count == 1 else max_bytes)
    if bytes(reply[:1]) == b"-":
        error = ReplyError(bytes(reply[1:500]).decode("utf-8", "replace").strip())
        raise node.error_of(error, command)
    return reply


def dead_letter_pages(
    session: Session,
    stream: str | bytes,
    within: Extent,
    limits: DeadLetterLimits = DEAD_LETTER_LIMITS,
) -> Iterator[tuple[DeadLetterPage, Index]]:
    """Yield all pages with the rows of matching dead letters, also pages without any. Raises ServerError."""
    size = PageSize(limits)
    first: StreamId | None = within.first
    while first is not None and first <= within.last:
        read = partial(read_page, stream=stream, first=first, last=within.last, size=size)
        page, received = run_with_smaller_pages(session, size, read)
        if not page.count:
            return
        rows: Index = np.flatnonzero(within.criteria.mask(page) & page.are_dead_letters())
        yield page, rows
        size.learn(page.count, received, len(rows))
        first = following(page.ids[page.count - 1].as_py())


def following(entry: bytes) -> StreamId | None:
    """Return the next ID; None if there is none."""
    parsed = StreamId.parse(entry)
    return None if parsed == MAX_ID else parsed.next()


def run_with_smaller_pages(session: Session, size: PageSize, step: Callable[[Server], T]) -> T:
    """Run a step that reads a page of this size. If the page was too large, run it again with a smaller one. Raises
    ServerError."""
    while True:
        try:
            return session.run(step)
        except ReplyTooLargeError:
            session.close()
            size.too_large()


# -- rows as objects, for a function of the user -----------------------------------------------------------------------


def repaired(transform: Transform, page: DeadLetterPage, rows: Index) -> tuple[Index, pa.MapArray]:
    """Return (the repaired rows, their new fields). Raises TransformError for the first dead letter at which the
    function fails."""
    kept: list[int] = []
    entries: list[list[tuple[bytes, bytes]]] = []
    for row, dead_letter in zip(rows.tolist(), dead_letters_of(page, rows), strict=True):
        where = f"dead letter {dead_letter.id}"
        fields = call(transform, dead_letter, where)
        if fields is not None:
            kept.append(row)
            entries.append(without_mark(encode_fields(fields, where), where))
    return np.array(kept, np.int64), pa.array(entries, pa.map_(pa.binary(), pa.binary()))


def dead_letters_of(page: DeadLetterPage, rows: Index) -> list[DeadLetter]:
    """Return these rows as objects."""
    indices = pa.array(rows)
    ids = page.ids.take(indices).to_pylist()
    originals = page.originals(rows).to_pylist()
    columns = {name: page.envelope_column(name).take(indices).to_pylist() for name in NAMES}
    return [
        DeadLetter(
            text(entry_id),
            [(text(name), text(value)) for name, value in fields],
            {name: text(values[row]) for name, values in columns.items() if values[row] is not None},
        )
        for row, (entry_id, fields) in enumerate(zip(ids, originals, strict=True))
    ]
