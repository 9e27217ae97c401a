"""Casting what Arrow accepts or refuses as a whole: the column is halved until what it refuses is alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from spark_streams.source.rows.text_forms import Cast
from spark_streams.wire.entries.lines import Index


def halved(
    cast: Cast, exact: Cast, few: int, values: pa.Array, rows: Index, to: pa.DataType
) -> Iterator[tuple[pa.Array, Index]]:
    """The column in as few pieces as `cast` accepts (it raises pa.ArrowInvalid), each with its rows; pieces of at most
    `few` values that it refuses are what `exact` makes of them."""
    try:
        column = cast(values, to)
    except pa.ArrowInvalid:
        if len(rows) <= few:
            yield exact(values, to), rows
            return
        middle = len(rows) // 2
        yield from halved(cast, exact, few, values[:middle], rows[:middle], to)
        yield from halved(cast, exact, few, values[middle:], rows[middle:], to)
    else:
        yield column, rows


def assemble(pieces: list[tuple[pa.Array, Index]], size: int, to: pa.DataType) -> pa.Array:
    """One column from pieces, each with the rows where its values belong; null elsewhere."""
    if not pieces:
        return pa.nulls(size, to)
    if len(pieces) == 1 and len(pieces[0][1]) == size:
        return pieces[0][0]
    place = np.full(size, -1, np.int64)
    rows = np.concatenate([rows for _, rows in pieces])
    place[rows] = np.arange(len(rows))
    return pa.concat_arrays([column for column, _ in pieces]).take(pa.array(place, mask=place < 0))
