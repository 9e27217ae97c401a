"""Post dead letters: each entry gets exactly one, and is acknowledged together with it.

    → WATCH to   HSET origins   XINFO STREAM to   is each dead letter still due?   its note has a value, or the entry is
                                                  pending
    → MULTI   XADD to …   XACK …   HSET notes   EXEC   nil if `to` has changed since WATCH

If the dead-letter stream is in another slot of a cluster than the entries, no transaction covers both. Then there are
two transactions, and `rstream:outbox:{to}:<group>:<stream>` holds the IDs of entries between them:

    → MULTI   XADD to …   HSET outbox ids   EXEC     in the slot of the dead letters
    → MULTI   XACK …   HSET notes   EXEC                            in the slot of the entries
    → HDEL outbox ids

An entry that is in the outbox gets no second dead letter. A transaction that is executed late, after its process has
died, fails by its own WATCH, or breaks the WATCH of the process that has begun since.

An XADD that fails within EXEC does not stop the XACK (FACTS R14). Causes that can be checked are checked before, under
WATCH. Others (XSETID, rights that are revoked) are repaired afterwards: these entries become pending again.

What writes dead letters records their origins, streams and groups, beside the dead-letter stream, in a hash that no
producer may write. A redrive sends dead letters back only to these streams (redrive_plan.py), and a query with a
pattern does not read a stream that has such a hash (input_streams.py).

Without numpy and Arrow: commands, and consumers without Spark, need it.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from spark_streams.base.ids import MAX_ID
from spark_streams.connector import errors
from spark_streams.connector.deadletter.envelope import dead_letter_fields
from spark_streams.connector.keys import key_beside, origin_field, origin_of, origins_key
from spark_streams.connector.wire.connect import find_exceeded_limit
from spark_streams.connector.wire.connection import Argument, Connection, Key, PageSizer, Reply, ReplyError, Server
from spark_streams.connector.wire.replies import WATCHED_TRIES, find_errors, is_no_such_key, transact, transact_each
from spark_streams.connector.wire.xinfo import RELEASED_IDLE, stream_in

T = TypeVar("T")
Command = Sequence[Argument]


@dataclass(frozen=True)
class DeadLetterLimits:
    """Limits for reading and posting dead letters. They are not options; tests use smaller ones.

    Times were measured with dead letters of 100 bytes on redis-server, on one machine of two cores.
    """

    first_page: int = 200  # dead letters of the first page, when their size is not known yet
    # Of one transaction. 500 at a time: 111,000 a second; 2,000: 129,000 (16 ms each); 8,000: 132,000.
    largest_page: int = 2_000
    page_bytes: int = 4 << 20  # of a page, estimated from the pages before it
    max_bytes: int = 64 << 20  # of a reply; beyond it, the page is read again in smaller pieces
    post_entries: int = 500  # of one transaction, which may be repeated. 100: 66,000 a second; 500: 71,000 (7 ms each)
    post_bytes: int = 8 << 20  # of their fields; a single entry may have more


DEAD_LETTER_LIMITS = DeadLetterLimits()
FIRST_STREAMS = 20  # streams whose first entries are read at once; their size decides about the next number


class PageSize:
    """Number of dead letters to read at a time: about page_bytes, and at most as many as can be used. first: of the
    first page."""

    def __init__(self, limits: DeadLetterLimits = DEAD_LETTER_LIMITS, first: int | None = None) -> None:
        self.limits = limits
        first = limits.first_page if first is None else first
        self._sizer = PageSizer(first, limits.largest_page, limits.page_bytes)
        self._share = 1.0  # of the dead letters that were read: those that match

    def next(self, limit: int | None = None) -> int:
        """Return the size of the next page. limit: dead letters that can be used."""
        if limit is None:
            return self._sizer.size
        return max(1, min(self._sizer.size, int(limit / max(self._share, 1e-3)) + 1 if self._share < 1 else limit))

    def learn(self, read: int, size: int, selected: int) -> None:
        """Learn from a page of `read` dead letters. size: its bytes; selected: dead letters that matched."""
        if read:
            self._sizer.learn(read, size)
            self._share = selected / read

    def too_large(self) -> bool:
        """Halve the size after a page that was too large. Return False if it cannot be smaller."""
        smaller = self._sizer.size > 1
        self._sizer.too_large()
        return smaller


def pages_of(names: Sequence[T], size: PageSize) -> Iterator[Sequence[T]]:
    """Yield names in pages of this size. The caller reports to `size` how large their entries were."""
    start = 0
    while start < len(names):
        page = names[start : start + size.next()]
        yield page
        start += len(page)


# -- an entry that becomes a dead letter -------------------------------------------------------------------------------


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


# -- before a transaction: can the streams take entries? ---------------------------------------------------------------


def watch_and_check_ids(
    server: Connection, keys: Sequence[Key], streams: Sequence[Key], entries: int, *reads: Sequence[Argument]
) -> list[Reply]:
    """Watch keys, and check that each of the streams can take this many XADDs with `*`. Return the replies to `reads`.

    Raises IdsExhaustedError, WrongKeyTypeError, ServerReplyError; then nothing is watched.
    """
    watch = [("WATCH", *keys)] if keys else []
    count = len(watch) + len(reads)
    try:
        described = [("XINFO", "STREAM", stream) for stream in streams]
        replies = server.execute_all([*watch, *reads, *described], is_no_such_key)
        for stream, reply in zip(streams, replies[count:], strict=True):
            _require_ids(server, stream, reply, entries)
    except Exception:
        if server.is_open:
            server.execute("UNWATCH")
        raise
    return replies[len(watch) : count]


def watch_destinations(
    server: Connection, source: str, keys: Sequence[Key], streams: Sequence[Key], entries: int
) -> None:
    """Do the same for destinations of dead letters of the stream `source`: the error names the type of a wrong key."""
    try:
        watch_and_check_ids(server, keys, streams, entries)
    except errors.WrongKeyTypeError as error:
        for stream, kind in zip(streams, server.execute_all([("TYPE", stream) for stream in streams]), strict=True):
            if kind not in (b"stream", b"none"):
                raise errors.WrongKeyTypeError(
                    f"dead letters of stream {source!r} cannot be moved to key {_shown(stream)!r} at {server.address}: "
                    f"it holds a {kind.decode()}. Name a stream (--to)"
                ) from error
        raise


def _require_ids(server: Connection, stream: Key, reply: Reply, entries: int) -> None:
    """Check the reply to XINFO STREAM. A stream that does not exist can take entries."""
    if is_no_such_key(reply):
        return
    last = stream_in(reply).last
    if (MAX_ID.ms - last.ms << 64) + MAX_ID.seq - last.seq < entries:
        raise errors.IdsExhaustedError(
            f"stream {_shown(stream)!r} at {server.address} cannot take {entries} more entries: its last ID is {last}. "
            "Stop its readers and writers, and rename it (RENAME): its entries and groups are kept under the new name"
        )


def _shown(stream: Key) -> str:
    return stream if isinstance(stream, str) else stream.decode("utf-8", "replace")


# -- the dead letters --------------------------------------------------------------------------------------------------

_ATTEMPTS = 100  # while other clients append to the same dead-letter stream


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
        return self.entries[0].stream

    @property
    def outbox(self) -> bytes | None:
        """The key of the IDs of entries that have a dead letter in `to` and may still be pending; None if one
        transaction covers the dead letters and their entries."""
        apart = len(self.server.together([self.to, self.stream], lambda key: key)) > 1
        return key_beside(self.to, "outbox", self.group, self.stream) if apart else None

    def post(self) -> int:
        """Return how many dead letters were due."""
        outbox = self.outbox
        for attempt in range(_ATTEMPTS):
            target, home = self.server.connection_for(self.to), self.server.connection_for(self.stream)
            appended = self._watch(target, outbox, attempt < WATCHED_TRIES)
            due = self._due(target, home)
            fresh = [entry for entry in due if entry.id not in appended]
            if not fresh:
                target.execute("UNWATCH")
            elif not self._append(target, fresh, outbox):
                continue
            if outbox is not None:
                if due:
                    done = transact(home, acknowledgement(self.group, due))
                    assert done is not None  # nothing is watched there
                self._forget(target, home, outbox, appended | {entry.id for entry in due})
            return len(due)
        raise errors.ServerReplyError(
            f"stream {self.to!r} at {self.server.address} changes too often: dead letters could not be appended"
        )

    def _watch(self, target: Connection, outbox: bytes | None, with_stream: bool) -> set[bytes]:
        """Watch the dead-letter stream and the outbox, record the origin, and return the IDs in the outbox. Raises if
        the stream cannot take this many dead letters; then nothing is watched."""
        keys, reads = [self.to] if with_stream else list[Key](), [] if outbox is None else [("HGETALL", outbox)]
        keys += [] if outbox is None else [outbox]
        origin = origin_command(self.to, origin_of(self.stream), self.group)
        _, *replies = watch_and_check_ids(target, keys, [self.to], len(self.entries), origin, *reads)
        return {entry for flat in replies for entry in flat[0::2]}

    def _due(self, target: Connection, home: Connection) -> list[FailedEntry]:
        try:
            proofs = home.execute_all([entry.proof(self.group) for entry in self.entries])
        except errors.ServerReplyError:
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
            raise errors.ServerReplyError(
                f"stream {self.to!r} at {self.server.address} refused {len(refused_entries)} dead letters of stream "
                f"{self.stream!r}, the first one of entry {refused_entries[0].id.decode()}. Their entries are pending "
                f"as before. {target.error_of(refused[0][1], ('XADD', self.to)).message}"
            )
        for command, reply in zip(then, replies[len(fresh) :], strict=True):
            if isinstance(reply, ReplyError):
                raise target.error_of(reply, command[:4])
        return True

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
    except errors.ServerUnreachableError as error:
        largest = max(entries, key=lambda entry: entry.size)
        why = find_exceeded_limit(server.address, max(map(len, largest.fields), default=0), largest.size)
        if not why:
            raise
        raise errors.RowTooLargeError(
            f"the dead letter of entry {largest.id.decode()} of stream {largest.stream!r} has {largest.size:,} bytes, "
            f"its largest value {max(map(len, largest.fields)):,}, but the server at {server.address} {why}. So it was "
            f"not appended to stream {to!r}, and the entry is pending as before. Raise this limit"
        ) from error
