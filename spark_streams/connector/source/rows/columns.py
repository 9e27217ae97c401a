"""Decode a page of entries into a RecordBatch of the declared schema, Spark's Arrow schema (FACTS S13). Pure.

Values are cast whole columns at a time, from their texts (text_forms.py) or from JSON (nested_json.py).
"""

from __future__ import annotations

import functools
import itertools
import json
import string
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.connector.errors import DecodeError, SchemaError
from spark_streams.connector.source.rows import nested_json, text_forms
from spark_streams.connector.source.rows.plain import plain_columns
from spark_streams.connector.wire.entry_page import EntryPage, last_of_each_name
from spark_streams.connector.wire.lines import Index, Mask

_SMALL = 1000  # texts; validating the UTF-8 of fewer takes less time than a search for bytes that are not ASCII
_LETTERS = string.ascii_letters.encode() + bytes(range(128, 256))
_FORM = bytes.maketrans(_LETTERS + string.digits.encode(), b"x" * len(_LETTERS) + b"9" * 10)
_LONGEST_JSON = 1 << 20  # bytes of a JSON value that is read again for a reason


# -- values of one column ----------------------------------------------------------------------------------------------


def check_castable(schema: pa.Schema, skip: frozenset[str]) -> None:
    """Raise SchemaError if values cannot be cast to a declared type."""
    for field in schema:
        if field.name not in skip and (unsupported := _unsupported_type(field)) is not None:
            raise SchemaError(
                f"column {field.name!r} is declared {unsupported}: fields are read as string, binary, boolean, "
                "integer, float, decimal, date, timestamp or time, or from JSON as arrays, structs and maps of these. "
                "Declare the column STRING and use parse_json, from_json or a cast"
            )


def _unsupported_type(field: pa.Field) -> str | None:
    """Return the name of the first type in this declaration that cannot be read."""
    to = field.type
    if pa.types.is_struct(to) and any(part.metadata and b"variant" in part.metadata for part in to):
        return "VARIANT"
    if pa.types.is_struct(to) and any(part.metadata and b"srid" in part.metadata for part in to):
        return "GEOMETRY or GEOGRAPHY"
    if pa.types.is_map(to) and nested_json.is_nested(to.key_type):
        return f"{to}, a map whose keys are not scalars"
    if nested_json.is_nested(to) and to.num_fields:
        parts = [to.field(index) for index in range(to.num_fields)]
        return next((name for part in parts if (name := _unsupported_type(part)) is not None), None)
    is_supported = pa.types.is_string(to) or pa.types.is_binary(to) or text_forms.scalar_kind(to) is not None
    return None if is_supported else str(to)


def cast_values(
    values: pa.Array, to: pa.DataType, null_values: Collection[bytes] = ()
) -> tuple[pa.Array, pa.Array | None]:
    """Return the column, and a boolean array of the rows whose value does not fit, or None if all fit.

    values: binary with nulls. A value that does not fit is null in the column. Text is UTF-8; in a STRING column bytes
    that are not UTF-8 become U+FFFD and count as fitting. The empty text is null in every type but STRING and BINARY.
    null_values: texts that are null, also as a part of a JSON value.
    """
    present = text_forms.nulls_instead(values, null_values) if null_values else values
    if pa.types.is_binary(to):
        return present, None
    if nested_json.is_nested(to):
        return nested_json.read_json(text_forms.empty_as_null(_decode(present)), to, null_values)
    return text_forms.cast_texts(_decode(present), to)


def _decode(values: pa.Array) -> pa.Array:
    """Return values as text; bytes that are not UTF-8 become U+FFFD."""
    text = values.view(pa.string())
    if len(text) > _SMALL and np.frombuffer(text_forms.bytes_of(text), np.uint8).max(initial=0) < 0x80:
        return text  # ASCII
    try:
        text.validate(full=True)
        return text
    except pa.ArrowInvalid:
        pieces = [
            (_decode_each(values.take(pa.array(rows))) if column is None else column, rows)
            for column, rows in text_forms.bisect_cast(
                text_forms.plain_cast, 50, values, np.arange(len(values)), pa.string()
            )
        ]
        return text_forms.assemble(pieces, len(values), pa.string())


def _decode_each(values: pa.Array) -> pa.Array:
    texts = [None if value is None else value.decode("utf-8", "replace") for value in values.to_pylist()]
    return pa.array(texts, pa.string())


# -- what does not fit -------------------------------------------------------------------------------------------------


