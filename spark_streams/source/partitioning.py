"""Divide the ranges of a batch into tasks, and a limit between streams. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from spark_streams.model.ids import StreamId
from spark_streams.source.entry_range import EntryRange, ranges_by_stream
from spark_streams.source.limits import LIMITS, Limits

_Plain = tuple[Any, ...]  # a pickled range: its fields, with the IDs as plain tuples
_OTHERS = attrgetter("count", "owned", "until", "ids", "counted")  # the fields after the IDs
_SPREAD = 4  # tasks over which a batch is spread, if each has at least Limits.smallest_task entries
_SPREAD_ORDERED = 32  # the same if ordered, because tasks differ more in size


@dataclass(frozen=True)
class Task:
    """Ranges that one task reads, those of a stream in its order."""

    ranges: tuple[EntryRange, ...]

    def __reduce__(self) -> tuple[Callable[[list[_Plain]], Task], tuple[list[_Plain]]]:
        """Plain tuples are pickled in a third of the time: the driver pickles a batch before its first task starts."""
        plain = [
            (entries.stream, tuple(entries.after), tuple(entries.last), *_OTHERS(entries)) for entries in self.ranges
        ]
        return _task_of, (plain,)

    @property
    def count(self) -> int:
        """Entries of all ranges."""
        return sum(entries.count for entries in self.ranges)


def _task_of(ranges: list[_Plain]) -> Task:
    return Task(
        tuple(EntryRange(stream, StreamId(*after), StreamId(*last), *others) for stream, after, last, *others in ranges)
    )


@dataclass(frozen=True)
class Plan:
    """A batch as tasks. narrowed: the batch is a piece of a failed batch, or there are such pieces (poison_batch);
    noted: streams with entries that an earlier run of the batch has noted (task.notes)."""

    tasks: list[Task]
    narrowed: bool
    noted: frozenset[str] = frozenset()

    @classmethod
    def of_tasks(cls, tasks: list[Task], narrowed: bool, noted: frozenset[str] = frozenset()) -> Plan:
        """Return a plan that has at least one task if it is narrowed: a task reports this to the sink."""
        return cls(tasks if tasks or not narrowed else [Task(())], narrowed, noted)


def divide_into_tasks(
    ranges: Iterable[EntryRange], entries_per_task: int, ordered: bool = False, limits: Limits = LIMITS
) -> list[Task]:
    """Return tasks of about `entries_per_task` entries, from ranges in the order of their streams.

    Touching ranges of a stream are joined. Small ranges, also of different streams, share a task. A range is never cut,
    because the IDs inside it are unknown. A batch that fits into one task is spread over several if it is large enough.
    ordered: all ranges of a stream are in one task, and few streams share a task, because a task cannot be cut.
    """
    filled = [entries for entries in ranges if entries.count > 0 or not entries.counted]
    size = task_size(filled, entries_per_task, limits, _SPREAD_ORDERED if ordered else _SPREAD)
    groups = _by_stream(filled) if ordered else [[entries] for entries in _joined(filled, size)]
    task_ranges: list[list[EntryRange]] = []
    remaining = 0
    for group in groups:
        count = sum(entries.count for entries in group)
        if task_ranges and count <= remaining:
            task_ranges[-1] += group
            remaining -= count
        else:
            task_ranges.append(group)
            remaining = size - count
    return [Task(tuple(group)) for group in task_ranges]


def task_size(
    ranges: Iterable[EntryRange], entries_per_task: int, limits: Limits = LIMITS, spread_over: int = _SPREAD
) -> int:
    """Return the maximum number of entries of a task. A batch that fits into one task is spread over several."""
    spread = -(-sum(entries.count for entries in ranges) // spread_over)
    return min(entries_per_task, max(limits.smallest_task, spread))


def _by_stream(ranges: Iterable[EntryRange]) -> list[list[EntryRange]]:
    """Return the ranges of each stream, joined if they touch."""
    return [_joined(stream_ranges, None) for stream_ranges in ranges_by_stream(ranges).values()]


def _joined(ranges: Iterable[EntryRange], size: int | None) -> list[EntryRange]:
    """Join touching ranges of the same kind, up to `size` entries; None: unlimited."""
    joined: list[EntryRange] = []
    for entries in ranges:
        previous = joined[-1] if joined else None
        if previous and _can_be_joined(previous, entries) and (size is None or previous.count + entries.count <= size):
            count, ids = previous.count + entries.count, previous.ids + entries.ids
            joined[-1] = replace(previous, last=entries.last, count=count, ids=ids)
        else:
            joined.append(entries)
    return joined


def _can_be_joined(previous: EntryRange, entries: EntryRange) -> bool:
    return (
        (previous.stream, previous.last, previous.owned, previous.until, previous.counted)
        == (entries.stream, entries.after, entries.owned, entries.until, entries.counted)
    ) and bool(previous.ids) == bool(entries.ids)


def share(limit: int, backlog: Mapping[str, int], turn: int = 0) -> dict[str, int]:
    """Divide `limit` entries between streams.

    No stream gets more than its backlog. Small backlogs are taken completely, and the rest is divided equally. If there
    are more streams than entries, streams take turns (turn: counts triggers), so that no stream starves.
    """
    names = sorted(stream for stream, waiting in backlog.items() if waiting > 0)
    if limit < len(names):
        return {names[(turn * limit + number) % len(names)]: 1 for number in range(limit)}
    smallest_first = sorted(names, key=lambda stream: (backlog[stream], stream))
    shares: dict[str, int] = {}
    remaining = limit
    for position, stream in enumerate(smallest_first):
        streams_left = len(smallest_first) - position
        shares[stream] = min(backlog[stream], -(-remaining // streams_left))
        remaining -= shares[stream]
    return shares
