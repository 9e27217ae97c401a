"""Parts of a batch, what a task reads of one range each, divided into tasks. Pure arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from spark_streams.base.ids import StreamId
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.source.offset import Range

By = Literal["all", "pending"] | bytes
ALL: Literal["all"] = "all"
PENDING: Literal["pending"] = "pending"


@dataclass(frozen=True)
class Part:
    """Entries of a range that a task reads."""

    range: Range
    # How they are found. ALL: all that the stream has in the range; the group has delivered them to nobody else.
    # PENDING: those that are pending for the query's consumer, because others may have some of the range.
    # Bytes: those with these IDs, as packed arguments without separators (`PendingPage.ids`)
    by: By

    @property
    def stream(self) -> str:
        return self.range.stream

    @property
    def count(self) -> int:
        return self.range.count


_Entries = TypeVar("_Entries", Range, Part)


def pending_parts(ranges: Iterable[Range]) -> list[Part]:
    """Return what a task reads of ranges whose pending list was read."""
    return [Part(entries, PENDING) for entries in ranges]


def entries_per_stream(of: Iterable[Range | Part]) -> Counter[str]:
    """Return how many entries these ranges or parts have, per stream."""
    counts: Counter[str] = Counter()
    for entries in of:
        counts[entries.stream] += entries.count
    return counts


def by_stream(of: Iterable[_Entries]) -> dict[str, list[_Entries]]:
    """Return these ranges or parts in their order, per stream."""
    found: dict[str, list[_Entries]] = {}
    for entries in of:
        found.setdefault(entries.stream, []).append(entries)
    return found


_Plain = tuple[Any, ...]  # a pickled part: its fields and those of its range, with the IDs as plain tuples
_SPREAD = 4  # tasks over which a batch is spread, if each has at least Limits.smallest_task entries
_SPREAD_ORDERED = 32  # the same if ordered, because tasks differ more in size


@dataclass(frozen=True)
class Task:
    """What one task reads, the parts of a stream in its order."""

    parts: tuple[Part, ...]

    def __reduce__(self) -> tuple[Callable[[list[_Plain]], Task], tuple[list[_Plain]]]:
        """Plain tuples are pickled in a third of the time: the driver pickles a batch before its first task starts."""
        ranges = [(part.range, part.by) for part in self.parts]
        plain = [(r.stream, tuple(r.after), tuple(r.last), r.count, r.until, by) for r, by in ranges]
        return _task_of, (plain,)

    @property
    def ranges(self) -> list[Range]:
        return [part.range for part in self.parts]

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)


def _task_of(parts: list[_Plain]) -> Task:
    return Task(
        tuple(
            Part(Range(stream, StreamId(*after), StreamId(*last), count, until), by)
            for stream, after, last, count, until, by in parts
        )
    )


@dataclass(frozen=True)
class Plan:
    """A batch as tasks."""

    tasks: list[Task]  # in the order of their streams
    narrowed: bool  # the batch is a piece of a failed batch, or there are such pieces (poison_batch)
    lossy: bool = False  # it has fewer entries than its offset says
    noted: frozenset[str] = frozenset()  # streams with entries that an earlier run of the batch has noted (task.notes)


def divide_into_tasks(
    parts: Iterable[Part], entries_per_task: int, ordered: bool = False, limits: Limits = LIMITS
) -> list[Task]:
    """Return tasks of about `entries_per_task` entries, from parts in the order of their streams. Touching ranges are
    joined, and small ones share a task. A range is never cut, because the IDs inside it are unknown. ordered: all parts
    of a stream are in one task, and few streams share a task, because a task cannot be cut."""
    filled = [part for part in parts if part.count]
    total = sum(part.count for part in filled)
    size = task_size(total, entries_per_task, limits, _SPREAD_ORDERED if ordered else _SPREAD)
    whole = [_joined(of_stream, None) for of_stream in by_stream(filled).values()] if ordered else []
    groups = whole or [[part] for part in _joined(filled, size)]
    of_tasks: list[list[Part]] = []
    remaining = 0
    for group in groups:
        count = sum(part.count for part in group)
        if of_tasks and count <= remaining:
            of_tasks[-1] += group
            remaining -= count
        else:
            of_tasks.append(group)
            remaining = size - count
    return [Task(tuple(group)) for group in of_tasks]


def task_size(entries: int, entries_per_task: int, limits: Limits = LIMITS, spread_over: int = _SPREAD) -> int:
    """Return the most entries of a task. A batch that fits into one task is spread over several."""
    spread = -(-entries // spread_over)
    return min(entries_per_task, max(limits.smallest_task, spread))


def _joined(parts: Iterable[Part], size: int | None) -> list[Part]:
    """Join touching ranges that are read in the same way, up to `size` entries; None: unlimited."""
    joined: list[Part] = []
    for part in parts:
        together = _together(joined[-1], part) if joined else None
        if together is not None and (size is None or together.count <= size):
            joined[-1] = together
        else:
            joined.append(part)
    return joined


def _together(one: Part, above: Part) -> Part | None:
    """Return two parts as one; None: they do not touch, or they are read in different ways."""
    below, upper = one.range, above.range
    if (below.stream, below.last, below.until) != (upper.stream, upper.after, upper.until):
        return None
    ranges = Range(below.stream, below.after, upper.last, below.count + upper.count, below.until)
    if isinstance(one.by, bytes) and isinstance(above.by, bytes):
        return Part(ranges, one.by + above.by)
    return Part(ranges, one.by) if one.by == above.by else None


def share(limit: int, backlog: Mapping[str, int], turn: int = 0) -> dict[str, int]:
    """Divide `limit` entries between streams. No stream gets more than its backlog. Small backlogs are taken
    completely, and the rest is divided equally. If there are more streams than entries, they take turns."""
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
