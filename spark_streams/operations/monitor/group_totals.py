"""The sums of a group over its streams. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spark_streams.connector.lag.survey import GroupLag


@dataclass(frozen=True)
class GroupTotal:
    """A group over several streams. The numbers are those of GroupLag: sums, and the ages of the oldest entries.
    lag_ms: None if that of a stream is not known."""

    streams: int
    lag: int
    at_least: bool
    lag_ms: int | None
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
