"""Dead letters by reason. Each snapshot reads a few pages: new dead letters, and all again if some were removed.

A stream of millions is counted over several snapshots. The memory is that of one page and of the counts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from spark_streams.base.id_times import is_time
from spark_streams.base.ids import StreamId
from spark_streams.connector.deadletter.counts import REASONS, KindCounts, ReasonCounts
from spark_streams.connector.deadletter.envelope import raw
from spark_streams.connector.deadletter.page_reader import DEAD_LETTER_LIMITS, DeadLetterLimits, PageSize, read_page
from spark_streams.connector.errors import NotPermittedError, RStreamError, ServerUnreachableError
from spark_streams.connector.keys import read_retry_stream
from spark_streams.connector.lag.survey import StreamSummary
from spark_streams.connector.wire.connection.connection import ReplyTooLargeError
from spark_streams.connector.wire.connection.server import Server

SECONDS = 1.0  # per snapshot for reading dead letters: some 60,000 of 250 bytes
_SHOWN = 100  # characters of a reason


@dataclass(frozen=True)
class Reason:
    """The number of dead letters of a stream with this reason. newest_ms: time of the newest one, by its ID; None if
    the IDs are not times."""

    stream: str
    reason: str
    count: int
    newest_ms: int | None


@dataclass
class _StreamProgress:
    counts: ReasonCounts
    size: PageSize


class DeadLetters:
    """Counts of all streams that hold dead letters. now: a monotonic clock, in seconds."""

    def __init__(
        self,
        limits: DeadLetterLimits = DEAD_LETTER_LIMITS,
        seconds: float = SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits, self._seconds, self._now = limits, seconds, now
        self._progress: dict[str, _StreamProgress] = {}

    def refresh(
        self,
        server: Server,
        streams: Sequence[StreamSummary],
        keys: Mapping[str, str | bytes],
        refused: Callable[[RStreamError], None],
    ) -> None:
        """Continue to count for some time. keys: by the displayed name of a stream. refused: receives an error for each
        stream that the user may not read. Raises ServerError."""
        # Entries that wait for a retry have the same format, but are not dead letters yet.
        dead_letter_streams = {
            stream.stream: stream
            for stream in streams
            if stream.has_dead_letters and read_retry_stream(stream.stream) is None
        }
        for name in self._progress.keys() - dead_letter_streams.keys():
            del self._progress[name]
        for name, stream in dead_letter_streams.items():
            progress = self._progress.setdefault(name, _StreamProgress(ReasonCounts(), PageSize(self._limits)))
            progress.counts.update(
                stream.length, StreamId.parse(stream.first), StreamId.parse(stream.last), stream.added
            )
        self._read(server, keys, refused)

    def _read(self, server: Server, keys: Mapping[str, str | bytes], refused: Callable[[RStreamError], None]) -> None:
        """Read a page of each stream in turn, until all are counted or the time is over."""
        deadline = self._now() + self._seconds
        turns = deque(name for name, progress in self._progress.items() if progress.counts.next_range is not None)
        while turns and self._now() < deadline:
            name = turns.popleft()
            progress = self._progress.pop(name)
            self._progress[name] = progress  # last, so that the next snapshot begins with another stream
            try:
                self._page(server, keys[name], progress)
            except NotPermittedError as error:
                refused(error)
                continue
            if progress.counts.next_range is not None:
                turns.append(name)

    @staticmethod
    def _page(server: Server, key: str | bytes, progress: _StreamProgress) -> None:
        id_range = progress.counts.next_range
        assert id_range is not None
        first, last = id_range
        page_entries = progress.size.next()
        try:
            page, received = read_page(server, key, first, last, progress.size)
        except ReplyTooLargeError:
            progress.size.too_large()
            # The connection was closed. On the next one, fewer entries are requested.
            raise ServerUnreachableError(f"a page of dead letters at {server.address} was too large") from None
        counts = KindCounts(max_kinds=REASONS)
        rows = np.flatnonzero(page.are_dead_letters())
        counts.add(page.ids, [page.envelope_column("reason")], rows)
        progress.size.learn(page.count, received, len(rows))
        is_whole = page.count < page_entries
        progress.counts.read(last if is_whole else StreamId.parse(page.ids[page.count - 1].as_py()), page.count, counts)

    @property
    def reasons(self) -> list[Reason]:
        """The counts so far, by stream and reason."""
        now_ms = time.time_ns() // 1_000_000
        reasons: dict[tuple[str, str], Reason] = {}
        for name, progress in sorted(self._progress.items()):
            for (reason,), count in progress.counts.counts:
                shown = raw(reason).decode("utf-8", "backslashreplace")[:_SHOWN]
                previous = reasons.get((name, shown), Reason(name, shown, 0, None))
                last = StreamId.parse(count.last)
                newest = max(previous.newest_ms or 0, last.ms) if is_time(last, now_ms) else previous.newest_ms
                reasons[name, shown] = Reason(name, shown, previous.count + count.letters, newest)
        return list(reasons.values())

    @property
    def uncounted(self) -> dict[str, int]:
        """The number of entries of each stream that are not counted yet."""
        return {name: progress.counts.uncounted for name, progress in sorted(self._progress.items())}
