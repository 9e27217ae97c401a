"""Replies as values: raw bytes, lists of names and values, what errors mean, the outcome of a transaction."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard, TypeVar

from spark_streams.connector.errors import ServerReplyError
from spark_streams.connector.wire.connection import Argument, Connection, Known, Reply, ReplyError, Server, pack
from spark_streams.connector.wire.named_errors import EXHAUSTED
from spark_streams.connector.wire.parts import in_parts, most_streams

SomeKey = TypeVar("SomeKey", bytes, str, bytes | str)


def find_errors(replies: Sequence[Reply]) -> list[tuple[int, ReplyError]]:
    return [(position, reply) for position, reply in enumerate(replies) if isinstance(reply, ReplyError)]


def may_hold_errors(raw: bytes) -> bool:
    """Whether there can be an error reply among these.

    Fast, and correct for replies that are IDs, integers or statuses: none of them has a line that starts with `-`.
    """
    return raw.startswith(b"-") or b"\n-" in raw


def milliseconds(reply: Sequence[bytes]) -> int:
    """Return the server's time in milliseconds since the epoch, from the reply to TIME."""
    return int(reply[0]) * 1000 + int(reply[1]) // 1000


def pairs(reply: Sequence[Reply]) -> dict[bytes, Reply]:
    """Return `[name, value, name, value …]`, RESP2's form of a map, by name."""
    items = iter(reply)
    return dict(zip(items, items, strict=True))


def info(reply: bytes) -> dict[str, str]:
    """Return INFO's `name:value` lines, by name."""
    lines = reply.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


# -- the meaning of error replies: no other module examines their texts ------------------------------------------------

# An error reply begins with its code: NOGROUP, BUSYGROUP, WRONGTYPE, OOM … But Redis uses plain ERR for many different
# errors, which only the sentence after it distinguishes. Those sentences are here, in the words of Redis, Valkey and
# the bundled engine. Each function accepts any reply; it is false for a reply that is no error. A caller for which such
# an error is an answer names it by its function (Server.answer).

IDS_EXHAUSTED = "ERR The stream has exhausted the last possible ID, unable to add more items"
ID_TOO_LOW = "ERR The ID specified in XADD is equal or smaller than the target stream top item"
_ID_TOO_LOW, _ID_INVALID = "The ID specified in XADD", "Invalid stream ID"


def is_error(reply: Reply) -> TypeGuard[ReplyError]:
    """Any error. For a caller that reads all replies before it raises one, as that of a transaction."""
    return isinstance(reply, ReplyError)


@dataclass(frozen=True)
class _Meaning:
    """Error replies that mean the same: those with this code, and with one of these sentences."""

    code: str
    sentences: tuple[str, ...] = ("",)

    def has(self, reply: Reply) -> TypeGuard[ReplyError]:
        is_coded = isinstance(reply, ReplyError) and reply.code == self.code
        return is_coded and any(sentence in str(reply) for sentence in self.sentences)


is_wrong_type = _Meaning("WRONGTYPE").has  # the key holds something that is not a stream
is_no_group = _Meaning("NOGROUP").has  # the stream, or its consumer group, does not exist
is_not_permitted = _Meaning("NOPERM").has  # the user has no right to the command, or to a key
is_busy_group = _Meaning("BUSYGROUP").has  # XGROUP CREATE: the group exists already
is_out_of_memory = _Meaning("OOM").has  # the memory is full (maxmemory), and the command could need more of it
is_no_such_key = _Meaning("ERR", ("no such key",)).has  # XINFO, XSETID: the stream does not exist
is_key_required = _Meaning("ERR", ("requires the key to exist",)).has  # XGROUP without MKSTREAM: no such stream
is_syntax_error = _Meaning("ERR", ("syntax error",)).has  # the server does not know one of the command's options
is_unknown_command = _Meaning("ERR", ("unknown command",)).has  # the server does not implement it
is_wrong_number_of_arguments = _Meaning("ERR", ("wrong number of arguments",)).has  # it supports fewer options
is_id_refusal = _Meaning("ERR", (_ID_TOO_LOW, _ID_INVALID)).has  # XADD: invalid, or not above the stream's last ID
is_id_form_unknown = _Meaning("ERR", (_ID_INVALID,)).has  # XADD: the server does not accept the ID's form
is_exhausted = _Meaning("ERR", (EXHAUSTED,)).has  # XADD: the stream has used its last possible ID


def is_forbidden(reply: Reply) -> TypeGuard[ReplyError]:
    """The user has no right to the command, or its operator has renamed it."""
    return is_not_permitted(reply) or is_unknown_command(reply)


# -- the outcome of a transaction: MULTI, its commands, EXEC -----------------------------------------------------------

# executed    EXEC returns one reply for each command; one may be an error while the others are done
# changed     EXEC returns nil, because a watched key has changed: nothing was done
# refused     the server refused a command when it was queued, or EXEC itself: nothing was done


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


# Of a transaction that watches the streams that get entries, so that none is refused. Then without: Valkey 9.0.7 and
# 9.1.3 break a WATCH with each command of a group of the stream.
WATCHED_TRIES = 3


def frame_transaction(commands: Sequence[Sequence[Argument]]) -> list[tuple[Argument, ...]]:
    return [("MULTI",), *[tuple(command) for command in commands], ("EXEC",)]


def transact(server: Server, commands: Sequence[Sequence[Argument]]) -> list[Reply] | None:
    """Run commands as one transaction and return their replies; None if a watched key has changed.

    Raises the named error of a command that the server refused, before EXEC or within.
    """
    replies = transact_each(server, commands)
    return None if replies is None else server.checked((command[:4] for command in commands), replies)


def portions_of(server: Server, keys: Sequence[SomeKey], most: int | None = None) -> list[list[SomeKey]]:
    """Return the keys of one transaction each: of one slot, at most so many. None: the streams of one XREAD each."""
    most = most or most_streams()
    slots = server.together(keys, lambda key: key)
    return [slot[start : start + most] for slot in slots for start in range(0, len(slot), most)]


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
    """As transact_each, for `count` packed XADDs, followed by a few more commands, in parts if they are long."""
    last = [part for command in then for part in in_parts(command)]
    server.send(b"".join([pack("MULTI"), requests, *[pack(*command) for command in last], pack("EXEC")]))
    outcome = Outcome.read(server.replies(count + len(last) + 2))
    if outcome.refusal is not None:
        raise server.error_of(outcome.refusal, ("XADD",))
    return outcome.results
