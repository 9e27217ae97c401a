"""Notes of an earlier run's tasks, if their batch is replayed.

The tasks of the replay may read all entries of the batch again, some, or none: a function of `foreachBatch` may skip a
batch that it has written. So a note on an entry stays until a task reads the entry again. A task that finds it bad
writes the same field. A task that finds it good deletes the field (NoteWriter.good).

    note           what the replay does with it
    dead letters   kept, unless another consumer has the entry now, or it was set aside for a batch of its own
    lost, earlier  replaced by one number, `earlier`: the replay may divide the batch into other ranges. Missing entries
                   stay missing, so the batch has lost the larger number: `earlier`, or those that this run's tasks find
    others         deleted: they describe what tasks have read, and no entry depends on them
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.model.ids import StreamId
from spark_streams.model.numbers import parse_number
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.limits import LIMITS, Limits
from spark_streams.source.membership import Membership
from spark_streams.source.notes.task_notes import BATCH, EARLIER, LETTER, LOST, delete_notes, notes_key, prefix_of, scan
from spark_streams.source.offset import Offset
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server


def keep_due_notes(
    server: Server,
    member: Membership,
    end: Offset,
    ranges: Sequence[EntryRange],
    is_cut: bool,
    limits: Limits = LIMITS,
) -> frozenset[str]:
    """Delete the notes of earlier runs that the replay of a batch makes void. Return the streams with notes on entries,
    which tasks delete when they read the entry as good.

    end, ranges: of the batch; is_cut: entries of it were set aside, and their losses are counted with them. May be
    repeated. Raises ServerError.
    """
    ranges_by_stream: dict[str, list[EntryRange]] = {}
    for entries in ranges:
        ranges_by_stream.setdefault(entries.stream, []).append(entries)
    sizes = server.execute_all([("HLEN", notes_key(stream, member)) for stream in end.streams])
    noted = [stream for stream, size in zip(end.streams, sizes, strict=True) if size]
    return frozenset(
        stream
        for stream in noted
        if _keep(server, member, stream, end.token, ranges_by_stream.get(stream, []), is_cut, limits)
    )


def _keep(
    server: Server,
    member: Membership,
    stream: str,
    token: str,
    ranges: Sequence[EntryRange],
    is_cut: bool,
    limits: Limits,
) -> bool:
    """Do so for one stream. Return whether it has notes on entries."""
    key, earlier = notes_key(stream, member), prefix_of(token, EARLIER) + b"-"
    void: set[bytes] = set()
    numbers: dict[bytes, int] = {}
    has_letters = False
    for page in scan(server, key, limits.note_page):
        letters = [field for field in page if field.startswith(prefix_of(token, LETTER))]
        due = _due(server, member, stream, ranges, letters)
        has_letters = has_letters or bool(due)
        void |= page.keys() - due - {BATCH}
        counted = [field for field in page if field == earlier or field.startswith(prefix_of(token, LOST))]
        numbers |= {field: parse_number(page[field]) or 0 for field in counted}
    lost = 0 if is_cut else max(numbers.pop(earlier, 0), sum(numbers.values()))
    if lost:  # before the numbers are deleted, because the run may end in between
        server.execute("HSET", key, earlier, lost)
        void.discard(earlier)
    delete_notes(server, key, sorted(void), limits)
    return has_letters


def _due(
    server: Server, member: Membership, stream: str, ranges: Sequence[EntryRange], letters: Sequence[bytes]
) -> set[bytes]:
    """Return the notes on entries that are still of this batch."""
    ids = {field: field.split(b" ")[2] for field in letters}
    replies = server.pipeline([("XPENDING", stream, member.group, entry, entry, 1) for entry in ids.values()])
    holders = {
        field: None if isinstance(reply, ReplyError) or not reply else bytes(reply[0][1]).decode()
        for field, reply in zip(ids, replies, strict=True)
    }
    consumers = {entries.consumer or member.consumer for entries in ranges}
    return {
        field
        for field, holder in holders.items()
        if _is_of_batch(StreamId.parse(ids[field]), holder, consumers, ranges)
    }


def _is_of_batch(entry: StreamId, holder: str | None, consumers: set[str], ranges: Sequence[EntryRange]) -> bool:
    """Whether a replay reads this entry. holder: the consumer that it is pending for, None: it is not pending;
    consumers: those whose entries the batch has. If the batch is a range of IDs (owned), it has the entry also if
    nothing is pending. Pure."""
    if holder is not None:
        return holder in consumers
    return any(entries.owned and entries.after < entry <= entries.last for entries in ranges)
