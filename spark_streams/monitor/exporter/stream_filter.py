"""Which streams are looked at: those of some names and patterns, or all that the server has."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.scan import list_streams, matching_streams

MOST = 10_000  # streams, where nobody says how many
_FIND_EVERY = 10.0  # seconds between two looks for new ones, and ten times what the last one took
_GLOB = frozenset("*?[")

Name = str | bytes


class Chosen:
    """The streams of these names and patterns (`*`, `?`, `[]` as in SCAN), or all; the first `most` of them by name."""

    def __init__(self, names: Sequence[str] = (), most: int = MOST, now: Callable[[], float] = time.monotonic) -> None:
        self._names = [name for name in names if not _GLOB & set(name)]
        self._patterns = [name for name in names if _GLOB & set(name)]
        self._finds_all = not names
        self._most = most
        self._now = now
        self._found: Sequence[Name] = ()
        self._again = float("-inf")  # when it is to be looked for others
        self.left_out = 0  # how many there are beyond `most`

    @property
    def named(self) -> frozenset[str]:
        """Those that somebody has named, there or not."""
        return frozenset(self._names)

    def of(self, server: Server) -> Sequence[Name]:
        """As they were found a few seconds ago at most; those that are named may not be there. Raises ServerError."""
        began = self._now()
        if began >= self._again:
            found = self._look(server)
            self.left_out = max(0, len(found) - self._most)
            self._found = found[: self._most]
            ended = self._now()
            self._again = ended + max(_FIND_EVERY, 10 * (ended - began))
        return self._found

    def _look(self, server: Server) -> Sequence[Name]:
        if self._finds_all:
            return list_streams(server)
        found = set(self._names).union(*[matching_streams(server, pattern, ()) for pattern in self._patterns])
        return sorted(found)
