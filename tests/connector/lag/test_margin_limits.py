"""Margins of points by hand: several groups, nodes and moments with values of their own, and values at a limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import redis

from spark_streams.base.ids import StreamId
from spark_streams.base.units import duration
from spark_streams.connector.lag.margin import (
    WINDOW_MS,
    GroupPoint,
    Margin,
    MarginWindow,
    NodeMemory,
    Rule,
    StreamPoint,
    least,
    memory_margin,
    rule_of,
    trimming_margin,
)
from spark_streams.connector.lag.survey import ACTIVE_MS, ConsumerLag, GroupLag, StreamSummary, Survey, survey
from spark_streams.connector.wire.connection import Connection
from spark_streams.connector.wire.named_errors import Memory

AT = 1_700_000_000_000
STREAM = StreamPoint(AT, length=10, added=100, first_age_ms=1_000, first=StreamId(AT - 1_000, 0))
GROUP = GroupLag("s", "g", 0, False, 0, 0, None, f"{AT - 1}-0", 100)


def moments(added: Sequence[int], lengths: Sequence[int], every_ms: int = 1_000) -> list[StreamPoint]:
    rows = enumerate(zip(added, lengths, strict=True))
    return [StreamPoint(number * every_ms, length, total, None) for number, (total, length) in rows]


def waits(*needed: float | None, lag_ms: int | None = None, exact: bool = False) -> list[GroupPoint | None]:
    return [GroupPoint(one, lag_ms, waits=True, is_exact=exact) for one in needed]


@pytest.mark.parametrize(
    ("kind", "limit", "lags_ms", "seconds"),
    [
        # It needs 2,750 of 3,000 entries, 750 above the first one; it reads 250 in the second in which 1,000 come.
        ("length", 1_000, (None, None), 750 / (1_000 - 250)),
        ("length", 900, (None, None), 650 / (1_000 - 250)),  # the removal is 100 entries late
        ("bytes", 9_999, (None, None), 750 / (500 - 250)),
        ("age", 10_000, (2_000, 2_500), 7.5 / (1 - 0.5)),  # 7.5 s younger than the limit, and ages half as fast
        ("age", 10_000, (None, 2_500), 750 / (500 - 250)),
    ],
)
def test_a_group_that_reads_moves_away_from_the_trimming_once(
    kind: str, limit: float, lags_ms: tuple[int | None, int | None], seconds: float
) -> None:
    rule = Rule(kind, "seen", added=1.0, removed=0.5, limit=limit)
    before, now = lags_ms
    group = [*waits(2_500, lag_ms=before), *waits(2_750, lag_ms=now)]
    margin = trimming_margin(rule, moments((2_000, 3_000), (500, 1_000)), group)
    assert (margin.seconds, margin.rule) == (pytest.approx(seconds), kind)


@pytest.mark.parametrize(("needed", "seconds"), [(1_999, 0.0), (2_000, 0.0), (2_001, 1 / 250)])
def test_the_first_needed_entry_was_just_trimmed_or_is_the_first(needed: int, seconds: float) -> None:
    """`needed` is the number of entries before it. With 2,000 removed it is the 2,001st that is the first one."""
    rule = Rule("bytes", "seen", added=1.0, removed=0.5)
    margin = trimming_margin(rule, moments((2_000, 3_000), (500, 1_000)), waits(needed - 250, needed))
    assert margin.seconds == pytest.approx(seconds)
    assert ("has reached the group" in margin.why) is (seconds == 0.0)


@pytest.mark.parametrize(
    ("needed", "seconds"),
    [
        ((90, 140, 290, 395), 0.4),  # 40 entries from the removal, in the middle
        ((90, 160, 290, 395), math.inf),  # never nearer than 60 of 100
        ((10, 160, 290, 395), math.inf),  # near before anything was removed
        ((150, 190, 290, 450), 0.9),  # 90 of 200
        ((150, 200, 300, 450), math.inf),  # 100 of 200
    ],
)
def test_how_close_the_removal_has_come_counts_at_each_moment(needed: Sequence[int], seconds: float) -> None:
    length = 200 if needed[-1] == 450 else 100
    points = moments([removed + length for removed in (0, 100, 200, 300)], [length] * 4)
    margin = trimming_margin(Rule("length", "seen", 0.1, 0.1, length), points, waits(*needed))
    assert margin.seconds == pytest.approx(seconds)


def test_the_rule_is_seen_from_when_the_limit_was_reached() -> None:
    filling, added = (200, 400, 600, 800, 1_000), range(200, 2_000, 200)
    rule = rule_of(moments(added, [*filling, 1_000, 1_000, 1_000, 1_000]), [])
    assert (rule.kind, rule.limit, rule.added, rule.removed) == ("length", 1_000, 0.2, 0.2)


def removals(steps: int, by: int = 10) -> list[StreamPoint]:
    """A stream whose length is another one each time."""
    return moments([60 + by * n + 7 * (n % 2) for n in range(steps)], [60 + 7 * (n % 2) for n in range(steps)])


@pytest.mark.parametrize(
    ("offsets", "is_proved"),
    [
        ([(0,) * 5], True),
        ([(0,) * 5, (30,) * 5], True),  # the slowest of two
        ([(30,) * 5, (0,) * 5], True),
        ([(0,) * 5, (-1,) * 5], False),  # the other one is passed
        ([(-1,) * 5, (0,) * 5], False),
        ([(1,) * 5], False),  # one entry before it
        ([(0, 0, 1, 0, 1, 0, 1)], True),  # of six removals three stop there
        ([(0, 0, 1, 0, 1, 0, 1, 1)], False),  # of seven
        ([(0, 0, 1, 0)], False),  # of three removals two
        ([(0, 0, 0, 0)], True),
    ],
)
def test_the_groups_are_the_rule_if_the_removal_stops_at_the_slowest(
    offsets: Sequence[Sequence[int]], is_proved: bool
) -> None:
    points = removals(len(offsets[0]))
    groups = [
        waits(*[point.removed + offset for point, offset in zip(points, of_group, strict=True)], exact=True)
        for of_group in offsets
    ]
    assert (rule_of(points, groups).kind == "groups") is is_proved


def test_an_estimate_proves_no_group() -> None:
    points = removals(6)
    needed = [point.removed for point in points]
    assert rule_of(points, [waits(*needed, exact=True)]).kind == "groups"
    assert rule_of(points, [waits(*needed)]).kind != "groups"


FIRST, BEFORE, BEHIND = f"{AT - 1_000}-0", f"{AT - 1_001}-0", f"{AT - 1_000}-1"


@pytest.mark.parametrize(
    ("group", "needed", "is_exact"),
    [
        (replace(GROUP, pending=3, oldest_pending=BEFORE), 89, True),  # it has left the stream
        (replace(GROUP, pending=3, oldest_pending=FIRST), 90, True),
        (replace(GROUP, pending=3, oldest_pending=BEHIND, lag_ms=1_000), 90, False),
        (replace(GROUP, lag=9, last_delivered=FIRST, delivered=91), 91, True),
        (replace(GROUP, lag=10, last_delivered=BEFORE, delivered=90), 90, True),
        (replace(GROUP, lag=10, last_delivered=BEFORE, delivered=60), 60, True),
        (replace(GROUP, lag=10, last_delivered=BEFORE, delivered=95), 90, True),
        (replace(GROUP, lag=10, last_delivered=BEFORE, delivered=None), 90, False),
        (replace(GROUP, lag=12, last_delivered=FIRST, delivered=91), 91, True),  # three were added meanwhile
        (replace(GROUP, lag=4, last_delivered=BEHIND, delivered=96), 96, True),
        (replace(GROUP, lag=4, at_least=True, last_delivered=BEHIND, delivered=96), None, False),
    ],
)
def test_where_a_group_stands_at_the_first_entry_and_beside_it(
    group: GroupLag, needed: int | None, is_exact: bool
) -> None:
    point = GroupPoint.of(group, STREAM)
    assert (point.needed, point.is_exact) == (needed, is_exact)


@pytest.mark.parametrize("used", [(1_000, 1_500), (1_000, 1_999), (1_000, 2_000), (1_000, 2_001)])
def test_a_server_is_full_at_its_limit(used: tuple[int, int]) -> None:
    points = [(at, Memory(bytes_used, 2_000, "allkeys-lru")) for at, bytes_used in zip((0, 1_000), used, strict=True)]
    left = max(0, 2_000 - used[1])
    assert memory_margin(points).seconds == pytest.approx(left / (used[1] - used[0]))
    alone = memory_margin(points[1:])
    assert (alone.seconds, alone.rule) == ((None, "unknown") if left else (0.0, "memory"))


LATE, SOON, UNKNOWN, NEVER = (
    Margin(90.0, "length", "late"), Margin(9.0, "memory", "soon"), Margin(None, "unknown", "?"),
    Margin(math.inf, "none", "never"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("trimming", "memories", "first"),
    [
        (LATE, [SOON, NEVER], SOON),
        (LATE, [NEVER, SOON], SOON),
        (SOON, [LATE], SOON),
        (NEVER, [NEVER, UNKNOWN], UNKNOWN),
        (UNKNOWN, [NEVER], UNKNOWN),
        (UNKNOWN, [NEVER, LATE], LATE),
        (NEVER, [NEVER], NEVER),
    ],
)
def test_the_margin_that_ends_first_counts(trimming: Margin, memories: Sequence[Margin], first: Margin) -> None:
    found = least(trimming, memories)
    assert (found.seconds, found.rule) == (first.seconds, first.rule)
    assert found.why.startswith(first.why)


def seen(at_ms: int, length: int, added: int) -> Survey:
    stream = StreamSummary("s", length, added, f"{AT}-0", FIRST)
    return Survey(at_ms, (stream,), (replace(GROUP, lag=length, last_delivered=BEFORE, delivered=0),))


def why(window: MarginWindow) -> str:
    return window.margins([("s", "g")])["s", "g"].why


@pytest.mark.parametrize("full", [0, 1, 2])
def test_the_server_that_is_full_first_counts(full: int) -> None:
    window = MarginWindow()
    window.add(seen(AT, 5, 5))
    for at_ms, used in ((AT, 1_000), (AT + 10_000, 1_100)):
        nodes = [NodeMemory(used + 800 * (number == full), 2_000, "allkeys-lru", f"n{number}") for number in range(3)]
        window.add_memory(nodes, at_ms)
    margin = window.margins([("s", "g")])["s", "g"]
    assert (margin.rule, margin.seconds) == ("memory", pytest.approx(10.0))


@pytest.mark.parametrize(("length", "added"), [(10, 10), (4, 9), (9, 9), (9, 12)])
def test_a_stream_that_has_fewer_added_or_removed_entries_was_created_again(length: int, added: int) -> None:
    window = MarginWindow()
    window.add(seen(AT, 6, 10))
    window.add(seen(AT + 10_000, length, added))
    assert why(window) == "one snapshot shows no rate"


def test_the_window_begins_with_the_last_moment_that_is_as_old() -> None:
    for earlier_ms, span_ms in ((1, WINDOW_MS + 1), (0, WINDOW_MS), (-1, WINDOW_MS + 49_999)):
        window = MarginWindow()
        for at_ms in (0, 50_000 - earlier_ms, 50_000 + WINDOW_MS):
            window.add(seen(at_ms, 5, 5))
        assert why(window) == f"nothing was added or trimmed in the last {duration(span_ms)}"


@pytest.mark.parametrize(
    ("idle_ms", "is_active"),
    [
        ((), False),
        ((ACTIVE_MS,), False),
        ((ACTIVE_MS - 1,), True),
        ((ACTIVE_MS - 1, ACTIVE_MS), True),
        ((2 * ACTIVE_MS, 3 * ACTIVE_MS, 5), True),
        ((2 * ACTIVE_MS, ACTIVE_MS), False),
    ],
)
def test_a_group_is_active_as_its_most_recent_consumer(idle_ms: Sequence[int], is_active: bool) -> None:
    consumers = tuple(ConsumerLag(f"c{number}", 0, idle) for number, idle in enumerate(idle_ms))
    assert replace(GROUP, consumers=consumers).is_active is is_active


@pytest.mark.parametrize(
    ("position", "left", "trimmed"),
    [
        (4, range(5, 11), 0),  # nothing is missing
        (4, range(8, 11), 3),  # 5-0 to 7-0 have left the stream
        (4, (4, 8, 9, 10), 0),  # deleted in the middle: the entry at the position is there
        (4, (1, 9, 10), 0),
        (10, (), 0),
        (4, (), 6),
    ],
)
def test_entries_were_trimmed_unread_if_all_that_is_left_is_above_the_group(
    client: redis.Redis, connection: Connection, position: int, left: Sequence[int], trimmed: int
) -> None:
    """Of three groups, one each at the beginning, there, and at the end."""
    for number in range(1, 11):
        client.xadd("s", {"n": number}, id=f"{number}-0")
    for group, read in (("first", 0), ("middle", position), ("last", 10)):
        client.xgroup_create("s", group, f"{read}-0", entries_read=read)
    gone = [f"{number}-0" for number in range(1, 11) if number not in left]
    if gone:
        client.xdel("s", *gone)
    found = {group.group: group.trimmed for group in survey(connection, ["s"]).groups}
    assert found == {"first": 10 - len(left), "middle": trimmed, "last": 0}
