"""Looks at a server, one after the other: rates between them, and how lags went. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from spark_streams.monitor.lag_survey import GroupStanding, Survey

Key = tuple[str, str]  # stream, group


@dataclass(frozen=True)
class Rates:
    """Entries per second: added to the stream, given to the group, acknowledged by it; None where it is not known."""

    added: float | None
    delivered: float | None
    acknowledged: float | None

    @property
    def growth(self) -> float | None:
        """By how much the lag grows, per second."""
        return None if self.added is None or self.delivered is None else self.added - self.delivered


UNKNOWN = Rates(None, None, None)


class History:
    """The last `most` looks. Rates are taken over `window` looks."""

    def __init__(self, most: int = 120, window: int = 3) -> None:
        self._looks: deque[Survey] = deque(maxlen=most)
        self._window = window

    def add(self, seen: Survey) -> None:
        """One more look, later than those before it; one at the same time takes the place of the last."""
        if self._looks and seen.at_ms <= self._looks[-1].at_ms:
            self._looks.pop()
        self._looks.append(seen)

    def __len__(self) -> int:
        return len(self._looks)

    @property
    def last(self) -> Survey:
        """The newest one; there must be one."""
        return self._looks[-1]

    def rates(self) -> dict[Key, Rates]:
        """Of every group of the last look, over the last few looks."""
        before = self._looks[max(0, len(self._looks) - 1 - self._window)]
        return rates_between(before, self.last)

    def lags(self, keys: Iterable[Key]) -> dict[Key, list[float | None]]:
        """How each group's lag went, None where it was not there."""
        found: dict[Key, list[float | None]] = {key: [] for key in keys}
        for look in self._looks:
            lags = {(one.stream, one.group): one.lag for one in look.groups}
            for key, values in found.items():
                values.append(lags.get(key))
        return found


def rates_between(before: Survey, after: Survey) -> dict[Key, Rates]:
    """Rates of every group that is there at `after`."""
    seconds = (after.at_ms - before.at_ms) / 1000
    added_before = {one.stream: one.added for one in before.streams}
    added_after = {one.stream: one.added for one in after.streams}
    old = {(one.stream, one.group): one for one in before.groups}
    found: dict[Key, Rates] = {}
    for one in after.groups:
        key = one.stream, one.group
        was = old.get(key)
        if was is None or seconds <= 0:
            found[key] = UNKNOWN
            continue
        added = _grown(added_before.get(one.stream), added_after.get(one.stream))
        delivered = _grown(was.delivered, one.delivered)
        if delivered is None and added is not None and not (was.at_least or one.at_least):
            delivered = _grown(one.lag - was.lag, added)  # what was added and has not made the lag longer
        found[key] = _rates(added, delivered, was, one, seconds)
    return found


def _rates(added: int | None, delivered: int | None, was: GroupStanding, one: GroupStanding, seconds: float) -> Rates:
    acknowledged = None if delivered is None else max(0, delivered - (one.pending - was.pending))
    rates = [None if value is None else value / seconds for value in (added, delivered, acknowledged)]
    return Rates(*rates)


def _grown(before: int | None, after: int | None) -> int | None:
    """None where one is not known, or it went back (XSETID, XGROUP SETID, a stream made anew)."""
    return None if before is None or after is None or after < before else after - before
