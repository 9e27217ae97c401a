"""What tasks leave for the driver: entries that do not fit the schema, how many entries were gone, and what was found
out about columns.

Tasks must not move the group or append to streams: they may run twice (FACTS S7). So they write notes into a hash
beside the stream, `rstream:notes:…`, one field for each entry, named by the batch's token and the entry: a second run
writes the same fields. When the batch is proved committed, the driver turns the notes into dead letters; each letter,
its acknowledgement and the removal of its note are one transaction.

If a batch may leave dead letters, the driver writes the field `batch` with the batch's token into each hash before any
task runs (`open_notes`). If that field is missing when the batch is committed, the hash was deleted in between, and
notes may be lost with it.

Notes on columns (source.rows.column_report) are counts that nothing hangs on. All of a batch stand beside the first
stream that it took from, so that one question tells whether there are any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from spark_streams.deadletter.retry.returned_entry import ReturnedEntry, attempts_in
from spark_streams.deadletter.write.failed_entry import FailedEntry, Note, now
from spark_streams.deadletter.write.post import post
from spark_streams.errors import DecodeError, InvalidOptionError, StreamStateError
from spark_streams.model.ids import StreamId
from spark_streams.model.keys import is_returned, key_beside, origin_of, retry_stream
from spark_streams.model.numbers import parse_number
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.findings.finding import Finding, Kind
from spark_streams.source.findings.messages import Place
from spark_streams.source.findings.remedies import error_of, remedy_of
from spark_streams.source.limits import LIMITS, Limits
from spark_streams.source.membership import Membership
from spark_streams.source.rows.column_report import ColumnReport
from spark_streams.source.rows.malformed import Dead
from spark_streams.wire.connection.connection import pack
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.replies import parse_replies

_LETTER, _LOST, _COLUMNS, _READ = b"letter", b"lost", b"columns", b"read"
_BATCH = b"batch"  # the field that names the batch whose notes the hash holds
_RECEIPT = b"receipt"  # a kind that earlier versions left beside their notes; it says nothing any more
_NewNote = tuple[str, bytes, bytes]  # stream, field, value
_Notes = dict[bytes, FailedEntry | ColumnReport | int]  # what notes say, by their fields


def notes_key(stream: str, member: Membership) -> bytes:
    """The hash that holds the notes on one stream."""
    return key_beside(stream, "notes", member.group, member.consumer)


@dataclass(frozen=True)
class Writer:
    """A task's side. token: the batch's; query, batch: Spark's own names for it."""

    server: Server
    member: Membership
    token: str
    query: str
    batch: str
    limits: Limits = LIMITS

    def dead(self, streams: Sequence[str], dead: Dead) -> None:
        """Note rows that do not fit; streams: each one's stream."""
        ids, offsets, names, values = dead.entries()
        bounds = offsets.to_pylist()
        notes: list[_NewNote] = []
        for row, (stream, entry, reason) in enumerate(zip(streams, ids.to_pylist(), dead.reasons, strict=True)):
            inside = slice(bounds[row], bounds[row + 1])
            pairs = zip(names[inside].to_pylist(), values[inside].to_pylist(), strict=True)
            words = [self.query, self.batch, now(), reason, *[word for pair in pairs for word in pair]]
            notes.append((stream, b"%b %b %b" % (self.token.encode(), _LETTER, entry), pack(*words)))
            if len(notes) == self.limits.note_page:
                self._leave(notes)
                notes = []
        self._leave(notes)

    def lost(self, entries: EntryRange, count: int) -> None:
        """Note that entries of a run are gone. Those of several consumers may begin at the same place."""
        which = b"%b/%b" % (bytes(entries.after), _quoted(entries.consumer))
        self._leave([(entries.stream, b"%b %b %b" % (self.token.encode(), _LOST, which), str(count).encode())])

    def read(self, entries: EntryRange, count: int) -> None:
        """Note how many entries a range has, whose count is an estimate, when it is read to its end."""
        which = b"%b/%b" % (bytes(entries.after), bytes(entries.last))
        self._leave([(entries.stream, b"%b %b %b" % (self.token.encode(), _READ, which), str(count).encode())])

    def columns(self, beside: str, task: EntryRange, report: ColumnReport, whole: bool) -> None:
        """Note what a task found out about columns; beside: which stream; task: its first range. One that was ended
        before it had read all (not whole) takes nothing back of what it found when it ran before."""
        which = b"%b/%b/%b" % (_quoted(task.stream), bytes(task.after), _quoted(task.consumer))
        field = b"%b %b %b" % (self.token.encode(), _COLUMNS, which)
        self.server.execute("HSET" if whole else "HSETNX", notes_key(beside, self.member), field, report.to_json())

    def _leave(self, notes: Sequence[_NewNote]) -> None:
        commands = [("HSET", notes_key(stream, self.member), field, value) for stream, field, value in notes]
        self.server.execute_all(commands)


