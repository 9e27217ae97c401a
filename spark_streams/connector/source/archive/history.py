"""Where the archive ends and a stream begins: the tasks of a batch read of both, and the batches of a new query.

A query asks for the borders after its group was created. From then on no entry that the group needs is trimmed, so it
delivers those above `until`. What only the archive has is read in batches by ID, and the gaps of the stream last.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.base.ids import MAX_ID, MIN_ID, InvalidStreamId, StreamId
from spark_streams.base.pattern import matches
from spark_streams.base.untyped import Json
from spark_streams.connector.errors import ArchiveError, GroupExistsError, OffsetError
from spark_streams.connector.keys import is_product_key
from spark_streams.connector.options.source_options import BatchSourceOptions, SourceOptions
from spark_streams.connector.source.archive.files import DAY, KEYS, ArchiveFile, ArchiveTable, highest_ids, id_parts
from spark_streams.connector.source.archive.rows import first_row_group, in_order
from spark_streams.connector.source.batch_plan import (
    Narrowing,
    StreamHead,
    fetch_heads,
    fetch_inputs,
    position_of,
    tasks_within,
)
from spark_streams.connector.source.commit_mark import Mark
from spark_streams.connector.source.counting import count_read
from spark_streams.connector.source.group import snapshot
from spark_streams.connector.source.group_client import GroupClient
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.source.offset import Offset, Range
from spark_streams.connector.source.partitioning import ALL, Part, Task
from spark_streams.connector.source.quota import BatchQuota
from spark_streams.connector.source.stream_names import with_shards
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.xinfo import StreamState

_TASK_BYTES = 128_000_000
_PAGE = 1_000  # entries


# -- borders -----------------------------------------------------------------------------------------------------------
#     archive  ████████████████████ · █ ·                  entries that the job `archive` has written
#     stream                        █ · █ █                entries that the stream has
#              after            border   until
#     archive  ████████████████████ · █ · ████████████     the stream was created again, or restored to an older state
#     stream                        █ · █
#              after            border until  archived


class Bounds(NamedTuple):
    """Borders of one stream, as drawn above."""

    after: StreamId  # where the read begins
    border: StreamId  # up to here entries were trimmed; above it some may be, too, also between others (XTRIM … ACKED)
    until: StreamId  # the last ID that the stream has given
    archived: StreamId = MIN_ID  # the archive's last ID if the stream has lost it, else below `until`

    def trimmed(self, stream: str, after: StreamId, last: StreamId) -> list[Range]:
        """Return the ranges with after < ID ≤ last of which only the archive has entries."""
        return [
            part
            for begin, end in ((self.after, self.border), (max(self.after, self.until), self.archived))
            for part in _range(stream, max(after, begin), min(last, end))
        ]

    def to_json(self) -> list[str]:
        return [str(entry_id) for entry_id in (self if self.archived > self.until else self[:3])]


def _range(stream: str, after: StreamId, last: StreamId) -> list[Range]:
    return [Range(stream, after, last, 1)] if after < last else []


def plan_with_archive(
    server: Server, options: BatchSourceOptions, narrowing: Narrowing, limits: Limits = LIMITS
) -> tuple[list[Task], list[Range]]:
    """Return what each task reads from the stream and its archive, and the ranges that are in the archive only.

    Tasks of the first kind read the archive after the stream, up to the last ID that the stream has given. Raises as
    `plan_tasks`, except for a missing stream of which the archive has entries, and ArchiveError.
    """
    options = with_shards(server, options)
    heads, archived = _fetch_with_archive(server, options, narrowing)
    history: list[Range] = []
    for stream, head in heads.items():
        after = max(position_of(options.starting_offsets, stream), narrowing.after)
        last = min(position_of(options.ending_offsets, stream), narrowing.last)
        bounds = Bounds(after, head.border, head.generated, archived.get(stream, MIN_ID))
        history += bounds.trimmed(stream, after, last)
    with_removed = {
        stream: head if head.last is None else replace(head, last=max(head.last, head.generated))
        for stream, head in heads.items()
    }
    return tasks_within(server, options, narrowing, with_removed, limits), history


def _fetch_with_archive(
    server: Server, options: BatchSourceOptions, narrowing: Narrowing
) -> tuple[dict[str, StreamHead], dict[str, StreamId]]:
    """Return the streams to read, and the archive's highest ID of those that have lost it."""
    assert options.archive_path is not None
    archive, is_pattern = ArchiveTable(options.archive_path), options.streams is None
    is_input = partial(_is_input, options.pattern, narrowing) if is_pattern else None
    inputs = fetch_inputs(server, options, narrowing, must_exist=False)
    generated = {stream: head.generated for stream, head in inputs.items()}
    archived = highest_ids(archive, generated, is_input)
    # The streams are asked again: the archive may have an entry that a stream was given after the first time.
    heads = fetch_heads(server, [stream for stream in inputs if stream not in archived], must_exist=not is_pattern)
    others = fetch_heads(server, list(archived), must_exist=False)
    # A stream with entries that matches and is no input holds dead letters.
    return heads | {s: head for s, head in others.items() if s in inputs or head.first is None}, archived


