"""Select streams by names and patterns, or all streams of the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from spark_streams.base.pattern import is_pattern
from spark_streams.connector.admin.streams import names_and_patterns
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.scan import MOST_STREAMS, Bounded, bounded, list_streams, matching_streams

_SEARCH_INTERVAL = 10.0  # seconds between two searches for new streams, and ten times the duration of the last search

Name = str | bytes


class StreamFilter:
    """The streams of these names and patterns (wire/replies/scan.py), or all: the named ones, then the first
    others by name, up to `max_streams`."""

    def __init__(
        self, names: Sequence[str] = (), max_streams: int = MOST_STREAMS, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._words = names
        self._max_streams = max_streams
        self._now = now
        self._streams: Sequence[Name] = ()
        self._search_again_at = float("-inf")  # time of the next search
        self.too_many = 0  # streams beyond `max_streams`
        self.too_long = 0  # streams whose names are too long for a list

    @property
    def left_out(self) -> int:
        """Number of streams that are left out."""
        return self.too_many + self.too_long

    @property
    def names(self) -> frozenset[str]:
        """The streams that are named without a pattern, existing or not."""
        return frozenset(name for name in self._words if not is_pattern(name))

    def streams(self, server: Server) -> Sequence[Name]:
        """Return the streams, searched a few seconds ago at most. A named stream may not exist. Raises ServerError."""
        began = self._now()
        if began >= self._search_again_at:
            found = self._refresh(server)
            self.too_many, self.too_long = found.too_many, found.too_long
            self._streams = found.streams
            ended = self._now()
            self._search_again_at = ended + max(_SEARCH_INTERVAL, 10 * (ended - began))
        return self._streams

    def _refresh(self, server: Server) -> Bounded[str] | Bounded[bytes]:
        if not self._words:
            return bounded(list_streams(server), most=self._max_streams)
        words = names_and_patterns(server, self._words)
        streams = words.names.union(*[matching_streams(server, pattern, ()) for pattern in words.patterns])
        return bounded(streams, lambda _: words.names, self._max_streams)
