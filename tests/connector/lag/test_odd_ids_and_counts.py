"""IDs that are not milliseconds have no age, and a lag that is impossible is counted, whoever asks."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.base.ids import AHEAD_MS, FIRST_MS, U64_MAX, StreamId, age_ms, is_time
from spark_streams.base.units import duration
from spark_streams.connector.admin.groups import fetch_group
from spark_streams.connector.lag.survey import survey, view_streams
from spark_streams.connector.wire.connection import Connection
from spark_streams.connector.wire.xinfo import GroupInfo, lag_of
from spark_streams.operations.commands.print_entry import age
from spark_streams.operations.groups.unused import possible_reader
from spark_streams.operations.monitor.undelivered import fetch_undelivered
from tests.operations.monitor.test_cli import rstream
from tools.servers.server import Server

NOW = time.time_ns() // 1_000_000
NO_TIMES = {
    "counter": 7,
    "large counter": 999_999_999_999,
    "seconds": NOW // 1000,
    "two days ahead": NOW + 2 * AHEAD_MS,
    "hundredths": NOW * 10,
    "microseconds": NOW * 1_000,
    "nanoseconds": NOW * 1_000_000,
    "snowflake": (NOW - 1_288_834_974_657) << 22,
    "largest": U64_MAX - 5,
}


@pytest.mark.parametrize("number", NO_TIMES.values(), ids=NO_TIMES)
def test_a_number_that_is_no_time_has_no_age(number: int) -> None:
    assert age_ms(StreamId(number, 0), NOW) is None
    assert age(f"{number}-3") == f"{number}-3"


def test_the_bounds() -> None:
    """From 2001 to a day ahead of the clock."""
    numbers = (FIRST_MS - 1, FIRST_MS, NOW, NOW + AHEAD_MS, NOW + AHEAD_MS + 1)
    assert [is_time(StreamId(ms, 0), NOW) for ms in numbers] == [False, True, True, True, False]
    assert age_ms(StreamId(NOW - 5_000, 9), NOW) == 5_000
    assert age_ms(StreamId(NOW + 5_000, 0), NOW) == 0, "a clock that is ahead"


@given(st.integers(0, U64_MAX), st.integers(FIRST_MS, 4_000_000_000_000))
def test_an_age_is_never_negative_and_never_more_than_the_clock_allows(number: int, now_ms: int) -> None:
    found = age_ms(StreamId(number, 0), now_ms)
    assert found is None or 0 <= found <= now_ms - FIRST_MS


@pytest.fixture
def odd(client: redis.Redis, request: pytest.FixtureRequest) -> int:
    """Stream odd with two entries of this number, group g has read none of them; group all has acknowledged all."""
    number = NO_TIMES[request.param]
    for seq in (1, 2):
        client.xadd("odd", {"n": seq}, id=f"{number}-{seq}")
    client.xgroup_create("odd", "g", id="0")
    client.xgroup_create("odd", "all", id="$")
    client.xreadgroup("g", "ann", {"odd": ">"}, count=1)
    return number


@pytest.mark.parametrize("odd", NO_TIMES, indirect=True)
def test_every_command_says_that_it_does_not_know(server: Server, odd: int, connection: Connection) -> None:
    """No seconds in tables, JSON, metrics and reports, and a check that could not be made has its own exit code."""
    (behind, done) = sorted(json.loads(rstream(server, "lag", "--json").output), key=lambda group: -group["lag"])
    assert (behind["lag"], behind["pending"], behind["lag_ms"], done["lag_ms"]) == (1, 1, None, 0)
    assert " ? " in rstream(server, "lag").output
    assert rstream(server, "lag", "--max", "1").exit_code == 0
    for options in ((), ("--json",)):
        assert rstream(server, "lag", "--max-seconds", "5", *options).exit_code == 4
        assert rstream(server, "lag", "--max-seconds", "5", "--group", "all", *options).exit_code == 0
        assert rstream(server, "lag", "--max-seconds", "5", "--max", "0", *options).exit_code == 3
    said = rstream(server, "lag", "--max-seconds", "5")
    assert said.output == (
        "unknown: g of odd is 1 entry behind, 1 pending; how many seconds is not known, because its entry IDs are not "
        "times. Check the number of entries: --max\n"
    )
    metrics = rstream(server, "exporter", "--once").output
    assert 'rstream_lag_entries{group="g",stream="odd"} 1.0' in metrics
    assert 'rstream_lag_seconds{group="g",stream="odd"}' not in metrics
    assert 'rstream_lag_seconds{group="all",stream="odd"} 0.0' in metrics
    shown = rstream(server, "show", "odd")
    assert f"{odd}-1" in shown.output
    assert "ago" not in shown.output
    snapshot = fetch_group(connection, "odd", "g")
    assert "are not times" in possible_reader(connection, snapshot, 600_000, NOW)


def test_a_late_group_comes_before_one_that_cannot_be_checked(server: Server, client: redis.Redis) -> None:
    client.xadd("odd", {"n": 1}, id=f"{NOW * 1000}-1")
    client.xadd("late", {"n": 1}, id=f"{time.time_ns() // 1_000_000 - 60_000}-1")
    for stream in ("odd", "late"):
        client.xgroup_create(stream, "g", id="0")
    said = rstream(server, "lag", "--max-seconds", "5")
    assert said.exit_code == 3
    assert said.output.startswith("behind: g of late is 1 entry, 1 m ")
    assert rstream(server, "lag", "--max-seconds", "5", "odd").exit_code == 4
    assert rstream(server, "lag", "--max-seconds", "500").exit_code == 4
    client.delete("odd")
    assert rstream(server, "lag", "--max-seconds", "500").exit_code == 0


def test_an_unknown_age_is_not_shown_as_a_good_one(server: Server, client: redis.Redis, connection: Connection) -> None:
    """`rstream top` paints it neither green nor red."""
    from spark_streams.operations.monitor.board import _colour

    client.xadd("odd", {"n": 1}, id="1-1")
    client.xgroup_create("odd", "g", id="0")
    (group,) = survey(connection, ["odd"]).groups
    assert (duration(group.lag_ms), _colour(group)) == ("?", "")


# Counts that are impossible


@pytest.mark.parametrize(
    ("position", "lag", "known"),
    [
        *((5, None, None), (5, -3, None), (5, 0, None), (5, 1, 1), (5, 9, 9), (5, 10, None), (5, 11, None)),
        *((0, None, 10), (0, 3, 10), (10, 7, 0), (12, None, 0)),
    ],
)
def test_the_position_of_a_group_contradicts_its_counts(position: int, lag: int | None, known: int | None) -> None:
    """Of ten entries from 1-0 to 10-0: the first one is delivered, the last one is not, or none, or all."""
    info = GroupInfo(b"g", 0, 0, StreamId(position, 0), None, lag)
    assert lag_of(info, 10, StreamId(1, 0), StreamId(10, 0)) == known
    assert lag_of(info, 0, None, StreamId(0, 0)) == 0


@pytest.mark.parametrize("read", [3, 9, 10])
@pytest.mark.parametrize("trimmed", [0, 2])
def test_a_count_of_an_append_only_file_of_redis_7_0_is_nowhere_believed(
    server: Server, client: redis.Redis, connection: Connection, read: int, trimmed: int
) -> None:
    """After a restart, a group that was created with ENTRIESREAD 0 has this count again, at its later position."""
    _five_of_ten(client)
    client.execute_command("XGROUP", "SETID", "s", "g", f"{NOW - 10_000 + read - 1}-0", "ENTRIESREAD", "0")
    if trimmed:
        client.xtrim("s", minid=f"{NOW - 10_000 + trimmed}-0", approximate=False)
    left = 10 - read
    [group] = survey(connection, ["s"]).groups
    assert (group.lag, group.delivered) == (left, None)
    [behind] = json.loads(rstream(server, "lag", "--json").output)
    assert behind["lag"] == left
    assert rstream(server, "lag", "--max", str(left)).exit_code == 0
    metrics = rstream(server, "exporter", "--once").output
    assert f'rstream_lag_entries{{group="g",stream="s"}} {left}.0' in metrics
    deleted = json.loads(rstream(server, "groups", "delete", "s", "--group", "g", "--even-active", "--json").output)
    assert deleted["streams"][0]["lag"] == left
    trims = json.loads(rstream(server, "trim", "s", "--acked", "--json").output)
    assert trims["streams"][0]["acknowledged"] == read - trimmed
    [view] = view_streams(connection, ["s"])
    assert view.groups[0].lag in ({left} if read == 10 else {None})
    waited = fetch_undelivered(connection, "s", "g", 8)
    assert waited.entries == left


def _five_of_ten(client: redis.Redis, *counts: Any) -> None:
    """Ten entries, of which the group has read five; then its counts are set wrong."""
    for n in range(10):
        client.xadd("s", {"n": n}, id=f"{NOW - 10_000 + n}-0")
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "ann", {"s": ">"}, count=5)
    client.xack("s", "g", *[f"{NOW - 10_000 + n}-0" for n in range(5)])
    position = f"{NOW - 10_000 + 4}-0"
    for command in counts:
        client.execute_command(*[position if word == "position" else word for word in command])


LAST = f"{NOW - 10_000 + 9}-0"
WRONG = {
    "entries read too high": [("XGROUP", "SETID", "s", "g", "position", "ENTRIESREAD", 500)],
    "entries read are all": [("XGROUP", "SETID", "s", "g", "position", "ENTRIESREAD", 10)],
    "entries read unknown": [("XGROUP", "SETID", "s", "g", "position", "ENTRIESREAD", -1)],
    "entries added too low": [
        ("XSETID", "s", LAST, "ENTRIESADDED", 1_000),
        ("XGROUP", "SETID", "s", "g", "position", "ENTRIESREAD", 995),
        ("XSETID", "s", LAST, "ENTRIESADDED", 10),
    ],
    "entries added too high": [("XSETID", "s", LAST, "ENTRIESADDED", 1_000)],
}


@pytest.mark.parametrize("counts", WRONG.values(), ids=WRONG)
def test_a_lag_that_is_impossible_is_counted(
    server: Server, client: redis.Redis, connection: Connection, counts: list[tuple[Any, ...]]
) -> None:
    """Five entries are undelivered, whatever the server's counts make of it."""
    _five_of_ten(client, *counts)
    (group,) = survey(connection, ["s"]).groups
    assert (group.lag, group.at_least) == (5, False)
    assert json.loads(rstream(server, "lag", "--json").output)[0]["lag"] == 5
    assert rstream(server, "lag", "--max", "4").exit_code == 3
    assert rstream(server, "lag", "--max", "5").exit_code == 0
    assert 'rstream_lag_entries{group="g",stream="s"} 5.0' in rstream(server, "exporter", "--once").output
    (view,) = view_streams(connection, ["s"])
    assert view.groups[0].lag in (None, 5)
    listed = json.loads(rstream(server, "groups", "list", "--json").output)
    assert listed[0]["lag"] in (None, 5)
    said = rstream(server, "groups", "delete", "s", "--group", "g", "--even-active").output
    assert "-4" not in said
    assert "-9" not in said


@pytest.mark.parametrize("counts", WRONG.values(), ids=WRONG)
def test_a_group_that_has_read_all_has_no_lag(
    client: redis.Redis, connection: Connection, counts: list[tuple[Any, ...]]
) -> None:
    _five_of_ten(client, *counts)
    client.xreadgroup("g", "ann", {"s": ">"})
    (group,) = survey(connection, ["s"]).groups
    assert group.lag == 0
    (view,) = view_streams(connection, ["s"])
    assert view.groups[0].lag == 0


def test_a_trimmed_stream_keeps_its_lag(client: redis.Redis, connection: Connection) -> None:
    """The group stands below the first entry: the server also counts entries that nobody can read."""
    for n in range(10):
        client.xadd("s", {"n": n})
    client.xgroup_create("s", "g", id="0")
    client.xtrim("s", maxlen=4, approximate=False)
    (group,) = survey(connection, ["s"]).groups
    assert group.lag == 4
