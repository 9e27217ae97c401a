"""The envelope of a dead letter: the entry's own fields byte for byte, and behind them all of these, in this order.

    dl.stream, dl.id            where the entry stood
    dl.group, dl.consumer       who read it
    dl.query, dl.batch          the query's id and the micro-batch that gave it up
    dl.stage, dl.reason         which step (read, claim, query …), and why: `decode`, `deliveries`, or the user's own
    dl.error, dl.message        the error's condition or class, and what it said
    dl.deliveries               how often the entry had been delivered
    dl.first-failed             when it became a dead letter for the first time, ISO-8601 UTC
    dl.last-failed              when it became this dead letter
    dl.redrives, dl.previous    how often it had been sent back, and what it was then: `stream/id`

What is not known is empty. So a dead letter's envelope is its last fifteen fields whatever stands before them, even
another envelope (a dead letter of somebody who reads dead letters).

An entry that was sent back has one field more than the original, the last one, its *mark*:

    dl.redriven = <redrives> <first-failed> <stream>/<id>

A query does not see it unless it asks for a column of that name. When the entry dies again, the mark turns into
`dl.redrives`, `dl.first-failed` and `dl.previous` of the new dead letter. What becomes a dead letter and is one already
hands its own on.

Pure: values in, values out. Values that are no UTF-8 become surrogate escapes, and bytes again on the way out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_streams.model.numbers import COUNT_MAX, parse_number

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
MARK_FORM = r"(?s)^([0-9]{1,9}) ([^ ]*) (.*)$"  # nine digits: COUNT_MAX
_MARK = re.compile(MARK_FORM)
_PLACE = {field: place for place, field in enumerate(FIELDS)}


@dataclass(frozen=True)
class Mark:
    """What an entry that was sent back knows of its past."""

    redrives: int
    first_failed: str
    previous: str

    @classmethod
    def parse(cls, value: bytes) -> Mark | None:
        """None where the value is not what `bytes` gives."""
        found = _MARK.match(text(value))
        redrives = None if found is None else parse_number(found[1], COUNT_MAX)
        return None if found is None or redrives is None else cls(redrives, found[2], found[3])

    def __bytes__(self) -> bytes:
        return raw(f"{self.redrives} {self.first_failed} {self.previous}")


def text(value: bytes) -> str:
    """A value as text; bytes that are no UTF-8 are escaped as surrogates."""
    return value.decode("utf-8", "surrogateescape")


def raw(value: str) -> bytes:
    """The bytes of such a text."""
    return value.encode("utf-8", "surrogateescape")


def unmarked(fields: Sequence[bytes]) -> tuple[Sequence[bytes], Mark | None]:
    """(an entry's own fields, its mark); fields: name, value, name, value …"""
    mark = Mark.parse(fields[-1]) if len(fields) > 1 and fields[-2] == MARK else None
    return (fields, None) if mark is None else (fields[:-2], mark)


def dead_letter_fields(fields: Sequence[bytes], told: Mapping[str, str]) -> list[bytes]:
    """The fields of the dead letter for an entry with these fields. told: names without their prefix, and values.

    Raises ValueError for a name that the envelope does not have.
    """
    unknown = set(told) - set(NAMES)
    if unknown:
        raise ValueError(f"an envelope has no {', '.join(sorted(unknown))}")
    original, mark = unmarked(fields)
    mark = mark or past_of(original)
    envelope = {**dict.fromkeys(NAMES, ""), **told, "redrives": "0", "previous": ""}
    if mark is not None:
        envelope.update(redrives=str(mark.redrives), previous=mark.previous)
        envelope["first-failed"] = mark.first_failed or envelope["first-failed"]
    words = list(original)
    for field, name in zip(FIELDS, NAMES, strict=True):
        words += [field, raw(envelope[name])]
    return words


def is_dead_letter(fields: Sequence[bytes]) -> bool:
    """Whether an entry with these fields is a dead letter: nothing of the envelope is missing at its end. It may
    have been sent back to those who read dead letters."""
    return len(opened(unmarked(fields)[0])[1]) == len(NAMES)


def says_where_from(fields: Sequence[bytes]) -> bool:
    """Whether an entry with these fields says which entry it was: by the first or the last one of a stream that does,
    whoever wrote it, the stream is known as one of dead letters."""
    return {"stream", "id"} <= opened(fields)[1].keys()


def past_of(fields: Sequence[bytes]) -> Mark | None:
    """What an entry knows of its past that is a dead letter itself: somebody reads dead letters."""
    envelope = opened(fields)[1]
    if len(envelope) < len(NAMES):
        return None
    return Mark.parse(raw(" ".join([envelope["redrives"], envelope["first-failed"], envelope["previous"]])))


def opened(fields: Sequence[bytes]) -> tuple[Sequence[bytes], dict[str, str]]:
    """(the original fields, the envelope by names without prefix) of a dead letter; other entries have no envelope.

    The envelope is the longest tail of distinct names: those of other writers may lack some.
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
