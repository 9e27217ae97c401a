"""Removing what every group of a stream has been given and has acknowledged: onCommit=trim and onCommit=delete.

    entries   █ █ █ █ █ · █ · · █ · · · · | ○ ○ ○ ○ ○ ○     █ acknowledged by all   · pending in some group
                        ↑ needed            ↑ given         ○ not yet given to some group

trim    XTRIM MINID ~ needed: whole nodes, of a hundred entries or so each. The same on every server.
delete  XTRIM MINID = needed: each of them. Where something is pending below `given`, and the server knows how to (Redis
        since 8.2, the bundled engine), XTRIM MINID = given ACKED behind it: what is acknowledged between pending
        entries goes, too.

Both cost what they remove, but for ACKED: it walks past all that is pending. That is measured, and where it takes long
the next one is put off, so that it takes no more than a small part of the time; what it would have removed waits.

Nothing is remembered that matters: what one sweep has left (a crash, a server that went away), the next one finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spark_streams.retention.readers import Readers, Standing
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.reply_errors import is_no_such_key, is_syntax_error

_SHORT = 0.01  # seconds that walking past what is pending may always take
_SHARE = 20  # else at most one part in so many of the time

Words = tuple[str | bytes, ...]


class Sweeper:
    """Sweeps streams, over any connection to their server. exactly: as `delete` does; now: a monotonic clock, in
    seconds. Calls come one after the other."""

    def __init__(self, exactly: bool, now: Callable[[], float]) -> None:
        self._exactly = exactly
        self._now = now
        self.forget()

    def forget(self) -> None:
        """Take nothing for known of the server: it may be another one."""
        self._readers = Readers()
        self._knows_acked: bool | None = None
        self._walk_again = 0.0

    def sweep(self, server: Server, streams: Sequence[str]) -> dict[bytes, Standing]:
        """How the readers of each stream stood. Two round trips, as long as no reader is new, and a third where
        something is pending amid what is acknowledged.

        A stream without groups is left alone: nobody has acknowledged anything. Raises StreamStateError,
        ServerReplyError and kin.
        """
        looked = self._readers.look(server, [stream.encode() for stream in streams])
        standings = {stream: standing for stream, standing in looked.items() if standing.groups}
        _trim(server, [self._up_to(stream, one) for stream, one in standings.items()])
        amid = [(stream, one) for stream, one in standings.items() if one.needed < one.given]
        if self._exactly and amid and self._knows_acked is not False and self._now() >= self._walk_again:
            self._walk(server, amid)
        return standings

    def _up_to(self, stream: bytes, standing: Standing) -> Words:
        if self._exactly:
            return ("XTRIM", stream, "MINID", "=", str(standing.needed))
        return ("XTRIM", stream, "MINID", "~", str(standing.needed), "LIMIT", "0")

    def _walk(self, server: Server, amid: Sequence[tuple[bytes, Standing]]) -> None:
        """Remove what lies between pending entries."""
        commands: list[Words] = [("XTRIM", stream, "MINID", "=", str(one.given), "ACKED") for stream, one in amid]
        if self._knows_acked is None:
            self._knows_acked = not is_syntax_error(server.pipeline(commands[:1])[0])
        if not self._knows_acked:
            return
        begun = self._now()
        _trim(server, commands)
        ended = self._now()
        if ended - begun > _SHORT:
            self._walk_again = ended + (_SHARE - 1) * (ended - begun)


def _trim(server: Server, commands: Sequence[Words]) -> None:
    for words, reply in zip(commands, server.pipeline(commands), strict=True):
        if isinstance(reply, ReplyError) and not is_no_such_key(reply):
            raise server.error_of(reply, words)
