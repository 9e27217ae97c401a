"""Page of a dead-letter stream as columns: the envelopes, and the original fields; and criteria for dead letters.

Pure: Arrow and numpy. No Python object is created per dead letter.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.base.given_text import duration, parse_assignment
from spark_streams.base.ids import MAX_ID, MIN_ID, U64_MAX, StreamId
from spark_streams.base.pattern import NamesAndPatterns
from spark_streams.connector.deadletter.counts import KindCounts
from spark_streams.connector.deadletter.envelope import FIELDS, NAMES, PREFIX, raw, text
from spark_streams.connector.errors import InvalidOptionError
from spark_streams.connector.wire.entries.entry_page import EntryPage
from spark_streams.connector.wire.entries.lines import Index, Mask

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

_LISTED = 10  # values in a message


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


def explain_no_match(stream: str, criteria: Criteria, counts: KindCounts) -> str:
    """Return a sentence that says why no dead letter matches. counts: all dead letters of the stream, by KIND."""
    if not counts.letters:
        return f"{stream} holds no dead letters. To list streams with dead letters: rstream dead list"
    patterns_of = {
        "stream": criteria.streams, "stage": criteria.stages, "reason": criteria.reasons, "error": criteria.errors
    }  # fmt: skip
    for name, patterns in patterns_of.items():
        values: Counter[str] = Counter()
        for kind, count in counts:
            values[kind[KIND.index(name)]] += count.letters
        if patterns and not any(matches_value(name, patterns, value) for value in values):
            shown = " or ".join(map(repr, patterns))
            return f"no dead letter of {stream} has {name} {shown}. It has: {_listed(values)}"
    return (
        f"none of the {counts.letters:,} dead letters of {stream} matches all criteria. To count them by kind: rstream "
        f"dead list {stream}"
    )


def _listed(values: Counter[str]) -> str:
    named = [f"{value or '(none)'} ({count:,})" for value, count in values.most_common(_LISTED)]
    more = len(values) - len(named)
    return ", ".join(named) + (f" and {more:,} more" if more else "")
