"""A survey without names that are longer than the pages' maximum. Other clients choose names. Pure."""

from __future__ import annotations

from dataclasses import replace

from spark_streams.connector.deadletter.envelope import raw
from spark_streams.connector.lag.survey import GroupLag, Survey
from spark_streams.operations.console.bounds import NAME_BYTES


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
    if all(is_short(consumer.consumer) for consumer in group.consumers):
        return group
    return replace(group, consumers=tuple(c for c in group.consumers if is_short(c.consumer)))


def _consumers(groups: tuple[GroupLag, ...]) -> int:
    return sum(len(group.consumers) for group in groups)
