"""Posting dead letters: each is appended to the dead-letter stream and acknowledged in the same transaction.

    → WATCH to   XINFO STREAM to   is each still due?             a note that is there, or an entry that is pending
    → MULTI   XADD …   XACK …   HDEL notes   EXEC                nil where `to` has changed since WATCH

So a crash leaves the entry either pending, or dead: never lost, and never with two dead letters. What could fail within
EXEC is looked at before, under WATCH, for it would not hold up the XACK (FACTS R14); what nobody can look at, or WATCH
does not notice (XSETID, a user's rights), is made good afterwards: such entries are pending again. A transaction whose
reply was lost may yet be carried out: whether dead letters are due is asked when nothing can come in between any more.

In a cluster `to` may stand in another slot than the entries: see outbox.py.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from spark_streams.deadletter.envelope import dead_letter_fields
from spark_streams.deadletter.ids_left import question, require_room
from spark_streams.deadletter.limits import DEAD_LETTER_LIMITS, DeadLetterLimits
from spark_streams.deadletter.outbox import Posting, post_across_slots
from spark_streams.errors import RowTooLargeError, ServerReplyError, ServerUnreachableError
from spark_streams.wire.connection import Argument, Reply, ReplyError
from spark_streams.wire.limits import beyond
from spark_streams.wire.multi_exec import transact
from spark_streams.wire.released import RELEASED_IDLE
from spark_streams.wire.replies import errors_among
from spark_streams.wire.server import Server

_ATTEMPTS = 100  # while others append to the same dead-letter stream


@dataclass(frozen=True)
class Note:
    """A field of a hash that says that a dead letter is due; it goes with the transaction that posts that."""

    key: bytes
    field: bytes
    value: bytes


@dataclass(frozen=True)
class FailedEntry:
    """An entry that cannot be processed. id: the entry's; fields: name, value, name, value …, untouched; envelope:
    what is known of it, by names without their prefix (what an entry that was sent back tells of itself goes before).

    note: it is due while this is there; pending_for: it is due while the entry is pending for this consumer; released:
    it is due while the entry is pending for no consumer (XNACK).
    """

    stream: str
    id: bytes
    fields: Sequence[bytes]
    envelope: Mapping[str, str] = field(default_factory=dict)
    note: Note | None = None
    pending_for: str | None = None
    released: bool = False

    @property
    def size(self) -> int:
        """Bytes of its fields."""
        return sum(map(len, self.fields))


def now() -> str:
    """This moment, as dead letters write it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def post(
    server: Server,
    to: str,
    group: str,
    entries: Sequence[FailedEntry],
    limits: DeadLetterLimits = DEAD_LETTER_LIMITS,
) -> int:
    """Append dead letters of one stream to `to` and acknowledge them; those that are due no more are left out. How many
    there were: a transaction for every few hundred.

    Raises WrongKeyTypeError, IdsExhaustedError, RowTooLargeError, ServerReplyError; then those of the last transaction
    are as they were.
    """
    return sum(_post(server, to, group, portion) for portion in _portions(entries, limits))


def _portions(entries: Sequence[FailedEntry], limits: DeadLetterLimits) -> Iterator[Sequence[FailedEntry]]:
    first, size = 0, 0
    for place, entry in enumerate(entries):
        is_full = place - first == limits.post_entries or size + entry.size > limits.post_bytes
        if place > first and is_full:
            yield entries[first:place]
            first, size = place, 0
        size += entry.size
    if first < len(entries):
        yield entries[first:]


def _post(server: Server, to: str, group: str, entries: Sequence[FailedEntry]) -> int:
    stream = entries[0].stream
    if len(server.together([to, stream], lambda key: key)) > 1:
        return post_across_slots(server, _posting(to, group, stream), entries)
    for _ in range(_ATTEMPTS):
        due = _due(server, to, group, entries)
        if not due:
            server.execute("UNWATCH")
            return 0
        commands = [*[_xadd(to, entry) for entry in due], _xack(group, due), *_each_key("HDEL", due)]
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


def _posting(to: str, group: str, stream: str) -> Posting[FailedEntry]:
    return Posting(
        to,
        group,
        stream,
        id_of=lambda entry: entry.id,
        proof=lambda entry: _proof(group, entry),
        letter=lambda entry: _xadd(to, entry),
        settle=lambda due: [_xack(group, due), *_each_key("HDEL", due)],
        carry_out=lambda server, due, commands: _transaction(server, to, due, commands),
    )


