"""Steps that read Avro values of a page into Arrow: each reads one type in all values at once.

    values     │ 0a 6f 72 64 65 72 0e 00 │ 02 61 80 01 02 04 … │ …        the bytes of a page, one behind the other
    lanes        at ──────────────► end    at ─────────► end            one for each value that a step reads
    step         string: all lengths, then all texts: Arrow copies them    every lane is behind its text now

A union reads its lanes branch by branch. An array or a map reads one item of each lane in a round, as long as enough
lanes have one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_streams.connector.wire.lines import Bytes, Index, Mask, Spans

FEWEST = 128  # values of a page, and lanes, below which fastavro is faster
MOST_BYTES = (1 << 31) - 64  # of a page: Arrow's offsets have 32 bits
MOST_DECIMAL = 16  # bytes of a decimal
_ROUNDS_OF_FEW = 32  # of a page, with fewer lanes
_PADDING = 16  # bytes around a page: what is read of each value at once
_SHORT, _LONG = 5, 10  # bytes of varints
Words: TypeAlias = npt.NDArray[np.uint64]
_HIGH_BITS = np.uint64(0x8080808080808080)
# By how many bits numbers move, and those that stay: the seven bits of bytes, of twos, of fours.
_SEVENS = [
    (np.uint64(bits), np.uint64(stay))
    for bits, stay in ((1, 0x007F007F007F007F), (2, 0x00003FFF00003FFF), (4, 0x000000000FFFFFFF))
]


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


def read_values(values: Spans, step: Step) -> tuple[pa.Array, Mask]:
    """Return structs, and which of them are read: others are to be read in another way."""
    first, last, count = int(values.begin.min()), int(values.end.max()), len(values.begin)
    page = _Page(values.data[first:last], count)
    lanes = Lanes(page, np.arange(count), values.begin + (_PADDING - first), values.end + (_PADDING - first))
    structs = step(lanes)
    lanes.fail(lanes.at != lanes.end)
    if structs.null_count:
        lanes.fail(np.asarray(structs.is_null()))
    return structs, ~page.bad


def boolean(lanes: Lanes) -> pa.Array:
    byte = lanes.page.data[lanes.skip(1)]
    lanes.fail(byte > 1)
    return pa.array(byte == 1)


def integer(wire: str, kind: pa.DataType, least: int, most: int, scale: int = 1) -> Step:
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


def floating(wire: str, kind: pa.DataType) -> Step:
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


def data(fixed: int | None, is_text: bool) -> Step:
    """Return the step of bytes. fixed: their number, None: it precedes them."""

    def step(lanes: Lanes) -> pa.Array:
        begin = lanes.skip(lanes.sizes() if fixed is None else fixed)
        values = _spans(lanes.page, begin, lanes.at)
        if not is_text:
            return values
        try:
            return values.cast(pa.string())
        except pa.ArrowInvalid:
            wrong = np.array([value.decode(errors="ignore").encode() != value for value in values.to_pylist()])
        lanes.fail(wrong)
        return _spans(lanes.page, begin, np.where(wrong, begin, lanes.at)).cast(pa.string())

    return step


def decimal(fixed: int | None, kind: pa.DataType) -> Step:
    """Return the step of decimals of at most 16 bytes. fixed: as in `data`."""
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
        wrong = (bits > 8 * MOST_DECIMAL) | (high > above) | ((high == above) & (low_half >= np.uint64(rest)))
        wrong |= (high < below) | ((high == below) & (low_half <= np.uint64(beneath)))
        lanes.fail(wrong)
        return _fixed_width(kind, halves)

    return step


def _last_bits(word: Index, bits: Index) -> Index:
    """Return the signed numbers that so many last bits of words are: 0 to 64."""
    unused = np.clip(64 - bits, 0, 63)
    return np.where(bits <= 0, 0, word << unused >> unused)


def enum(symbols: Sequence[str]) -> Step:
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


def union(branches: Sequence[Step | None], kind: pa.DataType, takes_null: bool) -> Step:
    """None: the branch is null. takes_null: else a null is bad."""
    is_null_branch = np.array([branch is None for branch in branches])

    def step(lanes: Lanes) -> pa.Array:
        index = _index(lanes, len(branches))
        is_null = is_null_branch[index]
        if not takes_null:
            lanes.fail(is_null)
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
        if len(values) == 1 and not is_null.any():
            return values[0]
        return pa.concat_arrays(values).take(pa.array(place, mask=is_null))

    return step


def record(
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
            if place is not None:
                values[place] = value
        for place, scalar in added.items():
            values[place] = pa.repeat(scalar, len(lanes))
        for place in required:
            if values[place].null_count:
                lanes.fail(np.asarray(values[place].is_null()))
        return pa.nulls(len(lanes)) if kind is None else pa.StructArray.from_arrays(values, fields=fields)

    return step


def unwanted(read: Callable[[Lanes], object]) -> Step:
    """Return the step of values that no column wants. They are read all the same: they may be bad."""

    def step(lanes: Lanes) -> pa.Array:
        read(lanes)
        return pa.nulls(len(lanes))

    return step


def array(item: Step, kind: pa.ListType) -> Step:
    def step(lanes: Lanes) -> pa.Array:
        bounds, _, values = _items(lanes, item, kind.value_type)
        return pa.ListArray.from_arrays(bounds, values, type=kind)

    return step


def mapping(value: Step, kind: pa.MapType) -> Step:
    entries = pa.struct([("key", pa.string()), ("value", kind.item_type)])
    entry = record([(data(None, True), 0), (value, 1)], {}, entries)

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
