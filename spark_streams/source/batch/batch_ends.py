"""Where the next batches end on a stream, if the server is not asked how many entries lie between two IDs. Pure.

A `Course` is what lies ahead of a query on one stream: steps, each up to an ID, with its number of entries. If the IDs
were read one by one, each step has one entry and the course is exact. Otherwise steps are the parts into which `cut`
divides a range by its probes, and their numbers are estimates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_streams.model.ids import StreamId
from spark_streams.source.batch.split_points import Probe, cut, stretches_of
from spark_streams.source.entry_range import EntryRange


@dataclass(frozen=True)
class Step:
    """`count` more entries, the last of them at or below `last`."""

    last: StreamId
    count: int


@dataclass(frozen=True)
class Course:
    """What lies above `after`. is_exact: the counts are no estimates."""

    after: StreamId
    steps: tuple[Step, ...]
    is_exact: bool

    def within(self, limit: int) -> int:
        """Return how many steps have about `limit` entries, at least one. An exact course never exceeds the limit; an
        estimated course comes as near as possible."""
        total = 0
        for number, step in enumerate(self.steps):
            excess = total + step.count - limit
            if excess > 0 and (self.is_exact or (number and excess > limit - total)):
                return number
            total += step.count
        return len(self.steps)

    def split(self, number: int) -> tuple[Course, Course]:
        """Return the first `number` steps, and the others."""
        taken, remaining = self.steps[:number], self.steps[number:]
        after = taken[-1].last if taken else self.after
        return replace(self, steps=taken), replace(self, after=after, steps=remaining)

    def ranges(self, stream: str, entries: int) -> list[EntryRange]:
        """Return the course in touching ranges of about equal size: of about `entries` entries, and no more if the
        course is exact."""
        total = sum(step.count for step in self.steps)
        parts = -(-total // entries) if self.is_exact else max(1, round(total / entries))
        ranges: list[EntryRange] = []
        after, count, passed = self.after, 0, 0
        for number, step in enumerate(self.steps):
            count += step.count
            passed += step.count
            is_last = number + 1 == len(self.steps)
            # A range ends at the step that is nearest to its share of the total.
            if is_last or 2 * passed + self.steps[number + 1].count > 2 * total * (len(ranges) + 1) // max(1, parts):
                ranges.append(EntryRange(stream, after, step.last, count, owned=True, counted=self.is_exact))
                after, count = step.last, 0
        return ranges


def course_of_ids(entry_range: EntryRange, ids: Sequence[StreamId], limit: int) -> Course:
    """Return the course of the first `limit` IDs of a range. If there are fewer, the last step ends with the range."""
    steps = [Step(entry_id, 1) for entry_id in ids]
    if len(ids) < limit and (not ids or ids[-1] < entry_range.last):
        steps = [*steps[:-1], Step(entry_range.last, 1 if ids else 0)]
    return Course(entry_range.after, tuple(steps), is_exact=True)


def course_of_probes(entry_range: EntryRange, probes: Sequence[Probe], entries: int) -> Course:
    """Return the course of a probed range: steps of about `entries` entries, which end at IDs that a probe returned if
    possible."""
    ids_above = {probe.position.previous(): probe.ids[0] for probe in probes if probe.ids}
    steps: list[Step] = []
    after, count = entry_range.after, 0
    for part in cut(entry_range, probes, entries, entry_range.count):
        last = entry_range.last if part.last == entry_range.last else ids_above.get(part.last, part.last)
        count += part.count
        if after < last:
            steps.append(Step(last, count))
            after, count = last, 0
    return Course(entry_range.after, tuple(steps), is_exact=False)


def first_part(entry_range: EntryRange, probes: Sequence[Probe], entries: int) -> EntryRange:
    """Return the first part of a range with at least about `entries` entries, or the range if it has no more."""
    total = 0
    for stretch in stretches_of(entry_range, probes, entry_range.count):
        total += stretch.count
        last = stretch.upto.previous()
        if total >= entries and last < entry_range.last and stretch.upto > entry_range.after.next():
            return replace(entry_range, last=last, count=max(1, total))
    return entry_range
