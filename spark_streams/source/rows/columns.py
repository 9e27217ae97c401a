"""What a query's columns are made of: from a page of entries to a RecordBatch of the declared schema.

Pure: a page and a schema in, a batch out. The schema is Spark's own Arrow schema of the declared types (FACTS S13).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.errors import DecodeError, SchemaError
from spark_streams.source.rows.cast import cast_values, check_castable
from spark_streams.source.rows.malformed import Dead, Unfit
from spark_streams.source.rows.returned_page import Tries
from spark_streams.wire.entries.decode import EntryPage
from spark_streams.wire.entries.lines import Mask

CORRUPT_RECORD = "_corrupt_record"

# Metadata columns and the types that each may be declared as, the usual one first.
_META_TYPES = {
    "stream": (pa.string(),),
    "id": (pa.string(),),
    "timestamp": (pa.timestamp("us", tz="UTC"),),
    "deliveries": (pa.int32(), pa.int64()),
    "attempt": (pa.int32(), pa.int64()),
    "first_failed": (pa.timestamp("us", tz="UTC"),),
    "fields": (pa.map_(pa.string(), pa.string()), pa.map_(pa.binary(), pa.binary())),
}
# As they are named in a declared schema.
METADATA = frozenset(f"_{name}" for name in _META_TYPES)
_LAST_MILLISECOND = (2**63 - 1) // 1000


@dataclass(frozen=True)
class Decoded:
    """batch: the rows under the schema; dead: mode DEADLETTER's rows that do not fit and are not in the batch; unfit:
    columns with values that do not fit; absent: columns that no entry of the page has a field for."""

    batch: pa.RecordBatch
    dead: Dead | None
    unfit: Sequence[Unfit] = ()
    absent: Sequence[str] = ()


@dataclass(frozen=True)
class Columns:
    """schema: the Arrow schema that Spark expects; declared: False for the default columns; mode: for bad values
    (PERMISSIVE, DROPMALFORMED, FAILFAST, DEADLETTER); corrupt: the column that, where the schema has it, holds in
    mode PERMISSIVE the whole entry as JSON text for rows with a bad value."""

    schema: pa.Schema
    declared: bool
    mode: str
    corrupt: str = CORRUPT_RECORD

    @property
    def wants_deliveries(self) -> bool:
        """Whether `batch` needs each entry's delivery count."""
        return self.declared and "_deliveries" in self.schema.names

    @property
    def wants_tries(self) -> bool:
        """Whether a query can tell which try an entry is at, as rules of its own need to."""
        return self.declared and "_attempt" in self.schema.names

    @property
    def of_fields(self) -> list[str]:
        """The columns that hold an entry's field, each the one of its name."""
        others = METADATA | {self.corrupt}
        return [name for name in self.schema.names if name not in others] if self.declared else []

    def check(self) -> None:
        """Raises SchemaError where a declared column can never be filled."""
        if not self.declared:
            return
        check_castable(self.schema, METADATA | {self.corrupt})
        for field in self.schema:
            if not field.nullable:
                raise SchemaError(f"column {field.name!r} is declared NOT NULL, and entries may lack it: drop NOT NULL")
            if field.name == self.corrupt:
                self._check_corrupt(field)
            if field.name not in METADATA and field.name.lower() in METADATA:
                raise SchemaError(f"column {field.name!r} is no metadata column; did you mean {field.name.lower()!r}?")
            allowed = _META_TYPES[field.name.removeprefix("_")] if field.name in METADATA else (field.type,)
            if field.type not in allowed:
                raise SchemaError(
                    f"column {field.name!r} is {' or '.join(map(str, allowed))}, and is declared {field.type}"
                )

    def _check_corrupt(self, field: pa.Field) -> None:
        if field.name in METADATA:
            raise SchemaError(f"column {field.name!r} cannot hold corrupt records: it is a metadata column")
        if field.type != pa.string():
            raise SchemaError(
                f"column {field.name!r} holds the text of corrupt records, and is declared {field.type}; declare it "
                "STRING, or set columnNameOfCorruptRecord to another name"
            )
        if self.mode != "PERMISSIVE":
            raise SchemaError(
                f"column {field.name!r} is filled in mode PERMISSIVE only, and mode is {self.mode}; drop the column, "
                "or set columnNameOfCorruptRecord to another name"
            )

    def batch(
        self,
        page: EntryPage,
        rows: int,
        streams: str | pa.Array,
        deliveries: pa.Array | None = None,
        tries: Tries | None = None,
    ) -> Decoded:
        """The page's first `rows` rows under the schema.

        streams: the name of the entries' stream, or a string array with one per row; deliveries: an integer array
        with a count per row, needed only where `wants_deliveries`; tries: of entries that came back for another one.
        Raises DecodeError in mode FAILFAST.
        """
        if self.wants_deliveries and deliveries is None:
            raise ValueError("the schema has _deliveries: the page's delivery counts are needed")
        source = _Rows(page, rows, streams, deliveries, tries)
        unfit: list[Unfit] = []
        absent: list[str] = []
        arrays = []
        for field in self.schema:
            if not self.declared:
                arrays.append(source.meta(field.name, field.type))
            elif field.name in METADATA:
                arrays.append(source.meta(field.name.removeprefix("_"), field.type))
            elif field.name == self.corrupt:
                arrays.append(None)  # known when all others are
            else:
                values = page.field(field.name.encode()).slice(0, rows)
                column, bad = cast_values(values, field.type)
                arrays.append(column)
                if bad is not None and pc.any(bad).as_py():
                    unfit.append(Unfit(field, values, bad))
                elif column.null_count == rows and values.null_count == rows:
                    absent.append(field.name)
        if self.declared and self.corrupt in self.schema.names:
            arrays[self.schema.names.index(self.corrupt)] = _corrupt_column(page, rows, unfit)
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if unfit:
            batch, dead = self._sort_out(batch, source, unfit)
            return Decoded(batch, dead, unfit, absent)
        return Decoded(batch, None, absent=absent)

    def _sort_out(
        self, batch: pa.RecordBatch, source: _Rows, unfit: Sequence[Unfit]
    ) -> tuple[pa.RecordBatch, Dead | None]:
        """What the mode makes of rows with a bad value: those that stay, and those that become dead letters."""
        if self.mode == "PERMISSIVE":
            return batch, None
        if self.mode == "FAILFAST":
            raise _first_unfit(source, unfit)
        bad = _any_bad(unfit)
        dead = Dead.of(source.page, np.flatnonzero(bad), unfit) if self.mode == "DEADLETTER" else None
        return batch.filter(pa.array(~bad)), dead


