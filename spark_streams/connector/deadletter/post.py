"""Post dead letters: each entry gets exactly one, and is acknowledged together with it.

    → WATCH to   XINFO STREAM to   is each dead letter still due?   its note has a value, or the entry is pending
    → MULTI   XADD to …   XACK …   HSET notes   HSET origins   EXEC   nil if `to` has changed since WATCH

If the dead-letter stream is in another slot of a cluster than the entries, no transaction covers both. Then there are
two transactions, and `rstream:outbox:{to}:<group>:<stream>` holds the IDs of entries between them:

    → MULTI   XADD to …   HSET outbox ids   HSET origins   EXEC     in the slot of the dead letters
    → MULTI   XACK …   HSET notes   EXEC                            in the slot of the entries
    → HDEL outbox ids

An entry that is in the outbox gets no second dead letter. A transaction that is executed late, after its process has
died, fails by its own WATCH, or breaks the WATCH of the process that has begun since.

An XADD that fails within EXEC does not stop the XACK (FACTS R14). Causes that can be checked are checked before, under
WATCH. Others (XSETID, rights that are revoked) are repaired afterwards: these entries become pending again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_streams.connector.deadletter.dead_letter_limits import DEAD_LETTER_LIMITS, DeadLetterLimits
from spark_streams.connector.deadletter.failed_entry import (
    Command,
    FailedEntry,
    acknowledgement,
    note_commands,
    origin_command,
)
from spark_streams.connector.deadletter.ids_left import watch_and_check_ids
from spark_streams.connector.errors import RowTooLargeError, ServerReplyError, ServerUnreachableError
from spark_streams.connector.keys import key_beside, origin_of
from spark_streams.connector.wire.connect import find_exceeded_limit
from spark_streams.connector.wire.connection import Connection, Reply, ReplyError, Server
from spark_streams.connector.wire.replies import find_errors, transact, transact_each

_ATTEMPTS = 100  # while other clients append to the same dead-letter stream


def outbox_key(to: str, group: str, stream: str) -> bytes:
    """Return the key of the ids of entries that have a dead letter in `to` and may still be pending."""
    return key_beside(to, "outbox", group, stream)


def post(
    server: Server,
    to: str,
    group: str,
    entries: Sequence[FailedEntry],
    limits: DeadLetterLimits = DEAD_LETTER_LIMITS,
) -> int:
    """Append dead letters of one stream to `to` and acknowledge their entries, a few hundred at a time. Dead letters
    that are no longer due are omitted. Return how many were due.

    May be run again after a lost connection. Raises WrongKeyTypeError, IdsExhaustedError, RowTooLargeError,
    ServerReplyError; then the entries of the last portion are unchanged.
    """
    return sum(_Portion(server, to, group, portion).post() for portion in _portions(entries, limits))


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


@dataclass(frozen=True)
class _Portion:
    """Entries of one stream that are posted together."""

    server: Server
    to: str  # the dead-letter stream
    group: str
    entries: Sequence[FailedEntry]

    @property
    def stream(self) -> str:
        """The stream of the entries."""
        return self.entries[0].stream

    @property
    def outbox(self) -> bytes | None:
        """The key of the outbox; None if one transaction covers the dead letters and their entries."""
        apart = len(self.server.together([self.to, self.stream], lambda key: key)) > 1
        return outbox_key(self.to, self.group, self.stream) if apart else None

    def post(self) -> int:
        """Return how many dead letters were due."""
        outbox = self.outbox
        for _ in range(_ATTEMPTS):
            target, home = self.server.connection_for(self.to), self.server.connection_for(self.stream)
            appended = self._watch(target, outbox)
            due = self._due(target, home)
            fresh = [entry for entry in due if entry.id not in appended]
            if not fresh:
                target.execute("UNWATCH")
            elif not self._append(target, fresh, outbox):
                continue
            if outbox is not None:
                if due:
                    self._acknowledge(home, due)
                self._forget(target, home, outbox, appended | {entry.id for entry in due})
            return len(due)
        raise ServerReplyError(
            f"stream {self.to!r} at {self.server.address} changes too often: dead letters could not be appended"
        )

    def _watch(self, target: Connection, outbox: bytes | None) -> set[bytes]:
        """Watch the dead-letter stream and return the IDs in the outbox. Raises if the stream cannot take this many
        dead letters; then nothing is watched."""
        if outbox is None:
            watch_and_check_ids(target, [self.to], [self.to], len(self.entries))
            return set()
        [flat] = watch_and_check_ids(target, [self.to, outbox], [self.to], len(self.entries), ("HGETALL", outbox))
        return set(flat[0::2])

    def _due(self, target: Connection, home: Connection) -> list[FailedEntry]:
        try:
            proofs = home.execute_all([entry.proof(self.group) for entry in self.entries])
        except ServerReplyError:
            target.execute("UNWATCH")
            raise
        return [entry for entry, proof in zip(self.entries, proofs, strict=True) if proof]

    def _append(self, target: Connection, fresh: Sequence[FailedEntry], outbox: bytes | None) -> bool:
        """Append dead letters, and acknowledge their entries or note them in the outbox. Return False if the
        dead-letter stream has changed since it was watched. Raises ServerReplyError if some were refused."""
        if outbox is None:
            then = acknowledgement(self.group, fresh)
        else:
            then = [("HSET", outbox, *[word for entry in fresh for word in (entry.id, b"")])]
        then = [*then, origin_command(self.to, origin_of(self.stream), self.group)]
        replies = _transaction(target, self.to, fresh, [*[entry.dead_letter(self.to) for entry in fresh], *then])
        if replies is None:
            return False
        refused = find_errors(replies[: len(fresh)])
        if refused:
            refused_entries = [fresh[place] for place, _ in refused]
            if outbox is not None:
                target.execute("HDEL", outbox, *[entry.id for entry in refused_entries])
            else:
                acked = replies[len(fresh)]
                restore = [entry.restore(self.group) for entry in refused_entries] if acked else []
                target.execute_all([*restore, *note_commands(refused_entries, due=True)])
            raise ServerReplyError(
                f"stream {self.to!r} at {self.server.address} refused {len(refused_entries)} dead letters of stream "
                f"{self.stream!r}, the first one of entry {refused_entries[0].id.decode()}. Their entries are pending "
                f"as before. {target.error_of(refused[0][1], ('XADD', self.to)).message}"
            )
        for command, reply in zip(then, replies[len(fresh) :], strict=True):
            if isinstance(reply, ReplyError):
                raise target.error_of(reply, command[:4])
        return True

    def _acknowledge(self, home: Connection, due: Sequence[FailedEntry]) -> None:
        """Acknowledge entries that have their dead letters."""
        done = transact(home, acknowledgement(self.group, due))
        assert done is not None  # nothing is watched there

    def _forget(self, target: Connection, home: Connection, outbox: bytes, ids: set[bytes]) -> None:
        """Remove entries that are no longer pending from the outbox: those of this call, and those of a process that
        was killed after its XACK."""
        sorted_ids = sorted(ids)
        pending = home.execute_all(
            [("XPENDING", self.stream, self.group, entry_id, entry_id, 1) for entry_id in sorted_ids]
        )
        done = [entry_id for entry_id, pending_entries in zip(sorted_ids, pending, strict=True) if not pending_entries]
        if done:
            target.execute("HDEL", outbox, *done)


def _transaction(
    server: Connection, to: str, entries: Sequence[FailedEntry], commands: Sequence[Command]
) -> list[Reply] | None:
    """Return the replies to the commands; None if `to` has changed."""
    try:
        return transact_each(server, commands)
    except ServerUnreachableError as error:
        largest = max(entries, key=lambda entry: entry.size)
        why = find_exceeded_limit(server.address, max(map(len, largest.fields), default=0), largest.size)
        if not why:
            raise
        raise RowTooLargeError(
            f"the dead letter of entry {largest.id.decode()} of stream {largest.stream!r} has {largest.size:,} bytes, "
            f"its largest value {max(map(len, largest.fields)):,}, but the server at {server.address} {why}. So it was "
            f"not appended to stream {to!r}, and the entry is pending as before. Raise this limit"
        ) from error
