"""Cast columns that Arrow accepts or refuses completely: bisect a refused column until the refused values are alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from spark_streams.connector.source.rows.text_forms import Cast
from spark_streams.connector.wire.entries.lines import Index


def bisect_cast(
    cast: Cast, exact_cast: Cast, min_size: int, values: pa.Array, rows: Index, to: pa.DataType
) -> Iterator[tuple[pa.Array, Index]]:
    """Yield the cast column in pieces, each with its rows: the largest that `cast` accepts (it raises
    pa.ArrowInvalid). Refused pieces of at most `min_size` values are cast by `exact_cast`."""
    try:
        column = cast(values, to)
    except pa.ArrowInvalid:
        if len(rows) <= min_size:
            yield exact_cast(values, to), rows
            return
        middle = len(rows) // 2
        yield from bisect_cast(cast, exact_cast, min_size, values[:middle], rows[:middle], to)
        yield from bisect_cast(cast, exact_cast, min_size, values[middle:], rows[middle:], to)
    else:
        yield column, rows


def assemble(pieces: list[tuple[pa.Array, Index]], size: int, to: pa.DataType) -> pa.Array:
    """Return one column from pieces with their rows; null in all other rows."""
    if not pieces:
        return pa.nulls(size, to)
    if len(pieces) == 1 and len(pieces[0][1]) == size:
        return pieces[0][0]
    positions = np.full(size, -1, np.int64)
    rows = np.concatenate([rows for _, rows in pieces])
    positions[rows] = np.arange(len(rows))
    return pa.concat_arrays([column for column, _ in pieces]).take(pa.array(positions, mask=positions < 0))