@functools.cache
def in_sql(to: pa.DataType) -> str:
    """Return the type as a schema declares it."""
    from pyspark.sql.pandas.types import from_arrow_type  # `rstream init` imports this module without Spark

    name = from_arrow_type(to, prefer_timestamp_ntz=True).simpleString()
    return name if nested_json.is_nested(to) else name.upper()


@dataclass(frozen=True)
class Unfit:
    field: pa.Field  # the declared column
    values: pa.Array  # binary, unchanged
    bad: pa.Array  # mask of rows whose value does not fit
    null_values: tuple[bytes, ...] = ()  # texts that are null

    def reason(self, row: int) -> str:
        """Return a text such as `field 'n' is b'oops', which does not fit INT`. Of JSON it names the member, too, as
        `(payload.qty is 'NA')`."""
        told = f"field {self.field.name!r} is {self.shown(row)}, which does not fit {in_sql(self.field.type)}"
        return told + self._member(row)

    def _member(self, row: int) -> str:
        if not nested_json.is_nested(self.field.type) or self.values[row].as_buffer().size > _LONGEST_JSON:
            return ""
        member = self._members.get(row)
        return " (it is not JSON)" if member is None else f" ({self.field.name}{member[0]} is {member[1]})"

    @functools.cached_property
    def _members(self) -> dict[int, tuple[str, str]]:
        """The first part of each row that does not fit. All rows are read at once: one by one takes 1.5 ms each."""
        sizes = pc.fill_null(pc.binary_length(self.values), 0)
        rows = np.flatnonzero(pc.and_(self.bad, pc.less_equal(sizes, _LONGEST_JSON)).to_numpy(zero_copy_only=False))
        texts = _decode(self.values.take(pa.array(rows)))
        members = nested_json.members_that_do_not_fit(texts, self.field.type, self.null_values)
        return {int(rows[index]): member for index, member in members.items()}

    def form(self, row: int) -> str:
        """Return the repr of the value's beginning with x for letters and 9 for digits: what a log may hold."""
        return nested_json.quoted(self._beginning(row).translate(_FORM))

    def shown(self, row: int) -> str:
        return nested_json.quoted(self._beginning(row))

    def _beginning(self, row: int) -> bytes:
        """Return what `quoted` needs of the row's value: it may be huge, and only this becomes a Python object."""
        return bytes(memoryview(self.values[row].as_buffer())[: nested_json.LONGEST_QUOTED + 1])


# -- rows of a page ----------------------------------------------------------------------------------------------------

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
    """Rows of a page that do not fit."""

    page: EntryPage
    rows: Index  # ascending
    unfit: Sequence[Unfit]  # the columns that have a bad value

    @functools.cached_property
    def reasons(self) -> list[str]:
        """A text for each row, which names the fields that do not fit, the first few of many."""
        reasons: list[list[str]] = [[] for _ in self.rows]
        for column in self.unfit:
            bad = column.bad.to_numpy(zero_copy_only=False)[self.rows]
            for index in bad.nonzero()[0].tolist():
                if len(reasons[index]) < _MAX_FIELDS:
                    reasons[index].append(column.reason(int(self.rows[index])))
        return ["; ".join(row_reasons) for row_reasons in reasons]

    def entries(self) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
        """Return (ids, offsets, names, values) of these rows, unchanged: binary, with int32 offsets. The fields of row
        i are offsets[i] … offsets[i+1] of names and values."""
        rows = pa.array(self.rows)
        fields = pa.MapArray.from_arrays(*self.page.fields()).take(rows)
        return self.page.ids().take(rows), fields.offsets, fields.keys, fields.items


@dataclass(frozen=True)
class Decoded:
    """A page as Spark takes it."""

    batch: pa.RecordBatch  # the rows that Spark gets
    dead: Dead | None  # rows that do not fit and are not in the batch (mode DEADLETTER)
    unfit: Sequence[Unfit] = ()  # columns with values that do not fit
    absent: Sequence[str] = ()  # columns that no entry of the page has a field for


@dataclass(frozen=True)
class Attempts:
    """Attempts at entries that are returned for a retry, per row."""

    number: pa.Array  # of this attempt, int32
    first_failed: pa.Array  # time of the first failure, timestamp, null if it is unknown


