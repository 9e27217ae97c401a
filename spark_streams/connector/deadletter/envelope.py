"""Envelope of a dead letter: the entry's own fields byte for byte, followed by all of these fields in this order.

    dl.stream, dl.id            stream and ID of the entry
    dl.group, dl.consumer       the group and the consumer that read it
    dl.query, dl.batch          ID of the query, and the micro-batch in which the entry failed
    dl.stage, dl.reason         the step (read, claim, query …), and the reason: `decode`, `deliveries`, or the user's
    dl.error, dl.message        the error's condition or class, and its message
    dl.deliveries               how often the entry had been delivered
    dl.first-failed             when it became a dead letter for the first time, ISO-8601 UTC
    dl.last-failed              when it became this dead letter
    dl.redrives, dl.previous    how often it had been redriven, the dead letter that it was then, and the ID of the
                                very first entry, through any number of redrives: `stream/id first-id`

Unknown fields are empty. So the envelope is always the last fifteen fields of a dead letter, also if there is another
envelope before it (a dead letter of a query that reads dead letters).

A redriven entry has one field more than the original. Its last field is the *mark*:

    dl.redriven = <redrives> <first-failed> <stream>/<id> <first-id>

A query sees this field only if it declares a column of that name. If the entry fails again, the mark becomes
`dl.redrives`, `dl.first-failed` and `dl.previous` of the new dead letter. If a dead letter becomes a dead letter, the
new one takes these three fields from it. What an earlier version has redriven lacks the first ID.

In the retry stream and in the stream of returned entries, an entry has the form of a dead letter, too (ReturnedEntry):
`dl.deliveries` is the number of attempts, and the original entry, with its mark of a redrive, can be restored from it.

Pure: values in, values out. Values that are not UTF-8 are surrogate escapes in texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_streams.base.ids import MIN_ID, InvalidStreamId, StreamId
from spark_streams.base.numbers import COUNT_MAX, parse_number

PREFIX = "dl."
NAMES = (
    "stream",
    "id",
    "group",
    "consumer",
    "query",
    "batch",
    "stage",
    "reason",
    "error",
    "message",
    "deliveries",
    "first-failed",
    "last-failed",
    "redrives",
    "previous",
)
FIELDS = tuple(f"{PREFIX}{name}".encode() for name in NAMES)
MARK = b"dl.redriven"
ORIGIN = "rstream.origin"  # key in the metadata of a column `dl.stream` that a query has computed
MARK_FORM = r"(?s)^([0-9]{1,9}) ([^ ]*) (.*)$"  # nine digits: COUNT_MAX
_MARK = re.compile(MARK_FORM)
FIRST_FORM = "/[0-9]+-[0-9]+(?P<first> [0-9]+-[0-9]+)$"  # of a mark, or of dl.previous
_FIRST = re.compile(FIRST_FORM)
_PLACE = {field: place for place, field in enumerate(FIELDS)}


@dataclass(frozen=True)
class RedriveMark:
    """Mark of a redriven entry."""

    redrives: int
    first_failed: str
    previous: str  # as `dl.previous`

    @classmethod
    def parse(cls, value: bytes) -> RedriveMark | None:
        """Parse a mark's bytes. None if the value is not a mark."""
        match = _MARK.match(text(value))
        redrives = None if match is None else parse_number(match[1], COUNT_MAX)
        return None if match is None or redrives is None else cls(redrives, match[2], match[3])

    def __bytes__(self) -> bytes:
        return raw(f"{self.redrives} {self.first_failed} {self.previous}")


def split_previous(previous: str) -> tuple[str, str]:
    """Return (the dead letter, the ID of the very first entry, "" if unknown) of `dl.previous`."""
    match = _FIRST.search(previous)
    return (previous, "") if match is None else (previous[: match.start("first")], match["first"].strip())


def text(value: bytes) -> str:
    """Return a value as text; bytes that are not UTF-8 become surrogate escapes."""
    return value.decode("utf-8", "surrogateescape")


def raw(value: str) -> bytes:
    """Return the bytes of such a text."""
    return value.encode("utf-8", "surrogateescape")


def split_mark(fields: Sequence[bytes]) -> tuple[Sequence[bytes], RedriveMark | None]:
    """Return (an entry's own fields, its mark). fields: name, value, name, value …"""
    mark = RedriveMark.parse(fields[-1]) if len(fields) > 1 and fields[-2] == MARK else None
    return (fields, None) if mark is None else (fields[:-2], mark)


def dead_letter_fields(fields: Sequence[bytes], values: Mapping[str, str]) -> list[bytes]:
    """Return the fields of the dead letter of an entry. values: by names without their prefix.

    Raises ValueError for a name that the envelope does not have.
    """
    unknown = set(values) - set(NAMES)
    if unknown:
        raise ValueError(f"an envelope has no {', '.join(sorted(unknown))}")
    original, mark = split_mark(fields)
    mark = mark or past_of(original)
    envelope = {**dict.fromkeys(NAMES, ""), **values, "redrives": "0", "previous": ""}
    if mark is not None:
        envelope.update(redrives=str(mark.redrives), previous=mark.previous)
        envelope["first-failed"] = mark.first_failed or envelope["first-failed"]
    words = list(original)
    for field, name in zip(FIELDS, NAMES, strict=True):
        words += [field, raw(envelope[name])]
    return words


def is_dead_letter(fields: Sequence[bytes]) -> bool:
    """Whether an entry with these fields is a dead letter: its last fields are a complete envelope. It may have been
    redriven to a query that reads dead letters."""
    return len(open_envelope(split_mark(fields)[0])[1]) == len(NAMES)


def names_origin(fields: Sequence[bytes]) -> bool:
    """Whether the envelope of these fields names stream and ID of the original entry. If the first or the last entry of
    a stream does so, the stream counts as a dead-letter stream, whichever program wrote it."""
    return {"stream", "id"} <= open_envelope(fields)[1].keys()


def past_of(fields: Sequence[bytes]) -> RedriveMark | None:
    """Return the mark in the envelope of an entry that is a dead letter itself; None for other entries."""
    envelope = open_envelope(fields)[1]
    if len(envelope) < len(NAMES):
        return None
    return RedriveMark.parse(raw(" ".join([envelope["redrives"], envelope["first-failed"], envelope["previous"]])))


def open_envelope(fields: Sequence[bytes]) -> tuple[Sequence[bytes], dict[str, str]]:
    """Return (the original fields, the envelope by names without prefix) of a dead letter. Other entries have an empty
    envelope.

    The envelope is the longest tail of distinct names: envelopes of other writers may lack some.
    """
    envelope: dict[str, str] = {}
    end = len(fields)
    while end:
        place = _PLACE.get(fields[end - 2])
        if place is None or NAMES[place] in envelope:
            break
        envelope[NAMES[place]] = text(fields[end - 1])
        end -= 2
    return fields[:end], {name: envelope[name] for name in NAMES if name in envelope}


@dataclass(frozen=True)
class ReturnedEntry:
    """A returned entry: the original entry, and its attempts so far."""

    fields: Sequence[bytes]  # of the original entry
    stream: str  # of the original entry
    id: str  # of the original entry
    attempts: int  # how often it was tried before
    first_failed: str  # when the first attempt failed

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
