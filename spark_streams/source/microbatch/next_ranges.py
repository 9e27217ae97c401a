"""What the next batch reads of streams whose groups are bookmarks (noAck). Nothing is delivered: the query decides
where a batch ends.

Without a limit it ends at the stream's last id. With one, ids are looked at (source.batch): one by one if they are
few, else here and there, so that a batch has about as many entries as the limit says. One plan serves several batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from spark_streams.model.ids import StreamId
from spark_streams.source.batch.batch_ends import Course, course_of_ids, course_of_looks, front
from spark_streams.source.batch.looks import Aim, look_around, may_be_large
from spark_streams.source.batch.plan import look_at_heads
from spark_streams.source.batch.stream_bounds import Head
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.findings.group_state import GroupState, Reserved
from spark_streams.source.limits import Limits
from spark_streams.source.microbatch.admission import ENDLESS, Admission
from spark_streams.source.partitioning import task_size
from spark_streams.source.quota import Room, take_in_parts
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.xinfo import StreamState

_BATCHES = 8  # that are planned at once
_STEPS = 8  # of a batch, at least
_STEPS_OF_A_TASK = 4
_NARROWING = 6  # rounds of looks, until they are at what the next batches read
_IDS = 8  # of a look


@dataclass(frozen=True)
class _Wanted:
    """span: all that is there, as far as the query may go; most: how many entries the batch may have; size: of a
    task; is_counted: whether the span's count is exact."""

    span: EntryRange
    most: int
    size: int
    is_counted: bool

    @property
    def is_whole(self) -> bool:
        """Whether the batch takes all of it."""
        return self.most >= self.span.count

    @property
    def step(self) -> int:
        """Entries of a step: small enough to come near to the limit, and to the size of a task."""
        return max(1, min(self.size // _STEPS_OF_A_TASK, self.most // _STEPS))

    @property
    def ahead(self) -> int:
        """How many entries to plan."""
        return min(self.span.count, self.most * (1 if self.is_whole else _BATCHES))


class NextRanges:
    """The ranges of one batch. courses: what is planned and not read, per stream."""

    def __init__(self, admission: Admission, ordered: bool, limits: Limits, courses: Mapping[str, Course]) -> None:
        self._admission = admission
        self._ordered = ordered
        self._limits = limits
        self._courses = dict(courses)

    @property
    def courses(self) -> Mapping[str, Course]:
        """What is planned now for the batches after this one."""
        return self._courses

    def new_entries(
        self,
        server: Server,
        heads: Mapping[str, StreamState],
        states: Mapping[str, GroupState],
        backlog: Mapping[str, int],
        room: Room,
        turn: int,
    ) -> tuple[Reserved, Room]:
        """The ranges, of each stream's backlog what there is room for, and the groups as if they had delivered them;
        also the room that is left. Raises ServerError and kin."""
        waiting = dict(backlog)
        now: dict[str, GroupState] = {}

        def take(allowed: Mapping[str, int], after: Mapping[str, StreamId]) -> list[EntryRange]:
            wanted = self._wanted(heads, waiting, allowed, after)
            self._plan(server, {stream: one for stream, one in wanted.items() if not self._is_planned(stream, one)})
            ranges: list[EntryRange] = []
            for stream, one in wanted.items():
                found = self._take(stream, one)
                ranges += [entries for entries in found if entries.count or not entries.counted]
                now[stream] = states[stream]._replace(last_delivered=found[-1].last)
                is_known = one.is_counted and all(entries.counted for entries in found)
                waiting[stream] = one.span.count - sum(entries.count for entries in found) if is_known else ENDLESS
            return ranges

        after = {stream: states[stream].last_delivered for stream in backlog}
        ranges, left = take_in_parts(server, room, backlog, after, turn, take, self._limits)
        return Reserved(ranges, now), left

    def _wanted(
        self,
        heads: Mapping[str, StreamState],
        waiting: Mapping[str, int],
        allowed: Mapping[str, int],
        after: Mapping[str, StreamId],
    ) -> dict[str, _Wanted]:
        spans = {}
        for stream, most in allowed.items():
            end = self._admission.end_of(stream, heads)
            if most > 0 and after[stream] < end.last:
                count = waiting[stream] if 0 < waiting[stream] < ENDLESS else max(1, end.length)
                spans[stream] = EntryRange(stream, after[stream], end.last, count, owned=True)
        taken = [replace(span, count=min(span.count, allowed[stream])) for stream, span in spans.items()]
        size = task_size(taken, self._admission.size([entries.count for entries in taken]), self._limits)
        return {
            stream: _Wanted(span, allowed[stream], size, span.count == waiting[stream])
            for stream, span in spans.items()
        }

    def _is_planned(self, stream: str, wanted: _Wanted) -> bool:
        """Whether nothing needs to be looked at."""
        span, course = wanted.span, self._courses.get(stream)
        if course is not None and course.after == span.after and course.steps and course.steps[-1].last <= span.last:
            is_fine = course.exact or course.steps[0].count <= wanted.most
            if is_fine and sum(step.count for step in course.steps) >= min(wanted.most, span.count):
                return True
        self._courses.pop(stream, None)
        is_one = self._ordered or not may_be_large(span, span.count, wanted.size)
        return wanted.is_whole and wanted.is_counted and is_one

    def _take(self, stream: str, wanted: _Wanted) -> list[EntryRange]:
        course = self._courses.pop(stream, None)
        if course is None:
            return [wanted.span]
        taken, left = course.split(course.within(wanted.most))
        if left.steps:
            self._courses[stream] = left
        return taken.ranges(stream, wanted.size)

    def _plan(self, server: Server, wanted: Mapping[str, _Wanted]) -> None:
        if not wanted:
            return
        heads = look_at_heads(server, list(wanted), must_exist=False)
        room = self._limits.look_bytes // len(wanted)
        few = {}
        for stream, one in wanted.items():
            first = heads[stream].first
            fitting = min(self._limits.look_ids, room // max(1, heads[stream].entry_bytes))
            if min(one.most, one.span.count) <= fitting or first is None or first > one.span.last:
                few[stream] = max(1, min(one.ahead, fitting))
        self._one_by_one(server, wanted, few)
        self._here_and_there(server, {stream: one for stream, one in wanted.items() if stream not in few}, heads)

    def _one_by_one(self, server: Server, wanted: Mapping[str, _Wanted], few: Mapping[str, int]) -> None:
        commands = [
            ("XRANGE", stream, b"(" + bytes(wanted[stream].span.after), bytes(wanted[stream].span.last), "COUNT", count)
            for stream, count in few.items()
        ]
        for command, reply, (stream, count) in zip(commands, server.each(commands), few.items(), strict=True):
            if isinstance(reply, ReplyError):
                raise server.error_of(reply, command)
            self._courses[stream] = course_of_ids(
                wanted[stream].span, [StreamId.parse(entry[0]) for entry in reply], count
            )

    def _here_and_there(self, server: Server, wanted: Mapping[str, _Wanted], heads: Mapping[str, Head]) -> None:
        sizes = {stream: heads[stream].entry_bytes for stream in wanted}
        spans = {stream: _from_first(one.span, heads[stream]) for stream, one in wanted.items()}
        for _ in range(_NARROWING):
            far = {stream: span for stream, span in spans.items() if span.count > 2 * wanted[stream].ahead}
            if not far:
                break
            aims = [Aim(span, wanted[s].ahead, span.count, sizes[s], _IDS) for s, span in far.items()]
            for aim, looks in zip(aims, look_around(server, aims, rounds=1), strict=True):
                spans[aim.span.stream] = front(aim.span, looks, aim.entries)
        aims = [Aim(span, wanted[stream].step, span.count, sizes[stream], _IDS) for stream, span in spans.items()]
        for aim, looks in zip(aims, look_around(server, aims), strict=True):
            after = wanted[aim.span.stream].span.after
            self._courses[aim.span.stream] = replace(course_of_looks(aim.span, looks, aim.entries), after=after)


def _from_first(span: EntryRange, head: Head) -> EntryRange:
    """The span without what is below the stream's first entry."""
    return span if head.first is None else replace(span, after=max(span.after, head.first.previous()))
