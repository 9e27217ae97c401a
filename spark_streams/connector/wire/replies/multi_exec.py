"""The outcome of a transaction: MULTI, its commands, EXEC.

executed    EXEC returns one reply for each command; one may be an error while the others are done
changed     EXEC returns nil, because a watched key has changed: nothing was done
refused     the server refused a command when it was queued, or EXEC itself: nothing was done
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_streams.connector.errors import ServerReplyError
from spark_streams.connector.wire.connection.connection import Argument, Connection, Known, Reply, ReplyError, pack
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.replies import find_errors, is_error


@dataclass(frozen=True)
class Outcome:
    """results: a reply for each command if it was executed, else None. refusal: the server's error, if it was refused.
    place: index of the refused command; behind the last one if EXEC was refused.
    """

    results: list[Reply] | None
    refusal: ReplyError | None = None
    place: int = 0

    @classmethod
    def read(cls, replies: Sequence[Reply]) -> Outcome:
        """Return the outcome from the replies to MULTI, the commands and EXEC."""
        if not isinstance(replies[-1], ReplyError):
            return cls(replies[-1])
        place, refusal = find_errors(replies)[0]
        return cls(None, refusal, max(place - 1, 0))


def frame_transaction(commands: Sequence[Sequence[Argument]]) -> list[tuple[Argument, ...]]:
    return [("MULTI",), *[tuple(command) for command in commands], ("EXEC",)]


def transact(server: Server, commands: Sequence[Sequence[Argument]]) -> list[Reply] | None:
    """Run commands as one transaction and return their replies; None if a watched key has changed.

    Raises the named error of a command that the server refused, before EXEC or within.
    """
    replies = transact_each(server, commands)
    return None if replies is None else server.checked((command[:4] for command in commands), replies)


def transact_each(server: Server, commands: Sequence[Sequence[Argument]]) -> list[Reply] | None:
    """As `transact`, but an error within EXEC is a value among the replies, and the other commands are done."""
    return _results(server, commands, server.pipeline(frame_transaction(commands)))


def transact_in_turn(
    server: Connection, transactions: Sequence[Sequence[Sequence[Argument]]], *known: Known
) -> Iterator[list[Reply]]:
    """Run many transactions without WATCH, in one round trip. Yield the answers to the commands of each one. One
    command alone needs no MULTI.

    If the caller does not take all of them, the connection is closed. Raises the named error of a command that was
    refused, before EXEC or within, unless it is `known`.
    """
    sent = [commands if len(commands) == 1 else frame_transaction(commands) for commands in transactions]
    replies = server.execute_each([command for commands in sent for command in commands], is_error)
    with contextlib.closing(replies):
        for commands, framed in zip(transactions, sent, strict=True):
            own = list(itertools.islice(replies, len(framed)))
            results = own if len(commands) == 1 else _results(server, commands, own)
            if results is None:
                raise ServerReplyError(f"a key that a connection to {server.address} watches has changed", "TRYAGAIN")
            yield server.checked((command[:4] for command in commands), results, *known)


def _results(server: Server, commands: Sequence[Sequence[Argument]], replies: Sequence[Reply]) -> list[Reply] | None:
    """Return the results of a transaction from the replies to MULTI, the commands and EXEC."""
    outcome = Outcome.read(replies)
    if outcome.refusal is not None:
        refused = commands[outcome.place] if outcome.place < len(commands) else ("EXEC",)
        raise server.error_of(outcome.refusal, refused[:4])
    return outcome.results


def execute_packed(
    server: Connection, requests: bytes | memoryview, count: int, *then: Sequence[Argument]
) -> list[Reply] | None:
    """As transact_each, for `count` packed XADDs, followed by a few more commands."""
    server.send(b"".join([pack("MULTI"), requests, *[pack(*command) for command in then], pack("EXEC")]))
    outcome = Outcome.read(server.replies(count + len(then) + 2))
    if outcome.refusal is not None:
        raise server.error_of(outcome.refusal, ("XADD",))
    return outcome.results
