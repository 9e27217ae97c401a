"""Avro values of a page into Arrow: a schema is compiled to steps, and each step reads one type in all values at once.

    values     │ 0a 6f 72 64 65 72 0e 00 │ 02 61 80 01 02 04 … │ …        the bytes of a page, one behind the other
    lanes        at ──────────────► end    at ─────────► end            one for each value that a step reads
    step         string: all lengths, then all texts: Arrow copies them    every lane is behind its text now

A union reads its lanes branch by branch. An array or a map reads one item of each lane in a round, as long as enough
lanes have one.

A plan is stricter than avro_walk.py and fastavro: what it reads is what they read. Values that it marks as bad may
still be right, and are read by them, as are values of schemas without a plan. So a reason has one owner.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import types as T

from spark_streams.base.untyped import Json
from spark_streams.connector.schemas.avro import KEPT, OWN, AvroRead, NamedTypes
from spark_streams.connector.schemas.avro_walk import bare_schema, kind_of, last_part
from spark_streams.connector.schemas.fit import UNFIT, fitter
from spark_streams.connector.schemas.reasons import FIRST_STEPS, STEPS_OF_A_BYTE
from spark_streams.connector.spark.arrow import arrow_schema
from spark_streams.connector.wire.lines import Bytes, Index, Mask, Spans

FEWEST = 128  # values of a page, and lanes, below which fastavro is faster
_ROUNDS_OF_FEW = 32  # of a page, with fewer lanes
_MOST_DECIMAL = 16  # bytes of a decimal
_PADDING = 16  # bytes around a page: what is read of each value at once
_MOST_BYTES = (1 << 31) - 64  # of a page: Arrow's offsets have 32 bits
_MOST_PLANS = 1_000  # of a process
_MOST_PARTS, _DEEPEST = 1_000, 50  # of a plan
_SHORT, _LONG = 5, 10  # bytes of varints
Words = npt.NDArray[np.uint64]
_HIGH_BITS = np.uint64(0x8080808080808080)
# By how many bits numbers move, and those that stay: the seven bits of bytes, of twos, of fours.
_SEVENS = [
    (np.uint64(bits), np.uint64(stay))
    for bits, stay in ((1, 0x007F007F007F007F), (2, 0x00003FFF00003FFF), (4, 0x000000000FFFFFFF))
]
_RECORDS = ("record", "error")


class NoPlanError(Exception):
    """A schema, or its columns, need the path value by value."""


class _Page:
    """The bytes of values, and which of them are bad."""

    def __init__(self, data: Bytes, rows: int) -> None:
        self.data = np.zeros(len(data) + 2 * _PADDING, np.uint8)
        self.data[_PADDING:-_PADDING] = data
        self.buffer = pa.py_buffer(self.data)
        self.bad = np.zeros(rows, np.bool_)
        self.rounds_of_few = _ROUNDS_OF_FEW

    def words(self, at: Index, kind: str = "<u8") -> Any:
        """Return the numbers that begin there."""
        size = np.dtype(kind).itemsize
        return np.ndarray((len(self.data) - size + 1,), kind, self.data, 0, (1,))[at]


class Lanes:
    """Places in a page, up to where each may read, and the rows that they are of. at: a step moves them."""

    def __init__(self, page: _Page, row: Index, at: Index, end: Index) -> None:
        self.page, self.row, self.at, self.end = page, row, at, end

    def __len__(self) -> int:
        return len(self.row)

    def some(self, which: Index) -> Lanes:
        return Lanes(self.page, self.row[which], self.at[which], self.end[which])

    def fail(self, wrong: Mask) -> None:
        """Mark these rows as bad. Their lanes are at their end, and stay there."""
        if wrong.any():
            self.page.bad[self.row[wrong]] = True
            self.at = np.where(wrong, self.end, self.at)

    def skip(self, size: Index | int) -> Index:
        """Move by so many bytes and return the places before them."""
        begin = self.at
        self.at = begin + size
        self.fail(size > self.end - begin)
        return np.minimum(begin, self.at)

    def varints(self, longest: int = _SHORT) -> Words:
        """Return numbers as they are before zigzag. A bad one is 0."""
        first = self.page.data[self.at]
        if not (first > 0x7F).any():
            number, size = first.astype(np.uint64), np.ones(len(self), np.int64)
        else:
            number, size = self._long_varints()
        wrong = size > np.minimum(self.end - self.at, longest)
        self.at = self.at + size
        self.fail(wrong)
        number[wrong] = 0
        return number

    def _long_varints(self) -> tuple[Words, Index]:
        """Return the numbers and how many bytes they have; 11: more than 64 bits."""
        word: Words = self.page.words(self.at)
        stop = ~word & _HIGH_BITS
        stop &= np.negative(stop)  # the high bit of the last byte, 0 if it is not in the word
        size = ((stop.astype(np.float64).view(np.int64) >> 52) - 1022) >> 3
        word &= stop | (stop - np.uint64(1))
        word &= ~_HIGH_BITS
        for bits, mask in _SEVENS:  # neighbours first, then twos, then fours
            high = word >> bits
            high &= ~mask
            word &= mask
            word |= high
        long = np.flatnonzero(stop == 0)
        if len(long):
            ninth, tenth = (self.page.data[self.at[long] + place].astype(np.uint64) for place in (8, 9))
            has_ten = ninth > 0x7F
            word[long] |= (ninth & np.uint64(0x7F)) << np.uint64(56)
            word[long] |= np.where(has_ten, tenth, 0).astype(np.uint64) << np.uint64(63)
            size[long] = np.where(has_ten, np.where(tenth > 1, 11, 10), 9)
        return word, size

    def sizes(self) -> Index:
        """Return lengths or indexes: numbers that are not negative. A bad one is 0."""
        number = self.varints()
        self.fail((number & np.uint64(1)) > 0)
        return (number >> np.uint64(1)).view(np.int64)


def _fixed_width(kind: pa.DataType, values: npt.NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


# -- steps of types without parts --------------------------------------------------------------------------------------

Step = Callable[[Lanes], pa.Array]  # returns a value for each lane, and moves the lanes behind them


def _never(kind: pa.DataType) -> Step:
    def step(lanes: Lanes) -> pa.Array:
        lanes.fail(np.ones(len(lanes), np.bool_))
        return pa.nulls(len(lanes), kind)

    return step


def _boolean(lanes: Lanes) -> pa.Array:
    byte = lanes.page.data[lanes.skip(1)]
    lanes.fail(byte > 1)
    return pa.array(byte == 1)


def _integer(wire: str, kind: pa.DataType, least: int, most: int, scale: int = 1) -> Step:
    """Return the step of numbers within bounds. scale: by what they are multiplied."""
    to = np.dtype(f"i{kind.bit_width // 8}")

    def step(lanes: Lanes) -> pa.Array:
        value = _whole(lanes, wire)
        wrong = (value < least) | (value > most)
        lanes.fail(wrong)
        if scale != 1:
            value = np.where(wrong, 0, value) * scale
        return _fixed_width(kind, value.astype(to, copy=False))

    return step


def _whole(lanes: Lanes, wire: str) -> Index:
    number = lanes.varints(_SHORT if wire == "int" else _LONG)
    if wire == "int":
        lanes.fail(number > np.uint64(0xFFFFFFFF))
    signed: Index = ((number >> np.uint64(1)) ^ np.negative(number & np.uint64(1))).view(np.int64)
    return signed


def _float(wire: str, kind: pa.DataType) -> Step:
    """Return the step of floats. A double that becomes a float keeps all digits, or is bad."""
    stored = {"float": "<f4", "double": "<f8"}.get(wire)

    def step(lanes: Lanes) -> pa.Array:
        if stored is None:
            value = _whole(lanes, wire).astype(np.float64)
        else:
            value = lanes.page.words(lanes.skip(np.dtype(stored).itemsize), stored)
        with np.errstate(over="ignore", invalid="ignore"):
            result = value.astype(kind.to_pandas_dtype())
        if result.itemsize < value.itemsize:
            lanes.fail((result != value) & ~np.isnan(value))
        return pa.array(result)

    return step


def _spans(page: _Page, begin: Index, end: Index) -> pa.Array:
    """Return these bytes of a page, which lie one behind the other."""
    if not len(begin):
        return pa.array([], pa.binary())
    bounds = np.empty(2 * len(begin), np.int32)  # a value, what lies between it and the next one, that value, ...
    bounds[0::2], bounds[1::2] = begin, end
    values = pa.BinaryArray.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), page.buffer])
    return values.take(pa.array(np.arange(0, len(bounds), 2)))


def _bytes(fixed: int | None, is_text: bool) -> Step:
    """Return the step of bytes. fixed: their number, None: it precedes them."""

    def step(lanes: Lanes) -> pa.Array:
        begin = lanes.skip(lanes.sizes() if fixed is None else fixed)
        values = _spans(lanes.page, begin, lanes.at)
        if not is_text:
            return values
        try:
            return values.cast(pa.string())
        except pa.ArrowInvalid:
            wrong = np.array([not _is_text(value) for value in values.to_pylist()])
        lanes.fail(wrong)
        return _spans(lanes.page, begin, np.where(wrong, begin, lanes.at)).cast(pa.string())

    return step


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _decimal(fixed: int | None, kind: pa.DataType) -> Step:
    """Return the step of decimals of at most 16 bytes. fixed: as in `_bytes`."""
    above, rest = divmod(10**kind.precision, 1 << 64)  # numbers lie between this one and its negative
    below, beneath = divmod(-(10**kind.precision), 1 << 64)

    def step(lanes: Lanes) -> pa.Array:
        begin = lanes.skip(lanes.sizes() if fixed is None else fixed)
        bits = 8 * (lanes.at - begin)
        halves = np.empty((len(lanes), 2), np.int64)
        low, high = (lanes.page.words(lanes.at - place, ">i8").astype(np.int64) for place in (8, 16))
        halves[:, 0] = np.where(bits < 64, _last_bits(low, bits), low)
        halves[:, 1] = np.where(bits > 64, _last_bits(high, bits - 64), halves[:, 0] >> 63)
        high, low_half = halves[:, 1], halves[:, 0].view(np.uint64)
        wrong = (bits > 8 * _MOST_DECIMAL) | (high > above) | ((high == above) & (low_half >= np.uint64(rest)))
        wrong |= (high < below) | ((high == below) & (low_half <= np.uint64(beneath)))
        lanes.fail(wrong)
        return _fixed_width(kind, halves)

    return step


def _last_bits(word: Index, bits: Index) -> Index:
    """Return the signed numbers that so many last bits of words are: 0 to 64."""
    unused = np.clip(64 - bits, 0, 63)
    return np.where(bits <= 0, 0, word << unused >> unused)


def _symbols(symbols: Sequence[str]) -> Step:
    names = pa.array(symbols, pa.string())

    def step(lanes: Lanes) -> pa.Array:
        return names.take(pa.array(_index(lanes, len(symbols))))

    return step


def _index(lanes: Lanes, count: int) -> Index:
    index = lanes.sizes()
    wrong = index >= count
    lanes.fail(wrong)
    return np.where(wrong, 0, index)


# -- steps of types with parts -----------------------------------------------------------------------------------------


def _union(branches: Sequence[Step | None], kind: pa.DataType) -> Step:
    """None: the branch is null."""
    is_null_branch = np.array([branch is None for branch in branches])

    def step(lanes: Lanes) -> pa.Array:
        index = _index(lanes, len(branches))
        place = np.zeros(len(lanes), np.int64)  # of each lane's value in those of all branches
        values: list[pa.Array] = []
        count = 0
        for number, branch in enumerate(branches):
            which = np.flatnonzero(index == number)
            if branch is None or not len(which):
                continue
            inner = lanes.some(which)
            values.append(branch(inner))
            lanes.at[which] = inner.at
            place[which] = np.arange(count, count + len(which))
            count += len(which)
        if not values:
            return pa.nulls(len(lanes), kind)
        is_null = is_null_branch[index]
        if len(values) == 1 and not is_null.any():
            return values[0]
        return pa.concat_arrays(values).take(pa.array(place, mask=is_null))

    return step


def _record(
    steps: Sequence[tuple[Step, int | None]], added: Mapping[int, pa.Scalar], kind: pa.StructType | None
) -> Step:
    """steps: of the fields, with their place in the struct, None: it lacks them; added: its other fields; kind: None if
    no column wants the struct."""
    fields = [] if kind is None else list(kind)
    required = [place for place, field in enumerate(fields) if not field.nullable]

    def step(lanes: Lanes) -> pa.Array:
        values: list[pa.Array] = [None] * len(fields)
        for read, place in steps:
            value = read(lanes)
            if kind is not None and place is not None:
                values[place] = value
        for place, scalar in added.items():
            values[place] = pa.repeat(scalar, len(lanes))
        for place in required:
            if values[place].null_count:
                lanes.fail(np.asarray(values[place].is_null()))
        return pa.nulls(len(lanes)) if kind is None else pa.StructArray.from_arrays(values, fields=fields)

    return step


def _unwanted(read: Callable[[Lanes], object]) -> Step:
    """Return the step of values that no column wants. They are read all the same: they may be bad."""

    def step(lanes: Lanes) -> pa.Array:
        read(lanes)
        return pa.nulls(len(lanes))

    return step


def _array(item: Step, kind: pa.ListType) -> Step:
    def step(lanes: Lanes) -> pa.Array:
        bounds, _, values = _items(lanes, item, kind.value_type)
        return pa.ListArray.from_arrays(bounds, values, type=kind)

    return step


def _map(entry: Step, entries: pa.StructType, kind: pa.MapType) -> Step:
    def step(lanes: Lanes) -> pa.Array:
        bounds, owner, values = _items(lanes, entry, entries)
        keys, parts = values.flatten()
        codes = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
        named = np.sort(owner << 32 | codes)
        twice = named[1:][named[1:] == named[:-1]] >> 32  # the last value counts, at the place of the first one
        wrong = np.zeros(len(lanes), np.bool_)
        wrong[twice] = True
        lanes.fail(wrong)
        return pa.MapArray.from_arrays(bounds, keys, parts, type=kind)

    return step


def _items(lanes: Lanes, item: Step, kind: pa.DataType) -> tuple[pa.Array, Index, pa.Array]:
    """Return the items of all lanes, one lane behind the other: their bounds, the lane of each, and their values."""
    page = lanes.page
    left, stop = np.zeros(len(lanes), np.int64), np.full(len(lanes), -1)  # items of a block, and its end if it has one
    values, owners = [pa.nulls(0, kind)], [np.zeros(0, np.int64)]
    active = np.arange(len(lanes))
    while True:
        _begin_blocks(lanes, active[left[active] == 0], left, stop)
        active = active[(left[active] > 0) & ~page.bad[lanes.row[active]]]
        if 0 < len(active) < FEWEST:
            page.rounds_of_few -= 1
            if page.rounds_of_few < 0:
                page.bad[lanes.row[active]] = True
                active = active[:0]
        if not len(active):
            break
        inner = lanes.some(active)
        values.append(item(inner))
        owners.append(active)
        lanes.at[active] = inner.at
        left[active] -= 1
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    bounds = np.zeros(len(lanes) + 1, np.int32)
    np.cumsum(np.bincount(owner, minlength=len(lanes)), out=bounds[1:])
    return pa.array(bounds), owner[order], pa.concat_arrays(values).take(pa.array(order))


def _begin_blocks(lanes: Lanes, which: Index, left: Index, stop: Index) -> None:
    """Read how many items follow in these lanes, 0: none."""
    heads = lanes.some(which)
    heads.fail((stop[which] >= 0) & (stop[which] != heads.at))
    number = heads.varints()
    left[which] = ((number + np.uint64(1)) >> np.uint64(1)).view(np.int64)
    sized = np.flatnonzero(number & np.uint64(1))
    bounded = heads.some(sized)
    size = bounded.sizes()
    heads.at[sized] = bounded.at
    lanes.at[which] = heads.at
    stop[which] = -1
    stop[which[sized]] = bounded.at + size


# -- the plan of a schema ----------------------------------------------------------------------------------------------

_DAYS = (-719_162, 2_932_896)  # of the years 1 to 9999, since 1970
_MICROS = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)
_MILLIS = (_MICROS[0] // 1000, _MICROS[1] // 1000)
# By what a value means: its own type in Arrow.
_NATURAL = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "fixed": pa.binary(), "string": pa.string(), "enum": pa.string(),
    "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "local-timestamp": pa.timestamp("us"),
    "decimal": pa.decimal128(38, 0),
}  # fmt: skip


class _Part(NamedTuple):
    read: Step
    least: int  # bytes that a value has
    debt: int  # most steps that avro_walk.py may count for a value, less those that its bytes allow


class _Into(NamedTuple):
    """The type of a column, or of a part of it."""

    arrow: pa.DataType
    spark: T.DataType


class AvroPlan:
    """Reads values of one schema into one type of structs."""

    def __init__(self, read: AvroRead, struct: T.StructType) -> None:
        """Raises NoPlanError."""
        self._kind = pa.struct(list(arrow_schema(struct)))
        part = _Compiler(read.types).part(read.writer, read.reader, _Into(self._kind, struct), 0)
        if part.debt > FIRST_STEPS:
            raise NoPlanError
        self._read = part.read

    def decode(self, values: Spans) -> tuple[pa.Array, Mask]:
        """Return structs, and which of them are read: others are to be read in another way."""
        first, last = int(values.begin.min()), int(values.end.max())
        count = len(values.begin)
        if last - first > _MOST_BYTES:
            return pa.nulls(count, self._kind), np.zeros(count, np.bool_)
        page = _Page(values.data[first:last], count)
        lanes = Lanes(page, np.arange(count), values.begin + (_PADDING - first), values.end + (_PADDING - first))
        structs = self._read(lanes)
        lanes.fail(lanes.at != lanes.end)
        if structs.null_count:
            lanes.fail(np.asarray(structs.is_null()))
        return structs, ~page.bad


@functools.lru_cache(_MOST_PLANS)
def plan_of(read: AvroRead, struct: T.StructType) -> AvroPlan | None:
    """Return the plan of a schema, None if it has none."""
    try:
        return AvroPlan(read, struct)
    except NoPlanError:
        return None


class _Compiler:
    """In all methods, reader: None if the value is read as its writer's type; into: None if no column wants it."""

    def __init__(self, types: NamedTypes) -> None:
        self._types = types
        self._parts = 0

    def part(self, writer: Json, reader: Json, into: _Into | None, depth: int) -> _Part:
        self._parts += 1
        if self._parts > _MOST_PARTS or depth > _DEEPEST:  # also of a type that contains itself
            raise NoPlanError
        writer = _definition(writer, self._types.writer)
        if isinstance(writer, list):
            return self._union(writer, reader, into, depth)
        wire = kind_of(writer)
        reader = _definition(_branch_for(wire, reader), self._types.reader)
        if reader is not None and not _is_read_as(wire, writer, reader):
            raise NoPlanError
        if wire in _RECORDS:
            return self._record(writer, reader, into, depth + 1)
        if wire in ("array", "map"):
            return self._blocks(wire, writer, reader, into, depth + 1)
        size = writer["size"] if wire == "fixed" else _LEAST.get(wire, 1)
        read = _leaf(wire, writer, writer if reader is None else reader, into)
        return _Part(_unwanted(read) if into is None else read, size, -STEPS_OF_A_BYTE * size)

    def _union(self, branches: list[Json], reader: Json, into: _Into | None, depth: int) -> _Part:
        kind = into.arrow if into else pa.null()
        takes_null = reader is None or "null" in (reader if isinstance(reader, list) else [reader])
        steps: list[Step | None] = []
        parts: list[_Part] = []
        for branch in branches:
            is_null = branch == "null"
            never = is_null and not takes_null
            parts.append(_Part(_never(kind), 0, 0) if never else self.part(branch, reader, into, depth + 1))
            steps.append(None if is_null and takes_null else parts[-1].read)
        least, debt = min(one.least for one in parts), max(one.debt for one in parts)
        return _Part(_union(steps, kind), 1 + least, debt - STEPS_OF_A_BYTE)

    def _record(self, writer: Json, reader: Json, into: _Into | None, depth: int) -> _Part:
        columns = _columns(into)
        not_written = {} if reader is None else {field["name"]: field for field in reader["fields"]}
        aliases = {alias: field for field in not_written.values() for alias in field.get("aliases", ())}
        steps: list[tuple[Step, int | None]] = []
        parts: list[_Part] = []
        for field in writer["fields"]:
            name, meant = field["name"], None
            if reader is not None:
                found = not_written.get(name, aliases.get(name, {}))
                name, meant = found.get("name"), found.get("type")
                if found and not_written.pop(name, None) is None:  # it is written twice
                    raise NoPlanError
            place, column = columns.pop(name, (None, None))
            parts.append(self.part(field["type"], meant, column, depth))
            steps.append((parts[-1].read, place))
        if any("default" not in field for field in not_written.values()):
            raise NoPlanError
        added = {
            place: _constant(not_written.get(name, {}).get("default"), column)
            for name, (place, column) in columns.items()
        }
        counted = max(len(parts), self._types.read_fields.get(last_part(writer["name"]), 0))
        return _Part(
            _record(steps, added, into and into.arrow),
            sum(part.least for part in parts),
            sum(part.debt for part in parts) + counted,
        )

    def _blocks(self, wire: str, writer: Json, reader: Json, into: _Into | None, depth: int) -> _Part:
        key = "items" if wire == "array" else "values"
        inner = _part_of(into, wire) if into else None
        one = self.part(writer[key], reader and reader[key], inner, depth)
        entries = None
        if wire == "map":
            entries = pa.struct([("key", pa.string()), ("value", inner.arrow)]) if inner else None
            entry = _record([(_bytes(None, True), 0), (one.read, 1)], {}, entries)
            one = _Part(entry, one.least + 1, one.debt - STEPS_OF_A_BYTE)
        if one.least < 1 or one.debt > 0:  # items without bytes, or with too many fields for their bytes, are counted
            raise NoPlanError
        if into is None:
            read = _unwanted(lambda lanes: _items(lanes, one.read, pa.null()))
        elif wire == "map":
            read = _map(one.read, entries, into.arrow)
        else:
            read = _array(one.read, into.arrow)
        return _Part(read, 1, -STEPS_OF_A_BYTE)


