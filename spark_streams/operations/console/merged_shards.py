"""Shards of a stream as one stream: their lengths, lags and pending entries are added. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from spark_streams.base.ids import StreamId
from spark_streams.connector.admin.streams import Shard
from spark_streams.connector.lag.margin import Margin, order
from spark_streams.connector.lag.survey import ConsumerLag, GroupLag, StreamSummary, Survey
from spark_streams.operations.monitor.held import Held


def stream_of(name: str) -> str:
    """Return the stream that this is, or of which it is a shard."""
    shard = Shard.parse(name) if name.endswith("}") else None
    return name if shard is None else shard.stream


def merge_shards(survey: Survey) -> Survey:
    """Return the survey with the shards of each stream as one stream. The position of a group on several shards is
    empty."""
    streams: dict[str, StreamSummary] = {}
    for stream in survey.streams:
        name = stream_of(stream.stream)
        earlier = streams.get(name)
        streams[name] = replace(stream, stream=name) if earlier is None else _joined(earlier, stream)
    groups: dict[tuple[str, str], GroupLag] = {}
    for group in survey.groups:
        key = stream_of(group.stream), group.group
        earlier_group = groups.get(key)
        groups[key] = replace(group, stream=key[0]) if earlier_group is None else _joined_group(earlier_group, group)
    return Survey(survey.at_ms, tuple(streams.values()), tuple(groups.values()))


def merge_held(holders: Iterable[Held]) -> list[Held]:
    """Return the groups that hold entries back, with the shards of each stream as one stream."""
    merged: dict[tuple[str, str], Held] = {}
    for held in holders:
        key = stream_of(held.stream), held.group
        earlier = merged.get(key)
        merged[key] = replace(held, stream=key[0]) if earlier is None else _joined_held(earlier, held)
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
