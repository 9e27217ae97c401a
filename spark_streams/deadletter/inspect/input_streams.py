"""Which of the streams that a pattern finds hold dead letters: those are nobody's input.

Dead letters match the pattern of the streams that they come from (`orders:*`, `orders:dead`). Whoever wrote them, this
query, another one or a job, they are known by what they are: the first entry of a stream that is found for the first
time is looked at, once. A stream without entries says nothing yet, and is found when it has its first one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from spark_streams.deadletter.envelope import is_dead_letter
from spark_streams.deadletter.limits import DEAD_LETTER_LIMITS, DeadLetterLimits
from spark_streams.deadletter.page_reader import FIRST_LOOK, PageSize, pages_of
from spark_streams.deadletter.redrive.redrive_plan import PARKED
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.reply_errors import is_wrong_type

_log = logging.getLogger("spark_streams.deadletter")


def own_dead_letter_streams(stream: str | None) -> list[str]:
    """A query's dead-letter stream and its parking stream; none where `stream` is None."""
    return [] if stream is None else [stream, stream + PARKED]


def divide(
    server: Server, names: Sequence[str], limits: DeadLetterLimits = DEAD_LETTER_LIMITS
) -> tuple[set[str], set[str]]:
    """(the streams whose first entry is a dead letter, those whose first entry is none); an empty one is in neither.

    Raises ServerError.
    """
    dead: set[str] = set()
    others: set[str] = set()
    size = PageSize(limits, FIRST_LOOK)
    for page in pages_of(names, size):
        commands = [("XRANGE", name, "-", "+", "COUNT", 1) for name in page]
        received = 0
        for command, reply in zip(commands, server.pipeline(commands), strict=True):
            if is_wrong_type(reply):
                continue  # it was a stream a moment ago
            if isinstance(reply, ReplyError):
                raise server.error_of(reply, command)
            if reply:
                fields = reply[0][1]
                received += sum(map(len, fields))
                (dead if is_dead_letter(fields) else others).add(command[1])
        size.learn(len(page), received, len(page))
    return dead, others


class Inputs:
    """What one query may read of what its pattern finds. It remembers: an entry may be large."""

    def __init__(self, limits: DeadLetterLimits = DEAD_LETTER_LIMITS) -> None:
        self._limits = limits
        self._dead: set[str] = set()
        self._others: set[str] = set()

    def among(self, server: Server, found: Sequence[str]) -> list[str]:
        """The streams to read: those that hold entries, and no dead letters. Raises ServerError."""
        there = set(found)
        self._dead &= there
        self._others &= there
        known = self._dead | self._others
        unknown = [name for name in found if name not in known]
        dead, others = divide(server, unknown, self._limits)
        for name in sorted(dead):
            _log.info("stream %r matches the pattern and holds dead letters: it is not read", name)
        self._dead |= dead
        self._others |= others
        return [name for name in found if name in self._others]
