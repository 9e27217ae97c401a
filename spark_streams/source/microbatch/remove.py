"""Committed entries leave their streams (onCommit), once every group has been given and has acknowledged them.

With each batch that is acknowledged its streams are swept (retention.sweep); with a run's first one all that the
checkpoint names, which takes what a crash has left. Where another group is behind, somebody will be done later than we
are: such streams are looked at again now and then, by an idle query, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from spark_streams.options import Options
from spark_streams.retention.sweep import Sweeper
from spark_streams.source.limits import Limits
from spark_streams.source.offset import Offset
from spark_streams.wire.server import Server


class Removing:
    """The removing of one query. now: seconds that only go up; removes: whether it is to."""

    def __init__(self, options: Options, now: Callable[[], float], limits: Limits) -> None:
        on_commit = options["onCommit"]
        self.removes = on_commit != "keep"
        self._sweeper = None if on_commit == "keep" else Sweeper(on_commit == "delete", now)
        self._now = now
        self._limits = limits
        self.forget()

    def forget(self) -> None:
        """Take nothing for known, as after a restart."""
        self._is_first = True
        self._behind: set[str] = set()  # streams with entries that we are done with, and another group is not
        self._next_look = 0.0
        if self._sweeper is not None:
            self._sweeper.forget()

    def committed(self, server: Server, up_to: Offset) -> None:
        """All up to here is in the commit log, and acknowledged. Raises StreamStateError, ServerReplyError and kin."""
        if self._sweeper is None or not up_to.token:  # where the query begins, nothing is committed
            return
        streams = {*(up_to.positions if self._is_first else up_to.taken_from)}
        self._is_first = False
        self._sweep(self._sweeper, server, up_to, streams)

    def idle(self, server: Server, up_to: Offset) -> None:
        """There is nothing to read; up_to: as above. Raises as above."""
        if self._sweeper is not None and self._behind:
            self._sweep(self._sweeper, server, up_to, set())

    def _sweep(self, sweeper: Sweeper, server: Server, up_to: Offset, streams: Collection[str]) -> None:
        left = {*streams}
        if self._behind and self._now() >= self._next_look:
            left |= self._behind
        todo = sorted(left & up_to.positions.keys())
        for start in range(0, len(todo), self._limits.sweep_streams):
            some = todo[start : start + self._limits.sweep_streams]
            swept = sweeper.sweep(server, some)
            self._behind -= {*some}
            self._behind |= {
                stream.decode() for stream, standing in swept.items() if standing.needed <= up_to[stream.decode()]
            }
        if todo and self._behind and self._now() >= self._next_look:
            self._next_look = self._now() + self._limits.look_behind
