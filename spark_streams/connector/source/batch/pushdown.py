"""Turn Spark's filters on the metadata columns into a Narrowing. Pure: filter objects in, IDs out.

A narrowing may hold more than the filter keeps, never less, because Spark applies every filter again. Filters of other
kinds narrow nothing.

Texts and IDs have different orders ('5-10' < '5-9' as texts). Equality on the ID column names an entry. A range on the
ID column bounds the milliseconds only, and only among IDs with equally many digits (TextBound). The timestamp column
holds the ID's milliseconds; its filters come in microseconds.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Mapping

from spark_streams.base.ids import MIN_ID, U64_MAX, InvalidStreamId, StreamId
from spark_streams.base.numbers import parse_number
from spark_streams.connector.source.batch.stream_bounds import Narrowing, TextBound

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_NOTHING = Narrowing(ids=frozenset())
_TEXT_OF_ID = re.compile(r"([1-9][0-9]{0,19})(-.*)?", re.DOTALL)


def narrowing_of(filters: Iterable[object], columns: Mapping[str, str]) -> Narrowing:
    """Return the narrowing of all filters, joined by AND. filters: pyspark.sql.datasource.Filter; columns: name →
    `stream`, `id` or `timestamp`, for the columns that hold only that."""
    narrowing = Narrowing()
    for condition in filters:
        attribute: tuple[str, ...] = getattr(condition, "attribute", ())
        meaning = columns.get(attribute[0]) if len(attribute) == 1 else None
        if meaning is not None:
            narrower = _NARROWINGS[meaning](type(condition).__name__, getattr(condition, "value", None))
            narrowing = narrowing.meet(narrower)
    return narrowing


def _on_stream(kind: str, value: object) -> Narrowing:
    names = _values(kind, value)
    return Narrowing() if names is None else Narrowing(streams=frozenset(n for n in names if isinstance(n, str)))


def _on_id(kind: str, value: object) -> Narrowing:
    named = _values(kind, value)
    if named is not None:
        return Narrowing(ids=frozenset(entry_id for entry_id in map(_id_of, named) if entry_id is not None))
    match = _TEXT_OF_ID.fullmatch(value) if isinstance(value, str) else None
    prefix = None if match is None else parse_number(match[1])
    if match is None or prefix is None:
        return Narrowing()
    if kind in ("GreaterThan", "GreaterThanOrEqual"):
        return Narrowing(text=(TextBound(len(match[1]), lowest=prefix),))
    if kind in ("LessThan", "LessThanOrEqual"):
        return Narrowing(text=(TextBound(len(match[1]), highest=prefix),))
    return Narrowing()


def _on_timestamp(kind: str, value: object) -> Narrowing:
    moments = _values(kind, value)
    if moments is not None:
        micros = [_microseconds(moment) for moment in moments if moment is not None]
        exact = [moment // 1000 for moment in micros if moment is not None and moment % 1000 == 0 and moment >= 0]
        if None in micros:
            return Narrowing()
        return _between(min(exact), max(exact)) if exact else _NOTHING
    micro = _microseconds(value)
    if micro is None:
        return Narrowing()
    # The column has whole milliseconds: a bound between two of them is rounded to the millisecond inside.
    lowest = {"GreaterThan": micro // 1000 + 1, "GreaterThanOrEqual": -(-micro // 1000)}.get(kind, 0)
    highest = {"LessThan": -(-micro // 1000) - 1, "LessThanOrEqual": micro // 1000}.get(kind, U64_MAX)
    return _between(lowest, highest)


_NARROWINGS: Mapping[str, Callable[[str, object], Narrowing]] = {
    "stream": _on_stream,
    "id": _on_id,
    "timestamp": _on_timestamp,
}


def _values(kind: str, value: object) -> list[object] | None:
    """Return the values of an equality; None for another kind of filter. Spark evaluates a comparison with NULL."""
    if kind in ("EqualTo", "EqualNullSafe") and value is not None:
        return [value]
    return list(value) if kind == "In" and isinstance(value, tuple) else None


def _id_of(value: object) -> StreamId | None:
    """Return the ID with this text; None if no ID has this text (`5`, `05-0`)."""
    try:
        entry_id = StreamId.parse(value) if isinstance(value, str) else None
    except InvalidStreamId:
        return None
    return entry_id if entry_id is not None and str(entry_id) == value and entry_id > MIN_ID else None


def _microseconds(value: object) -> int | None:
    """Return microseconds since the epoch; None if the value is no moment (a time without a zone)."""
    if not isinstance(value, datetime.datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // datetime.timedelta(microseconds=1)


def _between(lowest: int, highest: int) -> Narrowing:
    """Return the narrowing to these milliseconds, both included."""
    if highest < 0 or lowest > U64_MAX:
        return _NOTHING
    after = StreamId(lowest, 0).previous() if lowest > 0 else MIN_ID
    return Narrowing(after=after, last=StreamId(min(highest, U64_MAX), U64_MAX))
