"""An entry's fields as a map from which every byte can be read again: what the job `archive` writes.

A map of strings holds only UTF-8, and a map has each name once. An entry that does not fit has one field instead,
`rstream:hex`: all names and values in hexadecimal, separated by one blank, `name value name value …`, in the entry's
order. An entry that has a field of this name itself is written in the same way, so the form is unambiguous.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

HEX = "rstream:hex"


def exact_text(fields: Column) -> Column:
    """MAP<STRING, STRING> of a column MAP<BINARY, BINARY>."""
    is_text = F.forall(F.map_keys(fields), _is_utf8) & F.forall(F.map_values(fields), _is_utf8)
    text = F.when(is_text & _has_each_name_once(fields), fields.cast("MAP<STRING, STRING>"))
    return text.otherwise(F.create_map(F.lit(HEX), _as_hex(fields)))


def exact_binary(fields: Column) -> Column:
    """MAP<BINARY, BINARY> of such a column, for formats that keep one value of a name that an entry has twice."""
    in_hex = F.create_map(F.lit(HEX.encode()), _as_hex(fields).cast("BINARY"))
    return F.when(_has_each_name_once(fields), fields).otherwise(in_hex)


def _has_each_name_once(fields: Column) -> Column:
    """Whether no name is there twice, and none is that of the form in hexadecimal."""
    names = F.transform(F.map_keys(fields), F.hex)  # array_distinct compares BINARY pair by pair
    once = F.size(F.array_distinct(names)) == F.size(names)
    return once & ~F.array_contains(names, HEX.encode().hex().upper())


def _as_hex(fields: Column) -> Column:
    return F.array_join(
        F.transform(F.map_entries(fields), lambda one: F.concat_ws(" ", F.hex(one["key"]), F.hex(one["value"]))), " "
    )


def _is_utf8(word: Column) -> Column:
    return F.is_valid_utf8(word.cast("STRING"))
