"""Select streams by names and patterns, or all streams of the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from spark_streams.model.pattern import is_pattern
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.named_streams import names_and_patterns
from spark_streams.wire.replies.scan import list_streams, matching_streams

MAX_STREAMS = 10_000  # by default
_SEARCH_INTERVAL = 10.0  # seconds between two searches for new streams, and ten times the duration of the last search

Name = str | bytes


class StreamFilter:
    """The streams of these names and patterns (named_streams.py), or all; the first `max_streams` by name."""

    def __init__(
        self, names: Sequence[str] = (), max_streams: int = MAX_STREAMS, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._words = names
        self._max_streams = max_streams
        self._now = now
        self._streams: Sequence[Name] = ()
        self._search_again_at = float("-inf")  # time of the next search
        self.left_out = 0  # number of streams beyond `max_streams`

    @property
    def names(self) -> frozenset[str]:
        """The streams that are named without a pattern, existing or not."""
        return frozenset(name for name in self._words if not is_pattern(name))

    def streams(self, server: Server) -> Sequence[Name]:
        """Return the streams, searched a few seconds ago at most. A named stream may not exist. Raises ServerError."""
        began = self._now()
        if began >= self._search_again_at:
            streams = self._refresh(server)
            self.left_out = max(0, len(streams) - self._max_streams)
            self._streams = streams[: self._max_streams]
            ended = self._now()
            self._search_again_at = ended + max(_SEARCH_INTERVAL, 10 * (ended - began))
        return self._streams

    def _refresh(self, server: Server) -> Sequence[Name]:
        if not self._words:
            return list_streams(server)
        words = names_and_patterns(server, self._words)
        return sorted(words.names.union(*[matching_streams(server, pattern, ()) for pattern in words.patterns]))
