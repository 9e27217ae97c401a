"""What became of a transaction: MULTI, its commands, EXEC.

carried out     EXEC answers with one reply for each command; a single one may be an error, and the others stand
changed         EXEC answers nil, because a key that was WATCHed is another now: nothing was done
given up        the server refused a command when it was queued, or EXEC itself: nothing was done
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_streams.wire.connection.connection import Argument, Connection, Reply, ReplyError, pack
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.replies import errors_among


@dataclass(frozen=True)
class Outcome:
    """results: a reply for each command where it was carried out, else None; refusal: why the server gave it up, else
    None; place: of the command that was refused, from 0 on; behind the last one where it was EXEC."""

    results: list[Reply] | None
    refusal: ReplyError | None = None
    place: int = 0

    @classmethod
    def read(cls, replies: Sequence[Reply]) -> Outcome:
        """From the replies to MULTI, the commands and EXEC."""
        if not isinstance(replies[-1], ReplyError):
            return cls(replies[-1])
        place, refusal = errors_among(replies)[0]
        return cls(None, refusal, max(place - 1, 0))


def framed(commands: Sequence[Sequence[Argument]]) -> list[tuple[Argument, ...]]:
    """The commands between MULTI and EXEC."""
    return [("MULTI",), *[tuple(command) for command in commands], ("EXEC",)]


def transact(server: Server, commands: Sequence[Sequence[Argument]]) -> list[Reply] | None:
    """Carry out commands as one transaction: their replies; None where something that was WATCHed has changed. Raises
    the named error of what the server refused, before EXEC or within."""
    replies = transact_each(server, commands)
    return None if replies is None else server.checked((command[:4] for command in commands), replies)


def transact_each(server: Server, commands: Sequence[Sequence[Argument]]) -> list[Reply] | None:
    """The same; what was refused within EXEC is a value among the replies, and the other commands stand."""
    outcome = Outcome.read(server.pipeline(framed(commands)))
    if outcome.refusal is not None:
        refused = commands[outcome.place] if outcome.place < len(commands) else ("EXEC",)
        raise server.error_of(outcome.refusal, refused[:2])
    return outcome.results


def execute_packed(
    server: Connection, requests: bytes | memoryview, count: int, *then: Sequence[Argument]
) -> list[Reply] | None:
    """As transact_each, for packed XADDs, so many, and a few more commands behind them."""
    server.send(b"".join([pack("MULTI"), requests, *[pack(*command) for command in then], pack("EXEC")]))
    outcome = Outcome.read(server.replies(count + len(then) + 2))
    if outcome.refusal is not None:
        raise server.error_of(outcome.refusal, ("XADD",))
    return outcome.results