_KINDS = {*_NATURAL, *_RECORDS, "array", "map"}
_LEAST = {"null": 0, "float": 4, "double": 8}
_PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "bytes": ("string",),
}


def _definition(schema: Json, named: Mapping[str, Json]) -> Json:
    """Return a bare type: a name's."""
    schema = bare_schema(schema)
    while (name := kind_of(schema)) in named and name not in _KINDS:
        schema = bare_schema(named[name])
    return schema


def _branch_for(wire: str, reader: Json) -> Json:
    """Return the branch of the reader's union as which a type is read. Raises NoPlanError if it may be several."""
    if not isinstance(reader, list):
        return reader
    branches = [branch for branch in reader if (branch == "null") is (wire == "null")]
    if len(branches) != 1:
        raise NoPlanError
    return branches[0]


def _is_read_as(wire: str, writer: Json, reader: Json) -> bool:
    """Return whether the reader's type takes values of the writer's, if neither is a union."""
    meant = kind_of(reader)
    if wire != meant:
        return meant in _PROMOTED.get(wire, ())
    if wire in ("fixed", "enum", *_RECORDS):
        names = {last_part(reader["name"]), *reader.get("aliases", ())}
        if names.isdisjoint((writer["name"], last_part(writer["name"]))):
            return False
    return all(writer[key] == reader[key] for key in ("size", "symbols") if key in writer)


