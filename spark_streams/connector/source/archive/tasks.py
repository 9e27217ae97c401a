"""Divide the ranges that are in the archive only into tasks, by date and by the size of the files."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.connector.source.archive.files import DAY, Archive, ArchiveFile
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.partitioning import ALL, Part, Task

_TASK_BYTES = 128_000_000


def history_tasks(archive: Archive, ranges: Sequence[Range], at_least: int) -> list[Task]:
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
