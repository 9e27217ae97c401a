"""A function of Arrow arrays as a function of columns. Spark has it since 4.1; before, each value is called alone."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

ArrayFunction = Callable[[pa.Array], pa.Array]


def arrow_function(function: ArrayFunction, returns: StructType) -> Callable[[Column], Column]:
    """Return a function of a BINARY or STRING column, which Spark evaluates once for each row."""
    if hasattr(F, "arrow_udf"):

        def decode(values: pa.Array) -> pa.Array:
            return function(values)

        of_arrays: Callable[[Column], Column] = F.arrow_udf(decode, returns).asNondeterministic()
        return of_arrays

    def decode_one(value: bytes | str | None) -> object:
        kind = pa.string() if isinstance(value, str) else pa.binary()
        array = pa.array([value if isinstance(value, str | None) else bytes(value)], kind)
        return function(array).to_pylist(maps_as_pydicts="strict")[0]

    of_values: Callable[[Column], Column] = F.udf(decode_one, returns, useArrow=False).asNondeterministic()
    return of_values
