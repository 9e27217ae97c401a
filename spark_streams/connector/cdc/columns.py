"""The columns of a table: from the members of an event to typed values."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from spark_streams.connector.cdc.exact_json import name_in_json
from spark_streams.connector.cdc.sql import literal, quoted
from spark_streams.connector.cdc.values import Converter


@dataclass(frozen=True)
class Columns:
    """row: the columns; is_case_sensitive: whether names that differ in case are different.

    Values and kinds are structs with a field for each column. A value is a text of exact_json.py.
    """

    row: StructType
    converter: Converter
    is_case_sensitive: bool

    def values(self, *maps: str) -> Column:
        """Return the values: of the first of these maps that has one."""
        values = [
            f"coalesce({', '.join(f'try_element_at({members}, {_name(field)})' for members in maps)}) "
            f"AS {quoted(field.name)}"
            for field in self.row
        ]
        return F.expr(f"struct({', '.join(values)})")

    def named(self, names: str) -> Column:
        """Return the names of those columns whose members are in this array."""
        columns = [
            f"CASE WHEN array_contains({names}, {_name(field)}) THEN {literal(field.name)} END" for field in self.row
        ]
        return F.expr(f"array_compact(array({', '.join(columns)}))")

    def kinds(self, fields: str) -> Column:
        """Return the parts of the event's schema that describe the columns. fields: the array of all parts."""

        def kind(field: StructField) -> str:
            parts_of_name = [f"filter({fields}, part -> part.field = {_name(field)})"]
            if not self.is_case_sensitive:
                parts_of_name.append(f"filter({fields}, part -> lower(part.field) = lower({_name(field)}))")
            return f"coalesce({', '.join(f'get({parts}, 0)' for parts in parts_of_name)}) AS {quoted(field.name)}"

        return F.expr(f"struct({', '.join(map(kind, self.row))})")

    def typed(self, values: str, kinds: str) -> Column:
        """Return typed values, null if they do not fit."""

        def typed(field: StructField) -> str:
            name = quoted(field.name)
            return f"{self.converter.value(f'{values}.{name}', field.dataType, f'{kinds}.{name}')} AS {name}"

        return F.expr(f"struct({', '.join(map(typed, self.row))})")

    def malformed(self, values: str, typed: str, kinds: str) -> Column:
        """Return why the first value that does not fit does not; null if all fit."""

        def reason(field: StructField) -> str:
            name = quoted(field.name)
            is_unfit = f"{values}.{name} IS NOT NULL AND {typed}.{name} IS NULL"
            return f"WHEN {is_unfit} THEN {self.converter.reason(f'{values}.{name}', field, f'{kinds}.{name}')}"

        return F.expr(f"CASE {' '.join(map(reason, self.row))} END")


def _name(field: StructField) -> str:
    """Return the name of a column's member."""
    return literal(name_in_json(field.name))
