"""Streams that a query names before they exist: waited for, and said to be, or refused (`createStreams=false`).

What a query knows of its streams is in its checkpoint, which it sees with its first trigger: only then is anything said
or refused. A stream that the checkpoint knows and that is gone is a loss (spark_streams.source.findings.diagnosis).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from spark_streams.deadletter.inspect.input_streams import own_dead_letter_streams
from spark_streams.model.ids import MIN_ID
from spark_streams.options.source_options import SourceOptions
from spark_streams.shards.names import Shard
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.absent_streams import (
    ABSENT,
    CREATE,
    SILENT,
    WAITING,
    lines_of,
    missing,
    nothing_matches,
)
from spark_streams.wire.replies.xinfo import stream_states

_log = logging.getLogger("spark_streams.source")


class ExpectedStreams:
    """Those of one run of a query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._but = own_dead_letter_streams(options.dead_letter_stream)
        self._absent: set[str] = set()  # when the query started
        self._is_told = False

    def look(self, server: Server, streams: Sequence[str]) -> None:
        """Remember which of these do not exist, before groups make them. Raises WrongKeyTypeError."""
        self._absent |= {stream for stream, state in stream_states(server, streams).items() if not state.exists}

    def was_absent(self, stream: str) -> bool:
        """Whether a stream did not exist when the query started."""
        return stream in self._absent

    def check(self, server: Server, unknown: Sequence[str]) -> None:
        """Once a run, with its first trigger. unknown: streams that the checkpoint does not know. Raises
        StreamMissingError."""
        if self._is_told:
            return
        why = {}
        for stream, state in stream_states(server, unknown).items():
            if not state.exists and not self._options.create_streams:
                raise missing(server, stream, CREATE)
            if state.last == MIN_ID and not (state.exists and Shard.parse(stream)):  # those are made before their rows
                why[stream] = ABSENT if stream in self._absent or not state.exists else SILENT
        for line in lines_of(server, why, WAITING, self._but):
            _log.warning("%s", line)
        self._is_told = True

    def check_pattern(self, server: Server, streams: Sequence[str]) -> None:
        """The same for a pattern. streams: that it has found, or the checkpoint knows."""
        if not self._is_told and not streams:
            line = nothing_matches(server, self._options.pattern, self._but)
            _log.warning("%s; waiting for the first one", line)
        self._is_told = True
