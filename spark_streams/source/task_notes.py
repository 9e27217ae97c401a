"""What tasks leave for the driver: entries that do not fit the schema, how many entries were gone, and what was found
out about columns.

Tasks must not move the group or append to streams: they may run twice (FACTS S7). So they write notes into a hash
beside the stream, `rstream:notes:…`, one field for each entry, named by the batch's token and the entry: a second run
writes the same fields. When the batch is proved committed, the driver turns the notes into dead letters; each letter,
its acknowledgement and the removal of its note are one transaction. Receipts prove that no note is gone.

Notes on columns (source.column_report) are counts that nothing hangs on: they have no receipts, and all of a batch
stand beside the first stream that it took from, so that one question tells whether there are any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from spark_streams.deadletter.post import FailedEntry, Note, now, post
from spark_streams.deadletter.returned_entry import ReturnedEntry, attempts_in
from spark_streams.errors import DataLossError, DecodeError, InvalidOptionError
from spark_streams.ids import StreamId
from spark_streams.keys import is_returned, key_beside, origin_of, retry_stream
from spark_streams.numbers import whole
from spark_streams.source.column_report import ColumnReport
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.limits import LIMITS, Limits
from spark_streams.source.membership import Membership
from spark_streams.source.note_receipts import KIND, Receipt, among, is_refused, missing_notes, question, removal
from spark_streams.source.rows.malformed import Dead
from spark_streams.wire.connection import ReplyError, pack
from spark_streams.wire.replies import parse_replies
from spark_streams.wire.server import Server

_LETTER, _LOST, _COLUMNS = b"letter", b"lost", b"columns"
_NewNote = tuple[str, bytes, bytes]  # stream, field, value


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

    def columns(self, beside: str, task: EntryRange, report: ColumnReport, whole: bool) -> None:
        """Note what a task found out about columns; beside: which stream; task: its first range. One that was ended
        before it had read all (not whole) takes nothing back of what it found when it ran before."""
        which = b"%b/%b/%b" % (_quoted(task.stream), bytes(task.after), _quoted(task.consumer))
        field = b"%b %b %b" % (self.token.encode(), _COLUMNS, which)
        self.server.execute("HSET" if whole else "HSETNX", notes_key(beside, self.member), field, report.to_json())

    def _leave(self, notes: Sequence[_NewNote]) -> None:
        commands: list[tuple[str | bytes, ...]] = []
        for stream, count in Counter(stream for stream, _, _ in notes).items():
            receipt = Receipt.new(self.token, count)
            enter = ("XGROUP", "CREATECONSUMER", stream, self.member.group, receipt.consumer(self.member))
            commands += [enter, ("HSET", notes_key(stream, self.member), receipt.field, b"")]
        commands += [("HSET", notes_key(stream, self.member), field, value) for stream, field, value in notes]
        for command, reply in zip(commands, self.server.pipeline(commands), strict=True):
            if isinstance(reply, ReplyError) and not (command[0] == "XGROUP" and is_refused(reply)):
                raise self.server.error_of(reply, command[:2])


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
class Collected:
    """Per stream, missing: how many notes were gone; lost: entries that were gone; letters: how many were posted as
    dead letters; retried: how many to wait for another try. And columns: what tasks found out about these."""

    missing: Mapping[str, int]
    lost: Counter[str] = field(default_factory=Counter)
    letters: Counter[str] = field(default_factory=Counter)
    retried: Counter[str] = field(default_factory=Counter)
    columns: list[ColumnReport] = field(default_factory=list)


def collect(
    server: Server,
    member: Membership,
    streams: Sequence[str],
    token: str,
    letters_to: str | None,
    read: Collection[str] = (),
    may_miss: bool = False,
    limits: Limits = LIMITS,
    retries: int = 0,
) -> Collected:
    """Take the notes of the batch with this token, which is committed; what other batches left is void. read: those of
    the streams that the batch took from; retries: how often an entry is tried again before it is a dead letter.

    Raises ServerError; InvalidOptionError where there are letters and nothing says where they go, and DataLossError
    where notes are gone and none `may_miss`: then those that were not yet taken are still there.
    """
    keys = {stream: notes_key(stream, member) for stream in streams}
    replies = server.pipeline(
        [*[("EXISTS", key) for key in keys.values()], *[question(stream, member) for stream in read]]
    )
    receipts = {s: among(member, reply) for s, reply in zip(read, replies[len(keys) :], strict=True)}
    missing = missing_notes(server, keys, receipts, token)
    if missing and not may_miss:
        raise _notes_are_gone(server, member, missing)
    taken = Collected(missing)
    there = [stream for stream, reply in zip(keys, replies[: len(keys)], strict=True) if reply == 1]
    for stream in there:
        for page in _pages(server, keys[stream], limits.note_page):
            _take(server, member, stream, token, Destination(letters_to, retries), page, taken, limits)
    entered = [command for stream, some in receipts.items() for command in removal(stream, member, some)]
    # Consumers first: without their fields they would tell of a loss.
    server.pipeline([*entered, *[("DEL", keys[stream]) for stream in there]])
    return taken


def _take(
    server: Server,
    member: Membership,
    stream: str,
    token: str,
    letters_to: Destination,
    page: Mapping[bytes, bytes],
    taken: Collected,
    limits: Limits,
) -> None:
    """Take a page of notes; what they say is added to `taken`."""
    key = notes_key(stream, member)
    mine = {field: value for field, value in page.items() if field.startswith(token.encode() + b" ")}
    notes = {field: _read(member, stream, Note(key, field, value)) for field, value in mine.items()}
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
    others = [field for field in page if not isinstance(notes.get(field), FailedEntry)]
    if others:
        server.execute("HDEL", key, *others)


def _attempts(entry: FailedEntry) -> int:
    """How often it was tried."""
    return attempts_in(entry.envelope.get("deliveries", ""))


def _notes_are_gone(server: Server, member: Membership, missing: Mapping[str, int]) -> DataLossError:
    stream = next(iter(missing))
    return DataLossError(
        f"stream {stream!r} at {server.address}: {sum(missing.values())} notes on entries of the last batch are gone "
        f"with key {notes_key(stream, member).decode('utf-8', 'replace')!r} (evicted or deleted): entries that did not "
        "fit the schema would be acknowledged without a dead letter; see that the server evicts nothing "
        "(maxmemory-policy noeviction), and set failOnDataLoss=false for one run to go on without them"
    )


def void(server: Server, member: Membership, streams: Sequence[str]) -> None:
    """The batch is read again: what tasks of an earlier run noted counts no more. They may have had another schema,
    another mode, other runs; and the notes of the batch before this one were taken when this one was made."""
    replies = server.pipeline([question(stream, member) for stream in streams])
    entered = [
        command
        for stream, reply in zip(streams, replies, strict=True)
        for command in removal(stream, member, among(member, reply))
    ]
    server.pipeline([*entered, *[("DEL", notes_key(stream, member)) for stream in streams]])


def _pages(server: Server, key: bytes, size: int) -> Iterator[dict[bytes, bytes]]:
    """The notes a page at a time, until there are none: every page is removed by whoever takes it."""
    some = True
    while some:
        some, cursor = False, b"0"
        while True:
            cursor, flat = server.execute("HSCAN", key, cursor, "COUNT", size)
            page = {f: v for f, v in zip(flat[0::2], flat[1::2], strict=True) if f.split(b" ")[1:2] != [KIND]}
            if page:
                some = True
                yield page
            if cursor == b"0":
                break


def _read(member: Membership, stream: str, note: Note) -> FailedEntry | ColumnReport | int:
    _, kind, entry = note.field.split(b" ")
    if kind == _LOST:
        return whole(note.value) or 0
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
