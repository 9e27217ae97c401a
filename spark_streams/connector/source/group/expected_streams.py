"""Streams that a query names before they exist: it waits for them and logs this, or refuses (`createStreams=false`).

Which streams the query has read is in its checkpoint, which the first trigger brings. Only then does it log or refuse.
A missing stream that the checkpoint names is a loss (spark_streams.connector.source.group.compare).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from spark_streams.base.ids import MIN_ID
from spark_streams.connector.deadletter.input_streams import own_dead_letter_streams
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.shards.names import Shard
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.absent_streams import (
    ABSENT,
    CREATE,
    SILENT,
    WAITING,
    lines_of,
    missing,
    nothing_matches,
)
from spark_streams.connector.wire.replies.xinfo import stream_states

_log = logging.getLogger("spark_streams.connector.source")


class ExpectedStreams:
    """Absent streams of one run of a query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._excluded = own_dead_letter_streams(options.dead_letter_stream)
        self._absent: set[str] = set()  # when the query started
        self.has_recorded = False  # which these are
        self._is_reported = False

    def record_absent(self, server: Server, streams: Sequence[str]) -> None:
        """Record which of these streams do not exist, before XGROUP CREATE creates them. Raises WrongKeyTypeError."""
        self.has_recorded = True
        self._absent |= {stream for stream, state in stream_states(server, streams).items() if not state.exists}

    def was_absent(self, stream: str) -> bool:
        """Whether a stream did not exist when the query started."""
        return stream in self._absent

    def check(self, server: Server, unknown: Sequence[str]) -> None:
        """Report streams without entries, at the first trigger of a run. unknown: streams that the checkpoint does not
        name. Raises StreamMissingError."""
        if self._is_reported:
            return
        reasons = {}
        for stream, state in stream_states(server, unknown).items():
            if not state.exists and not self._options.create_streams:
                raise missing(server, stream, CREATE)
            if state.last == MIN_ID and not (
                state.exists and Shard.parse(stream)
            ):  # shards are created before their rows
                reasons[stream] = ABSENT if stream in self._absent or not state.exists else SILENT
        for line in lines_of(server, reasons, WAITING, self._excluded):
            _log.warning("%s", line)
        self._is_reported = True

    def check_pattern(self, server: Server, streams: Sequence[str]) -> None:
        """Do the same for a pattern. streams: that match it, or that the checkpoint names."""
        if not self._is_reported and not streams:
            line = nothing_matches(server, self._options.pattern, self._excluded)
            _log.warning("%s; waiting for the first one", line)
        self._is_reported = True
