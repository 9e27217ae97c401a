"""Dead-letter streams among the streams that match a pattern (`orders:*`, `orders:dead`).

A query excludes those that its options name, and those to which a query has written dead letters: a key that no
producer may write records this (`keys.origins_key`). It reads every other stream. A first entry that looks like a dead
letter may be from any producer, who must not be able to hide a stream: such a stream is read, and the log names the
option that excludes it. The first entry is read once, when a stream is found. A stream without entries is not yet read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from spark_streams.base.pattern import escape, is_pattern
from spark_streams.base.printable import json_text
from spark_streams.connector.deadletter import post
from spark_streams.connector.deadletter.envelope import is_dead_letter
from spark_streams.connector.deadletter.redrive_plan import PARKED
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.replies import is_wrong_type

_log = logging.getLogger("spark_streams.deadletter")


def own_dead_letter_streams(stream: str | None) -> list[str]:
    """Return a query's dead-letter stream and its parking stream; none if `stream` is None."""
    return [] if stream is None else [stream, stream + PARKED]


def divide(
    server: Server, names: Sequence[str], limits: post.DeadLetterLimits = post.DEAD_LETTER_LIMITS
) -> tuple[set[str], set[str]]:
    """Return (the streams whose first entry is a dead letter, the other streams); an empty stream is in neither.

    Raises ServerError.
    """
    dead: set[str] = set()
    inputs: set[str] = set()
    size = post.PageSize(limits, post.FIRST_STREAMS)
    for page in post.pages_of(names, size):
        commands = [("XRANGE", name, "-", "+", "COUNT", 1) for name in page]
        received = 0
        for command, reply in zip(commands, server.execute_all(commands, is_wrong_type), strict=True):
            if reply and not is_wrong_type(reply):  # it was a stream a moment ago
                fields = reply[0][1]
                received += sum(map(len, fields))
                (dead if is_dead_letter(fields) else inputs).add(command[1])
        size.learn(len(page), received, len(page))
    return dead, inputs


class Inputs:
    """Input streams of one query. It remembers the streams with entries, because reading an entry may be expensive."""

    def __init__(self, limits: post.DeadLetterLimits = post.DEAD_LETTER_LIMITS) -> None:
        self._limits = limits
        self._inputs: set[str] = set()
        self._recorded: set[str] = set()

    def filter_inputs(self, server: Server, names: Sequence[str], warns: bool = True) -> list[str]:
        """Return the streams to read: those with entries, without recorded dead-letter streams. Warn once of each other
        stream that begins with a dead letter. Raises ServerError."""
        present = {*names}
        self._inputs &= present
        self._recorded &= present
        classified = self._inputs | self._recorded
        unknown = [name for name in names if name not in classified]
        dead, inputs = divide(server, unknown, self._limits)
        recorded = post.fetch_recorded(server, dead)
        if warns:
            warn_of_dead_letters(dead - recorded)
        self._recorded |= recorded
        self._inputs |= inputs | (dead - recorded)
        return [name for name in names if name in self._inputs]

    def without_entries(self, names: Sequence[str]) -> list[str]:
        """Return the streams of the last `filter_inputs` that had no entry."""
        return [name for name in names if name not in self._inputs and name not in self._recorded]


def warn_of_dead_letters(streams: Iterable[str]) -> None:
    """Log that these streams of a pattern are read although they begin with a dead letter."""
    for stream in sorted(streams):
        _log.warning(
            "stream %r matches streamsPattern and begins with a dead letter. The query reads it like any other stream. "
            "To exclude it, set option streamsExcept=%s", stream, exclude_option(stream),
        )  # fmt: skip


def exclude_option(stream: str) -> str:
    """Return the value of streamsExcept that excludes this stream, whatever other streams there are."""
    name = escape(stream) if is_pattern(stream) else stream
    return name if "," not in name and name == name.strip() else json_text([name])
