"""Posting dead letters: each is appended to the dead-letter stream and acknowledged in the same transaction.

So a crash leaves the entry either pending, or dead: never lost, and never with two letters.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_streams.deadletter.envelope import letter_of
from spark_streams.errors import ServerReplyError
from spark_streams.wire.connection import Argument, Connection, ReplyError

LETTERS_A_TRANSACTION = 500
_ATTEMPTS = 100  # while others append to the same dead-letter stream


@dataclass(frozen=True)
class Letter:
    """An entry that cannot be processed. id: the entry's; fields: name, value, name, value …, untouched; envelope:
    what is known of it, by names without their prefix (what an entry that was sent back tells of itself goes before).
    """

    stream: str
    id: bytes
    fields: Sequence[bytes]
    envelope: Mapping[str, str] = field(default_factory=dict)


def now() -> str:
    """This moment, as letters write it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def post(
    server: Connection,
    to: str,
    group: str,
    letters: Sequence[Letter],
    also: Sequence[Sequence[Argument]] = (),
) -> None:
    """Append letters of one stream to `to` and acknowledge them, in one transaction with the commands of `also`.

    A command that fails inside EXEC does not hold up the others, so `to` is looked at first and watched.
    Raises WrongKeyTypeError, ServerReplyError; then nothing was done.
    """
    if not letters:
        return
    stream = letters[0].stream
    commands: list[Sequence[Argument]] = [_xadd(to, letter) for letter in letters]
    commands += [("XACK", stream, group, *[letter.id for letter in letters]), *also]
    for _ in range(_ATTEMPTS):
        watched, kind = server.pipeline([("WATCH", to), ("TYPE", to)])
        if isinstance(watched, ReplyError) or kind not in (b"none", b"stream"):
            server.execute("UNWATCH")
            reply = watched if isinstance(watched, ReplyError) else ReplyError("WRONGTYPE not a stream")
            raise server.error_of(reply, ("XADD", to))
        replies = server.pipeline([("MULTI",), *commands, ("EXEC",)])
        if isinstance(replies[-1], ReplyError):
            refused = next((reply for reply in replies if isinstance(reply, ReplyError)), replies[-1])
            raise ServerReplyError(f"dead letters cannot be written to stream {to!r} at {server.address}: {refused}")
        if replies[-1] is not None:
            failed = next((reply for reply in replies[-1] if isinstance(reply, ReplyError)), None)
            if failed is not None:
                raise ServerReplyError(
                    f"dead letters of stream {stream!r} were acknowledged and not all written to {to!r} at "
                    f"{server.address}: {failed}; the entries from {letters[0].id.decode()} on are still in the stream"
                )
            return
    raise ServerReplyError(f"stream {to!r} at {server.address} changes too often to append dead letters to it")


def _xadd(to: str, letter: Letter) -> Sequence[Argument]:
    return ("XADD", to, "*", *letter_of(letter.fields, letter.envelope))
