"""Posting dead letters: each is appended to the dead-letter stream and acknowledged in the same transaction.

    → WATCH to   XINFO STREAM to   is each letter still due?     a note that is there, or an entry that is pending
    → MULTI   XADD …   XACK …   HDEL notes   EXEC                nil where `to` has changed since WATCH

So a crash leaves the entry either pending, or dead: never lost, and never with two letters. What could fail within EXEC
is looked at before, under WATCH, for it would not hold up the XACK (FACTS R14); what nobody can look at, or WATCH does
not notice (XSETID, a user's rights), is made good afterwards: such entries are pending again. A transaction whose reply
was lost may yet be carried out: whether letters are due is asked when nothing can come in between any more.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from spark_streams.deadletter.envelope import letter_of
from spark_streams.deadletter.limits import LETTER_LIMITS, LetterLimits
from spark_streams.deadletter.room import question, require_room
from spark_streams.errors import RowTooLargeError, ServerReplyError, ServerUnreachableError
from spark_streams.wire.connection import Argument, Connection, Reply, ReplyError
from spark_streams.wire.limits import beyond
from spark_streams.wire.multi_exec import transact
from spark_streams.wire.replies import errors_among

_ATTEMPTS = 100  # while others append to the same dead-letter stream


@dataclass(frozen=True)
class Note:
    """A field of a hash that says that a letter is due; it goes with the transaction that posts the letter."""

    key: bytes
    field: bytes
    value: bytes


@dataclass(frozen=True)
class Letter:
    """An entry that cannot be processed. id: the entry's; fields: name, value, name, value …, untouched; envelope:
    what is known of it, by names without their prefix (what an entry that was sent back tells of itself goes before).

    note: it is due while this is there; pending_for: it is due while the entry is pending for this consumer.
    """

    stream: str
    id: bytes
    fields: Sequence[bytes]
    envelope: Mapping[str, str] = field(default_factory=dict)
    note: Note | None = None
    pending_for: str | None = None

    @property
    def size(self) -> int:
        """Bytes of its fields."""
        return sum(map(len, self.fields))


def now() -> str:
    """This moment, as letters write it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def post(
    server: Connection, to: str, group: str, letters: Sequence[Letter], limits: LetterLimits = LETTER_LIMITS
) -> int:
    """Append letters of one stream to `to` and acknowledge them; those that are due no more are left out. How many
    there were: a transaction for every few hundred.

    Raises WrongKeyTypeError, IdsExhaustedError, RowTooLargeError, ServerReplyError; then those of the last transaction
    are as they were.
    """
    return sum(_post(server, to, group, portion) for portion in _portions(letters, limits))


def _portions(letters: Sequence[Letter], limits: LetterLimits) -> Iterator[Sequence[Letter]]:
    first, size = 0, 0
    for place, letter in enumerate(letters):
        is_full = place - first == limits.post_letters or size + letter.size > limits.post_bytes
        if place > first and is_full:
            yield letters[first:place]
            first, size = place, 0
        size += letter.size
    if first < len(letters):
        yield letters[first:]


def _post(server: Connection, to: str, group: str, letters: Sequence[Letter]) -> int:
    for _ in range(_ATTEMPTS):
        due = _due(server, to, group, letters)
        if not due:
            server.execute("UNWATCH")
            return 0
        commands = [*[_xadd(to, letter) for letter in due], _xack(group, due), *_each_key("HDEL", due)]
        replies = _transaction(server, to, due, commands)
        if replies is not None:
            refused = errors_among(replies[: len(due)])
            if refused:
                acked = replies[len(due)]
                _take_back(server, to, group, [due[place] for place, _ in refused], acked, refused[0][1])
            for command, reply in zip(commands[len(due) :], replies[len(due) :], strict=True):
                if isinstance(reply, ReplyError):
                    raise server.error_of(reply, command[:4])
            return len(due)
    raise ServerReplyError(f"stream {to!r} at {server.address} changes too often to append dead letters to it")