def _quoted(name: str) -> bytes:
    return quote(name, safe="").encode()


@dataclass(frozen=True)
class Destination:
    """Where entries go that do not fit. letters: the dead-letter stream, None where nothing says; retries: how often an
    entry is tried again before that."""

    letters: str | None
    retries: int = 0

    def of(self, stream: str, group: str, attempts: int) -> str | None:
        """For an entry of this stream that was tried so often."""
        return retry_stream(stream, group, attempts) if attempts <= self.retries else self.letters


@dataclass(frozen=True)
class Opened:
    """The notes that were opened for a batch (`open_notes`). streams: theirs; may_miss: whether they may be gone;
    keeps_read: those of how many entries the batch has read stay until the notes of a later batch are taken."""

    streams: Collection[str] = ()
    may_miss: bool = False
    keeps_read: bool = False


@dataclass(frozen=True)
class Collected:
    """deleted: streams whose notes were deleted before they were taken; lost: entries that were gone, letters: entries
    posted as dead letters, retried: entries that wait for another try, all per stream; columns: what tasks found out
    about columns."""

    deleted: Sequence[str] = ()
    lost: Counter[str] = field(default_factory=Counter)
    letters: Counter[str] = field(default_factory=Counter)
    retried: Counter[str] = field(default_factory=Counter)
    columns: list[ColumnReport] = field(default_factory=list)


def collect(
    server: Server,
    member: Membership,
    streams: Sequence[str],
    token: str,
    letters_to: Destination,
    opened: Opened = Opened(),
    limits: Limits = LIMITS,
) -> Collected:
    """Take the notes of the batch with this token, which is committed; what other batches left is void.

    Raises ServerError; InvalidOptionError if there are letters and nothing says where they go; DataLossError if notes
    were deleted and none `may_miss`: then those that are left are still there.
    """
    keys = {stream: notes_key(stream, member) for stream in streams}
    asked = [("HGET", key, _BATCH) if stream in opened.streams else ("EXISTS", key) for stream, key in keys.items()]
    replies = dict(zip(keys, server.execute_all(asked), strict=True))
    # If the field names another batch, that one was read later: these notes were taken, and the checkpoint is set back.
    taken = Collected([stream for stream in keys if stream in opened.streams and replies[stream] is None])
    if taken.deleted and not opened.may_miss:
        raise _notes_are_deleted(server, member, taken.deleted[0])
    there = [stream for stream, reply in replies.items() if reply or stream in opened.streams]
    kept = b"%b %b " % (token.encode(), _READ) if opened.keeps_read else None
    for stream in there:
        for page in _pages(server, keys[stream], limits.note_page, kept):
            notes = _notes_of(page, keys[stream], stream, member, token)
            _take(server, member, stream, letters_to, notes, taken, limits)
            others = [field for field in page if not isinstance(notes.get(field), FailedEntry)]
            if others:
                server.execute("HDEL", keys[stream], *others)
    return taken  # each page was removed; the field `batch` stays, for whoever asks for the same notes again


def _notes_of(page: Mapping[bytes, bytes], key: bytes, stream: str, member: Membership, token: str) -> _Notes:
    """What the notes on a page say that are of the batch with this token, by their fields."""
    mine = {field: value for field, value in page.items() if field.startswith(token.encode() + b" ")}
    return {field: _read(member, stream, Note(key, field, value)) for field, value in mine.items()}


