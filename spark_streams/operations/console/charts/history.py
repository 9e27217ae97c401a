"""Lags of groups over time, in bounded memory, and the rates of now. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from spark_streams.connector.lag.survey import Survey
from spark_streams.operations.console.charts.charts import Chart, GroupPoint, charts_of, lag_charts
from spark_streams.operations.monitor.rates import Key, Rates, rates_between, total

POINTS = 120  # of a group
_RATE_MS = 8_000  # rates are computed over about this time
_MAX_GROUPS = 20_000  # whose lags are kept


class LagHistory:
    """The lag, and its age, of each group in the last snapshots; and the throughput of all groups together."""

    def __init__(self) -> None:
        self._lags: dict[Key, deque[GroupPoint]] = {}
        self._surveys: deque[Survey] = deque()
        self.rates: dict[Key, Rates] = {}
        self._totals: deque[tuple[int, Rates]] = deque(maxlen=POINTS)

    def add(self, survey: Survey) -> None:
        """Add a later snapshot. A snapshot of the same moment changes nothing."""
        if self._surveys and survey.at_ms <= self._surveys[-1].at_ms:
            return
        present = {(group.stream, group.group): group for group in survey.groups[:_MAX_GROUPS]}
        for key in self._lags.keys() - present.keys():
            del self._lags[key]
        for key, group in present.items():
            self._lags.setdefault(key, deque(maxlen=POINTS)).append((survey.at_ms, group.lag, group.lag_ms))
        self._surveys.append(survey)
        while len(self._surveys) > 2 and survey.at_ms - self._surveys[1].at_ms >= _RATE_MS:
            self._surveys.popleft()
        if len(self._surveys) > 1:
            self.rates = rates_between(self._surveys[0], survey)
            self._totals.append((survey.at_ms, total(self.rates)))

    def lags(self, key: Key) -> list[float | None]:
        """Return the lags of a group, the oldest first."""
        return [lag for _, lag, _ in self._lags.get(key, ())]

    def charts(self, keys: Iterable[Key]) -> list[Chart]:
        """Return charts of the lag of these groups, and of its age."""
        return lag_charts({key: self._lags[key] for key in keys if key in self._lags})

    def throughput(self) -> list[Chart]:
        """Return a chart of the throughput of all groups together."""
        lines = {
            "added": [(at_ms, rates.added) for at_ms, rates in self._totals],
            "delivered": [(at_ms, rates.delivered) for at_ms, rates in self._totals],
            "acknowledged": [(at_ms, rates.acknowledged) for at_ms, rates in self._totals],
        }
        return charts_of(("Throughput of all groups together", "per second", lines), one_scale=True)

    @property
    def period(self) -> tuple[int, int]:
        """(first, last) moment of the charts, in milliseconds since the epoch."""
        moments = [lags[0][0] for lags in self._lags.values()] or [self._surveys[-1].at_ms]
        return min(moments), self._surveys[-1].at_ms