def _due(server: Connection, to: str, group: str, letters: Sequence[Letter]) -> list[Letter]:
    """WATCH `to`, and which letters are still due. Raises where `to` cannot take them; then nothing is watched."""
    watched, told, *proofs = server.pipeline(
        [("WATCH", to), question(to), *[_proof(group, letter) for letter in letters]]
    )
    try:
        if isinstance(watched, ReplyError):
            raise server.error_of(watched, ("XADD", to))
        require_room(server, to, told, len(letters))
        for letter, proof in zip(letters, proofs, strict=True):
            if isinstance(proof, ReplyError):
                raise server.error_of(proof, _proof(group, letter))
    except Exception:
        server.execute("UNWATCH")
        raise
    return [letter for letter, proof in zip(letters, proofs, strict=True) if proof]


def _proof(group: str, letter: Letter) -> Sequence[Argument]:
    """The command whose reply is something as long as the letter is due."""
    if letter.note is not None:
        return ("HEXISTS", letter.note.key, letter.note.field)
    if letter.pending_for is not None:
        return ("XPENDING", letter.stream, group, letter.id, letter.id, 1, letter.pending_for)
    return ("ECHO", "due")


def _transaction(
    server: Connection, to: str, letters: Sequence[Letter], commands: Sequence[Sequence[Argument]]
) -> list[Reply] | None:
    """The replies to the commands; None where the transaction was given up because `to` has changed."""
    try:
        return transact(server, commands)
    except ServerUnreachableError as error:
        largest = max(letters, key=lambda letter: letter.size)
        why = beyond(server.address, max(map(len, largest.fields), default=0), largest.size)
        if not why:
            raise
        raise RowTooLargeError(
            f"the dead letter of entry {largest.id.decode()} of stream {largest.stream!r} has {largest.size:,} bytes, "
            f"its largest value {max(map(len, largest.fields)):,}, and the server at {server.address} {why}, so it is "
            f"not appended to stream {to!r} and the entry is pending as before: raise that"
        ) from error


def _take_back(
    server: Connection, to: str, group: str, letters: Sequence[Letter], acked: Reply, why: ReplyError
) -> None:
    """Entries that were acknowledged and whose letters were refused all the same (a user's rights that were taken away
    meanwhile, a letter above 1 GB): pending again, and their notes are back. Raises ServerReplyError."""
    commands: list[Sequence[Argument]] = []
    for letter in letters if acked else ():
        consumer = letter.pending_for or letter.envelope.get("consumer", "")
        deliveries = letter.envelope.get("deliveries") or "1"
        claim = ("XCLAIM", letter.stream, group, consumer, 0, letter.id)
        commands.append((*claim, "RETRYCOUNT", deliveries, "FORCE", "JUSTID"))
    commands += _each_key("HSET", letters)
    server.execute_all(commands)
    raise ServerReplyError(
        f"{len(letters)} dead letters of stream {letters[0].stream!r}, the first one of entry "
        f"{letters[0].id.decode()}, were refused by stream {to!r} at {server.address}, and their entries are pending "
        f"as before: {why}"
    )


def _xadd(to: str, letter: Letter) -> Sequence[Argument]:
    return ("XADD", to, "*", *letter_of(letter.fields, letter.envelope))


def _xack(group: str, letters: Sequence[Letter]) -> Sequence[Argument]:
    return ("XACK", letters[0].stream, group, *[letter.id for letter in letters])


def _each_key(command: str, letters: Sequence[Letter]) -> list[Sequence[Argument]]:
    """HDEL or HSET of the letters' notes, one for each hash."""
    notes = [letter.note for letter in letters if letter.note is not None]
    words_of: dict[bytes, list[Argument]] = {}
    for note in notes:
        words_of.setdefault(note.key, []).extend([note.field, *([note.value] if command == "HSET" else [])])
    return [(command, key, *of_key) for key, of_key in words_of.items()]
