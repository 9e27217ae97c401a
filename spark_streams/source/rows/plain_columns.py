"""Cast columns whose values all have the plain form of their type, from the reply's own bytes (FACTS A7).

A call of numpy costs as much as a thousand values. So columns of one type are cast together, up to what a processor's
second cache holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from spark_streams.source.rows.plain_numbers import NotPlainError, Values, booleans, decimals, floats, integers
from spark_streams.source.rows.plain_times import dates, timestamps
from spark_streams.wire.entries.entry_page import EntryPage
from spark_streams.wire.entries.spans import Spans
from spark_streams.wire.entries.vector_page import VectorPage

_CASTS: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Spans, pa.DataType], Values]]] = (
    (pa.types.is_signed_integer, integers),
    (pa.types.is_floating, floats),
    (pa.types.is_boolean, booleans),
    (pa.types.is_timestamp, timestamps),
    (pa.types.is_date32, dates),
    (pa.types.is_decimal128, decimals),
)
_FEWEST, _TOGETHER = 1500, 1 << 14  # values; fewer are cast by Arrow faster


def plain_columns(page: EntryPage, fields: Iterable[pa.Field]) -> dict[str, pa.Array]:
    """Return the columns that could be cast so, by name. Each is the one that cast_values returns."""
    if not isinstance(page, VectorPage):
        return {}
    by_type: dict[pa.DataType, list[str]] = {}
    for field in fields:
        if any(includes(field.type) for includes, _ in _CASTS):
            by_type.setdefault(field.type, []).append(field.name)
    columns: dict[str, pa.Array] = {}
    size = max(1, _TOGETHER // max(1, page.count))
    for to, names in by_type.items():
        if page.count * len(names) < _FEWEST:
            continue
        having = [(name, spans) for name in names if (spans := page.spans(name.encode())) is not None]
        for start in range(0, len(having), size):
            columns.update(_cast(having[start : start + size], to))
    return columns


def _cast(columns: Sequence[tuple[str, Spans]], to: pa.DataType) -> Iterator[tuple[str, pa.Array]]:
    """Yield the columns that have the plain form: all together, or one by one if another column among them has not."""
    cast = next(cast for includes, cast in _CASTS if includes(to))
    names, spans = zip(*columns, strict=True)
    try:
        values = cast(Spans.concatenate(spans), to)
    except NotPlainError:
        if len(columns) > 1:
            for column in columns:
                yield from _cast([column], to)
        return
    for name, part in zip(names, values.reshape(len(names), -1, *values.shape[1:]), strict=True):
        yield name, _column(part, to)


def _column(values: Values, to: pa.DataType) -> pa.Array:
    """Return the values, which have the layout of the type but for truth values, as its column."""
    data = np.packbits(values, bitorder="little") if pa.types.is_boolean(to) else values
    return pa.Array.from_buffers(to, len(values), [None, pa.py_buffer(data)])
