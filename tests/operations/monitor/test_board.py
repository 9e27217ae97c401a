"""Rates, numbers for people, and the board of `rstream top`."""

from __future__ import annotations

import io
import json

import pytest
import redis
from rich.console import Console

from spark_streams.base.units import count, duration, rate, short, sparkline
from spark_streams.connector.lag.survey import ConsumerLag, GroupLag, StreamSummary, Survey
from spark_streams.operations.commands.read.monitor import ServerWatch
from spark_streams.operations.monitor.board import Board, Title, shorten, widths
from spark_streams.operations.monitor.rates import Rates, SurveyHistory, rates_between
from tests.operations.monitor.test_cli import orders, rstream, state  # noqa: F401 - a fixture
from tools.servers.server import Server


def seen(seconds: float, added: int | None, delivered: int | None, lag: int, pending: int = 0) -> Survey:
    """A look at group g of stream s."""
    consumers = (ConsumerLag("c", pending, 5, 900 if pending else None),)
    group = GroupLag("s", "g", lag, False, lag * 1000, pending, None, "1-0", delivered, consumers)
    return Survey(round(seconds * 1000), (StreamSummary("s", 9, added, "1-0"),), (group,))


def test_rates_are_what_moved_per_second() -> None:
    rates = rates_between(seen(0, 100, 50, 50, 20), seen(2, 160, 90, 70, 10))
    assert rates["s", "g"] == Rates(30.0, 20.0, 25.0)
    assert rates["s", "g"].growth == 10.0


def test_what_a_group_was_given_follows_from_its_lag_where_it_is_not_counted() -> None:
    assert rates_between(seen(0, 100, None, 50), seen(1, 160, None, 70))["s", "g"] == Rates(60.0, 40.0, 40.0)


@pytest.mark.parametrize(
    "before",
    [seen(0, None, None, 5), seen(0, 300, 300, 5), Survey(0, (), ()), seen(1, 100, 50, 5)],
    ids=["an old server", "made anew", "not there", "no time between"],
)
def test_rates_that_cannot_be_known_are_not_invented(before: Survey) -> None:
    assert rates_between(before, seen(1, None if before.streams and before.streams[0].added is None else 200, 60, 5))[
        "s", "g"
    ] == Rates(None, None, None)


def test_a_history_keeps_the_last_looks_and_averages_over_a_few() -> None:
    history = SurveyHistory(size=4, window=2)
    for second, added in enumerate([0, 10, 40, 100, 200]):
        history.add(seen(second, added, added, added))
    assert history.rates()["s", "g"].added == 80.0
    assert history.lags([("s", "g"), ("t", "g")]) == {("s", "g"): [10, 40, 100, 200], ("t", "g"): [None] * 4}