def _is_input(pattern: str, narrowing: Narrowing, stream: str) -> bool:
    return not is_product_key(stream) and matches(pattern, stream) and bool(narrowing.among([stream]))


def history_tasks(archive: ArchiveTable, ranges: Sequence[Range], at_least: int) -> list[Task]:
    """Return tasks that together read the ranges. at_least: tasks, if the files are large enough."""
    if not ranges:
        archive.store()  # a wrong path is an error, also while nothing is read from it
        return []
    files = archive.files(min(part.after for part in ranges), max(part.last for part in ranges))
    if not files:
        return []
    task_bytes = max(1, min(_TASK_BYTES, sum(file.size for file in files) // at_least))
    return cut_by_date(files, ranges, task_bytes)


def cut_by_date(files: Iterable[ArchiveFile], ranges: Sequence[Range], task_bytes: int) -> list[Task]:
    """Return tasks of about `task_bytes` bytes of files. They touch and cover all IDs of the ranges. Pure."""
    sizes = Counter[int]()
    for file in files:
        if file.day is not None:
            sizes[file.day] += file.size
    borders: list[int] = []  # milliseconds at which a task begins
    filled = 0
    for day, size in sorted(sizes.items()):
        if filled and filled + size > task_bytes:
            borders.append(day)
            filled = 0
        pieces = max(1, round(size / task_bytes))
        borders += [day + DAY * piece // pieces for piece in range(1, pieces)]
        filled = filled + size if pieces == 1 else size // pieces
    ends = [MIN_ID, *(StreamId(border, 0).previous() for border in borders if border > 0), MAX_ID]
    tasks = []
    for after, last in itertools.pairwise(ends):
        parts = [replace(part, after=max(part.after, after), last=min(part.last, last)) for part in ranges]
        if kept := [part for part in parts if not part.is_empty]:
            tasks.append(Task(tuple(Part(part, ALL) for part in kept)))
    return tasks


# -- position ----------------------------------------------------------------------------------------------------------


class Cut(NamedTuple):
    """Place between two archived entries, which are in the order of their IDs, and of their streams."""

    id: StreamId  # it is behind the entries up to here
    stream: str | None = None  # of the entries with this ID only behind those of streams up to this one, None: all

    def last_id_of(self, stream: str) -> StreamId:
        """Return the last ID of a stream that is before the cut."""
        is_before = self.stream is None or stream <= self.stream
        return self.id if is_before or self.id == MIN_ID else self.id.previous()


BEGIN, END = Cut(MIN_ID), Cut(MAX_ID)


@dataclass(frozen=True)
class History:
    """How far a query has read the archive."""

    read: Cut = BEGIN  # END: everything is read
    bounds: Mapping[str, Bounds] | None = None  # by stream, None: the query has not begun

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> History:
        """Parse the part `history` of an offset. Raises OffsetError."""
        try:
            if not value:
                return cls()
            bounds = {stream: Bounds(*map(StreamId.parse, ids)) for stream, ids in value["streams"].items()}
            return cls(Cut(StreamId.parse(value["read"]), value.get("stream")), bounds)
        except (KeyError, AttributeError, TypeError, InvalidStreamId) as error:
            raise OffsetError(f"the history {value!r} of the checkpoint's offset cannot be read: {error}") from None

    def to_json(self) -> dict[str, object]:
        if self.bounds is None:
            return {}
        streams = {stream: bounds.to_json() for stream, bounds in sorted(self.bounds.items())}
        read = {"read": str(self.read.id)} | ({} if self.read.stream is None else {"stream": self.read.stream})
        return {**read, "streams": streams}

    @property
    def joined(self) -> list[str]:
        """The streams that had entries, and so the group, when the query began."""
        return [stream for stream, ids in (self.bounds or {}).items() if ids.until > MIN_ID]

    def trimmed(self, after: Cut, last: Cut) -> list[Range]:
        return [
            part
            for stream, bounds in (self.bounds or {}).items()
            for part in bounds.trimmed(stream, after.last_id_of(stream), last.last_id_of(stream))
        ]

    def removed(self) -> list[Range]:
        """Return the ranges of which the streams may lack a few entries."""
        of = (self.bounds or {}).items()
        return [part for stream, to in of for part in _range(stream, max(to.after, to.border), to.until)]

    def lost(self) -> list[Range]:
        """Return the ranges above the last ID of streams that are behind the archive."""
        of = (self.bounds or {}).items()
        return [part for stream, to in of for part in _range(stream, max(to.after, to.until), to.archived)]


# -- begin -------------------------------------------------------------------------------------------------------------


def begin_history(
    client: GroupClient, streams: Sequence[str], archive: ArchiveTable, options: SourceOptions, begin: Offset
) -> History:
    """Return the history of a query whose groups exist on these streams. begin: its first offset.

    Raises GroupExistsError if the streams have entries between the start and a group's position: neither the archive
    nor the group would give them to the query. Raises GroupMissingError, DataLossError, ArchiveError, ServerError.
    """
    server = client.server
    states, groups = snapshot.fetch_state(client, streams)
    snapshot.require_groups(client, states, groups)
    starts = {stream: options.starting_offsets.value_for(stream) for stream in groups}
    afters = {stream: StreamId.parse(start) for stream, start in starts.items() if start != "$"}
    _begin_groups(client, begin, afters, states, groups)
    # The archive is read between the two: what it has above the second is not what the stream has given meanwhile.
    heads = fetch_heads(server, list(afters), must_exist=False)
    is_input = None if options.streams_pattern is None else partial(_is_input, options.streams_pattern, Narrowing())
    archived = highest_ids(archive, {stream: head.generated for stream, head in heads.items()}, is_input)
    heads = fetch_heads(server, list(afters), must_exist=False)
    bounds = {}
    for stream, after in afters.items():
        head = heads[stream]
        bounds[stream] = Bounds(after, head.border, head.generated, archived.get(stream, MIN_ID))
    for stream, after in _archived_only(server, options, archived.keys() - groups.keys()).items():
        bounds[stream] = Bounds(after, MIN_ID, MIN_ID, archived[stream])
    return History(BEGIN, bounds)


def _archived_only(server: Server, options: SourceOptions, streams: Iterable[str]) -> dict[str, StreamId]:
    """Return where to begin on streams that match the pattern, and of which only the archive has entries. The query
    does not read a stream that holds dead letters."""
    starts = {stream: options.starting_offsets.value_for(stream) for stream in sorted(streams)}
    heads = fetch_heads(server, list(starts), must_exist=False)
    return {
        stream: StreamId.parse(start)
        for stream, start in starts.items()
        if start != "$" and heads[stream].first is None
    }


def _begin_groups(
    client: GroupClient,
    begin: Offset,
    afters: Mapping[str, StreamId],
    heads: Mapping[str, StreamState],
    groups: Mapping[str, snapshot.GroupState | None],
) -> None:
    """Raise GroupExistsError if a group has passed an entry that its stream still has. Otherwise write the marks of a
    query that has committed nothing: entries that are pending below them were reserved by a run of this query that was
    killed before its first offset was logged."""
    saved = snapshot.fetch_marks(client, list(afters))
    positions, begun = {}, set[str]()
    for stream, group in groups.items():
        mark = saved.get(stream)
        assert group is not None
        if mark is not None and mark.is_begin and stream in begin.at:
            begun.add(stream)
        positions[stream] = begin[stream] if stream in begun else group.last_delivered
    passed = [stream for stream, after in afters.items() if after < positions[stream]]
    commands = [
        ("XRANGE", stream, bytes(afters[stream].next()), bytes(positions[stream]), "COUNT", 1) for stream in passed
    ]
    for stream, reply in zip(passed, client.server.execute_all(commands), strict=True):
        if reply:
            raise GroupExistsError(
                f"group {client.group!r} of stream {stream!r} exists and has passed entry {reply[0][0].decode()}, "
                "which the stream still has. A query with archivePath and without a checkpoint reads from "
                "startingOffsets on. Start it with its checkpoint, set onNewCheckpoint=restart, or give it a group of "
                "its own"
            )
    marks = {
        stream: Mark.at_begin(position, count_read(client.server, stream, heads[stream], position))
        for stream, position in positions.items()
        if stream not in begun
    }
    joined = {stream: snapshot.GroupChange(consumer=True, mark=mark) for stream, mark in marks.items()}
    snapshot.change_groups(client, joined)


def require_unread(server: Server, archive: ArchiveTable, history: History) -> None:
    """Raise ArchiveError if a stream that was behind the archive has got an entry whose ID the query has read from the
    archive: it may be the same entry or another one."""
    for part in history.lost():
        first, last = bytes(part.after.next()), bytes(part.last)
        while page := server.execute("XRANGE", part.stream, first, last, "COUNT", _PAGE):
            ids = pa.array([entry[0] for entry in page], pa.binary())
            covered = replace(part, last=StreamId.parse(page[-1][0]))
            for keys in in_order(archive, [replace(covered, after=StreamId.parse(page[0][0]).previous())], {}, KEYS):
                common = keys["id"].filter(pc.is_in(keys["id"].cast(pa.binary()), ids))
                if len(common):
                    raise ArchiveError(
                        f"stream {part.stream!r} got entry {common[0]} after the query began, and the query has read "
                        f"an entry with this ID from the archive at {archive.path!r}. It cannot tell whether both are "
                        "the same. Do not add archived entries to a stream that is behind its archive. Start with a "
                        "new checkpoint and a new group: entries that the stream has then are read from the stream"
                    )
            if covered.last >= part.last:
                break
            first = bytes(covered.last.next())


# -- batches -----------------------------------------------------------------------------------------------------------


def next_history(archive: ArchiveTable, history: History, ends: Iterator[Cut]) -> History | None:
    """Return the history after the next batch; None: all of it is read. ends: of the batches after `read`."""
    end = next(ends, None)
    if end is not None:
        return replace(history, read=end)
    removed = history.removed()
    if history.read == END or not removed:
        return None
    has_files = archive.files(min(part.after for part in removed), max(part.last for part in removed))
    return replace(history, read=END) if has_files else None


def batch_ends(archive: ArchiveTable, ranges: Sequence[Range], quota: BatchQuota) -> Iterator[Cut]:
    """Yield where batches that the quota admits end, no two at the same place. Raises ArchiveError."""
    last = Cut(max((part.last for part in ranges), default=MIN_ID))
    quota = _without_bytes(archive, ranges, quota)
    if all(quota.limit_of(part.stream) is None for part in ranges):
        if first_row_group(archive, ranges) is not None:
            yield last
        return
    remaining, end = quota, None
    for keys in in_order(archive, ranges, {}, KEYS):
        streams, (ms, seq) = keys["stream"].cast(pa.string()), id_parts(keys["id"])
        begin = 0
        while begin < keys.num_rows:
            count = _fitting(streams[begin:], remaining)
            if not count:
                assert end is not None
                yield end
                remaining = quota
                continue
            remaining = remaining.without(Counter(streams[begin : begin + count].to_pylist()))
            begin += count
            end = Cut(StreamId(int(ms[begin - 1]), int(seq[begin - 1])), streams[begin - 1].as_py())
    if end is not None:
        yield last


def _without_bytes(archive: ArchiveTable, ranges: Sequence[Range], quota: BatchQuota) -> BatchQuota:
    """Return the quota with entries in place of bytes: by the average size of the first entries."""
    entries = [] if quota.entries is None else [quota.entries]
    if quota.size is not None and (group := first_row_group(archive, ranges)) is not None:
        entries.append(max(1, math.floor(quota.size / group.entry_bytes)))
    return replace(quota, entries=min(entries, default=None), size=None)


def _fitting(streams: pa.Array, quota: BatchQuota) -> int:
    """Return how many of the next entries the quota admits. streams: of the entries."""
    fitting = len(streams) if quota.entries is None else min(len(streams), quota.entries)
    encoded = streams.dictionary_encode()
    numbers = encoded.indices.to_numpy(zero_copy_only=False)
    for number, stream in enumerate(encoded.dictionary.to_pylist()):
        limit = quota.limit_of(stream)
        if limit is not None:
            places = np.flatnonzero(numbers == number)
            fitting = min(fitting, int(places[limit]) if limit < len(places) else len(streams))
    return fitting
