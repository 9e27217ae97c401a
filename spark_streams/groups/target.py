"""Where a group is to stand: what an operator writes, and which position that is in a stream.

earliest          before the first entry
latest            behind the last one
5-1               at this entry, as XGROUP SETID: it counts as given, what lies above it is yet to be given
2026-11-20T08:00  below the first entry of that moment or later (UTC where it names no zone); milliseconds likewise
1h                the same, so long ago by the server's clock (500ms, 30s, 15m, 2h, 7d)
-100, +100        so many entries below or above where the group stands
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from spark_streams.errors import StreamStateError
from spark_streams.model.ids import MIN_ID, StreamId
from spark_streams.options.values import duration, moment
from spark_streams.source.findings.count_entries import nth_from
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.xinfo import StreamState

FORMS = "earliest, latest, an entry's id, a time (ISO-8601, or 1h: an hour ago), +N or -N entries"


@dataclass(frozen=True)
class Target:
    """One of these is given. text: as it was written; id: an entry; at_ms: a time since the epoch; ago_ms: before the
    server's now; entries: from where the group stands; end: `earliest` or `latest`."""

    text: str
    end: str = ""
    id: StreamId | None = None
    at_ms: int | None = None
    ago_ms: int | None = None
    entries: int | None = None

    @classmethod
    def parse(cls, text: str) -> Target:
        """Raises ValueError."""
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

    @property
    def needs_clock(self) -> bool:
        """Whether `position` must know the time."""
        return self.at_ms is not None or self.ago_ms is not None

    def position(self, server: Server, stream: str, head: StreamState, now_ms: int, at: StreamId = MIN_ID) -> StreamId:
        """The position in a stream. at: where the group stands. Raises StreamStateError where it would lie above all
        that the stream has had: what is added below it nobody would be given."""
        if self.end:
            return head.last if self.end == "latest" else MIN_ID
        if self.entries is not None:
            return nth_from(server, stream, at, self.entries) if self.entries else at
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
            f"{self.text} lies above all that stream {stream!r} has had ({why}), and what is added below it would "
            "never be given to anybody; use latest"
        )
