"""Parts of SQL expressions.

The expressions of a column are texts: a table may have hundreds of columns, and Python needs about a millisecond for
each operation on a Column. They contain no backslash outside of raw literals, because the setting
`spark.sql.parser.escapedStringLiterals` decides about others.
"""

from __future__ import annotations

from pyspark.sql.types import DataType


def quoted(text: str) -> str:
    """Return a name in quotes."""
    return f"`{text.replace('`', '``')}`"


def literal(text: str) -> str:
    """Return a text as a literal."""
    parts = [f"r'{part}'" for part in text.split("'")]
    return parts[0] if len(parts) == 1 else f"concat({', char(39), '.join(parts)})"


def let(variable: str, value: str, then: str) -> str:
    """Return the expression `then`, in which the variable is the value: it is computed once."""
    return f"get(transform(array({value}), {variable} -> {then}), 0)"


def cast(value: str, to: DataType) -> str:
    """Return a cast; null if the value does not fit."""
    return f"try_cast({value} AS {to.simpleString()})"
