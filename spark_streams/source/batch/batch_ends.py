"""Where the next batches end on a stream that is not asked how many entries lie between two ids. Pure.

A `Course` is what lies ahead of a query on one stream: steps, each up to an id, with the number of entries that it
has. If ids were seen one by one, each is a step of one entry, and the course is exact; else steps are the parts that
`cut` makes of a run by the looks at it, and their numbers are estimates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_streams.model.ids import StreamId
from spark_streams.source.batch.split_points import Look, cut, stretches
from spark_streams.source.entry_range import EntryRange


@dataclass(frozen=True)
class Step:
    """Up to this id there are so many more entries."""

    last: StreamId
    count: int


@dataclass(frozen=True)
class Course:
    """What lies above `after`; exact: the counts are no estimates."""

    after: StreamId
    steps: tuple[Step, ...]
    exact: bool

    def within(self, most: int) -> int:
        """How many steps have about `most` entries: never more if that is exact, else as near as can be, and one."""
        total = 0
        for number, step in enumerate(self.steps):
            over = total + step.count - most
            if over > 0 and (self.exact or (number and over > most - total)):
                return number
            total += step.count
        return len(self.steps)

    def split(self, number: int) -> tuple[Course, Course]:
        """The first steps, and the others."""
        taken, left = self.steps[:number], self.steps[number:]
        return replace(self, steps=taken), replace(self, after=taken[-1].last if taken else self.after, steps=left)

    def ranges(self, stream: str, entries: int) -> list[EntryRange]:
        """The course in ranges of about `entries` entries, no more if that is exact, each about as large as the others.
        They touch, and together they are the course."""
        total = sum(step.count for step in self.steps)
        ranges = -(-total // entries) if self.exact else max(1, round(total / entries))
        found: list[EntryRange] = []
        after, count, passed = self.after, 0, 0
        for number, step in enumerate(self.steps):
            count += step.count
            passed += step.count
            is_last = number + 1 == len(self.steps)
            # The range ends where it comes nearest to its part of the whole.
            if is_last or 2 * passed + self.steps[number + 1].count > 2 * total * (len(found) + 1) // max(1, ranges):
                found.append(EntryRange(stream, after, step.last, count, owned=True, counted=self.exact))
                after, count = step.last, 0
        return found


def course_of_ids(span: EntryRange, ids: Sequence[StreamId], most: int) -> Course:
    """From the first `most` ids of a span. If there are fewer, the last step ends with the span."""
    steps = [Step(one, 1) for one in ids]
    if len(ids) < most and (not ids or ids[-1] < span.last):
        steps = [*steps[:-1], Step(span.last, 1 if ids else 0)]
    return Course(span.after, tuple(steps), exact=True)


def course_of_looks(span: EntryRange, looks: Sequence[Look], entries: int) -> Course:
    """From looks at a span: steps of about `entries` entries. They end at ids that were seen, if there are such."""
    seen = {look.at.previous(): look.ids[0] for look in looks if look.ids}
    steps: list[Step] = []
    after, count = span.after, 0
    for part in cut(span, looks, entries, span.count):
        last = span.last if part.last == span.last else seen.get(part.last, part.last)
        count += part.count
        if after < last:
            steps.append(Step(last, count))
            after, count = last, 0
    return Course(span.after, tuple(steps), exact=False)


def front(span: EntryRange, looks: Sequence[Look], entries: int) -> EntryRange:
    """The first part of a span with at least about `entries` entries; the span itself if that is about all of it."""
    total = 0
    for one in stretches(span, looks, span.count):
        total += one.about
        if total >= entries and one.upto.previous() < span.last and one.upto > span.after.next():
            return replace(span, last=one.upto.previous(), count=max(1, total))
    return span
