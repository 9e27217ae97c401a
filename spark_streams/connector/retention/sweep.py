"""Remove entries that every group of a stream has acknowledged: onCommit=trim and onCommit=delete.

    entries   █ █ █ █ █ · █ · · █ · · · · | ○ ○ ○ ○ ○ ○     █ acknowledged by all   · pending in some group
                        ↑ needed            ↑ delivered     ○ undelivered in some group

trim    XTRIM MINID ~ needed: whole nodes, of about a hundred entries each. The same on every server.
delete  XTRIM MINID = needed: each entry. If entries below `delivered` are pending, and the server supports it (Redis
        since 8.2, the bundled engine), XTRIM MINID = delivered ACKED follows: it also removes the acknowledged entries
        between pending ones.

The cost is that of the removed entries. Only ACKED also walks past all pending entries. Its time is measured, and the
next one is postponed if it takes long, so that it uses a small share of the time.

A sweep keeps no state that matters: the next sweep finds what a crash or an outage has left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from spark_streams.base.ids import MAX_ID, StreamId
from spark_streams.connector.retention.readers import Readers, RetentionState
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.replies import is_no_such_key, is_not_permitted, is_syntax_error

_SHORT = 0.01  # seconds: walking past pending entries may always take this long
_SHARE = 20  # otherwise it takes at most this fraction (1/20) of the time

_NO_LIMITS: Mapping[str, StreamId] = MappingProxyType({})

Words = tuple[str | bytes, ...]


class Sweeper:
    """Sweeps streams, over any connection to their server. exactly: as `delete` does; now: monotonic clock, in seconds.
    Not thread-safe."""

    def __init__(self, exactly: bool, now: Callable[[], float]) -> None:
        self._exactly = exactly
        self._now = now
        self.forget()

    def forget(self) -> None:
        """Forget the readers and what the server supports: it may be another server."""
        self._readers = Readers()
        self._knows_acked: bool | None = None
        self._walk_again = 0.0

    def forget_streams(self, streams: Collection[bytes]) -> None:
        """Forget the readers of these streams. They may be swept again."""
        self._readers.forget(streams)

    def sweep(
        self, server: Server, streams: Sequence[str], limits: Mapping[str, StreamId] = _NO_LIMITS
    ) -> dict[bytes, RetentionState]:
        """Sweep the streams and return the state of their readers before. Two round trips if no reader is new, and a
        third if entries are pending between acknowledged ones. limits: positions above which nothing is removed.

        A stream without groups is not swept: no group has acknowledged its entries. Raises StreamStateError,
        ServerReplyError and its subclasses.
        """
        states = self._readers.fetch(server, [stream.encode() for stream in streams])
        states = {
            stream: replace(state, limit=limits.get(stream.decode(), MAX_ID))
            for stream, state in states.items()
            if state.groups
        }
        _trim(server, [self._up_to(stream, state) for stream, state in states.items()])
        with_pending = [(stream, state) for stream, state in states.items() if state.needed < state.delivered]
        if self._exactly and with_pending and self._knows_acked is not False and self._now() >= self._walk_again:
            self._walk(server, with_pending)
        return states

    def _up_to(self, stream: bytes, state: RetentionState) -> Words:
        if self._exactly:
            return ("XTRIM", stream, "MINID", "=", str(state.needed))
        return ("XTRIM", stream, "MINID", "~", str(state.needed), "LIMIT", "0")

    def _walk(self, server: Server, with_pending: Sequence[tuple[bytes, RetentionState]]) -> None:
        """Remove the acknowledged entries between pending ones."""
        commands: list[Words] = [
            ("XTRIM", stream, "MINID", "=", str(state.delivered), "ACKED") for stream, state in with_pending
        ]
        if self._knows_acked is None:
            self._knows_acked = not is_syntax_error(server.execute_all(commands[:1], is_syntax_error)[0])
        if not self._knows_acked:
            return
        begun = self._now()
        _trim(server, commands)
        ended = self._now()
        if ended - begun > _SHORT:
            self._walk_again = ended + (_SHARE - 1) * (ended - begun)


def knows_acked(server: Server, stream: str) -> bool:
    """Whether the server removes acknowledged entries between pending ones. Nothing is removed: no ID is below 0-0."""
    command = ("XTRIM", stream, "MINID", "=", "0-0", "ACKED")
    return not is_syntax_error(server.execute_all([command], is_syntax_error, is_not_permitted)[0])


def _trim(server: Server, commands: Sequence[Words]) -> None:
    server.execute_all(commands, is_no_such_key)
