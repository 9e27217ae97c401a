"""Entries that are transferred, which of them, and their checksum. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from spark_streams.base.given_text import parse_assignment
from spark_streams.base.ids import StreamId
from spark_streams.connector.deadletter.envelope import raw, text
from spark_streams.connector.deadletter.transform import Loaded, StreamEntry, call, encode_fields
from spark_streams.connector.errors import InvalidOptionError
from spark_streams.connector.wire.connection import pack


class TransferEntry(NamedTuple):
    """fields: name, value, name, value …"""

    id: StreamId
    fields: Sequence[bytes]

    @classmethod
    def parse(cls, entry_id: str | bytes, fields: Sequence[bytes]) -> TransferEntry:
        """Return an entry with this ID. Raises ValueError if the ID is none, or if there is no field."""
        if not fields:
            raise ValueError("it has no field")
        return cls(StreamId.parse(entry_id), fields)

    def texts(self) -> list[tuple[str, str]]:
        """Return (name, value) of each field; bytes that are not UTF-8 are surrogate escapes."""
        words = list(map(text, self.fields))
        return list(zip(words[0::2], words[1::2], strict=True))


class Digest:
    """Count, first and last ID, and a checksum of entries in their order: blake2b over the RESP form of each entry's
    ID, names and values, in which each has its length before it."""

    def __init__(self) -> None:
        self.count = 0
        self.first: StreamId | None = None
        self.last: StreamId | None = None
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, entry: TransferEntry) -> None:
        """Add the next entry."""
        self.first = entry.id if self.first is None else self.first
        self.count, self.last = self.count + 1, entry.id
        self._hash.update(pack(bytes(entry.id), *entry.fields))

    def add_all(self, pages: Iterable[Sequence[TransferEntry]]) -> None:
        """Add the entries of all pages."""
        for page in pages:
            for entry in page:
                self.add(entry)

    def facts(self) -> dict[str, Any]:
        """Return the values as JSON. Digests of the same entries have equal facts."""
        first, last = (None if entry_id is None else str(entry_id) for entry_id in (self.first, self.last))
        return {"entries": self.count, "first": first, "last": last, "checksum": self._hash.hexdigest()}


@dataclass(frozen=True)
class TransferRules:
    """Which entries of a range are transferred, and how."""

    fields: tuple[tuple[bytes, bytes], ...] = ()  # (name, value) that an entry must all have
    limit: int | None = None  # number of entries that are sent
    rate: int | None = None  # entries per second
    transform: Loaded | None = None  # returns the fields to send, or None

    def select(self, entry: TransferEntry) -> bool:
        """Whether the entry has all fields. Of several fields of one name, any may have the value."""
        pairs = set(zip(entry.fields[0::2], entry.fields[1::2], strict=True)) if self.fields else set()
        return all(pair in pairs for pair in self.fields)

    def change(self, entry: TransferEntry) -> TransferEntry | None:
        """Return the entry to send; None if the transform skips it. Raises TransformError."""
        if self.transform is None:
            return entry
        where = f"entry {entry.id}"
        fields = call(self.transform, StreamEntry(str(entry.id), entry.texts()), where)
        if fields is None:
            return None
        return TransferEntry(entry.id, [word for pair in encode_fields(fields, where) for word in pair])


def parse_fields(texts: Sequence[str]) -> tuple[tuple[bytes, bytes], ...]:
    """Parse FIELD=VALUE. Raises InvalidOptionError."""
    pairs = []
    for assigned in texts:
        pair = parse_assignment(assigned)
        if pair is None:
            raise InvalidOptionError(f"{assigned[:100]!r} is not of the form FIELD=VALUE")
        pairs.append((raw(pair[0]), raw(pair[1])))
    return tuple(pairs)
