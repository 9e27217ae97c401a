"""Reads the server for all browsers together, while a browser looks. Nobody looks: no command is sent.

Pages show the shards of a stream as one stream: lengths, lags and pending entries are added. Other clients choose
names, so those that are longer than the pages' maximum are counted, and not shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from spark_streams.base.ids import StreamId
from spark_streams.connector.admin.groups import WaitingEntries
from spark_streams.connector.admin.streams import Shard
from spark_streams.connector.deadletter.envelope import raw
from spark_streams.connector.errors import RStreamError
from spark_streams.connector.lag.margin import Margin, order
from spark_streams.connector.lag.survey import ConsumerLag, GroupLag, StreamSummary, Survey
from spark_streams.operations.console.charts import LagHistory
from spark_streams.operations.console.incoming import NAME_BYTES
from spark_streams.operations.monitor.held import Held, unused
from spark_streams.operations.monitor.snapshots import Reason, Snapshot, SnapshotCache

P = TypeVar("P", StreamSummary, GroupLag, Held)  # what a shard has


def is_short(*names: str) -> bool:
    """Whether a page shows these names, and takes them as parameters."""
    return all(len(name) <= NAME_BYTES and len(raw(name)) <= NAME_BYTES for name in names)


def with_short_names(survey: Survey) -> tuple[Survey, int]:
    """Return (the survey without streams, groups and consumers that have longer names, the number of them)."""
    streams = tuple(stream for stream in survey.streams if is_short(stream.stream))
    groups = tuple(group for group in survey.groups if is_short(group.stream, group.group))
    shown = tuple(map(_with_short_consumers, groups))
    left_out = len(survey.streams) - len(streams) + len(survey.groups) - len(groups) + _consumers(groups)
    return Survey(survey.at_ms, streams, shown), left_out - _consumers(shown)


def _with_short_consumers(group: GroupLag) -> GroupLag:
    return replace(group, consumers=tuple(c for c in group.consumers if is_short(c.consumer)))


def _consumers(groups: tuple[GroupLag, ...]) -> int:
    return sum(len(group.consumers) for group in groups)


def stream_of(name: str) -> str:
    """Return the stream that this is, or of which it is a shard."""
    shard = Shard.parse(name) if name.endswith("}") else None
    return name if shard is None else shard.stream


def merge_shards(survey: Survey) -> Survey:
    """Return the survey with the shards of each stream as one stream. The position of a group on several shards is
    empty."""
    streams = _merged(survey.streams, lambda _: "", _joined)
    return Survey(survey.at_ms, tuple(streams), tuple(_merged(survey.groups, lambda one: one.group, _joined_group)))


def _merged(parts: Iterable[P], group_of: Callable[[P], str], join: Callable[[P, P], P]) -> list[P]:
    """Return one part for each stream and group. join: of two shards."""
    merged: dict[tuple[str, str], P] = {}
    for part in parts:
        key = stream_of(part.stream), group_of(part)
        earlier = merged.get(key)
        merged[key] = replace(part, stream=key[0]) if earlier is None else join(earlier, part)
    return list(merged.values())


def _joined_held(first: Held, second: Held) -> Held:
    return replace(
        first,
        entries=None if first.entries is None or second.entries is None else first.entries + second.entries,
        bytes=None if first.bytes is None or second.bytes is None else first.bytes + second.bytes,
        idle_ms=min((idle for idle in (first.idle_ms, second.idle_ms) if idle is not None), default=None),
        position="",
    )


def merge_margins(margins: Mapping[tuple[str, str], Margin]) -> dict[tuple[str, str], Margin]:
    """Return the margin of each group; of a stream with shards: that of the shard whose margin ends first."""
    by_group: dict[tuple[str, str], list[Margin]] = {}
    for (stream, group), margin in margins.items():
        by_group.setdefault((stream_of(stream), group), []).append(margin)
    return {key: min(of_group, key=order) for key, of_group in by_group.items()}


def _joined(first: StreamSummary, second: StreamSummary) -> StreamSummary:
    added = None if first.added is None or second.added is None else first.added + second.added
    return replace(
        first,
        length=first.length + second.length,
        added=added,
        last=max(first.last, second.last, key=StreamId.parse),
        first=min(filter(None, (first.first, second.first)), key=StreamId.parse, default=""),
        has_dead_letters=first.has_dead_letters or second.has_dead_letters,
        end_bytes=first.end_bytes + second.end_bytes,
        entry_bytes=max(first.entry_bytes, second.entry_bytes),
    )


def _joined_group(first: GroupLag, second: GroupLag) -> GroupLag:
    delivered = None if first.delivered is None or second.delivered is None else first.delivered + second.delivered
    ages = (first.lag_ms, second.lag_ms)
    return replace(
        first,
        lag=first.lag + second.lag,
        at_least=first.at_least or second.at_least,
        lag_ms=None if None in ages else max(age for age in ages if age is not None),
        pending=first.pending + second.pending,
        oldest_idle_ms=_largest((first.oldest_idle_ms, second.oldest_idle_ms)),
        last_delivered="",
        delivered=delivered,
        consumers=_joined_consumers([*first.consumers, *second.consumers]),
        released=first.released + second.released,
        oldest_pending=None,
    )


def _joined_consumers(consumers: Sequence[ConsumerLag]) -> tuple[ConsumerLag, ...]:
    joined: dict[str, ConsumerLag] = {}
    for consumer in consumers:
        earlier = joined.get(consumer.consumer)
        joined[consumer.consumer] = (
            consumer
            if earlier is None
            else ConsumerLag(
                consumer.consumer,
                earlier.pending + consumer.pending,
                min(earlier.idle_ms, consumer.idle_ms),
                _largest((earlier.oldest_idle_ms, consumer.oldest_idle_ms)),
            )
        )
    return tuple(joined.values())


def _largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


SNAPSHOT_SECONDS = 60.0  # that a snapshot may take
_LOOKED_AT = 15.0  # seconds after a request during which snapshots go on
_SHARE = 4  # a snapshot begins this many durations of the last one after its end, at least


@dataclass(frozen=True)
class View:
    """What is known of the server."""

    number: int = 0  # of the attempt
    survey: Survey = field(default_factory=lambda: Survey(0, (), ()))  # shards as one stream; at_ms=0: none yet
    stream_bytes: Mapping[str, int] = field(default_factory=dict)  # memory by stream
    reasons: tuple[Reason, ...] = ()  # of dead letters
    uncounted: Mapping[str, int] = field(default_factory=dict)  # dead letters without a reason yet, by stream
    waiting: tuple[WaitingEntries, ...] = ()  # for a retry
    failure: RStreamError | None = None  # why the last attempt failed
    failing_since_ms: int = 0
    rights: tuple[str, ...] = ()  # that the console's user of the server lacks
    left_out: int = 0  # streams beyond the maximum
    too_long: int = 0  # streams, groups and consumers whose names are too long
    held: Mapping[tuple[str, str], Held] = field(default_factory=dict)  # by unused groups: (stream, group)
    margins: Mapping[tuple[str, str], Margin] = field(default_factory=dict)  # of all groups: (stream, group)
    history: LagHistory = field(default_factory=LagHistory)


class Live:
    """Snapshots of one server. interval: seconds between two of them."""

    def __init__(self, snapshots: SnapshotCache, interval: float) -> None:
        self._snapshots, self._interval = snapshots, interval
        self._view = View()
        self._refreshes = 0
        self._changed = asyncio.Condition()
        self._wanted = asyncio.Event()
        self._wanted_until = 0.0

    def _want(self) -> None:
        self._wanted_until = time.monotonic() + _LOOKED_AT
        self._wanted.set()

    async def view(self) -> View:
        """Return the last view; wait for the next one if no browser has looked for some time."""
        is_watched = self._wanted.is_set() and self._view.number > 0
        self._want()
        return self._view if is_watched else await self._after(self._view.number)

    async def numbers(self) -> AsyncIterator[int]:
        """Yield a number for each later view and `refresh`, and the last one again if there is none for some time."""
        number = self._number
        while True:
            self._want()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOKED_AT / 2), self._changed:
                    await self._changed.wait_for(functools.partial(self._is_above, number))
                    number = self._number
            yield number

    def _is_above(self, number: int) -> bool:
        return self._number > number

    @property
    def _number(self) -> int:
        return self._view.number + self._refreshes

    async def refresh(self) -> None:
        """Let browsers fetch their pages now: a change goes on, or has ended."""
        async with self._changed:
            self._refreshes += 1
            self._changed.notify_all()

    async def _after(self, number: int) -> View:
        """Wait for a view with a higher number."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._view.number > number)
        return self._view

    async def run(self) -> None:
        """Take snapshots while they are wanted, until cancelled."""
        while True:
            await self._wanted.wait()
            began = time.monotonic()
            snapshot = await asyncio.to_thread(self._snapshots.last)
            async with self._changed:
                self._view = self._next(snapshot)
                self._changed.notify_all()
            took = time.monotonic() - began
            await asyncio.sleep(max(self._interval, _SHARE * took))
            if time.monotonic() > self._wanted_until:
                self._wanted.clear()

    def _next(self, snapshot: Snapshot | None) -> View:
        before, now = self._view, time.time_ns() // 1_000_000
        if snapshot is None:
            since = before.failing_since_ms if before.failure else now
            return replace(before, number=before.number + 1, failure=self._snapshots.failure, failing_since_ms=since)
        survey, too_long = with_short_names(merge_shards(Survey(now, snapshot.streams, snapshot.groups)))
        before.history.add(survey)
        sizes: Counter[str] = Counter()
        for stream, size in snapshot.stream_bytes.items():
            sizes[stream_of(stream)] += size
        held = unused(_merged(snapshot.held, lambda one: one.group, _joined_held))
        return View(
            before.number + 1,
            survey,
            sizes,
            tuple(reason for reason in snapshot.reasons if is_short(reason.stream)),
            snapshot.uncounted,
            tuple(waiting for waiting in snapshot.waiting if is_short(waiting.stream, waiting.group)),
            rights=tuple(self._snapshots.rights),
            left_out=self._snapshots.stream_filter.too_many,
            too_long=too_long + self._snapshots.stream_filter.too_long,
            held={(one.stream, one.group): one for one in held},
            margins=merge_margins(snapshot.margins),
            history=before.history,
        )

    def close(self) -> None:
        """Close the connection."""
        self._snapshots.close()
