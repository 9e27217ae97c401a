"""Infer columns and types from a sample of entries. Nothing on the server changes.

A field gets the narrowest of these types that reads each of its values without loss:

    long        whole numbers of 64 bits
    double      numbers with a point or an exponent, of at most 17 digits; whole numbers, nan and infinity among them
    boolean     true and false; 0 and 1 beside them
    date        2026-11-20
    timestamp   2026-11-20T09:30 or finer, down to microseconds, with a zone or without one (UTC); dates and whole
                milliseconds (12 or 13 digits) among them
    string      everything else: leading zeros (007), larger numbers, a mixture
    binary      values that are not UTF-8

If there is none but string, the type that reads most of the values is taken, if these are a large enough share. The
others are its misfits: the source reads none of them as a value of this type. A type that would read one of them, but
as another value (007 as 7), is not taken. Missing values (the empty text, null values) do not count.
"""

from __future__ import annotations

import datetime
import logging
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_streams.connector.errors import SchemaError
from spark_streams.connector.options.source_options import BatchSourceOptions
from spark_streams.connector.source.batch_plan import Narrowing, fetch_inputs
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.source.rows.columns import METADATA, cast_values
from spark_streams.connector.source.stream_names import with_shards
from spark_streams.connector.wire.connection import Server

STREAMS = 20  # that are sampled at most
SHARE = 0.8  # of the values, which a type must fit
_LONG = re.compile(r"0|-?[1-9][0-9]{0,18}")
_MILLISECONDS = re.compile("[1-9][0-9]{11,12}")
_DOUBLE = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
_NO_NUMBER = re.compile(r"nan|[+-]?inf(inity)?", re.IGNORECASE)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?"
)
_MAX_DIGITS = 17  # that a double distinguishes
_EXACT = 1 << 53  # whole numbers beyond are not all doubles
_log = logging.getLogger("spark_streams.source")


def sample(server: Server, options: BatchSourceOptions, limits: Limits = LIMITS) -> list[Sequence[bytes]]:
    """Return the fields of the oldest and newest entries of each stream: [name, value, name, value …].

    Raises SchemaError if there is no entry, StreamMissingError if a stream of `streams` does not exist.
    """
    heads = fetch_inputs(server, with_shards(server, options), Narrowing())
    non_empty = {stream: head for stream, head in heads.items() if head.length}
    sampled = dict(list(non_empty.items())[:STREAMS])
    if not sampled:
        read = ", ".join(list(heads)[:5]) or f"streamsPattern={options.streams_pattern}"
        raise SchemaError(f"inferSchema found no entry in {read} at {server.address}. Pass a schema to .schema(…).")
    commands: list[tuple[str | int, ...]] = []
    for stream, head in sampled.items():
        fitting = limits.sample_bytes // (2 * len(sampled) * max(1, head.entry_bytes))
        count = max(1, min(limits.sample_entries, fitting))
        commands.append(("XRANGE", stream, "-", "+", "COUNT", count))
        if head.length > count:
            commands.append(("XREVRANGE", stream, "+", "-", "COUNT", min(count, head.length - count)))
    entries: list[Sequence[bytes]] = []
    for reply in server.execute_each(commands):
        entries += [fields for _id, fields in reply]
    return entries


# -- types -------------------------------------------------------------------------------------------------------------
# Pure: values in, types and their misfits out.


# Types, the narrowest first, each with the kinds of the values that it reads without loss.
_TYPES: dict[str, tuple[pa.DataType, frozenset[str]]] = {
    "long": (pa.int64(), frozenset({"milliseconds", "short", "long"})),
    "double": (pa.float64(), frozenset({"milliseconds", "short", "double", "no number"})),
    "boolean": (pa.bool_(), frozenset({"boolean"})),
    "date": (pa.date32(), frozenset({"date"})),
    "timestamp": (pa.timestamp("us"), frozenset({"date", "timestamp", "milliseconds"})),
}


@dataclass(frozen=True)
class InferredColumn:
    name: str  # of the field
    kind: str  # name of its type
    values: int = 0  # how many were sampled, without missing ones
    misfits: tuple[tuple[bytes, int], ...] = ()  # values that do not fit, or are no text, each with its count

    @property
    def comment(self) -> str | None:
        """A sentence on the values that do not fit; None if all do."""
        if not self.misfits:
            return None
        misfit_count = sum(count for _value, count in self.misfits)
        shown = ", ".join(_shown(value) for value, _count in self.misfits[:3])
        rest = f" and {len(self.misfits) - 3:,} more" if len(self.misfits) > 3 else ""
        fitting = 100 * (self.values - misfit_count) / self.values
        what = "are text" if self.kind == "binary" else "fit"
        return f"{math.floor(fitting * 10) / 10:g} % of {self.values:,} values {what}; not: {shown}{rest}"


