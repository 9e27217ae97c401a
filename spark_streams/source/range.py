"""Range of entries of one stream: in the offset, in requests of the pending list, and in the plan of a batch."""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.model.ids import StreamId


@dataclass(frozen=True, slots=True)
class Range:
    """Entries of one stream with after < ID ≤ last that were delivered to the query's consumer at `until` at the latest
    (milliseconds of the server's clock; 0: at any time). count: how many they are, 0 if that is not known. An entry
    that is handed over later has a later time of delivery, so it is not of the batch."""

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