@dataclass(frozen=True)
class Columns:
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
        streams: str | pa.Array,
        deliveries: pa.Array | None = None,
        attempts: Attempts | None = None,
    ) -> Decoded:
        """Decode a page. Raises DecodeError in mode FAILFAST.

        streams: name of the entries' stream, or a string array with a name per row; deliveries: integer array with a
        count per row, only needed if `wants_deliveries`; attempts: of entries that are returned for a retry.
        """
        if self.wants_deliveries and deliveries is None:
            raise ValueError("column _deliveries needs the delivery counts of the page")
        source, rows = _Rows(page, streams, deliveries, attempts), page.count
        unfit: list[Unfit] = []
        absent: list[str] = []
        arrays = []
        plain = (
            plain_columns(page, self.schema) if self.declared and not text_forms.may_be_plain(self.null_values) else {}
        )
        for field in self.schema:
            if not self.declared:
                arrays.append(source.meta(field.name, field.type))
            elif field.name in (self.corrupt, UNFIT):
                arrays.append(None)  # filled after all others
            elif field.name in METADATA:
                arrays.append(source.meta(field.name.removeprefix("_"), field.type))
            elif field.name in plain:
                arrays.append(plain[field.name])
            else:
                values = page.field(field.name.encode())
                column, bad = cast_values(values, field.type, self.null_values)
                arrays.append(column)
                if bad is not None and pc.any(bad).as_py():
                    unfit.append(Unfit(field, values, bad, self.null_values))
                elif column.null_count == rows and values.null_count == rows:
                    absent.append(field.name)
        if self.declared and self.corrupt in self.schema.names:
            arrays[self.schema.names.index(self.corrupt)] = _corrupt_column(page, unfit)
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
        dead = Dead(source.page, np.flatnonzero(bad), unfit) if self.mode == "DEADLETTER" else None
        return batch.filter(pa.array(~bad)), dead


@dataclass(frozen=True)
class _Rows:
    """The rows of a page, with their data from outside of the page; see Columns.batch."""

    page: EntryPage  # the entries
    streams: str | pa.Array  # of all rows, or of each
    deliveries: pa.Array | None  # of each row
    attempts: Attempts | None  # None: of entries that were not returned

    def meta(self, name: str, to: pa.DataType) -> pa.Array:
        count = self.page.count
        if name == "stream":
            streams = self.streams
            return pa.repeat(pa.scalar(streams, to), count) if isinstance(streams, str) else streams.cast(to)
        if name == "id":
            return self.page.ids().cast(to)
        if name == "timestamp":
            return self._timestamp(to)
        if name == "deliveries":
            assert self.deliveries is not None
            return self.deliveries.cast(to)
        if name == "attempt":
            return pa.repeat(pa.scalar(1, to), count) if self.attempts is None else self.attempts.number.cast(to)
        if name == "first_failed":
            return pa.nulls(count, to) if self.attempts is None else self.attempts.first_failed.cast(to)
        return self._fields(to)

    def stream_of(self, row: int) -> str:
        return self.streams if isinstance(self.streams, str) else str(self.streams[row])

    def _timestamp(self, to: pa.DataType) -> pa.Array:
        """Return the milliseconds of the IDs; null if a timestamp cannot hold them (IDs may be any number)."""
        ms = self.page.milliseconds()
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
        return pa.MapArray.from_arrays(offsets, names, values).cast(to)


def _any_bad(unfit: Sequence[Unfit]) -> Mask:
    bad: Mask = np.logical_or.reduce([column.bad.to_numpy(zero_copy_only=False) for column in unfit])
    return bad


def _corrupt_column(page: EntryPage, unfit: Sequence[Unfit]) -> pa.Array:
    """Return entries with a value that does not fit as JSON text, and null for others."""
    if not unfit:
        return pa.nulls(page.count, pa.string())
    dead = Dead(page, np.flatnonzero(_any_bad(unfit)), unfit)
    _ids, offsets, names, values = dead.entries()
    texts = cast_values(names, pa.string())[0].to_pylist(), cast_values(values, pa.string())[0].to_pylist()
    # Not with a dict: an entry may have a field twice.
    quote = functools.partial(json.dumps, ensure_ascii=False)
    pairs = [f"{quote(name)}:{quote(value)}" for name, value in zip(*texts, strict=True)]
    bounds = offsets.to_pylist()
    records = np.full(page.count, None, object)
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


def _first_unfit(source: _Rows, unfit: Sequence[Unfit]) -> DecodeError:
    row = int(np.flatnonzero(_any_bad(unfit))[0])
    column = next(column for column in unfit if column.bad[row].as_py())
    entry = source.page.ids()[row].as_py().decode()
    return DecodeError(
        f"entry {entry} of stream {source.stream_of(row)!r}: {column.reason(row)}. Declare the "
        "column STRING, or set mode to DEADLETTER, which moves such entries to another stream (or PERMISSIVE: the "
        "value is null)"
    )
