"""Spark's filters on the metadata columns to a Narrowing of what is read. Pure: filter objects in, ids out.

A narrowing may leave more than the filter keeps, never less; Spark applies every filter once more. What is not
understood here narrows nothing.

Texts and ids have different orders ('5-10' < '5-9' as texts): equality on the id column names an entry, a range on it
says something about the milliseconds only, and only among ids with equally many digits (TextBound). The timestamp
column is the id's milliseconds, its filters come in microseconds.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Mapping

from spark_streams.model.ids import MIN_ID, U64_MAX, InvalidStreamId, StreamId
from spark_streams.model.numbers import whole
from spark_streams.source.batch.stream_bounds import Narrowing, TextBound

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_NOTHING = Narrowing(ids=frozenset())
_TEXT_OF_ID = re.compile(r"([1-9][0-9]{0,19})(-.*)?", re.DOTALL)


def narrowing_of(filters: Iterable[object], columns: Mapping[str, str]) -> Narrowing:
    """All filters together (they are joined by AND). filters: pyspark.sql.datasource.Filter; columns: column name →
    `stream`, `id` or `timestamp`, for columns that are that and nothing else."""
    left = Narrowing()
    for one in filters:
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        meaning = columns.get(attribute[0]) if len(attribute) == 1 else None
        if meaning is not None:
            left = left.meet(_NARROWINGS[meaning](type(one).__name__, getattr(one, "value", None)))
    return left


def _on_stream(kind: str, value: object) -> Narrowing:
    names = _values(kind, value)
    return Narrowing() if names is None else Narrowing(streams=frozenset(n for n in names if isinstance(n, str)))


def _on_id(kind: str, value: object) -> Narrowing:
    named = _values(kind, value)
    if named is not None:
        ids = frozenset(one for one in map(_id_of, named) if one is not None)
        return Narrowing(ids=ids)
    found = _TEXT_OF_ID.fullmatch(value) if isinstance(value, str) else None
    prefix = None if found is None else whole(found[1])
    if found is None or prefix is None:
        return Narrowing()
    if kind in ("GreaterThan", "GreaterThanOrEqual"):
        return Narrowing(text=(TextBound(len(found[1]), least=prefix),))
    if kind in ("LessThan", "LessThanOrEqual"):
        return Narrowing(text=(TextBound(len(found[1]), most=prefix),))
    return Narrowing()


def _on_timestamp(kind: str, value: object) -> Narrowing:
    moments = _values(kind, value)
    if moments is not None:
        micros = [_microseconds(moment) for moment in moments if moment is not None]
        exact = [at // 1000 for at in micros if at is not None and at % 1000 == 0 and at >= 0]
        if None in micros:
            return Narrowing()
        return _between(min(exact), max(exact)) if exact else _NOTHING
    at = _microseconds(value)
    if at is None:
        return Narrowing()
    # The column has whole milliseconds: a bound between two of them is rounded to the one inside.
    least = {"GreaterThan": at // 1000 + 1, "GreaterThanOrEqual": -(-at // 1000)}.get(kind, 0)
    most = {"LessThan": -(-at // 1000) - 1, "LessThanOrEqual": at // 1000}.get(kind, U64_MAX)
    return _between(least, most)


_NARROWINGS: Mapping[str, Callable[[str, object], Narrowing]] = {
    "stream": _on_stream,
    "id": _on_id,
    "timestamp": _on_timestamp,
}


def _values(kind: str, value: object) -> list[object] | None:
    """The values of an equality; None for another kind of filter. A comparison with NULL is left to Spark."""
    if kind in ("EqualTo", "EqualNullSafe") and value is not None:
        return [value]
    return list(value) if kind == "In" and isinstance(value, tuple) else None


def _id_of(value: object) -> StreamId | None:
    """The id that this is the text of; None where no id has this text (`5`, `05-0`)."""
    try:
        one = StreamId.parse(value) if isinstance(value, str) else None
    except InvalidStreamId:
        return None
    return one if one is not None and str(one) == value and one > MIN_ID else None


def _microseconds(value: object) -> int | None:
    """Since the epoch; None for what is no moment (a time without a zone)."""
    if not isinstance(value, datetime.datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // datetime.timedelta(microseconds=1)


def _between(least: int, most: int) -> Narrowing:
    """Milliseconds, both included."""
    if most < 0 or least > U64_MAX:
        return _NOTHING
    after = StreamId(least, 0).previous() if least > 0 else MIN_ID
    return Narrowing(after=after, last=StreamId(min(most, U64_MAX), U64_MAX))
