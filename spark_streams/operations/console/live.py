"""Reads the server for all browsers together, while a browser looks. Nobody looks: no command is sent."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace

from spark_streams.connector.admin.groups import WaitingEntries
from spark_streams.connector.errors import RStreamError
from spark_streams.connector.lag.margin import Margin
from spark_streams.connector.lag.survey import Survey
from spark_streams.operations.console.charts.history import LagHistory
from spark_streams.operations.console.merged_shards import merge_held, merge_margins, merge_shards, stream_of
from spark_streams.operations.console.short_names import is_short, with_short_names
from spark_streams.operations.monitor.held import Held, unused
from spark_streams.operations.monitor.snapshots import Reason, Snapshot, SnapshotCache

_LOOKED_AT = 15.0  # seconds after a request during which snapshots go on
_SHARE = 4  # a snapshot begins this many durations of the last one after its end, at least


@dataclass(frozen=True)
class View:
    """What is known of the server. number: of the attempt; survey: the last snapshot, shards as one stream, at_ms=0 if
    there is none yet; stream_bytes: memory by stream; reasons, uncounted: of dead letters; failure: why the last
    attempt failed, since failing_since_ms; rights: that the user lacks; left_out: streams beyond the maximum;
    too_long: streams, groups and consumers whose names are too long; held: unused groups that hold entries back, and
    margins: of all groups, by stream and group."""

    number: int = 0
    survey: Survey = field(default_factory=lambda: Survey(0, (), ()))
    stream_bytes: Mapping[str, int] = field(default_factory=dict)
    reasons: tuple[Reason, ...] = ()
    uncounted: Mapping[str, int] = field(default_factory=dict)
    waiting: tuple[WaitingEntries, ...] = ()
    failure: RStreamError | None = None
    failing_since_ms: int = 0
    rights: tuple[str, ...] = ()
    left_out: int = 0
    too_long: int = 0
    held: Mapping[tuple[str, str], Held] = field(default_factory=dict)
    margins: Mapping[tuple[str, str], Margin] = field(default_factory=dict)
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
            held={(held.stream, held.group): held for held in unused(merge_held(snapshot.held))},
            margins=merge_margins(snapshot.margins),
            history=before.history,
        )

    def close(self) -> None:
        """Close the connection."""
        self._snapshots.close()
