"""Rates between the snapshots of a history, lags over time, and the sums of a group over its streams. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_streams.connector.lag.survey import GroupLag, Survey

Key = tuple[str, str]  # stream, group


@dataclass(frozen=True)
class Rates:
    """Entries per second: added to the stream, delivered to the group, acknowledged by it. None: not known."""

    added: float | None
    delivered: float | None
    acknowledged: float | None

    @property
    def growth(self) -> float | None:
        """Entries per second by which the lag grows."""
        return None if self.added is None or self.delivered is None else self.added - self.delivered


UNKNOWN = Rates(None, None, None)


class SurveyHistory:
    """The last `size` snapshots. Rates are computed over `window` snapshots."""

    def __init__(self, size: int = 120, window: int = 3) -> None:
        self._snapshots: deque[Survey] = deque(maxlen=size)
        self._window = window

    def add(self, snapshot: Survey) -> None:
        """Add a later snapshot. A snapshot of the same time replaces the last one."""
        if self._snapshots and snapshot.at_ms <= self._snapshots[-1].at_ms:
            self._snapshots.pop()
        self._snapshots.append(snapshot)

    def __len__(self) -> int:
        return len(self._snapshots)

    @property
    def last(self) -> Survey:
        """The newest snapshot; there must be one."""
        return self._snapshots[-1]

    def rates(self) -> dict[Key, Rates]:
        """Return the rates of every group of the last snapshot, over the last `window` snapshots."""
        before = self._snapshots[max(0, len(self._snapshots) - 1 - self._window)]
        return rates_between(before, self.last)

    def lags(self, keys: Iterable[Key]) -> dict[Key, list[float | None]]:
        """Return the lag of each group in each snapshot, None if the group did not exist."""
        lags_by_group: dict[Key, list[float | None]] = {key: [] for key in keys}
        for snapshot in self._snapshots:
            snapshot_lags = {(group.stream, group.group): group.lag for group in snapshot.groups}
            for key, values in lags_by_group.items():
                values.append(snapshot_lags.get(key))
        return lags_by_group


def rates_between(before: Survey, after: Survey) -> dict[Key, Rates]:
    """Return the rates of every group that exists in `after`."""
    seconds = (after.at_ms - before.at_ms) / 1000
    added_before = {stream.stream: stream.added for stream in before.streams}
    added_after = {stream.stream: stream.added for stream in after.streams}
    earlier_groups = {(group.stream, group.group): group for group in before.groups}
    rates: dict[Key, Rates] = {}
    for group in after.groups:
        key = group.stream, group.group
        earlier = earlier_groups.get(key)
        if earlier is None or seconds <= 0:
            rates[key] = UNKNOWN
            continue
        added = _grown(added_before.get(group.stream), added_after.get(group.stream))
        delivered = _grown(earlier.delivered, group.delivered)
        if delivered is None and added is not None and not (earlier.at_least or group.at_least):
            delivered = _grown(group.lag - earlier.lag, added)  # added entries that did not increase the lag
        rates[key] = _rates(added, delivered, earlier, group, seconds)
    return rates


def total(rates: Mapping[Key, Rates]) -> Rates:
    """Return the rates of all groups together. A stream's entries count once, however many groups read it."""
    added = {stream: rate.added for (stream, _), rate in rates.items()}.values()
    delivered = [rate.delivered for rate in rates.values()]
    return Rates(_sum(added), _sum(delivered), _sum(rate.acknowledged for rate in rates.values()))


def _sum(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


def _rates(added: int | None, delivered: int | None, earlier: GroupLag, group: GroupLag, seconds: float) -> Rates:
    acknowledged = None if delivered is None else max(0, delivered - (group.pending - earlier.pending))
    rates = [None if value is None else value / seconds for value in (added, delivered, acknowledged)]
    return Rates(*rates)


def _grown(before: int | None, after: int | None) -> int | None:
    """Return the increase; None if a value is unknown or decreased (XSETID, XGROUP SETID, a stream created again)."""
    return None if before is None or after is None or after < before else after - before


@dataclass(frozen=True)
class GroupTotal:
    """A group over several streams: sums, and the ages of the oldest entries, as in GroupLag."""

    streams: int
    lag: int
    at_least: bool
    lag_ms: int | None  # None if that of a stream is not known
    pending: int
    released: int
    oldest_idle_ms: int | None


def group_totals(groups: Iterable[GroupLag]) -> dict[str, GroupTotal]:
    """Return the total of each group that has more than one stream, by its name."""
    by_group: dict[str, list[GroupLag]] = {}
    for group in groups:
        by_group.setdefault(group.group, []).append(group)
    return {name: _total(of_streams) for name, of_streams in by_group.items() if len(of_streams) > 1}


def _total(groups: list[GroupLag]) -> GroupTotal:
    behind = [group.lag_ms for group in groups if group.lag_ms is not None]
    return GroupTotal(
        len(groups),
        sum(group.lag for group in groups),
        any(group.at_least for group in groups),
        max(behind) if len(behind) == len(groups) else None,
        sum(group.pending for group in groups),
        sum(group.released for group in groups),
        max((group.oldest_idle_ms for group in groups if group.oldest_idle_ms is not None), default=None),
    )
