"""Dead letters by reason, a few pages of them at each look: what is new, and what must be read again where some went.

A stream of millions is counted over several looks. Memory is that of a page, and of the counts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from spark_streams.deadletter.envelope import raw
from spark_streams.deadletter.inspect.reason_counts import REASONS, ReasonCounts
from spark_streams.deadletter.kind_counts import KindCounts
from spark_streams.deadletter.limits import DEAD_LETTER_LIMITS, DeadLetterLimits
from spark_streams.deadletter.page_reader import PageSize, read_page
from spark_streams.errors import NotPermittedError, RStreamError, ServerUnreachableError
from spark_streams.model.ids import StreamId
from spark_streams.model.keys import read_retry_stream
from spark_streams.monitor.lag_survey import StreamStanding
from spark_streams.wire.connection.connection import ReplyTooLargeError
from spark_streams.wire.connection.server import Server

SECONDS = 1.0  # of a look that dead letters are read for: some 60,000 of 250 bytes
_SHOWN = 100  # characters of a reason


@dataclass(frozen=True)
class Reason:
    """So many dead letters of a stream are there for this reason. newest_ms: the id of the last one, as a time."""

    stream: str
    reason: str
    letters: int
    newest_ms: int


@dataclass
class _Known:
    counts: ReasonCounts
    size: PageSize


class DeadLetters:
    """Of all streams that hold some. now: a monotonic clock, in seconds."""

    def __init__(
        self,
        limits: DeadLetterLimits = DEAD_LETTER_LIMITS,
        seconds: float = SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits, self._seconds, self._now = limits, seconds, now
        self._known: dict[str, _Known] = {}

    def look(
        self,
        server: Server,
        streams: Sequence[StreamStanding],
        keys: Mapping[str, str | bytes],
        refused: Callable[[RStreamError], None],
    ) -> None:
        """Bring the counts nearer to how the streams are. keys: by a stream's name as it is shown. refused: is told
        what may not be read. Raises ServerError."""
        # What waits for another try is written as they are, and is none yet.
        letters = {one.stream: one for one in streams if one.has_dead_letters and read_retry_stream(one.stream) is None}
        for gone in self._known.keys() - letters.keys():
            del self._known[gone]
        for name, one in letters.items():
            known = self._known.setdefault(name, _Known(ReasonCounts(), PageSize(self._limits)))
            known.counts.update(one.length, StreamId.parse(one.first), StreamId.parse(one.last), one.added)
        self._read(server, keys, refused)

    def _read(self, server: Server, keys: Mapping[str, str | bytes], refused: Callable[[RStreamError], None]) -> None:
        """A page of each in turn, until all is known or the time is over."""
        until = self._now() + self._seconds
        turns = deque(name for name, known in self._known.items() if known.counts.next_range is not None)
        while turns and self._now() < until:
            name = turns.popleft()
            known = self._known.pop(name)
            self._known[name] = known  # the next look begins with another
            try:
                self._page(server, keys[name], known)
            except NotPermittedError as error:
                refused(error)
                continue
            if known.counts.next_range is not None:
                turns.append(name)

    @staticmethod
    def _page(server: Server, key: str | bytes, known: _Known) -> None:
        wanted = known.counts.next_range
        assert wanted is not None
        first, last = wanted
        asked = known.size.next()
        try:
            page, received = read_page(server, key, first, last, known.size)
        except ReplyTooLargeError:
            known.size.too_large()
            # The connection was given up; on the next one, fewer are asked for.
            raise ServerUnreachableError(f"a page of dead letters at {server.address} was too large") from None
        counts = KindCounts(max_kinds=REASONS)
        rows = np.flatnonzero(page.are_dead_letters())
        counts.add(page.ids, [page.envelope_column("reason")], rows)
        known.size.learn(page.count, received, len(rows))
        is_whole = page.count < asked
        known.counts.read(last if is_whole else StreamId.parse(page.ids[page.count - 1].as_py()), page.count, counts)

    @property
    def reasons(self) -> list[Reason]:
        """What is known, by stream and reason."""
        found: dict[tuple[str, str], Reason] = {}
        for name, known in sorted(self._known.items()):
            for (reason,), count in known.counts.counts:
                shown = raw(reason).decode("utf-8", "backslashreplace")[:_SHOWN]
                before = found.get((name, shown), Reason(name, shown, 0, 0))
                newest = max(before.newest_ms, StreamId.parse(count.last).ms)
                found[name, shown] = Reason(name, shown, before.letters + count.letters, newest)
        return list(found.values())

    @property
    def uncounted(self) -> dict[str, int]:
        """Entries of each of these streams that have not been read yet."""
        return {name: known.counts.uncounted for name, known in sorted(self._known.items())}
