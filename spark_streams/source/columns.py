"""What a query's columns are made of: from a page of entries to a RecordBatch of the declared schema.

Pure: a page and a schema in, a batch out. The schema is Spark's own Arrow schema of the declared types (FACTS S13).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.errors import DecodeError, SchemaError, UnsupportedError
from spark_streams.source.cast import cast_values, check_castable
from spark_streams.wire.decode import EntryPage

# Rows without a declared schema.
DEFAULT_SCHEMA = "stream STRING, id STRING, timestamp TIMESTAMP, fields MAP<STRING, STRING>"

# Metadata columns and the types that each may be declared as, the usual one first.
_META_TYPES = {
    "stream": (pa.string(),),
    "id": (pa.string(),),
    "timestamp": (pa.timestamp("us", tz="UTC"),),
    "fields": (pa.map_(pa.string(), pa.string()), pa.map_(pa.binary(), pa.binary())),
}
_META = frozenset(f"_{name}" for name in _META_TYPES)
_LAST_MILLISECOND = (2**63 - 1) // 1000


@dataclass(frozen=True)
class Columns:
    """schema: the Arrow schema that Spark expects; declared: False for the default columns; mode: for bad values."""

    schema: pa.Schema
    declared: bool
    mode: str

    def check(self) -> None:
        """Raises SchemaError where a declared column can never be filled, UnsupportedError for `_deliveries`."""
        if not self.declared:
            return
        check_castable(self.schema, _META)
        for field in self.schema:
            if not field.nullable:
                raise SchemaError(f"column {field.name!r} is declared NOT NULL, and entries may lack it: drop NOT NULL")
            if field.name not in _META and field.name.lower() in _META:
                raise SchemaError(f"column {field.name!r} is no metadata column; did you mean {field.name.lower()!r}?")
            if field.name == "_deliveries":
                raise UnsupportedError("column '_deliveries' (how often an entry was delivered) is not available yet")
            allowed = _META_TYPES[field.name.removeprefix("_")] if field.name in _META else (field.type,)
            if field.type not in allowed:
                raise SchemaError(
                    f"column {field.name!r} is {' or '.join(map(str, allowed))}, and is declared {field.type}"
                )

    def batch(self, stream: str, page: EntryPage, rows: int) -> pa.RecordBatch:
        """The page's first `rows` rows under the schema. Raises DecodeError in mode FAILFAST."""
        unfit: pa.Array | None = None
        arrays = []
        for field in self.schema:
            meta = field.name.removeprefix("_") if not self.declared or field.name in _META else None
            if meta is not None:
                arrays.append(_META_COLUMNS[meta](stream, page, field.type).slice(0, rows))
                continue
            column, bad = cast_values(page.field(field.name.encode()).slice(0, rows), field.type)
            arrays.append(column)
            if bad is not None and self.mode != "PERMISSIVE":
                if self.mode == "FAILFAST" and pc.any(bad).as_py():
                    raise _unfit(stream, page, field, bad)
                unfit = bad if unfit is None else pc.or_(unfit, bad)
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return batch if unfit is None else batch.filter(pc.invert(unfit))


def _unfit(stream: str, page: EntryPage, field: pa.Field, bad: pa.Array) -> DecodeError:
    row = pc.index(bad, True).as_py()
    value = page.field(field.name.encode())[row].as_py()
    entry = page.ids()[row].as_py().decode()
    return DecodeError(
        f"entry {entry} of stream {stream!r}: field {field.name!r} is {value[:80]!r}, which is no {field.type}; "
        "mend the entry, declare the column STRING, or choose mode PERMISSIVE or DROPMALFORMED"
    )


def _stream_column(stream: str, page: EntryPage, _to: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(stream, pa.string()), page.count)


def _id_column(_stream: str, page: EntryPage, _to: pa.DataType) -> pa.Array:
    return page.ids().cast(pa.string())


def _timestamp_column(_stream: str, page: EntryPage, to: pa.DataType) -> pa.Array:
    """The id's milliseconds; null where they are beyond what a timestamp holds (ids may be any number)."""
    ms = page.milliseconds()
    beyond = ms > _LAST_MILLISECOND
    micros = np.where(beyond, 0, ms).astype(np.int64) * 1000
    return pa.array(micros, mask=beyond).cast(to)


def _fields_column(_stream: str, page: EntryPage, to: pa.DataType) -> pa.Array:
    """All fields in their order. A field that an entry has twice is in the map twice."""
    offsets, names, values = page.fields()
    fields = cast_values(names, to.key_type)[0], cast_values(values, to.item_type)[0]
    return pa.MapArray.from_arrays(offsets, *fields).cast(to)


_META_COLUMNS = {
    "stream": _stream_column,
    "id": _id_column,
    "timestamp": _timestamp_column,
    "fields": _fields_column,
}