def _columns(into: _Into | None) -> dict[str, tuple[int, _Into]]:
    """Return place and type of the columns by name."""
    if into is None:
        return {}
    if not isinstance(into.spark, T.StructType) or not 0 < len(into.spark) == len(set(into.spark.names)):
        raise NoPlanError
    kinds = zip(into.arrow, into.spark, strict=True)
    return {one.name: (place, _Into(one.type, other.dataType)) for place, (one, other) in enumerate(kinds)}


def _part_of(into: _Into, wire: str) -> _Into:
    """Return the type of the items or values of a column."""
    if wire == "array" and isinstance(into.spark, T.ArrayType):
        return _Into(into.arrow.value_type, into.spark.elementType)
    if wire == "map" and isinstance(into.spark, T.MapType) and into.arrow.key_type == pa.string():
        return _Into(into.arrow.item_type, into.spark.valueType)
    raise NoPlanError


def _constant(value: Any, into: _Into) -> pa.Scalar:
    """Return a default as a column holds it."""
    try:
        return pa.scalar(None if value is None else fitter(into.spark)(value), into.arrow)
    except UNFIT:
        raise NoPlanError from None


def _leaf(wire: str, writer: Json, meant: Json, into: _Into | None) -> Step:
    """Return the step of a type without parts. meant: the type as which it is read."""
    name, own = kind_of(meant), _logical(writer)
    logical, scale = _logical(meant), _scale(meant)
    if own and logical and (own, _scale(writer)) != (logical, scale):  # the stored number is another one
        raise NoPlanError
    is_time = (name, logical) in KEPT
    if is_time or logical == "decimal":
        name = logical.removesuffix("-millis").removesuffix("-micros")
    kind = _NATURAL[name] if into is None else into.arrow
    size = writer["size"] if wire == "fixed" else None
    if name == "null":
        return lambda lanes: pa.nulls(len(lanes), kind)
    if name == "decimal":
        is_held = pa.types.is_decimal128(kind) and (into is None or kind.scale == scale)
        if not is_held or (size or 0) > _MOST_DECIMAL:
            raise NoPlanError
        return _decimal(size, kind)
    if name in ("int", "long") and pa.types.is_signed_integer(kind):
        return _integer(wire, kind, -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1)
    if name in ("float", "double") and kind in (pa.float32(), pa.float64()):
        return _float(wire, kind)
    if kind != _NATURAL[name]:
        raise NoPlanError
    if is_time:
        is_millis = logical.endswith("-millis")
        bounds = _DAYS if name == "date" else _MILLIS if is_millis else _MICROS
        return _integer(wire, kind, *bounds, 1000 if is_millis else 1)
    if name == "boolean":
        return _boolean
    return _symbols(writer["symbols"]) if name == "enum" else _bytes(size, name == "string")


def _logical(schema: Json) -> str:
    return schema.get(OWN, "") if isinstance(schema, dict) else ""


def _scale(schema: Json) -> int:
    return schema.get("scale", 0) if isinstance(schema, dict) else 0
