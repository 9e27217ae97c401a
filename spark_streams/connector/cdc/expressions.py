"""Parts of SQL expressions, and JSON that is read with all digits of its numbers.

The expressions of a column are texts: a table may have hundreds of columns, and Python needs about a millisecond for
each operation on a Column. They contain no backslash outside of raw literals, because the setting
`spark.sql.parser.escapedStringLiterals` decides about others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType


def quoted(text: str) -> str:
    """Return a name in quotes."""
    return f"`{text.replace('`', '``')}`"


def literal(text: str) -> str:
    parts = [f"r'{part}'" for part in text.split("'")]
    return parts[0] if len(parts) == 1 else f"concat({', char(39), '.join(parts)})"


def let(variable: str, value: str, then: str) -> str:
    """Return the expression `then`, in which the variable is the value: it is computed once."""
    return f"get(transform(array({value}), {variable} -> {then}), 0)"


def cast(value: str, to: DataType) -> str:
    """Return a cast; null if the value does not fit."""
    return f"try_cast({value} AS {to.simpleString()})"


# -- JSON: numbers keep their digits, and differ from texts ------------------------------------------------------------

# Spark's from_json reads a number for a STRING as a binary floating-point number: 1.10 becomes 1.1, and digits after
# the seventeenth are lost. So each number becomes a JSON string before it is read: a mark, U+0001, and the number's
# text.
#
#     {"a": 1.10, "b": "1.10", "c": [2]}    →    {"a": "\u00011.10", "b": "1.10", "c": ["\u00012"]}
#
# A text that has the mark itself must not look like a number. So `u0001`, with which JSON writes the mark, is doubled
# in the whole text first, and only a mark of this module is not followed by it.
#
# Arrays and objects that are read as STRING are JSON texts, in which marks are written `\u0001`. `text_of` undoes all
# this.

TEXTS = "MAP<STRING, STRING>"
_MARK = "\x01"
_ESCAPED = "u0001"
# From the end of the last number: all that is no number, texts as a whole; then a number. Possessive, so that a long
# text costs no stack.
_NUMBER_IN_JSON = (
    r'\G((?:[^"\d-]++|-(?!\d)|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+)'
    r"(-?(?:0|[1-9]\d*+)(?:\.\d++)?(?:[eE][+-]?\d++)?)(?=[\s,}\]]|$)"
)
_MARKED_NUMBER = r'"\\u0001(-?\d[\d.eE+-]*+)"'


def mark_numbers(text: Column) -> Column:
    """Return the JSON text with each number as a marked text."""
    doubled = F.replace(text, F.lit(_ESCAPED), F.lit(_ESCAPED * 2))
    return F.regexp_replace(doubled, _NUMBER_IN_JSON, r'$1"\\u0001$2"')


def read_json(marked: str, schema: str) -> str:
    """Return the SQL expression that reads a JSON text whose numbers are marked. schema: only with STRING for values
    that are not nested."""
    # Spark accepts texts in single quotes, which are no JSON, and which mark_numbers does not know.
    return f"from_json({marked}, {literal(schema)}, map('allowSingleQuotes', 'false'))"


def is_number(value: str) -> str:
    """Return the SQL expression for: the value is a JSON number."""
    return f"(startswith({value}, char(1)) AND NOT startswith({value}, concat(char(1), '{_ESCAPED}')))"


def text_of(value: str) -> str:
    """Return the SQL expression for the text of a value: of a number its digits, of an array or object its JSON."""
    unmarked = f"regexp_replace({value}, {literal(_MARKED_NUMBER)}, '$1')"
    text = f"regexp_replace({unmarked}, concat('(', char(1), '|{_ESCAPED}){_ESCAPED}'), '$1')"
    number = f"WHEN {is_number(value)} THEN substr({value}, 2)"
    return f"CASE {number} WHEN contains({value}, '{_ESCAPED}') THEN {text} ELSE {value} END"


def name_in_json(text: str) -> str:
    """Return the value of a text, or the name of a member, that was read."""
    return text.replace(_ESCAPED, _ESCAPED * 2).replace(_MARK, _MARK + _ESCAPED)


def number_in_json(number: str) -> str:
    """Return the value of a number that was read."""
    return f"{_MARK}{number}"


def name_members(members: Column, names: Sequence[str], is_case_sensitive: bool) -> Column:
    """Return a map of members in which each name occurs once, with its last value. Members whose names differ from one
    of `names` only in case have that name, unless another member has exactly that name."""
    keys = F.map_keys(members)
    by_case = {name.lower(): name for name in names}
    is_exact = F.size(F.array_distinct(keys)) == F.size(keys)
    pairs = F.map_entries(members)
    if not is_case_sensitive and names:
        other_case = F.exists(keys, lambda key: F.lower(key).isin(*by_case) & ~key.isin(*names))
        is_exact &= ~other_case
        name_by_case = F.create_map(*[F.lit(text) for pair in by_case.items() for text in pair])
        there = F.array_intersect(keys, F.array(*map(F.lit, names)))  # at most as many as names

        def rename(pair: Column, exact: Column) -> Column:
            name = F.try_element_at(name_by_case, F.lower(pair["key"]))
            key = F.when(name.isNull() | F.array_contains(exact, name), pair["key"]).otherwise(name)
            return F.struct(key.alias("key"), pair["value"].alias("value"))

        pairs = _let(there, lambda exact: F.transform(pairs, lambda pair: rename(pair, exact)))
    return F.when(members.isNull() | is_exact, members).otherwise(F.map_from_entries(_last_of_each(pairs)))


def _last_of_each(pairs: Column) -> Column:
    """Return the last pair of each key, in their order: found by sorting, as anyone may write any number of them."""
    placed = F.transform(
        pairs, lambda pair, place: F.struct(pair["key"].alias("key"), place.alias("place"), pair.alias("pair"))
    )
    return _let(F.sort_array(placed), _lasts)


def _lasts(ordered: Column) -> Column:
    following = F.slice(ordered, 2, F.size(ordered))

    def last(one: Column, after: Column) -> Column:
        is_last = after.isNull() | (after["key"] != one["key"])
        return F.when(is_last, F.struct(one["place"].alias("place"), one["pair"].alias("pair")))

    lasts = F.array_compact(F.zip_with(ordered, following, last))
    return F.transform(F.sort_array(lasts), lambda one: one["pair"])


def _let(value: Column, then: Callable[[Column], Column]) -> Column:
    """Return what the function makes of the value, which is computed once, and not for each element of an array."""
    return F.get(F.transform(F.array(value), then), F.lit(0))