def test_numbers_for_people() -> None:
    ages = [None, 0, 999, 59_949, 59_960, 3_599_600, 86_399_600, 200_000_000]
    assert [duration(ms) for ms in ages] == [
        "?", "0 ms", "999 ms", "59.9 s", "1 m 00 s", "1 h 00 m", "1 d 0 h", "2 d 7 h",
    ]  # fmt: skip
    assert [rate(value) for value in (None, 0, 7.54, 12345.6)] == ["?", "0", "7.5", "12,346"]
    assert [count(None), count(1234), count(10_000, True)] == ["?", "1,234", "10,000+"]
    assert [short(value) for value in (0, 950, 12_000, 1_500_000)] == ["0", "950", "12k", "1.5M"]
    assert sparkline([0, 1, None, 8], 6) == "  ▁▁ █"
    assert sparkline([], 3) == "   "


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_a_narrow_board_loses_columns_and_no_digits(width: int) -> None:
    history = SurveyHistory()
    for second in range(5):
        history.add(seen(second, 1000 * second, 500 * second, 12_345_678, 7))
    console = Console(width=width, height=24, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(Board(Title("redis://h", "Redis 7", 1000), history))
    text = console.export_text()
    assert "12,345,678" in text
    assert max(map(len, text.splitlines())) <= width
    assert ("lag over time" in text) == (width >= 112)
    assert ("added/s" in text) == (width >= 68)
    assert "lag grows by 500/s" in text or width < 70


LONG = "company.payments.settlement.transactions.europe.v3"


def shown(board: Board, width: int, height: int = 24) -> str:
    """The board on a screen of this size."""
    console = Console(width=width, height=height, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(board)
    return console.export_text()


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
def test_long_names_give_way_to_numbers_and_keep_both_ends(width: int) -> None:
    history = SurveyHistory()
    consumers = (ConsumerLag("executor-17.internal.example.com-4242", 12, 120, 864_000_000),)
    for second in range(3):
        groups = tuple(
            GroupLag(
                f"{LONG}{end}", "spark-etl-settlement-enrichment-production", 5_123_456 + 100 * second, False,
                864_000_000, 12, 864_000_000, "1-0", 0, consumers,
            )
            for end in "ab"
        )  # fmt: skip
        history.add(Survey(1000 * second, tuple(StreamSummary(f"{LONG}{end}", 9, 0, "1-0") for end in "ab"), groups))
    text = shown(Board(Title(f"redis://{LONG}.example.com:6379/0", "Redis 7.2.4", 1000), history), width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("rstream top   00:00:02 UTC   every 1 s   Redis 7.2.4")
    table = [line for line in lines if line.startswith("comp")]
    assert len(table) == 4
    for row, end in zip(table[:2], "ab", strict=True):
        assert row.split()[0].endswith(f"v3{end}")
        assert "5,123,656" in row
        assert "10 d 0 h" in row
    assert all(row.endswith("120 ms ago") for row in table[2:])
    [behind] = [line for line in lines if line.startswith("furthest behind: ")]
    assert ("10 d 0 h, lag is constant" in behind) == (width >= 80)


@pytest.mark.parametrize(
    ("names", "room", "given"),
    [
        ([("orders", "etl")], 40, [6, 6]),
        ([("o" * 50, "etl")], 40, [34, 6]),
        ([("o" * 50, "g" * 50)], 40, [20, 20]),
        ([("o" * 50, "g" * 50)], 5, [6, 6]),
        ([("o" * 10, "g" * 50), ("o" * 12, "g")], 40, [12, 28]),
    ],
)
def test_narrow_columns_stay_and_wide_ones_share_what_is_left(
    names: list[tuple[str, str]], room: int, given: list[int]
) -> None:
    assert widths(names, ("stream", "group"), room) == given


def test_a_long_name_keeps_both_ends() -> None:
    assert [shorten("abcdefghij", width) for width in (10, 7, 6, 2, 1)] == [
        "abcdefghij", "abc…hij", "abc…ij", "a…", "…",
    ]  # fmt: skip


def test_an_outage_is_shown_within_the_screen_and_that_the_numbers_are_old() -> None:
    history = SurveyHistory()
    groups = tuple(GroupLag(f"s{at}", "g", 9, False, at, 1, 0, "1-0", 0, ()) for at in range(50))
    history.add(Survey(0, (), groups))
    trouble = f"no stream server answers at redis://{LONG}:6379/0: Error 111 connecting; trying again"
    text = shown(Board(Title("redis://h", "Redis 7", 1000, trouble), history), 60, 20)
    assert len(text.splitlines()) <= 20
    assert "showing the state at 00:00:00 UTC" in " ".join(text.split())
    assert "more groups" in text


def test_groups_with_active_consumers_are_first_on_the_board() -> None:
    day = 86_400_000
    groups = [
        GroupLag(
            "s",
            name,
            lag,
            False,
            lag * 1000,
            0,
            None,
            "1-0",
            0,
            (ConsumerLag("c", 0, idle_ms=idle),) if idle else (),
        )
        for name, lag, idle in (("left", 900, 3 * day), ("read", 5, 10), ("never", 800, 0), ("done", 0, 20))
    ]
    history = SurveyHistory()
    history.add(Survey(1000, (StreamSummary("s", 900, 900, "1-0"),), tuple(groups)))
    console = Console(width=120, height=40, record=True, file=io.StringIO())
    console.print(Board(Title("here", "Redis 8", 1000), history))
    lines = console.export_text().splitlines()
    table = [line.split()[1] for line in lines if line.startswith("s ")]
    assert table[:4] == ["read", "done", "left", "never"]
    assert any(line.startswith("furthest behind: read of s") for line in lines)


def test_without_groups_the_board_shows_the_streams() -> None:
    history = SurveyHistory()
    history.add(Survey(0, (), ()))
    assert "the server holds no streams" in shown(Board(Title("redis://h", "Redis 7", 1000), history), 80)
    history.add(Survey(1, (StreamSummary("s", 1, 1, "1-0"),), ()))
    text = shown(Board(Title("redis://h", "Redis 7", 1000), history), 80)
    assert "no consumer group reads from these streams" in text
    assert "?" not in text
    text = shown(Board(Title("redis://h", "Redis 7", 1000, group="billing"), history), 80)
    assert "no consumer group 'billing' reads from these streams" in text


@pytest.mark.parametrize("number", [1, 3, 5, 6, 7, 100])
def test_a_board_is_no_higher_than_its_screen_and_names_cannot_draw_on_it(number: int) -> None:
    history = SurveyHistory()
    groups = tuple(
        GroupLag(f"s{at}\x1b[2J[red]", "g", at, False, at, 1, 0, "1-0", 0, (ConsumerLag("c", 1, 1, 1),))
        for at in range(number)
    )
    history.add(Survey(0, (), groups))
    console = Console(width=120, height=20, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(Board(Title("redis://h", "Redis 7", 1000), history))
    text = console.export_text()
    assert len(text.splitlines()) <= 20
    assert f"s{number - 1}\\x1b[2J[red]" in text
    assert "\x1b" not in text
    assert ("more group" in text or "more consumer" in text) == (number > 5)


def test_one_board_and_lines_of_json_change_nothing(
    server: Server,
    client: redis.Redis,
    orders: list[str],  # noqa: F811
) -> None:
    before = state(client)
    board = rstream(server, "top", "--every", "20ms", "--once").output
    assert "furthest behind: " in board
    assert "billing" in board
    assert "ann" in board
    lines = rstream(server, "top", "orders", "--group", "audit", "--every", "20ms", "--for", "1s", "--json").output
    looks = [json.loads(line) for line in lines.splitlines()]
    assert len(looks) >= 2
    assert [(one["group"], one["lag"], one["added_per_s"]) for one in looks[-1]["groups"]] == [("audit", 10, 0.0)]
    assert state(client) == before
    assert "no consumer group" in rstream(server, "top", "--every", "20ms", "--group", "nobody").output


def test_an_outage_is_shown_and_its_end(server: Server, client: redis.Redis) -> None:
    client.xadd("s", {"n": 1})
    client.xgroup_create("s", "g", id="0")
    watch = ServerWatch(server.url, (), None, 1000)
    watch.refresh()
    for one in client.client_list():
        if int(one["id"]) != client.client_id():
            client.client_kill_filter(_id=one["id"])
    watch.refresh()
    assert "trying again" in watch.title.trouble
    client.xadd("s", {"n": 2})
    watch.refresh()
    assert watch.title.trouble == ""
    assert watch.history.last.groups[0].lag == 2
