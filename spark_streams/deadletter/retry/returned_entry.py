"""An entry that came back for another try: what it was, and what is known of the tries before.

While it waits, and where it comes back, it is written as a dead letter is (envelope): its own fields, and behind them
what happened. `dl.deliveries` says how often it was tried. What it was, its own mark of a redrive included, is all in
there.

Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_streams.deadletter.envelope import FIELDS, MARK, NAMES, Mark, opened, past_of, raw
from spark_streams.model.ids import MIN_ID, InvalidStreamId, StreamId
from spark_streams.model.numbers import COUNT_MAX, parse_number


@dataclass(frozen=True)
class ReturnedEntry:
    """fields: as the original entry had them; stream, id: where it stood; attempts: how often it was tried before;
    first_failed: when the first one failed."""

    fields: Sequence[bytes]
    stream: str
    id: str
    attempts: int
    first_failed: str

    @classmethod
    def of(cls, fields: Sequence[bytes]) -> ReturnedEntry | None:
        """None for an entry that another writer has put there: it is what it is."""
        own, envelope = opened(fields)
        if tuple(fields[-2 * len(NAMES) :: 2]) != FIELDS or not is_origin(raw(envelope["stream"]), raw(envelope["id"])):
            return None
        return cls(
            with_mark(own, envelope),
            envelope["stream"],
            envelope["id"],
            attempts_in(envelope["deliveries"]),
            envelope["first-failed"],
        )

    def told(self) -> dict[str, str]:
        """What the envelope of its next dead letter says of it whatever happens."""
        return {"stream": self.stream, "id": self.id, "first-failed": self.first_failed}


def attempts_in(deliveries: str) -> int:
    """How often an entry was tried that had been tried at all."""
    return max(1, parse_number(deliveries, COUNT_MAX) or 1)


def with_mark(own: Sequence[bytes], envelope: Mapping[str, str]) -> Sequence[bytes]:
    """The entry's own fields, with the mark that an entry which was sent back had as its last one."""
    mark = mark_of(envelope)
    return own if mark is None or past_of(own) == mark else [*own, MARK, bytes(mark)]


def mark_of(envelope: Mapping[str, str]) -> Mark | None:
    """The mark that the envelope was told of; None where the entry had not been sent back."""
    redrives = parse_number(envelope["redrives"], COUNT_MAX)
    return Mark(redrives, envelope["first-failed"], envelope["previous"]) if redrives else None


def is_origin(stream: bytes, entry: bytes) -> bool:
    """Whether an entry can have stood there: a name that a query can read, and an id as the server writes it."""
    try:
        return bool(stream.decode()) and b"-" in entry and StreamId.parse(entry) >= MIN_ID
    except (UnicodeDecodeError, InvalidStreamId):
        return False
