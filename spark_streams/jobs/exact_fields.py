"""An entry's fields as a map that keeps every byte, for the job `archive`.

A map of strings holds only UTF-8, and a map has each name once. An entry that does not fit is written as one field,
`rstream:hex`: all names and values in hexadecimal, separated by one blank, `name value name value …`, in the entry's
order. An entry with a field of this name is written in the same way, so that the form is unambiguous.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark_streams.connector.source.archive_form import HEX


def exact_text(fields: Column) -> Column:
    """Convert a column MAP<BINARY, BINARY> into MAP<STRING, STRING>."""
    is_text = F.forall(F.map_keys(fields), _is_utf8) & F.forall(F.map_values(fields), _is_utf8)
    text = F.when(is_text & _has_each_name_once(fields), fields.cast("MAP<STRING, STRING>"))
    return text.otherwise(F.create_map(F.lit(HEX), _as_hex(fields)))


def exact_binary(fields: Column) -> Column:
    """Return such a column as MAP<BINARY, BINARY> for formats that keep only one value per name."""
    in_hex = F.create_map(F.lit(HEX.encode()), _as_hex(fields).cast("BINARY"))
    return F.when(_has_each_name_once(fields), fields).otherwise(in_hex)


def _has_each_name_once(fields: Column) -> Column:
    """Return a column: whether each name occurs once, and none is `rstream:hex`."""
    names = F.transform(F.map_keys(fields), F.hex)  # array_distinct compares BINARY pair by pair
    once = F.size(F.array_distinct(names)) == F.size(names)
    return once & ~F.array_contains(names, HEX.encode().hex().upper())


def _as_hex(fields: Column) -> Column:
    return F.array_join(
        F.transform(F.map_entries(fields), lambda field: F.concat_ws(" ", F.hex(field["key"]), F.hex(field["value"]))),
        " ",
    )


def _is_utf8(word: Column) -> Column:
    return F.is_valid_utf8(word.cast("STRING"))