def _take(
    server: Server,
    member: Membership,
    stream: str,
    letters_to: Destination,
    notes: _Notes,
    taken: Collected,
    limits: Limits,
) -> None:
    """Post the letters of a page of notes; what the others say is added to `taken`."""
    found = sorted((n for n in notes.values() if isinstance(n, FailedEntry)), key=lambda one: StreamId.parse(one.id))
    origin = origin_of(stream)
    taken.lost[stream] += sum(note for note in notes.values() if isinstance(note, int))
    taken.columns.extend(note for note in notes.values() if isinstance(note, ColumnReport))
    for attempts in sorted({_attempts(entry) for entry in found}):
        some = [entry for entry in found if _attempts(entry) == attempts]
        to = letters_to.of(origin, member.group, attempts)
        if to is None:
            raise InvalidOptionError(
                f"stream {stream!r}: entries of the last batch were set aside in mode=DEADLETTER and are not "
                "in a dead-letter stream yet; set mode=DEADLETTER and deadLetterStream again for one more run"
            )
        post(server, to, member.group, some, limits.dead_letters)
        (taken.letters if to == letters_to.letters else taken.retried)[origin] += len(some)


def _attempts(entry: FailedEntry) -> int:
    """How often it was tried."""
    return attempts_in(entry.envelope.get("deliveries", ""))


def _notes_are_deleted(server: Server, member: Membership, stream: str) -> StreamStateError:
    key = notes_key(stream, member).decode("utf-8", "replace")
    finding = Finding(Kind.NOTES_GONE, stream, lost=None, what=key)
    return error_of(finding, remedy_of(finding, lenient=False), Place(member, str(server.address)))


def open_notes(server: Server, member: Membership, streams: Iterable[str], token: str) -> None:
    """Tasks of this batch may leave notes on entries of these streams from now on. Raises ServerError."""
    server.execute_all([("HSET", notes_key(stream, member), _BATCH, token) for stream in streams])


def void(server: Server, member: Membership, streams: Sequence[str]) -> None:
    """Delete what tasks of an earlier run noted: the batch is read again. They may have had another schema, another
    mode, other ranges. The notes of the batch before this one were taken when this one was made."""
    server.execute_all([("DEL", notes_key(stream, member)) for stream in streams])


def ranges_read(server: Server, member: Membership, stream: str, token: str) -> dict[tuple[StreamId, StreamId], int]:
    """How many entries the tasks of the batch with this token have found in their ranges (after, last]."""
    found: dict[tuple[StreamId, StreamId], int] = {}
    cursor = b"0"
    while True:
        pattern = b"%b %b *" % (token.encode(), _READ)
        cursor, flat = server.execute("HSCAN", notes_key(stream, member), cursor, "MATCH", pattern, "COUNT", 500)
        for name, value in zip(flat[0::2], flat[1::2], strict=True):
            after, last = name.split(b" ")[2].split(b"/")
            found[StreamId.parse(after), StreamId.parse(last)] = parse_number(value) or 0
        if cursor == b"0":
            return found


def _pages(server: Server, key: bytes, size: int, kept: bytes | None) -> Iterator[dict[bytes, bytes]]:
    """The notes a page at a time, until there are none: every page is removed by whoever takes it. kept: how the names
    of notes begin that are left out, because they stay; None: there are none."""
    some = True
    while some:
        some, cursor = False, b"0"
        while True:
            cursor, flat = server.execute("HSCAN", key, cursor, "COUNT", size)
            fields = zip(flat[0::2], flat[1::2], strict=True)
            page = {name: value for name, value in fields if name != _BATCH and not (kept and name.startswith(kept))}
            if page:
                some = True
                yield page
            if cursor == b"0":
                break


def _read(member: Membership, stream: str, note: Note) -> FailedEntry | ColumnReport | int:
    _, kind, entry = note.field.split(b" ")
    if kind in (_RECEIPT, _READ):  # ranges_read looks at the latter
        return 0
    if kind == _LOST:
        return parse_number(note.value) or 0
    if kind == _COLUMNS:
        return ColumnReport.from_json(note.value)
    query, batch, when, reason, *fields = parse_replies(note.value)[0]
    again = ReturnedEntry.of(fields) if is_returned(stream) else None
    return FailedEntry(
        stream,
        entry,
        fields if again is None else again.fields,
        {
            "stream": stream,
            "id": entry.decode(),
            "group": member.group,
            "consumer": member.consumer,
            "query": query.decode(),
            "batch": batch.decode(),
            "stage": "read",
            "reason": "decode",
            "error": DecodeError.condition,
            "message": reason.decode(),
            "first-failed": when.decode(),
            "last-failed": when.decode(),
            **({} if again is None else {**again.told(), "deliveries": str(again.attempts + 1)}),
        },
        note,
    )
