"""Ranges of the next batch of streams whose groups are bookmarks (noAck). The server delivers nothing: the query
decides where a batch ends.

Without a limit a batch ends at the stream's last ID. With a limit the query reads IDs (source.batch): all of them if
they are few, else a sample of them, so that a batch has about as many entries as the limit says. One plan serves
several batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from spark_streams.model.ids import StreamId
from spark_streams.source.batch.batch_ends import Course, course_of_ids, course_of_probes, first_part
from spark_streams.source.batch.plan import fetch_heads
from spark_streams.source.batch.probe_streams import ProbeTarget, may_be_large, probe_streams
from spark_streams.source.batch.stream_bounds import Head
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.findings.group_state import GroupState, Reserved
from spark_streams.source.limits import Limits
from spark_streams.source.microbatch.admission import ENDLESS, Admission
from spark_streams.source.partitioning import task_size
from spark_streams.source.quota import BatchQuota, take_in_parts
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.xinfo import StreamState

_BATCHES = 8  # that are planned at once
_STEPS = 8  # per batch, at least
_STEPS_PER_TASK = 4
_NARROWING = 6  # rounds of probes, until they cover only what the next batches read
_IDS = 8  # per probe


@dataclass(frozen=True)
class _Demand:
    """Of one stream. available: all entries that the query may read; limit: entries that the batch may have; size:
    entries of a task; is_counted: whether the available entries are counted exactly."""

    available: EntryRange
    limit: int
    size: int
    is_counted: bool

    @property
    def is_whole(self) -> bool:
        """Whether the batch takes all available entries."""
        return self.limit >= self.available.count

    @property
    def step(self) -> int:
        """Entries of a step: few enough to meet the limit and the size of a task closely."""
        return max(1, min(self.size // _STEPS_PER_TASK, self.limit // _STEPS))

    @property
    def ahead(self) -> int:
        """How many entries to plan."""
        return min(self.available.count, self.limit * (1 if self.is_whole else _BATCHES))


class NextRanges:
    """Ranges of one batch. courses: what is planned and not read, per stream."""

    def __init__(self, admission: Admission, ordered: bool, limits: Limits, courses: Mapping[str, Course]) -> None:
        self._admission = admission
        self._ordered = ordered
        self._limits = limits
        self._courses = dict(courses)

    @property
    def courses(self) -> Mapping[str, Course]:
        """Return what is planned for the batches after this one."""
        return self._courses

    def new_entries(
        self,
        server: Server,
        heads: Mapping[str, StreamState],
        states: Mapping[str, GroupState],
        backlog: Mapping[str, int],
        quota: BatchQuota,
        turn: int,
    ) -> tuple[Reserved, BatchQuota]:
        """Return the ranges of each stream's backlog that the quota admits, the groups as if they had delivered these
        entries, and the remaining quota. Raises ServerError and its subclasses."""
        waiting = dict(backlog)
        groups: dict[str, GroupState] = {}

        def take(allowed: Mapping[str, int], after: Mapping[str, StreamId]) -> list[EntryRange]:
            demands = self._demands(heads, waiting, allowed, after)
            unplanned = {stream: demand for stream, demand in demands.items() if not self._is_planned(stream, demand)}
            self._plan(server, unplanned)
            ranges: list[EntryRange] = []
            for stream, demand in demands.items():
                taken = self._take(stream, demand)
                ranges += [entries for entries in taken if entries.count or not entries.counted]
                groups[stream] = states[stream]._replace(last_delivered=taken[-1].last)
                is_exact = demand.is_counted and all(entries.counted for entries in taken)
                remaining = demand.available.count - sum(entries.count for entries in taken)
                waiting[stream] = remaining if is_exact else ENDLESS
            return ranges

        after = {stream: states[stream].last_delivered for stream in backlog}
        ranges, remaining_quota = take_in_parts(server, quota, backlog, after, turn, take, self._limits)
        return Reserved(ranges, groups), remaining_quota

    def _demands(
        self,
        heads: Mapping[str, StreamState],
        waiting: Mapping[str, int],
        allowed: Mapping[str, int],
        after: Mapping[str, StreamId],
    ) -> dict[str, _Demand]:
        available = {}
        for stream, limit in allowed.items():
            end = self._admission.end_of(stream, heads)
            if limit > 0 and after[stream] < end.last:
                count = waiting[stream] if 0 < waiting[stream] < ENDLESS else max(1, end.length)
                available[stream] = EntryRange(stream, after[stream], end.last, count, owned=True)
        taken = [replace(entries, count=min(entries.count, allowed[stream])) for stream, entries in available.items()]
        size = task_size(taken, self._admission.size([entries.count for entries in taken]), self._limits)
        return {
            stream: _Demand(entries, allowed[stream], size, entries.count == waiting[stream])
            for stream, entries in available.items()
        }

    def _is_planned(self, stream: str, demand: _Demand) -> bool:
        """Whether the server needs not to be asked: a course covers the demand, or the batch takes it as one range."""
        entries, course = demand.available, self._courses.get(stream)
        if course is not None and course.after == entries.after and course.steps:
            fits = course.is_exact or course.steps[0].count <= demand.limit
            is_enough = sum(step.count for step in course.steps) >= min(demand.limit, entries.count)
            if course.steps[-1].last <= entries.last and fits and is_enough:
                return True
        self._courses.pop(stream, None)
        is_one_range = self._ordered or not may_be_large(entries, entries.count, demand.size)
        return demand.is_whole and demand.is_counted and is_one_range

    def _take(self, stream: str, demand: _Demand) -> list[EntryRange]:
        course = self._courses.pop(stream, None)
        if course is None:
            return [demand.available]
        taken, remaining = course.split(course.within(demand.limit))
        if remaining.steps:
            self._courses[stream] = remaining
        return taken.ranges(stream, demand.size)

    def _plan(self, server: Server, demands: Mapping[str, _Demand]) -> None:
        if not demands:
            return
        heads = fetch_heads(server, list(demands), must_exist=False)
        page_bytes = self._limits.read_ids_bytes // len(demands)
        counts = {}
        for stream, demand in demands.items():
            first = heads[stream].first
            fitting = min(self._limits.read_ids, page_bytes // max(1, heads[stream].entry_bytes))
            is_small = min(demand.limit, demand.available.count) <= fitting
            if is_small or first is None or first > demand.available.last:
                counts[stream] = max(1, min(demand.ahead, fitting))
        self._read_ids(server, demands, counts)
        self._probe(server, {stream: demand for stream, demand in demands.items() if stream not in counts}, heads)

    def _read_ids(self, server: Server, demands: Mapping[str, _Demand], counts: Mapping[str, int]) -> None:
        commands = []
        for stream, count in counts.items():
            entries = demands[stream].available
            commands.append(("XRANGE", stream, b"(" + bytes(entries.after), bytes(entries.last), "COUNT", count))
        for command, reply, (stream, count) in zip(
            commands, server.execute_each(commands), counts.items(), strict=True
        ):
            if isinstance(reply, ReplyError):
                raise server.error_of(reply, command)
            ids = [StreamId.parse(entry[0]) for entry in reply]
            self._courses[stream] = course_of_ids(demands[stream].available, ids, count)

    def _probe(self, server: Server, demands: Mapping[str, _Demand], heads: Mapping[str, Head]) -> None:
        sizes = {stream: heads[stream].entry_bytes for stream in demands}
        ranges = {stream: _from_first(demand.available, heads[stream]) for stream, demand in demands.items()}
        for _ in range(_NARROWING):
            large = {stream: entries for stream, entries in ranges.items() if entries.count > 2 * demands[stream].ahead}
            if not large:
                break
            targets = [
                ProbeTarget(entries, demands[stream].ahead, entries.count, sizes[stream], _IDS)
                for stream, entries in large.items()
            ]
            for target, probes in zip(targets, probe_streams(server, targets, rounds=1), strict=True):
                ranges[target.range.stream] = first_part(target.range, probes, target.entries)
        targets = [
            ProbeTarget(entries, demands[stream].step, entries.count, sizes[stream], _IDS)
            for stream, entries in ranges.items()
        ]
        for target, probes in zip(targets, probe_streams(server, targets), strict=True):
            course = course_of_probes(target.range, probes, target.entries)
            self._courses[target.range.stream] = replace(course, after=demands[target.range.stream].available.after)


def _from_first(entries: EntryRange, head: Head) -> EntryRange:
    """Return the range without the IDs below the stream's first entry."""
    return entries if head.first is None else replace(entries, after=max(entries.after, head.first.previous()))
