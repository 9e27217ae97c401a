"""Committed entries leave their streams (onCommit), once every group has been given and has acknowledged them.

With each batch that is acknowledged its streams are swept (retention.sweep); with a run's first one all that the
checkpoint names, which takes what a crash has left. Where another group is behind, somebody will be done later than we
are: such streams are looked at again now and then, by an idle query, too. What has come back for another try
(group.retries) is removed likewise, whatever onCommit says: its group alone reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Set

from spark_streams.keys import is_returned
from spark_streams.options import Options
from spark_streams.retention.sweep import Sweeper
from spark_streams.source.limits import Limits
from spark_streams.source.offset import Offset
from spark_streams.wire.server import Server


class Removing:
    """The removing of one query. now: seconds that only go up."""

    def __init__(self, options: Options, now: Callable[[], float], limits: Limits) -> None:
        on_commit = options["onCommit"]
        self._inputs = None if on_commit == "keep" else Sweeper(on_commit == "delete", now)
        self._returned = Sweeper(exactly=True, now=now)
        self._now = now
        self._limits = limits
        self.forget()

    def forget(self) -> None:
        """Take nothing for known, as after a restart."""
        self._is_first = True
        self._behind: set[str] = set()  # streams with entries that we are done with, and another group is not
        self._next_look = 0.0
        for sweeper in (self._inputs, self._returned):
            if sweeper is not None:
                sweeper.forget()

    def due(self, up_to: Offset) -> set[str]:
        """The streams to sweep now that all up to here is in the commit log and acknowledged, or is about to be."""
        if not up_to.token:  # where the query begins, nothing is committed
            return set()
        streams = {*(up_to.positions if self._is_first else up_to.taken_from)} | self.due_later()
        self._is_first = False
        return {stream for stream in streams & up_to.positions.keys() if self._sweeper_of(stream) is not None}

    def due_later(self) -> set[str]:
        """The streams to look at again, with a batch or without."""
        return self._behind.copy() if self._behind and self._now() >= self._next_look else set()

    def seconds_until_due(self) -> float:
        """How long until `due_later` has streams; inf if it has none."""
        return self._next_look - self._now() if self._behind else math.inf

    def sweep(self, server: Server, up_to: Offset, due: Set[str]) -> None:
        """Sweep these streams. Raises StreamStateError, ServerReplyError and kin."""
        todo = sorted(due & up_to.positions.keys())
        for sweeper in (self._inputs, self._returned):
            mine = [stream for stream in todo if sweeper is not None and self._sweeper_of(stream) is sweeper]
            for start in range(0, len(mine), self._limits.sweep_streams):
                some = mine[start : start + self._limits.sweep_streams]
                swept = sweeper.sweep(server, some) if sweeper is not None else {}
                self._behind -= {*some}
                self._behind |= {
                    stream.decode() for stream, standing in swept.items() if standing.needed <= up_to[stream.decode()]
                }
        if todo and self._behind and self._now() >= self._next_look:
            self._next_look = self._now() + self._limits.look_behind

    def dead_lettered(self, server: Server, stream: str) -> None:
        """Entries of the stream were acknowledged with their dead letters, outside of any batch."""
        if is_returned(stream):
            self._returned.sweep(server, [stream])

    def _sweeper_of(self, stream: str) -> Sweeper | None:
        return self._returned if is_returned(stream) else self._inputs
