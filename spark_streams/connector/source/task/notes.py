"""Notes of tasks for the driver: entries that do not fit the schema, column reports, numbers of missing entries.

Tasks must not move the group or append to streams, because they may run twice (FACTS S7). So they write notes into a
hash in the stream's slot, `rstream:notes:…`, with a field for each entry:

    driver, before the tasks    batch = <number>.<token>
    task, entry does not fit    <token> letter <entry> = reason and fields    HSETNX
    task of a replay, it fits   <token> letter <entry>                        HDEL
    driver, after the commit    XADD of the dead letter, XACK, and the note emptied: one transaction

A task only adds notes. So a task that is suspended until the driver has posted its dead letter changes nothing. The
next batch's notes replace the emptied ones.

If the field `batch` is missing when the batch is committed, or names an earlier batch, notes may be lost: the hash was
deleted in between, or the server has returned to an older state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from spark_streams.base.ids import StreamId
from spark_streams.base.numbers import parse_number
from spark_streams.connector.deadletter.envelope import ReturnedEntry, attempts_in
from spark_streams.connector.deadletter.post import FailedEntry, Note, now, post
from spark_streams.connector.errors import DecodeError, InvalidOptionError
from spark_streams.connector.keys import is_returned, key_beside, origin_of, retry_stream
from spark_streams.connector.source.group_client import GroupClient, Membership
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.source.offset import Offset, Range
from spark_streams.connector.source.partitioning import ALL, Part, by_stream
from spark_streams.connector.source.rows.column_report import ColumnReport
from spark_streams.connector.source.rows.columns import Dead
from spark_streams.connector.wire.connection import Server, pack, parse_replies
from spark_streams.connector.wire.replies import is_no_group

LETTER = b"letter"  # a note on an entry
_COLUMNS = b"columns"  # on columns: only statistics, all in the hash of the batch's first stream
BATCH = b"batch"  # field with the number and the token of the batch whose notes the hash holds
_NewNote = tuple[str, bytes, bytes]  # stream, field, value
_Notes = dict[bytes, FailedEntry | ColumnReport]  # parsed notes by their fields


def notes_key(stream: str, member: Membership) -> bytes:
    """Return the key of the hash with the notes on one stream."""
    return key_beside(stream, "notes", member.group, member.consumer)


def prefix_of(token: str, kind: bytes) -> bytes:
    """Return the begin of the fields of a kind of notes on a batch. The entry or range follows it."""
    return b"%b %b " % (token.encode(), kind)


# -- before the tasks --------------------------------------------------------------------------------------------------


def open_notes(client: GroupClient, end: Offset) -> None:
    """Allow the tasks of the batch that ends here to write notes. Raises ServerError."""
    opened = {stream: f"{end.at[stream].number}.{end.token}" for stream in end.taken_from}
    commands = [("HSET", notes_key(stream, client.member), BATCH, name) for stream, name in opened.items()]
    client.server.execute_all(commands)


# -- in a task ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NoteWriter:
    server: Server  # not the connection that reads
    member: Membership  # consumer of the query
    token: str  # of the batch
    query: str  # Spark's ID of the query
    batch: str  # Spark's ID of the micro-batch
    limits: Limits = LIMITS  # size of a page of notes

    def dead(self, streams: Sequence[str], dead: Dead) -> None:
        """Note rows that do not fit. streams: of each row."""
        ids, offsets, names, values = dead.entries()
        bounds = offsets.to_pylist()
        notes: list[_NewNote] = []
        for row, (stream, entry, reason) in enumerate(zip(streams, ids.to_pylist(), dead.reasons, strict=True)):
            row_fields = slice(bounds[row], bounds[row + 1])
            pairs = zip(names[row_fields].to_pylist(), values[row_fields].to_pylist(), strict=True)
            words = [self.query, self.batch, now(), reason, *[word for pair in pairs for word in pair]]
            notes.append((stream, prefix_of(self.token, LETTER) + entry, pack(*words)))
            if len(notes) == self.limits.note_page:
                self._write(notes)
                notes = []
        self._write(notes)

    def good(self, entries: Mapping[str, Sequence[bytes]]) -> None:
        """Delete the notes on entries that fit now, by stream: an earlier run may have noted them."""
        prefix = prefix_of(self.token, LETTER)
        for stream, ids in entries.items():
            delete_notes(self.server, notes_key(stream, self.member), [prefix + entry for entry in ids])

    def columns(self, notes_stream: str, task: Range, report: ColumnReport, is_complete: bool) -> None:
        """Note the column report of a task. notes_stream: stream whose hash has the note; task: its first range;
        is_complete: False if the task ended early; then a report of an earlier run of the task stays."""
        name = b"%b/%b/%b" % (quote(task.stream, safe="").encode(), bytes(task.after), bytes(task.last))
        field = prefix_of(self.token, _COLUMNS) + name
        command = "HSET" if is_complete else "HSETNX"
        self.server.execute(command, notes_key(notes_stream, self.member), field, report.to_json())

    def _write(self, notes: Sequence[_NewNote]) -> None:
        commands = [("HSETNX", notes_key(stream, self.member), field, value) for stream, field, value in notes]
        self.server.execute_all(commands)


# -- after the commit --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LetterDestination:
    """Destination of entries that do not fit."""

    dead_letters: str | None  # the dead-letter stream, None: not set
    retries: int = 0  # maximum number before an entry becomes a dead letter

    def stream_for(self, stream: str, group: str, attempts: int) -> str | None:
        """Return the destination of an entry of this stream after this number of attempts."""
        return retry_stream(stream, group, attempts) if attempts <= self.retries else self.dead_letters


@dataclass(frozen=True)
class CollectedNotes:
    """What became of the notes of a batch. Counters are of entries by stream."""

    dead_letters: Counter[str] = field(default_factory=Counter)
    retried: Counter[str] = field(default_factory=Counter)  # sent to a retry stream
    columns: list[ColumnReport] = field(default_factory=list)  # of the tasks


def noted_streams(
    client: GroupClient, streams: Sequence[str], numbers: Mapping[str, int]
) -> tuple[list[str], list[str]]:
    """Return which of these streams have notes, and of which they are lost. numbers: of the committed batch, in the
    streams whose notes were opened for it (`open_notes`). Raises ServerError."""
    keys = {stream: notes_key(stream, client.member) for stream in streams}
    commands = [("HGET", key, BATCH) if stream in numbers else ("EXISTS", key) for stream, key in keys.items()]
    replies = dict(zip(keys, client.server.execute_all(commands), strict=True))
    # If the field names a later batch, these notes were collected, and the checkpoint is an older one.
    lost = [stream for stream in streams if stream in numbers and _number_in(replies[stream]) < numbers[stream]]
    return [stream for stream, reply in replies.items() if reply or stream in numbers], lost


def _number_in(opened: bytes | None) -> int:
    """Return the number of the batch that the field `batch` names; -1 if it names none."""
    number = None if opened is None else parse_number(opened.partition(b".")[0])
    return -1 if number is None else number


def collect(
    client: GroupClient,
    streams: Sequence[str],
    token: str,
    destination: LetterDestination,
    is_earlier: Callable[[str, StreamId], bool] = lambda stream, entry: False,
) -> CollectedNotes:
    """Collect the notes on these streams of the committed batch with this token, and empty or remove them. Notes of
    other batches are removed.

    is_earlier: whether an entry of a stream is of an earlier batch and is acknowledged again, because the server has
    returned to an older state. It may have lost the dead letter, too, so the note becomes one again.
    Raises ServerError; InvalidOptionError if there are dead letters without a destination.
    """
    collected = CollectedNotes()
    for stream in streams:
        key = notes_key(stream, client.member)
        for page in _pages(client, key, token):
            notes = {
                field: _parse(client, stream, Note(key, field, value))
                for field, value in page.items()
                if value and _is_due(field, stream, token, is_earlier)
            }
            _process(client, stream, destination, notes, collected)
            without_letter = [field for field in page if not isinstance(notes.get(field), FailedEntry)]
            if without_letter:
                client.server.execute("HDEL", key, *without_letter)
    return collected  # the field `batch` stays, so that a second call finds it


def _is_due(field: bytes, stream: str, token: str, is_earlier: Callable[[str, StreamId], bool]) -> bool:
    """Whether a note is of the batch with this token, or on an entry of an earlier one."""
    of, kind, entry = field.split(b" ")
    return of == token.encode() or (kind == LETTER and is_earlier(stream, StreamId.parse(entry)))


def _process(
    client: GroupClient, stream: str, destination: LetterDestination, notes: _Notes, collected: CollectedNotes
) -> None:
    """Post the failed entries of a page of notes, and add the other notes to `collected`."""
    failed = sorted(
        (note for note in notes.values() if isinstance(note, FailedEntry)), key=lambda entry: StreamId.parse(entry.id)
    )
    origin = origin_of(stream)
    collected.columns.extend(note for note in notes.values() if isinstance(note, ColumnReport))
    for attempts in sorted({_attempts(entry) for entry in failed}):
        entries = [entry for entry in failed if _attempts(entry) == attempts]
        target = destination.stream_for(origin, client.group, attempts)
        if target is None:
            raise InvalidOptionError(
                f"the last batch of stream {stream!r} is not finished. It has entries that do not fit, and the query "
                "no longer has a dead-letter stream for them. Set mode=DEADLETTER and deadLetterStream again for one "
                "run"
            )
        post(client.server, target, client.group, entries, client.limits.dead_letters)
        counts = collected.dead_letters if target == destination.dead_letters else collected.retried
        counts[origin] += len(entries)


def _attempts(entry: FailedEntry) -> int:
    return attempts_in(entry.envelope.get("deliveries", ""))


def _parse(client: GroupClient, stream: str, note: Note) -> FailedEntry | ColumnReport:
    _, kind, entry = note.field.split(b" ")
    if kind == _COLUMNS:
        return ColumnReport.from_json(note.value)
    query, batch, when, reason, *fields = parse_replies(note.value)[0]
    returned = ReturnedEntry.parse(fields) if is_returned(stream) else None
    return FailedEntry(
        stream,
        entry,
        fields if returned is None else returned.fields,
        {
            "stream": stream,
            "id": entry.decode(),
            "group": client.group,
            "consumer": client.consumer,
            "query": query.decode(),
            "batch": batch.decode(),
            "stage": "read",
            "reason": "decode",
            "error": DecodeError.condition,
            "message": reason.decode(),
            "first-failed": when.decode(),
            "last-failed": when.decode(),
            **({} if returned is None else {**returned.to_envelope(), "deliveries": str(returned.attempts + 1)}),
        },
        note,
    )


def _pages(client: GroupClient, key: bytes, token: str) -> Iterator[dict[bytes, bytes]]:
    """Yield pages of notes until there are none: the caller empties or removes each one. Empty ones of the batch with
    this token stay, so that no late task writes them again."""
    of_batch = token.encode() + b" "
    has_notes = True
    while has_notes:
        has_notes = False
        for fields in scan(client.server, key, client.limits.note_page):
            page = {
                name: value
                for name, value in fields.items()
                if name != BATCH and (value or not name.startswith(of_batch))
            }
            if page:
                has_notes = True
                yield page


def scan(server: Server, key: bytes, size: int, pattern: bytes = b"*") -> Iterator[dict[bytes, bytes]]:
    """Yield the fields of a hash of notes, about `size` at a time. A field may be in several pages."""
    cursor = None
    while cursor != b"0":
        cursor, flat = server.execute("HSCAN", key, cursor or b"0", "MATCH", pattern, "COUNT", size)
        yield dict(zip(flat[0::2], flat[1::2], strict=True))


def delete_notes(server: Server, key: bytes, fields: Sequence[bytes]) -> None:
    """Delete these fields of a hash of notes. Raises ServerError."""
    if fields:
        server.execute("HDEL", key, *fields)


# -- notes and replays -------------------------------------------------------------------------------------------------
# The tasks of a replay may read all entries of the batch again, some, or none: a function of `foreachBatch` may skip a
# batch that it has written. So a note on an entry stays until a task reads the entry again. A task that finds it bad
# leaves the field as it is. A task that finds it good deletes the field (NoteWriter.good).
#
#     note           what the replay does with it
#     dead letters   kept, unless another consumer has the entry now, or it was set aside for a batch of its own; of
#                    another batch: kept if the entry is pending, and not of this one (a server in an older state)
#     others         deleted: they describe what tasks have read, and no entry depends on them


def keep_due_notes(client: GroupClient, end: Offset, parts: Sequence[Part]) -> frozenset[str]:
    """Delete the notes of earlier runs that the replay of a batch makes void. Return the streams with notes on entries,
    which tasks delete when they read the entry as good.

    end, parts: of the batch. May be repeated. Raises ServerError.
    """
    of_stream = by_stream(parts)
    exist = client.server.execute_all([("EXISTS", notes_key(stream, client.member)) for stream in end.streams])
    noted = [stream for stream, exists in zip(end.streams, exist, strict=True) if exists]
    return frozenset(stream for stream in noted if _keep(client, stream, end.token, of_stream.get(stream, [])))


def _keep(client: GroupClient, stream: str, token: str, parts: Sequence[Part]) -> bool:
    """Do so for one stream. Return whether it has notes on entries."""
    key = notes_key(stream, client.member)
    void: set[bytes] = set()
    has_letters = False
    for page in scan(client.server, key, client.limits.note_page):
        letters = [field for field in page if field != BATCH and field.split(b" ")[1] == LETTER]
        due = _due(client, stream, token, parts, letters)
        has_letters = has_letters or any(field.startswith(prefix_of(token, LETTER)) for field in due)
        void |= page.keys() - due - {BATCH}
    delete_notes(client.server, key, sorted(void))
    return has_letters


def _due(client: GroupClient, stream: str, token: str, parts: Sequence[Part], letters: Sequence[bytes]) -> set[bytes]:
    """Return the notes on entries that are still of this batch, and the notes of other batches on entries that are
    pending and not of this one."""
    server, ids, prefix = client.server, [field.split(b" ")[2] for field in letters], prefix_of(token, LETTER)
    commands = [("XPENDING", stream, client.group, entry, entry, 1) for entry in ids]
    replies = server.execute_all(commands, is_no_group)
    due = set()
    for letter, entry, reply in zip(letters, ids, replies, strict=True):
        holder = None if is_no_group(reply) or not reply else bytes(reply[0][1]).decode()
        if _is_kept(StreamId.parse(entry), letter.startswith(prefix), holder, client.consumer, parts):
            due.add(letter)
    return due


def _is_kept(entry: StreamId, is_of_batch: bool, holder: str | None, consumer: str, parts: Sequence[Part]) -> bool:
    """Whether a replay keeps the note on this entry. is_of_batch: it is a note of this batch; holder: the consumer that
    the entry is pending for, None: it is not pending; consumer: of the query. If the batch has all entries of a range,
    it has the entry also if nothing is pending. Pure."""
    within = [part for part in parts if part.range.covers(entry)]
    if not is_of_batch:
        return holder == consumer and not within
    return bool(within) if holder == consumer else holder is None and any(part.by == ALL for part in within)


# -- missing entries ---------------------------------------------------------------------------------------------------
# Numbers of entries that tasks have found missing (failOnDataLoss=false): a hash in the stream's slot,
# `rstream:missing:…`, with the field `<token> <run> <after>/<last>` for each range that lacks entries. A run that
# replays the batch may divide it into other ranges. Missing entries stay missing, so the batch lacks as many as the run
# that has found most. After the commit the driver reports the number and deletes the hash. If it is killed in between,
# the next run reports it once more.


def missing_key(stream: str, member: Membership) -> bytes:
    return key_beside(stream, "missing", member.group, member.consumer)


def write_missing(server: Server, member: Membership, token: str, run: str, entries: Range, count: int) -> None:
    """Write that `count` entries of a range are missing. token: of the batch; run: name of the query's run."""
    field = b"%b %b %b/%b" % (token.encode(), run.encode(), bytes(entries.after), bytes(entries.last))
    server.execute("HSET", missing_key(entries.stream, member), field, count)


def fetch_missing(client: GroupClient, streams: Sequence[str], token: str) -> dict[str, int]:
    """Return how many entries of this batch are missing, for each stream that has such a hash. Raises ServerError."""
    replies = client.server.execute_all([("HGETALL", missing_key(stream, client.member)) for stream in streams])
    return {
        stream: missing_in(dict(zip(flat[0::2], flat[1::2], strict=True)), token)
        for stream, flat in zip(streams, replies, strict=True)
        if flat
    }


def missing_in(fields: Mapping[bytes, bytes], token: str) -> int:
    """Return how many entries of a batch these fields say are missing. Pure."""
    by_run = Counter[bytes]()
    for name, value in fields.items():
        of_batch, run, _ = name.split(b" ")
        if of_batch == token.encode():
            by_run[run] += parse_number(value) or 0
    return max(by_run.values(), default=0)


def delete_missing(client: GroupClient, streams: Iterable[str]) -> None:
    client.server.execute_all([("DEL", missing_key(stream, client.member)) for stream in streams])
