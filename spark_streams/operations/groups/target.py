"""Target position of a group: the forms in which an operator writes it, and the position in a stream.

earliest          before the first entry
latest            after the last entry
5-1               this entry, as in XGROUP SETID: it counts as delivered, entries above it do not
2026-11-20T08:00  before the first entry of this time or later (UTC without a zone); also in milliseconds
1h                the same for a time before now by the server's clock (500ms, 30s, 15m, 2h, 7d)
-100, +100        this many entries below or above the present position
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.base.times import duration, moment
from spark_streams.connector.admin.groups import nth_from
from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.xinfo import StreamState

FORMS = "earliest, latest, an entry's ID, a time (ISO-8601, or 1h: an hour ago), +N or -N entries"


@dataclass(frozen=True)
class Target:
    """A target: exactly one of the fields after `text` is set. text: as written; end: `earliest` or `latest`; id: of an
    entry; at_ms: a time since the epoch; ago_ms: before the server's time; entries: from the present position."""

    text: str
    end: str = ""
    id: StreamId | None = None
    at_ms: int | None = None
    ago_ms: int | None = None
    entries: int | None = None

    @classmethod
    def parse(cls, text: str) -> Target:
        """Parse a target. Raises ValueError."""
        plain = text.strip()
        if plain.lower() in ("earliest", "latest"):
            return cls(plain, end=plain.lower())
        if re.fullmatch(r"[+-][0-9]{1,18}", plain):
            return cls(plain, entries=int(plain))
        if re.fullmatch(r"[0-9]+-[0-9]+", plain):
            try:
                return cls(plain, id=StreamId.parse(plain))
            except ValueError:
                raise ValueError(f"is none of {FORMS}") from None
        if re.fullmatch(r"[0-9]+ *[a-zA-Z]+", plain):
            return cls(plain, ago_ms=duration(plain))
        try:
            return cls(plain, at_ms=moment(plain))
        except ValueError as error:
            raise ValueError(f"is none of {FORMS}" if "ISO" in str(error) else str(error)) from None

    def position(
        self, server: Server, stream: str, head: StreamState, now_ms: int, current: StreamId = MIN_ID
    ) -> StreamId:
        """Return the position in a stream. current: of the group. Raises StreamStateError if it would be above the last
        entry that the stream ever had: entries that are added below it would never be delivered."""
        if self.end:
            return head.last if self.end == "latest" else MIN_ID
        if self.entries is not None:
            return nth_from(server, stream, current, self.entries) if self.entries else current
        if self.id is not None:
            if self.id > head.last:
                raise self._above(stream, f"the last entry of stream {stream!r} is {head.last}")
            return self.id
        at_ms = now_ms - (self.ago_ms or 0) if self.at_ms is None else self.at_ms
        if at_ms > now_ms and at_ms > head.last.ms:
            raise self._above(stream, "that is in the future")
        return MIN_ID if at_ms <= 0 else min(StreamId(at_ms, 0).previous(), head.last)

    def _above(self, stream: str, why: str) -> StreamStateError:
        return StreamStateError(
            f"{self.text} is above all entries that stream {stream!r} has had ({why}). Entries that are added below it "
            "would never be delivered. Use latest"
        )