@dataclass(frozen=True)
class _Rows:
    """The first `count` rows of a page, and what the page does not know about them."""

    page: EntryPage
    count: int
    streams: str | pa.Array
    deliveries: pa.Array | None
    tries: Tries | None

    def meta(self, name: str, to: pa.DataType) -> pa.Array:
        """A metadata column, whole."""
        if name == "stream":
            return self._stream().cast(to)
        if name == "id":
            return self.page.ids().slice(0, self.count).cast(to)
        if name == "timestamp":
            return self._timestamp(to)
        if name == "deliveries":
            assert self.deliveries is not None
            return self.deliveries.slice(0, self.count).cast(to)
        if name == "attempt":
            return pa.repeat(pa.scalar(1, to), self.count) if self.tries is None else self._of(self.tries.attempt, to)
        if name == "first_failed":
            return pa.nulls(self.count, to) if self.tries is None else self._of(self.tries.first_failed, to)
        return self._fields(to)

    def _of(self, column: pa.Array, to: pa.DataType) -> pa.Array:
        return column.slice(0, self.count).cast(to)

    def stream_of(self, row: int) -> str:
        return self.streams if isinstance(self.streams, str) else str(self.streams[row])

    def _stream(self) -> pa.Array:
        if isinstance(self.streams, str):
            return pa.repeat(pa.scalar(self.streams, pa.string()), self.count)
        return self.streams.slice(0, self.count)

    def _timestamp(self, to: pa.DataType) -> pa.Array:
        """The id's milliseconds; null where they are beyond what a timestamp holds (ids may be any number)."""
        ms = self.page.milliseconds()[: self.count]
        beyond = ms > _LAST_MILLISECOND
        micros = np.where(beyond, 0, ms).astype(np.int64) * 1000
        return pa.array(micros, mask=beyond).cast(to)

    def _fields(self, to: pa.DataType) -> pa.Array:
        """All fields in their order. A field that an entry has twice is in the map twice."""
        offsets, names, values = self.page.fields()
        fields = cast_values(names, to.key_type)[0], cast_values(values, to.item_type)[0]
        return pa.MapArray.from_arrays(offsets, *fields).cast(to).slice(0, self.count)


def _any_bad(unfit: Sequence[Unfit]) -> Mask:
    bad: Mask = np.logical_or.reduce([column.bad.to_numpy(zero_copy_only=False) for column in unfit])
    return bad


def _corrupt_column(page: EntryPage, rows: int, unfit: Sequence[Unfit]) -> pa.Array:
    """The whole entry as JSON text where some value of it does not fit, null elsewhere."""
    if not unfit:
        return pa.nulls(rows, pa.string())
    bad = _any_bad(unfit)
    dead = Dead(page, np.flatnonzero(bad), [])
    _ids, offsets, names, values = dead.entries()
    texts = cast_values(names, pa.string())[0].to_pylist(), cast_values(values, pa.string())[0].to_pylist()
    # Not through a dict: a field that the entry has twice is there twice.
    pairs = [f"{_quoted(name)}:{_quoted(value)}" for name, value in zip(*texts, strict=True)]
    bounds = offsets.to_pylist()
    records = np.full(rows, None, object)
    records[dead.rows] = [f"{{{','.join(pairs[a:b])}}}" for a, b in itertools.pairwise(bounds)]
    return pa.array(records, pa.string())


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _first_unfit(source: _Rows, unfit: Sequence[Unfit]) -> DecodeError:
    row = int(np.flatnonzero(_any_bad(unfit))[0])
    column = next(column for column in unfit if column.bad[row].as_py())
    entry = source.page.ids()[row].as_py().decode()
    return DecodeError(
        f"entry {entry} of stream {source.stream_of(row)!r}: {column.reason(row)}; declare the column STRING, or "
        "choose mode DEADLETTER, which keeps such entries in another stream (or PERMISSIVE: the value is null)"
    )
