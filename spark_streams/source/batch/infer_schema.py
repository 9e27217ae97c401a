"""Infer columns and types from a sample of entries. Pure: values in, names of types out.

A field gets the narrowest of these types that reads each of its values without loss:

    long        whole numbers of 64 bits
    double      numbers with a point or an exponent, of at most 17 digits; whole numbers, nan and infinity among them
    boolean     true and false
    date        2026-11-20
    timestamp   2026-11-20T09:30 or finer, down to microseconds, with a zone or without one (UTC); dates among them
    string      everything else: leading zeros (007), larger numbers, empty values, a mixture
    binary      values that are not UTF-8

Decimal fractions become double; declare DECIMAL if they must be exact. A time in milliseconds is a whole number.
"""

from __future__ import annotations

import datetime
import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from spark_streams.source.rows.columns import METADATA

_LONG = re.compile(r"0|-?[1-9][0-9]{0,18}")
_DOUBLE = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
_NO_NUMBER = re.compile(r"nan|[+-]?inf(inity)?", re.IGNORECASE)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?"
)
_MAX_DIGITS = 17  # that a double distinguishes
_EXACT = 1 << 53  # whole numbers beyond are not all doubles

_log = logging.getLogger("spark_streams.source")

# Type of a column: the first whose kinds hold the kinds of all its values.
_TYPES: tuple[tuple[str, frozenset[str]], ...] = (
    ("long", frozenset({"short", "long"})),
    ("double", frozenset({"short", "double", "no number"})),
    ("boolean", frozenset({"boolean"})),
    ("date", frozenset({"date"})),
    ("timestamp", frozenset({"date", "timestamp"})),
    ("string", frozenset({"short", "long", "double", "no number", "boolean", "date", "timestamp", "string"})),
)


def infer(entries: Iterable[Sequence[bytes]], skip: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Return (name, type) of each field, in the order of first appearance. entries: [name, value, name, value …].

    skip: names of columns that are not read from fields, besides the metadata columns.
    A field that cannot be a column beside the others is left out, with a warning: field names come from producers.
    """
    kinds: dict[bytes, set[str]] = {}
    entries_with: Counter[bytes] = Counter()
    for entry in entries:
        for field, value in zip(entry[0::2], entry[1::2], strict=True):
            kinds.setdefault(field, set()).add(kind_of(value))
            entries_with[field] += 1
    taken = METADATA | set(skip)
    fields = [field for field in kinds if _is_text(field) and field.decode() not in taken]
    frequent: dict[str, bytes] = {}  # of names that differ in case only, the most frequent one
    for field in sorted(fields, key=lambda field: -entries_with[field]):
        frequent.setdefault(field.decode().lower(), field)
    columns = []
    for field in fields:
        preferred = frequent[field.decode().lower()]
        if preferred == field:
            columns.append((field.decode(), _type_of(kinds[field])))
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


def kind_of(value: bytes) -> str:
    """Return the kind of a value: a type above, `short` for a whole number that a double holds exactly, or `no number`
    for nan and infinity."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "binary"
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


def _type_of(kinds: set[str]) -> str:
    if kinds == {"no number"}:
        return "string"
    return next((name for name, holds in _TYPES if kinds <= holds), "binary")