def infer(
    entries: Iterable[Sequence[bytes]],
    skip: Iterable[str] = (),
    null_values: Collection[bytes] = (),
    share: float = SHARE,
) -> list[InferredColumn]:
    """Return the column of each field, in the order of first appearance. entries: [name, value, name, value …].

    skip: names of columns that are not read from fields, besides the metadata columns; null_values: texts of option
    nullValue; share: of the values, which a type other than string must fit.
    A field that cannot be a column beside the others is left out, with a warning: field names come from producers.
    """
    sampled: dict[bytes, Counter[bytes]] = {}  # how often each value of a field occurs
    for entry in entries:
        for field, value in zip(entry[0::2], entry[1::2], strict=True):
            sampled.setdefault(field, Counter())[value] += 1
    taken = METADATA | set(skip)
    fields = [field for field in sampled if _is_text(field) and field.decode() not in taken]
    frequent: dict[str, bytes] = {}  # of names that differ in case only, the most frequent one
    for field in sorted(fields, key=lambda field: -sampled[field].total()):
        frequent.setdefault(field.decode().lower(), field)
    columns = []
    for field in fields:
        preferred = frequent[field.decode().lower()]
        if preferred == field:
            present = {value: count for value, count in sampled[field].items() if value and value not in null_values}
            columns.append(_column(field.decode(), Counter(present), share))
        else:
            _log.warning(
                "inferSchema leaves out field %r: it differs from %r in case only. Pass a schema to read both.",
                field.decode()[:100], preferred.decode()[:100],
            )  # fmt: skip
    return columns


def _is_text(field: bytes) -> bool:
    try:
        field.decode()
    except UnicodeDecodeError:
        _log.warning("inferSchema leaves out field %r: its name is not UTF-8, so it cannot be a column.", field[:100])
        return False
    return True


def _column(name: str, present: Counter[bytes], share: float) -> InferredColumn:
    """Choose the type of a column. present: its values, without missing ones, each with its number."""
    kinds = {value: kind_of(value) for value in present}
    total = present.total()
    counts_of_kinds: Counter[str] = Counter()
    for value, count in present.items():
        counts_of_kinds[kinds[value]] += count
    # Of types that fit equally many values, max returns the first, which is the narrowest.
    chosen = max(_TYPES, key=lambda to: sum(counts_of_kinds[kind] for kind in _TYPES[to][1]))
    arrow, read = _TYPES[chosen]
    fitting = {kind: counts_of_kinds[kind] for kind in read if counts_of_kinds[kind]}
    if fitting and fitting.keys() != {"no number"} and sum(fitting.values()) >= share * total:
        misfits = [(value, count) for value, count in present.most_common() if kinds[value] not in read]
        if chosen == "boolean":  # 0 and 1 mean false and true in such a column
            misfits = [(value, count) for value, count in misfits if value not in (b"0", b"1")]
        if _are_refused([value for value, _count in misfits], arrow):
            return InferredColumn(name, chosen, total, tuple(misfits))
    no_texts = tuple((value, count) for value, count in present.most_common() if kinds[value] == "binary")
    return InferredColumn(name, "binary" if no_texts else "string", total, no_texts)


def _are_refused(values: Sequence[bytes], to: pa.DataType) -> bool:
    """Return whether the source reads none of these values as one of this type."""
    column, _unfit = cast_values(pa.array(values, pa.binary()), to)
    return bool(column.null_count == len(values))


def kind_of(value: bytes) -> str:
    """Return the kind of a value: a type above, `short` for a whole number that a double holds exactly, `milliseconds`
    for one that may be a time, or `no number` for nan and infinity."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "binary"
    if _MILLISECONDS.fullmatch(text):
        return "milliseconds"
    if _LONG.fullmatch(text) and -(2**63) <= int(text) < 2**63:
        return "short" if abs(int(text)) <= _EXACT else "long"
    if _DOUBLE.fullmatch(text):
        digits = re.split("[eE]", text)[0].replace(".", "").lstrip("-0")
        return "double" if len(digits) <= _MAX_DIGITS and math.isfinite(float(text)) else "string"
    if text.lower() in ("true", "false"):
        return "boolean"
    if _NO_NUMBER.fullmatch(text):
        return "no number"
    for kind, form in (("date", _DATE), ("timestamp", _TIMESTAMP)):
        if form.fullmatch(text):
            try:
                moment = datetime.datetime.fromisoformat(text)
                (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).astimezone(datetime.UTC)
            except (ValueError, OverflowError):
                return "string"
            return kind
    return "string"


def _shown(value: bytes) -> str:
    """Return a value for a comment: in quotes, printable, and short."""
    text = value[:41].decode("utf-8", "backslashreplace")
    return repr(text if len(value) <= 40 else f"{text[:40]}…")
