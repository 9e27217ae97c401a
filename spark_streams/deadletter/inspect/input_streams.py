"""Exclude dead-letter streams from the streams that match a pattern.

A dead-letter stream may match the pattern of the streams that its entries come from (`orders:*`, `orders:dead`). It is
recognized by its entries, whichever program wrote them: when a stream is found for the first time, its first entry is
read, once. A stream without entries is not classified before it has its first entry.
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
    """Return a query's dead-letter stream and its parking stream; none if `stream` is None."""
    return [] if stream is None else [stream, stream + PARKED]


def divide(
    server: Server, names: Sequence[str], limits: DeadLetterLimits = DEAD_LETTER_LIMITS
) -> tuple[set[str], set[str]]:
    """Return (the streams whose first entry is a dead letter, the other streams); an empty stream is in neither.

    Raises ServerError.
    """
    dead: set[str] = set()
    inputs: set[str] = set()
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
                (dead if is_dead_letter(fields) else inputs).add(command[1])
        size.learn(len(page), received, len(page))
    return dead, inputs


class Inputs:
    """Input streams of one query. It remembers the streams' classification, because reading an entry may be
    expensive."""

    def __init__(self, limits: DeadLetterLimits = DEAD_LETTER_LIMITS) -> None:
        self._limits = limits
        self._dead: set[str] = set()
        self._inputs: set[str] = set()

    def filter_inputs(self, server: Server, names: Sequence[str]) -> list[str]:
        """Return the streams to read: those with entries that are not dead letters. Raises ServerError."""
        present = set(names)
        self._dead &= present
        self._inputs &= present
        classified = self._dead | self._inputs
        unknown = [name for name in names if name not in classified]
        dead, inputs = divide(server, unknown, self._limits)
        for name in sorted(dead):
            _log.info("stream %r matches the pattern, but holds dead letters, so it is not read", name)
        self._dead |= dead
        self._inputs |= inputs
        return [name for name in names if name in self._inputs]
