"""Where the archive ends and a stream begins, and the tasks of a batch read that reads both as one table.

    archive  ████████████████████ · █ ·                  entries that the job `archive` has written
    stream                        █ · █ █                entries that the stream has
             after            border   until
    archive  ████████████████████ · █ · ████████████     the stream was created again, or restored to an older state
    stream                        █ · █
             after            border until  archived

Up to `border` the stream has no entry: entries there were trimmed, so only the archive has them. Above it entries may
be trimmed before they are read, or between others (XTRIM … ACKED). `until` is the last ID that the stream has given. If
the archive has higher IDs, the stream has lost these entries.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.base.pattern import matches
from spark_streams.connector.keys import is_product_key
from spark_streams.connector.options.source_options import BatchSourceOptions
from spark_streams.connector.source.archive.files import DAY, ArchiveFile, ArchiveTable, highest_ids
from spark_streams.connector.source.batch.plan import (
    Narrowing,
    StreamHead,
    fetch_heads,
    fetch_inputs,
    position_of,
    tasks_within,
)
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.partitioning import ALL, Part, Task
from spark_streams.connector.source.stream_names import with_shards
from spark_streams.connector.wire.connection import Server

_TASK_BYTES = 128_000_000


class Bounds(NamedTuple):
    """Borders of one stream, as drawn above."""

    after: StreamId
    border: StreamId
    until: StreamId
    archived: StreamId = MIN_ID  # below `until` if the archive has no higher ID

    def trimmed(self, stream: str, after: StreamId, last: StreamId) -> list[Range]:
        """Return the ranges with after < ID ≤ last of which only the archive has entries."""
        return [
            part
            for begin, end in ((self.after, self.border), (max(self.after, self.until), self.archived))
            for part in _range(stream, max(after, begin), min(last, end))
        ]

    def removed(self, stream: str) -> list[Range]:
        """Return the range of which the stream may lack a few entries."""
        return _range(stream, max(self.after, self.border), self.until)

    def lost(self, stream: str) -> list[Range]:
        """Return the range above the last ID of a stream that is behind the archive."""
        return _range(stream, max(self.after, self.until), self.archived)

    def to_json(self) -> list[str]:
        """Return the JSON form."""
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

    def is_input(stream: str) -> bool:
        return not is_product_key(stream) and matches(options.pattern, stream) and bool(narrowing.among([stream]))

    inputs = fetch_inputs(server, options, narrowing, must_exist=False)
    generated = {stream: head.generated for stream, head in inputs.items()}
    archived = highest_ids(archive, generated, is_input if is_pattern else None)
    # The streams are asked again: the archive may have an entry that a stream was given after the first time.
    heads = fetch_heads(server, [stream for stream in inputs if stream not in archived], must_exist=not is_pattern)
    others = fetch_heads(server, list(archived), must_exist=False)
    # A stream with entries that matches and is no input holds dead letters.
    return heads | {s: head for s, head in others.items() if s in inputs or head.first is None}, archived


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
