"""Failed entry: an entry that becomes a dead letter, and the commands that post it; and the origins of dead letters.

What writes dead letters records their origins, streams and groups, beside the dead-letter stream, in a hash that no
producer may write. A redrive sends dead letters back only to these streams (redrive_options.py), and a query with a
pattern does not read a stream that has such a hash (input_streams.py).

Values in, commands out, without Arrow: commands and consumers without Spark need it.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spark_streams.connector.deadletter.envelope import dead_letter_fields
from spark_streams.connector.keys import origin_field, origins_key
from spark_streams.connector.wire.connection import Argument, Server
from spark_streams.connector.wire.xinfo import RELEASED_IDLE

Command = Sequence[Argument]


@dataclass(frozen=True)
class Note:
    """Field of a hash: its dead letter is due while the field has a value. The transaction that acknowledges empties
    it. So a task that runs late cannot write it again."""

    key: bytes
    field: bytes
    value: bytes


@dataclass(frozen=True)
class FailedEntry:
    """An entry that cannot be processed."""

    stream: str
    id: bytes
    fields: Sequence[bytes]  # name, value, name, value …, unchanged
    envelope: Mapping[str, str] = field(default_factory=dict)  # by names without their prefix; a mark goes first
    note: Note | None = None  # the dead letter is due while this note has a value
    pending_for: str | None = None  # it is due while the entry is pending for this consumer
    released: bool = False  # it is due while the entry is pending for no consumer (XNACK)

    @property
    def size(self) -> int:
        """Bytes of its fields."""
        return sum(map(len, self.fields))

    def proof(self, group: str) -> Command:
        """Return the command whose reply is not empty while the dead letter is due."""
        if self.note is not None:
            return ("HSTRLEN", self.note.key, self.note.field)
        if self.pending_for is not None:
            return ("XPENDING", self.stream, group, self.id, self.id, 1, self.pending_for)
        if self.released:
            return ("XPENDING", self.stream, group, "IDLE", RELEASED_IDLE, self.id, self.id, 1)
        return ("ECHO", "due")

    def dead_letter(self, to: str) -> Command:
        """Return the XADD of its dead letter."""
        return ("XADD", to, "*", *dead_letter_fields(self.fields, self.envelope))

    def restore(self, group: str) -> Command:
        """Return the command that makes the entry pending after it was acknowledged."""
        deliveries = self.envelope.get("deliveries") or "1"
        if self.released:
            release = ("XNACK", self.stream, group, "FAIL", "IDS", 1, self.id)
            return (*release, "RETRYCOUNT", deliveries, "FORCE")
        consumer = self.pending_for or self.envelope.get("consumer", "")
        claim = ("XCLAIM", self.stream, group, consumer, 0, self.id)
        return (*claim, "RETRYCOUNT", deliveries, "FORCE", "JUSTID")


def now() -> str:
    """Return the present time in the form of dead letters."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def acknowledgement(group: str, entries: Sequence[FailedEntry]) -> list[Command]:
    """Return the commands that acknowledge entries of one stream and empty their notes."""
    return [("XACK", entries[0].stream, group, *[entry.id for entry in entries]), *note_commands(entries, due=False)]


def note_commands(entries: Sequence[FailedEntry], due: bool) -> list[Command]:
    """Return the commands that give the entries' notes their values if dead letters are due, or else empty them: one
    command for each hash."""
    notes = [entry.note for entry in entries if entry.note is not None]
    words_of: dict[bytes, list[Argument]] = {}
    for note in notes:
        words_of.setdefault(note.key, []).extend([note.field, note.value if due else b""])
    return [("HSET", key, *of_key) for key, of_key in words_of.items()]


def origin_command(to: str, stream: str, group: str) -> Command:
    """Return the command that records one origin of the dead-letter stream `to`."""
    return "HSET", origins_key(to), origin_field(stream, group), b""


def fetch_recorded(server: Server, streams: Iterable[str]) -> set[str]:
    """Return those of these streams to which queries have written dead letters. Raises ServerError."""
    names = sorted(streams)
    replies = server.execute_all([("EXISTS", origins_key(name)) for name in names])
    return {name for name, exists in zip(names, replies, strict=True) if exists}
