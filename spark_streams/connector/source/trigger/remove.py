"""Removing committed entries from their streams (onCommit), after every group has acknowledged them.

The streams that a batch has entries of are swept (retention.py) when it is acknowledged. The first sweep of a run
also takes all streams of the checkpoint, and all returned streams that the query reads: it removes what a crash has
left. While another consumer or group is behind in a stream, the stream is swept again now and then, by an idle query,
too. Entries of returned streams (group.retries) are removed whatever onCommit says: their group alone reads them.

A sweep removes only what all groups of the stream have acknowledged, as the server says, and nothing above the query's
own position if it is alone in its group: a group that was moved (XGROUP SETID) has not read what it has passed. So any
stream may be swept at any time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Set

from spark_streams.base.ids import StreamId
from spark_streams.connector.keys import is_returned
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.retention import RetentionState, Sweeper
from spark_streams.connector.source.group.retries import Retries
from spark_streams.connector.source.limits import Limits
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.wire.connection.server import Server


class Removing:
    """The removing of one query. retries: what it knows of its returned streams; now: a monotonic clock, in seconds."""

    def __init__(self, options: SourceOptions, retries: Retries, now: Callable[[], float], limits: Limits) -> None:
        on_commit = options.on_commit
        self._inputs = None if on_commit == "keep" else Sweeper(on_commit == "delete", now)
        self._returned = Sweeper(exactly=True, now=now)
        self._retries = retries
        self._now = now
        self._limits = limits
        self._behind: set[str] = set()  # streams with entries that another group or consumer is not done with
        self._next_sweep = 0.0
        self._swept: set[str] = set()  # streams of which a sweeper knows the readers

    def due(self, up_to: Offset, is_first: bool) -> set[str]:
        """The streams to sweep now that all up to here is in the commit log and acknowledged, or is about to be.
        is_first: nothing is known of what was swept."""
        if is_first:
            self._forget()
        streams = self.due_later()
        if is_first:
            streams |= self._retries.returned
        if up_to.token:  # else the query begins: nothing of its input streams is committed
            streams |= {*(up_to.streams if is_first else up_to.taken_from)}
        return {stream for stream in streams if self._sweeper_of(stream) is not None}

    def _forget(self) -> None:
        """Forget all streams: the server may be another one."""
        self._behind, self._next_sweep, self._swept = set(), 0.0, set()
        for sweeper in (self._inputs, self._returned):
            if sweeper is not None:
                sweeper.forget()

    def due_later(self) -> set[str]:
        """Return the streams to sweep again, with a batch or without."""
        return self._behind.copy() if self._behind and self._now() >= self._next_sweep else set()

    def seconds_until_due(self) -> float:
        """Return the time until `due_later` has streams; inf if it has none."""
        return self._next_sweep - self._now() if self._behind else math.inf

    def sweep(self, server: Server, up_to: Offset, due: Set[str]) -> None:
        """Sweep these streams. up_to: where the query is. Raises StreamStateError, ServerReplyError."""
        limits = {stream: at.position for stream in due if (at := up_to.at.get(stream)) and at.read is not None}
        todo = sorted(due)
        self._forget_gone(up_to, due)
        for sweeper in (self._inputs, self._returned):
            mine = [stream for stream in todo if sweeper is not None and self._sweeper_of(stream) is sweeper]
            for start in range(0, len(mine), self._limits.sweep_streams):
                page = mine[start : start + self._limits.sweep_streams]
                swept = sweeper.sweep(server, page, limits) if sweeper is not None else {}
                self._behind -= {*page}
                self._behind |= {
                    stream.decode() for stream, readers in swept.items() if _is_behind(readers, up_to[stream.decode()])
                }
        if todo and self._behind and self._now() >= self._next_sweep:
            self._next_sweep = self._now() + self._limits.lag_check

    def _forget_gone(self, up_to: Offset, due: Set[str]) -> None:
        """Forget the readers of streams that the query no longer reads: streams of a pattern come and go."""
        gone = self._swept - up_to.at.keys() - due
        self._swept = (self._swept - gone) | due
        if gone:
            names = {stream.encode() for stream in gone}
            for sweeper in (self._inputs, self._returned):
                if sweeper is not None:
                    sweeper.forget_streams(names)

    def dead_lettered(self, server: Server, stream: str) -> None:
        """Entries of the stream were acknowledged with their dead letters, outside of any batch."""
        if is_returned(stream):
            self._returned.sweep(server, [stream])

    def _sweeper_of(self, stream: str) -> Sweeper | None:
        return self._returned if is_returned(stream) else self._inputs


def _is_behind(readers: RetentionState, position: StreamId) -> bool:
    """Whether some reader has still to acknowledge what the group was given, or to be given what is read up to here.
    The position alone does not tell: entries that were read through a claim stand anywhere."""
    return readers.needed < readers.delivered or readers.needed <= position
