"""Decode a page of entries into a RecordBatch of the declared schema.

Pure: a page and a schema in, a batch out. The schema is Spark's Arrow schema of the declared types (FACTS S13).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.connector.errors import DecodeError, SchemaError
from spark_streams.connector.source.rows.cast import Unfit, cast_values, check_castable
from spark_streams.connector.source.rows.plain import plain_columns
from spark_streams.connector.source.rows.returned_page import Attempts
from spark_streams.connector.source.rows.text_forms import may_be_plain
from spark_streams.connector.wire.entry_page import EntryPage, last_of_each_name
from spark_streams.connector.wire.lines import Index, Mask

CORRUPT_RECORD = "_corrupt_record"
UNFIT = "_unfit"

# Metadata columns, each with the types that it may be declared as, the usual one first.
_META_TYPES = {
    "stream": (pa.string(),),
    "id": (pa.string(),),
    "timestamp": (pa.timestamp("us", tz="UTC"),),
    "deliveries": (pa.int32(), pa.int64()),
    "attempt": (pa.int32(), pa.int64()),
    "first_failed": (pa.timestamp("us", tz="UTC"),),
    "unfit": (pa.list_(pa.string()),),
    "fields": (pa.map_(pa.string(), pa.string()), pa.map_(pa.binary(), pa.binary())),
}
# Their names in a declared schema.
METADATA = frozenset(f"_{name}" for name in _META_TYPES)

_LAST_MILLISECOND = (2**63 - 1) // 1000
_MAX_FIELDS = 5  # that a reason names


@dataclass(frozen=True)
class Dead:
    """Rows of a page that do not fit. rows: their ascending indexes; reasons: a text for each."""

    page: EntryPage
    rows: Index
    reasons: list[str]

    @classmethod
    def with_reasons(cls, page: EntryPage, rows: Index, unfit: Sequence[Unfit]) -> Dead:
        """Return these rows with reasons, which name the fields that do not fit, the first few of many."""
        reasons: list[list[str]] = [[] for _ in rows]
        for column in unfit:
            bad = column.bad.to_numpy(zero_copy_only=False)[rows]
            for index in bad.nonzero()[0].tolist():
                if len(reasons[index]) < _MAX_FIELDS:
                    reasons[index].append(column.reason(int(rows[index])))
        return cls(page, rows, ["; ".join(row_reasons) for row_reasons in reasons])

    def entries(self) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
        """Return (ids, offsets, names, values) of these rows, unchanged: binary, with int32 offsets. The fields of row
        i are offsets[i] … offsets[i+1] of names and values."""
        rows = pa.array(self.rows)
        fields = pa.MapArray.from_arrays(*self.page.fields()).take(rows)
        return self.page.ids().take(rows), fields.offsets, fields.keys, fields.items


@dataclass(frozen=True)
class Decoded:
    """A page as Spark takes it."""

    batch: pa.RecordBatch
    dead: Dead | None  # rows that do not fit and are not in the batch (mode DEADLETTER)
    unfit: Sequence[Unfit] = ()  # columns with values that do not fit
    absent: Sequence[str] = ()  # columns that no entry of the page has a field for


@dataclass(frozen=True)
class Columns:
    """The columns that Spark expects, and how they are filled."""

    schema: pa.Schema  # the Arrow schema that Spark expects
    declared: bool  # False for the default columns
    mode: str  # for bad values: PERMISSIVE, DROPMALFORMED, FAILFAST, DEADLETTER
    corrupt: str = CORRUPT_RECORD  # if declared, it holds entries with a bad value as JSON text (mode PERMISSIVE)
    null_values: tuple[bytes, ...] = ()  # texts that are null in every column of a field, and as a part of a JSON value

    @property
    def handling(self) -> str:
        """What happens to values that do not fit: the mode, or the name of the column that names them."""
        return UNFIT if self.declared and UNFIT in self.schema.names else self.mode

    @property
    def wants_deliveries(self) -> bool:
        """Whether `batch` needs the delivery count of each entry."""
        return self.declared and "_deliveries" in self.schema.names

    @property
    def wants_attempt(self) -> bool:
        """Whether the query reads the attempt of each entry, for rejects of its own."""
        return self.declared and "_attempt" in self.schema.names

    @property
    def of_fields(self) -> list[str]:
        """Columns that hold the field of their name."""
        other_columns = METADATA | {self.corrupt}
        return [name for name in self.schema.names if name not in other_columns] if self.declared else []

    def check_declared(self) -> None:
        """Raise SchemaError if a declared column can never be filled."""
        if not self.declared:
            return
        check_castable(self.schema, METADATA | {self.corrupt})
        for field in self.schema:
            if not field.nullable:
                raise SchemaError(f"column {field.name!r} is NOT NULL, but entries may lack the field. Remove NOT NULL")
            if field.name == self.corrupt:
                self._check_corrupt(field)
            if field.name not in METADATA and field.name.lower() in METADATA:
                raise SchemaError(f"there is no metadata column {field.name!r}; did you mean {field.name.lower()!r}?")
            allowed = _META_TYPES[field.name.removeprefix("_")] if field.name in METADATA else (field.type,)
            if field.type not in allowed:
                raise SchemaError(
                    f"column {field.name!r} is declared {field.type}, but its type is "
                    f"{' or '.join(map(str, allowed))}. Declare it with that type"
                )
            if field.name == UNFIT and self.mode != "PERMISSIVE":
                raise SchemaError(
                    f"column {UNFIT!r} is only filled in mode PERMISSIVE, but mode is {self.mode}. Remove it"
                )

    def _check_corrupt(self, field: pa.Field) -> None:
        if field.name in METADATA:
            raise SchemaError(
                f"column {field.name!r} cannot hold corrupt records, because it is a metadata column. Set "
                "columnNameOfCorruptRecord to another name"
            )
        if field.type != pa.string():
            raise SchemaError(
                f"column {field.name!r} is declared {field.type}, but holds the text of corrupt records. Declare it "
                "STRING, or set columnNameOfCorruptRecord to another name"
            )
        if self.mode != "PERMISSIVE":
            raise SchemaError(
                f"column {field.name!r} is only filled in mode PERMISSIVE, but mode is {self.mode}. Remove the column, "
                "or set columnNameOfCorruptRecord to another name"
            )

    def batch(
        self,
        page: EntryPage,
        rows: int,
        streams: str | pa.Array,
        deliveries: pa.Array | None = None,
        attempts: Attempts | None = None,
    ) -> Decoded:
        """Decode the first `rows` rows of a page.

        streams: name of the entries' stream, or a string array with a name per row; deliveries: integer array with a
        count per row, only needed if `wants_deliveries`; attempts: of entries that are returned for a retry.
        Raises DecodeError in mode FAILFAST.
        """
        if self.wants_deliveries and deliveries is None:
            raise ValueError("column _deliveries needs the delivery counts of the page")
        source = _Rows(page, rows, streams, deliveries, attempts)
        unfit: list[Unfit] = []
        absent: list[str] = []
        arrays = []
        plain = plain_columns(page, self.schema) if self.declared and not may_be_plain(self.null_values) else {}
        for field in self.schema:
            if not self.declared:
                arrays.append(source.meta(field.name, field.type))
            elif field.name in (self.corrupt, UNFIT):
                arrays.append(None)  # filled after all others
            elif field.name in METADATA:
                arrays.append(source.meta(field.name.removeprefix("_"), field.type))
            elif field.name in plain:
                arrays.append(plain[field.name].slice(0, rows))
            else:
                values = page.field(field.name.encode()).slice(0, rows)
                column, bad = cast_values(values, field.type, self.null_values)
                arrays.append(column)
                if bad is not None and pc.any(bad).as_py():
                    unfit.append(Unfit(field, values, bad, self.null_values))
                elif column.null_count == rows and values.null_count == rows:
                    absent.append(field.name)
        if self.declared and self.corrupt in self.schema.names:
            arrays[self.schema.names.index(self.corrupt)] = _corrupt_column(page, rows, unfit)
        if self.declared and UNFIT in self.schema.names:
            position = self.schema.names.index(UNFIT)
            arrays[position] = _unfit_column(rows, unfit, self.schema.field(position).type)
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if unfit:
            batch, dead = self._apply_mode(batch, source, unfit)
            return Decoded(batch, dead, unfit, absent)
        return Decoded(batch, None, absent=absent)

    def _apply_mode(
        self, batch: pa.RecordBatch, source: _Rows, unfit: Sequence[Unfit]
    ) -> tuple[pa.RecordBatch, Dead | None]:
        """Apply the mode to rows with a bad value. Return the remaining rows and those that become dead letters."""
        if self.mode == "PERMISSIVE":
            return batch, None
        if self.mode == "FAILFAST":
            raise _first_unfit(source, unfit)
        bad = _any_bad(unfit)
        dead = Dead.with_reasons(source.page, np.flatnonzero(bad), unfit) if self.mode == "DEADLETTER" else None
        return batch.filter(pa.array(~bad)), dead


@dataclass(frozen=True)
class _Rows:
    """The first `count` rows of a page, with their data from outside of the page."""

    page: EntryPage
    count: int
    streams: str | pa.Array
    deliveries: pa.Array | None
    attempts: Attempts | None

    def meta(self, name: str, to: pa.DataType) -> pa.Array:
        """Return a metadata column."""
        if name == "stream":
            return self._streams().cast(to)
        if name == "id":
            return self.page.ids().slice(0, self.count).cast(to)
        if name == "timestamp":
            return self._timestamp(to)
        if name == "deliveries":
            assert self.deliveries is not None
            return self.deliveries.slice(0, self.count).cast(to)
        if name == "attempt":
            return (
                pa.repeat(pa.scalar(1, to), self.count)
                if self.attempts is None
                else self._cast(self.attempts.number, to)
            )
        if name == "first_failed":
            return pa.nulls(self.count, to) if self.attempts is None else self._cast(self.attempts.first_failed, to)
        return self._fields(to)

    def _cast(self, column: pa.Array, to: pa.DataType) -> pa.Array:
        return column.slice(0, self.count).cast(to)

    def stream_of(self, row: int) -> str:
        return self.streams if isinstance(self.streams, str) else str(self.streams[row])

    def _streams(self) -> pa.Array:
        if isinstance(self.streams, str):
            return pa.repeat(pa.scalar(self.streams, pa.string()), self.count)
        return self.streams.slice(0, self.count)

    def _timestamp(self, to: pa.DataType) -> pa.Array:
        """Return the milliseconds of the IDs; null if a timestamp cannot hold them (IDs may be any number)."""
        ms = self.page.milliseconds()[: self.count]
        is_too_large = ms > _LAST_MILLISECOND
        micros = np.where(is_too_large, 0, ms).astype(np.int64) * 1000
        return pa.array(micros, mask=is_too_large).cast(to)

    def _fields(self, to: pa.DataType) -> pa.Array:
        """Return all fields in their order. If a name occurs twice, a map of strings has its last value, as its column
        does: Spark finds the first of two equal keys. A map of binaries is the entry itself, with both."""
        offsets, names, values = self.page.fields()
        names, values = cast_values(names, to.key_type)[0], cast_values(values, to.item_type)[0]
        if pa.types.is_string(to.key_type) and self.page.may_repeat_names():
            last = last_of_each_name(offsets, names)
            if last is not None:
                offsets, names, values = last[0], names.take(last[1]), values.take(last[1])
        return pa.MapArray.from_arrays(offsets, names, values).cast(to).slice(0, self.count)


def _any_bad(unfit: Sequence[Unfit]) -> Mask:
    bad: Mask = np.logical_or.reduce([column.bad.to_numpy(zero_copy_only=False) for column in unfit])
    return bad


def _corrupt_column(page: EntryPage, rows: int, unfit: Sequence[Unfit]) -> pa.Array:
    """Return entries with a value that does not fit as JSON text, and null for others."""
    if not unfit:
        return pa.nulls(rows, pa.string())
    bad = _any_bad(unfit)
    dead = Dead(page, np.flatnonzero(bad), [])
    _ids, offsets, names, values = dead.entries()
    texts = cast_values(names, pa.string())[0].to_pylist(), cast_values(values, pa.string())[0].to_pylist()
    # Not with a dict: an entry may have a field twice.
    pairs = [f"{_quoted(name)}:{_quoted(value)}" for name, value in zip(*texts, strict=True)]
    bounds = offsets.to_pylist()
    records = np.full(rows, None, object)
    records[dead.rows] = [f"{{{','.join(pairs[a:b])}}}" for a, b in itertools.pairwise(bounds)]
    return pa.array(records, pa.string())


def _unfit_column(rows: int, unfit: Sequence[Unfit], to: pa.DataType) -> pa.Array:
    """Return the names of the columns whose value does not fit, for each entry, and null if there is none."""
    if not unfit:
        return pa.nulls(rows, to)
    # One row per entry, one column per declared column: the true cells are the names, in the order of the entries.
    bad = np.column_stack([column.bad.to_numpy(zero_copy_only=False) for column in unfit])
    names = pa.array([column.field.name for column in unfit], pa.string())
    counts = bad.sum(axis=1)
    offsets = pa.array(np.concatenate(([0], counts.cumsum())), pa.int32())
    column = pa.ListArray.from_arrays(offsets, names.take(pa.array(bad.nonzero()[1])))
    return pc.if_else(pa.array(counts > 0), column, None).cast(to)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _first_unfit(source: _Rows, unfit: Sequence[Unfit]) -> DecodeError:
    row = int(np.flatnonzero(_any_bad(unfit))[0])
    column = next(column for column in unfit if column.bad[row].as_py())
    entry = source.page.ids()[row].as_py().decode()
    return DecodeError(
        f"entry {entry} of stream {source.stream_of(row)!r}: {column.reason(row)}. Declare the "
        "column STRING, or set mode to DEADLETTER, which moves such entries to another stream (or PERMISSIVE: the "
        "value is null)"
    )