def _due(server: Server, to: str, group: str, entries: Sequence[FailedEntry]) -> list[FailedEntry]:
    """WATCH `to`, and which dead letters are still due. Raises where `to` cannot take them; then nothing is watched."""
    watched, told, *proofs = server.pipeline(
        [("WATCH", to), question(to), *[_proof(group, entry) for entry in entries]]
    )
    try:
        if isinstance(watched, ReplyError):
            raise server.error_of(watched, ("XADD", to))
        require_room(server, to, told, len(entries))
        for entry, proof in zip(entries, proofs, strict=True):
            if isinstance(proof, ReplyError):
                raise server.error_of(proof, _proof(group, entry))
    except Exception:
        server.execute("UNWATCH")
        raise
    return [entry for entry, proof in zip(entries, proofs, strict=True) if proof]


def _proof(group: str, entry: FailedEntry) -> Sequence[Argument]:
    """The command whose reply is something as long as the dead letter is due."""
    if entry.note is not None:
        return ("HEXISTS", entry.note.key, entry.note.field)
    if entry.pending_for is not None:
        return ("XPENDING", entry.stream, group, entry.id, entry.id, 1, entry.pending_for)
    if entry.released:
        return ("XPENDING", entry.stream, group, "IDLE", RELEASED_IDLE, entry.id, entry.id, 1)
    return ("ECHO", "due")


def _transaction(
    server: Server, to: str, entries: Sequence[FailedEntry], commands: Sequence[Sequence[Argument]]
) -> list[Reply] | None:
    """The replies to the commands; None where the transaction was given up because `to` has changed."""
    try:
        return transact(server, commands)
    except ServerUnreachableError as error:
        largest = max(entries, key=lambda entry: entry.size)
        why = beyond(server.address, max(map(len, largest.fields), default=0), largest.size)
        if not why:
            raise
        raise RowTooLargeError(
            f"the dead letter of entry {largest.id.decode()} of stream {largest.stream!r} has {largest.size:,} bytes, "
            f"its largest value {max(map(len, largest.fields)):,}, and the server at {server.address} {why}, so it is "
            f"not appended to stream {to!r} and the entry is pending as before: raise that"
        ) from error


def _take_back(
    server: Server, to: str, group: str, entries: Sequence[FailedEntry], acked: Reply, why: ReplyError
) -> None:
    """Entries that were acknowledged and whose dead letters were refused all the same (a user's rights that were taken
    away meanwhile, one above 1 GB): pending again, and their notes are back. Raises ServerReplyError."""
    commands: list[Sequence[Argument]] = []
    for entry in entries if acked else ():
        consumer = entry.pending_for or entry.envelope.get("consumer", "")
        deliveries = entry.envelope.get("deliveries") or "1"
        if entry.released:
            release = ("XNACK", entry.stream, group, "FAIL", "IDS", 1, entry.id)
            commands.append((*release, "RETRYCOUNT", deliveries, "FORCE"))
            continue
        claim = ("XCLAIM", entry.stream, group, consumer, 0, entry.id)
        commands.append((*claim, "RETRYCOUNT", deliveries, "FORCE", "JUSTID"))
    commands += _each_key("HSET", entries)
    server.execute_all(commands)
    raise ServerReplyError(
        f"{len(entries)} dead letters of stream {entries[0].stream!r}, the first one of entry "
        f"{entries[0].id.decode()}, were refused by stream {to!r} at {server.address}, and their entries are pending "
        f"as before: {server.error_of(why, ('XADD', to)).message}"
    )


def _xadd(to: str, entry: FailedEntry) -> Sequence[Argument]:
    return ("XADD", to, "*", *dead_letter_fields(entry.fields, entry.envelope))


def _xack(group: str, entries: Sequence[FailedEntry]) -> Sequence[Argument]:
    return ("XACK", entries[0].stream, group, *[entry.id for entry in entries])


def _each_key(command: str, entries: Sequence[FailedEntry]) -> list[Sequence[Argument]]:
    """HDEL or HSET of the dead letters' notes, one for each hash."""
    notes = [entry.note for entry in entries if entry.note is not None]
    words_of: dict[bytes, list[Argument]] = {}
    for note in notes:
        words_of.setdefault(note.key, []).extend([note.field, *([note.value] if command == "HSET" else [])])
    return [(command, key, *of_key) for key, of_key in words_of.items()]
