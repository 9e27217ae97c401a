"""Dead letters whose stream stands in another slot of a cluster than their entries: no transaction covers both.

`rstream:outbox:{to}:<group>:<stream>` remembers what was appended for entries that may not be acknowledged yet:

    → WATCH to outbox   XINFO STREAM to   HGETALL outbox     in the slot of the dead letters
      is each still due?                                     in the slot of the entries
    → MULTI   XADD to …   HSET outbox ids   EXEC             for those that are due, and not in the outbox
    → MULTI   XACK …   HDEL notes   EXEC                     in the slot of the entries
    → HDEL outbox ids

A process that dies anywhere in it leaves an entry that is due with a dead letter or without one, and the outbox says
which. A transaction that is carried out late, when its process is long dead, breaks the WATCH of whoever has begun
since, or its own is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from spark_streams.deadletter.ids_left import question, require_room
from spark_streams.errors import ServerReplyError
from spark_streams.keys import key_beside
from spark_streams.wire.connection import Argument, Connection, Reply, ReplyError
from spark_streams.wire.multi_exec import transact
from spark_streams.wire.replies import errors_among
from spark_streams.wire.server import Server

_ATTEMPTS = 100  # while others append to the same dead-letter stream
T = TypeVar("T")
Command = Sequence[Argument]


def outbox_key(to: str, group: str, stream: str) -> bytes:
    """What was appended to `to` for entries of this stream that may be pending still."""
    return key_beside(to, "outbox", group, stream)


@dataclass(frozen=True)
class Posting(Generic[T]):
    """What is posted of each entry of one stream. id_of: the entry's; proof: the command whose reply is something as
    long as its dead letter is due; letter: its XADD; settle: the commands that acknowledge some; carry_out: a
    transaction, None where what is watched has changed."""

    to: str
    group: str
    stream: str
    id_of: Callable[[T], bytes]
    proof: Callable[[T], Command]
    letter: Callable[[T], Command]
    settle: Callable[[Sequence[T]], list[Command]]
    carry_out: Callable[[Server, Sequence[T], Sequence[Command]], list[Reply] | None]

    @property
    def key(self) -> bytes:
        """Of its outbox."""
        return outbox_key(self.to, self.group, self.stream)


def post_across_slots(server: Server, posting: Posting[T], entries: Sequence[T]) -> int:
    """Append the dead letters that are due, each once, and acknowledge their entries; how many were due.

    May be run again after a lost connection. Raises WrongKeyTypeError, IdsExhaustedError, ServerReplyError.
    """
    for _ in range(_ATTEMPTS):
        there, home = server.of(posting.to), server.of(posting.stream)
        appended = _look(there, posting, len(entries))
        due = _due(there, home, posting, entries)
        fresh = [entry for entry in due if posting.id_of(entry) not in appended]
        if not fresh:
            there.execute("UNWATCH")
        elif not _append(there, posting, fresh):
            continue
        if due:
            _settle(home, posting, due)
        _forget(there, home, posting, appended | set(map(posting.id_of, due)))
        return len(due)
    raise ServerReplyError(f"stream {posting.to!r} at {server.address} changes too often to append dead letters to it")


def _look(there: Connection, posting: Posting[T], entries: int) -> set[bytes]:
    """WATCH, and what is in the outbox. Raises where the stream cannot take so many; then nothing is watched."""
    asked = [("WATCH", posting.to, posting.key), question(posting.to), ("HGETALL", posting.key)]
    watched, told, flat = there.pipeline(asked)
    try:
        for reply in (watched, flat):
            if isinstance(reply, ReplyError):
                raise there.error_of(reply, ("XADD", posting.to))
        require_room(there, posting.to, told, entries)
    except Exception:
        there.execute("UNWATCH")
        raise
    return set(flat[0::2])


def _due(there: Connection, home: Connection, posting: Posting[T], entries: Sequence[T]) -> list[T]:
    try:
        proofs = home.execute_all([posting.proof(entry) for entry in entries])
    except ServerReplyError:
        there.execute("UNWATCH")
        raise
    return [entry for entry, proof in zip(entries, proofs, strict=True) if proof]


def _append(there: Connection, posting: Posting[T], fresh: Sequence[T]) -> bool:
    """Append, and note it in the outbox; False where something has changed. Raises ServerReplyError where some were
    refused: these are as they were."""
    noted = [word for entry in fresh for word in (posting.id_of(entry), b"")]
    commands: list[Command] = [*map(posting.letter, fresh), ("HSET", posting.key, *noted)]
    replies = posting.carry_out(there, fresh, commands)
    if replies is None:
        return False
    refused = errors_among(replies[: len(fresh)])
    if refused:
        there.execute("HDEL", posting.key, *[posting.id_of(fresh[place]) for place, _ in refused])
        why = there.error_of(refused[0][1], ("XADD", posting.to)).message
        raise ServerReplyError(
            f"{len(refused)} dead letters of stream {posting.stream!r} were refused by stream {posting.to!r} at "
            f"{there.address}, and their entries are pending as before: {why}"
        )
    return True


def _settle(home: Connection, posting: Posting[T], due: Sequence[T]) -> None:
    commands = posting.settle(due)
    replies = transact(home, commands)
    assert replies is not None  # nothing is watched there
    for command, reply in zip(commands, replies, strict=True):
        if isinstance(reply, ReplyError):
            raise home.error_of(reply, command[:4])


def _forget(there: Connection, home: Connection, posting: Posting[T], ids: set[bytes]) -> None:
    """Take out of the outbox what is no longer pending: of this posting, and of one that was killed behind its XACK."""
    asked = sorted(ids)
    pending = home.execute_all([("XPENDING", posting.stream, posting.group, one, one, 1) for one in asked])
    done = [one for one, left in zip(asked, pending, strict=True) if not left]
    if done:
        there.execute("HDEL", posting.key, *done)
