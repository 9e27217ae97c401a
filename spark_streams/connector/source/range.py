"""Range of entries of one stream: in the offset, in requests of the pending list, and in the plan of a batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from spark_streams.base.ids import MIN_ID, StreamId


@dataclass(frozen=True, slots=True)
class Range:
    """Entries of one stream with after < ID ≤ last that were delivered to the query's consumer at `until` at the latest
    (milliseconds of the server's clock). count: how many they are, 0 if that is not known. An entry that is handed over
    later has a later time of delivery, so it is not of the batch. until is 0 if the query is alone in the group: nobody
    can hand entries over, and no clock decides."""

    stream: str
    after: StreamId
    last: StreamId
    count: int = 0
    until: int = 0

    @classmethod
    def parse(cls, stream: str, text: str) -> Range:
        """Parse the text that `str` returns. Raises ValueError, InvalidStreamId for any other text."""
        after, last, count, until = text.split(" ")
        return cls(stream, StreamId.parse(after), StreamId.parse(last), int(count), int(until))

    def __str__(self) -> str:
        """Return the text for an offset, which names the stream beside it."""
        return f"{self.after} {self.last} {self.count} {self.until}"

    def covers(self, entry: StreamId) -> bool:
        """Whether the ID of an entry is within the range."""
        return self.after < entry <= self.last

    @property
    def is_empty(self) -> bool:
        """Whether it can have no entry."""
        return self.last <= self.after


def around(stream: str, ranges: Iterable[Range], last: StreamId, until: int = 0) -> list[Range]:
    """Return what the stream has up to `last` that is in none of these ranges. Pure."""
    found, after = list[Range](), MIN_ID
    for taken in sorted(ranges, key=attrgetter("after")):
        found.append(Range(stream, after, min(taken.after, last), until=until))
        after = max(after, taken.last)
    found.append(Range(stream, after, last, until=until))
    return [entries for entries in found if not entries.is_empty]
