"""Returned entry: the original entry, and its attempts so far.

In the retry stream and in the stream of returned entries, an entry has the form of a dead letter (envelope.py): its own
fields, followed by the envelope. `dl.deliveries` is the number of attempts. The original entry, with its mark of a
redrive, can be restored from it.

Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_streams.base.ids import MIN_ID, InvalidStreamId, StreamId
from spark_streams.base.numbers import COUNT_MAX, parse_number
from spark_streams.connector.deadletter.envelope import FIELDS, MARK, NAMES, RedriveMark, open_envelope, past_of, raw


@dataclass(frozen=True)
class ReturnedEntry:
    """fields, stream, id: of the original entry; attempts: how often it was tried before; first_failed: when the first
    attempt failed."""

    fields: Sequence[bytes]
    stream: str
    id: str
    attempts: int
    first_failed: str

    @classmethod
    def parse(cls, fields: Sequence[bytes]) -> ReturnedEntry | None:
        """Parse an entry's fields. None if another writer has written the entry."""
        original, envelope = open_envelope(fields)
        if tuple(fields[-2 * len(NAMES) :: 2]) != FIELDS or not is_origin(raw(envelope["stream"]), raw(envelope["id"])):
            return None
        return cls(
            with_mark(original, envelope),
            envelope["stream"],
            envelope["id"],
            attempts_in(envelope["deliveries"]),
            envelope["first-failed"],
        )

    def to_envelope(self) -> dict[str, str]:
        """Return the fields of the envelope that its next dead letter always has."""
        return {"stream": self.stream, "id": self.id, "first-failed": self.first_failed}


def attempts_in(deliveries: str) -> int:
    """Return how often an entry was tried, at least once."""
    return max(1, parse_number(deliveries, COUNT_MAX) or 1)


def with_mark(original: Sequence[bytes], envelope: Mapping[str, str]) -> Sequence[bytes]:
    """Return the entry's own fields, with the mark of a redriven entry as the last field."""
    mark = mark_of(envelope)
    return original if mark is None or past_of(original) == mark else [*original, MARK, bytes(mark)]


def mark_of(envelope: Mapping[str, str]) -> RedriveMark | None:
    """Return the mark in the envelope; None if the entry was not redriven."""
    redrives = parse_number(envelope["redrives"], COUNT_MAX)
    return RedriveMark(redrives, envelope["first-failed"], envelope["previous"]) if redrives else None


def is_origin(stream: bytes, entry: bytes) -> bool:
    """Whether an entry can have this origin: the name of a stream that a query can read, and a valid entry ID."""
    try:
        return bool(stream.decode()) and b"-" in entry and StreamId.parse(entry) >= MIN_ID
    except (UnicodeDecodeError, InvalidStreamId):
        return False
