"""From what was reserved to what one task reads. Pure arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from spark_streams.source.entry_range import EntryRange
from spark_streams.source.limits import LIMITS, Limits

_SPREAD_ORDERED = 32  # tasks that a batch of as many streams is spread over where each has a task to itself, likewise
_SPREAD = 4  # tasks that a smaller batch is spread over, where each has Limits.smallest_task


@dataclass(frozen=True)
class Task:
    """What one task reads: ranges, those of a stream in its order."""

    ranges: tuple[EntryRange, ...]

    @property
    def count(self) -> int:
        """Entries of all ranges."""
        return sum(entries.count for entries in self.ranges)


@dataclass(frozen=True)
class Plan:
    """A batch as tasks. narrowed: it is a piece of one that failed, or there are such pieces (poison_batch)."""

    tasks: list[Task]
    narrowed: bool

    @classmethod
    def of(cls, tasks: list[Task], narrowed: bool) -> Plan:
        """With a task at least where it is narrowed: the sink is told by tasks."""
        return cls(tasks if tasks or not narrowed else [Task(())], narrowed)


def tasks(
    ranges: Iterable[EntryRange], entries_per_task: int, ordered: bool = False, limits: Limits = LIMITS
) -> list[Task]:
    """Tasks of about `entries_per_task` entries, from ranges that follow each other in their streams.

    Neighbouring runs of a stream become one, and small ones, of whatever streams, share a task. A run is never cut: its
    inner ids are not known. A batch that would be one task is spread over a few, where it is large enough.
    ordered: all runs of a stream are in one task, and few streams share one: no task can be cut.
    """
    held = [entries for entries in ranges if entries.count > 0 or not entries.counted]
    size = task_size(held, entries_per_task, limits, _SPREAD_ORDERED if ordered else _SPREAD)
    together = _by_stream(held) if ordered else [[entries] for entries in _joined(held, size)]
    found: list[list[EntryRange]] = []
    room = 0
    for group in together:
        count = sum(entries.count for entries in group)
        if found and count <= room:
            found[-1] += group
            room -= count
        else:
            found.append(group)
            room = size - count
    return [Task(tuple(task)) for task in found]


def task_size(
    ranges: Iterable[EntryRange], entries_per_task: int, limits: Limits = LIMITS, spread_over: int = _SPREAD
) -> int:
    """How many entries a task of these ranges gets at most: a batch that would be one task is spread over a few."""
    spread = -(-sum(entries.count for entries in ranges) // spread_over)
    return min(entries_per_task, max(limits.smallest_task, spread))


def _by_stream(ranges: Iterable[EntryRange]) -> list[list[EntryRange]]:
    """Each stream's ranges, joined as far as they go."""
    streams: dict[str, list[EntryRange]] = {}
    for entries in ranges:
        streams.setdefault(entries.stream, []).append(entries)
    return [_joined(one, None) for one in streams.values()]


def _joined(ranges: Iterable[EntryRange], size: int | None) -> list[EntryRange]:
    """Neighbours that are alike as one run, of up to `size` entries."""
    joined: list[EntryRange] = []
    for entries in ranges:
        before = joined[-1] if joined else None
        if before is not None and _alike(before, entries) and (size is None or before.count + entries.count <= size):
            joined[-1] = replace(
                before, last=entries.last, count=before.count + entries.count, ids=before.ids + entries.ids
            )
        else:
            joined.append(entries)
    return joined


def _alike(before: EntryRange, entries: EntryRange) -> bool:
    return (
        (before.stream, before.last, before.owned, before.consumer, before.counted)
        == (entries.stream, entries.after, entries.owned, entries.consumer, entries.counted)
    ) and bool(before.ids) == bool(entries.ids)


def share(
    limit: int, backlog: Mapping[str, int], turn: int = 0, weight: Callable[[str], int] = lambda stream: 1
) -> dict[str, int]:
    """Divide `limit` entries between streams: nobody gets more than its backlog, the small ones are served whole, and
    what is left is divided by weight (1, 2 …). Where there are more streams than entries they take turns (turn: counts
    triggers), the heavy ones more often, so that no stream starves.
    """
    names = sorted(stream for stream, wanted in backlog.items() if wanted > 0)
    if limit < len(names):
        wheel = [name for name in names for _ in range(weight(name))]
        drawn = Counter(wheel[(turn * limit + at) % len(wheel)] for at in range(limit))
        return {name: min(times, backlog[name]) for name, times in drawn.items()}
    weights = {name: weight(name) for name in names}
    waiting = sorted(names, key=lambda stream: (backlog[stream] / weights[stream], stream))
    shares: dict[str, int] = {}
    left, left_weight = limit, sum(weights.values())
    for position, stream in enumerate(waiting):
        after = len(waiting) - position - 1  # streams, each of which gets one
        part = min(-(-left * weights[stream] // left_weight), left - after)
        shares[stream] = min(backlog[stream], part)
        left -= shares[stream]
        left_weight -= weights[stream]
    return shares
