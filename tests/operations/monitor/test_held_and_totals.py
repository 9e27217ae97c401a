"""Lines of groups with several consumers and streams, of which each has a value of its own, and values at a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from spark_streams.connector.lag.survey import ConsumerLag, GroupLag, StreamSummary
from spark_streams.operations.monitor.exported_metrics import _of_group
from spark_streams.operations.monitor.held import Held, held_in, idle_for
from spark_streams.operations.monitor.rates import group_totals

IDLE = [(3_000, 1_000, 2_000), (1_000, 3_000, 2_000), (2_000, 3_000, 1_000)]
GROUP = GroupLag("s", "slow", 6, False, 50, 0, 40, "4-0", 4)
STREAM = StreamSummary("s", 10, 10, "10-0", "1-0")


def of_consumers(idle_ms: Sequence[int]) -> tuple[ConsumerLag, ...]:
    return tuple(ConsumerLag(f"c{number}", 0, one) for number, one in enumerate(idle_ms))


@pytest.mark.parametrize("idle_ms", IDLE)
def test_a_group_is_as_idle_as_its_most_recent_consumer(idle_ms: Sequence[int]) -> None:
    """In the exporter's metric, and where a group holds entries back."""
    slow = replace(GROUP, consumers=of_consumers(idle_ms))
    fast = replace(GROUP, group="fast", lag=1, last_delivered="9-0", delivered=9)
    assert _of_group(slow, None)[1][:2] == (3, 1.0)
    [held] = held_in([STREAM], [slow, fast], {"s": 1_000})
    assert (held.group, held.entries, held.bytes, held.idle_ms) == ("slow", 5, 500, 1_000)
    assert held_in([STREAM], [fast, replace(slow, consumers=())])[0].idle_ms is None


@pytest.mark.parametrize(("idle_ms", "is_shown"), [(None, False), (999, False), (1_000, True), (1_001, True)])
def test_a_group_that_is_idle_for_exactly_the_time_is_shown(idle_ms: int | None, is_shown: bool) -> None:
    one, other = Held("s", "g", 5, None, idle_ms, "4-0"), Held("s", "h", 5, None, 5_000, "4-0")
    assert idle_for([one, other], 1_000) == [*([one] if is_shown else []), other]


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1)])
def test_what_a_group_holds_is_counted_to_the_one_that_needs_least(order: Sequence[int]) -> None:
    groups = [
        replace(GROUP, group=name, lag=lag, last_delivered=f"{10 - lag}-0", delivered=10 - lag)
        for name, lag in (("slow", 6), ("middle", 4), ("fast", 1))
    ]
    found = held_in([STREAM], [groups[number] for number in order])
    assert {one.group: one.entries for one in found} == {"slow": 5, "middle": 3}


@pytest.mark.parametrize(
    ("behind_ms", "idle_ms", "at_least", "total"),
    [
        ((50, 70, 60), (5, 7, 6), (False, False, False), (70, 7, False)),
        ((70, 50, 60), (7, None, 6), (True, False, False), (70, 7, True)),
        ((60, 50, 70), (None, 6, 7), (False, False, True), (70, 7, True)),
        ((60, None, 70), (None, None, None), (True, True, True), (None, None, True)),
    ],
)
def test_the_line_of_a_group_has_the_oldest_of_all_its_streams(
    behind_ms: Sequence[int | None],
    idle_ms: Sequence[int | None],
    at_least: Sequence[bool],
    total: tuple[int | None, int | None, bool],
) -> None:
    rows = zip(behind_ms, idle_ms, at_least, strict=True)
    groups = [
        replace(GROUP, stream=f"s{number}", lag_ms=behind, oldest_idle_ms=idle, at_least=least)
        for number, (behind, idle, least) in enumerate(rows)
    ]
    found = group_totals(groups)["slow"]
    assert (found.lag_ms, found.oldest_idle_ms, found.at_least) == total
