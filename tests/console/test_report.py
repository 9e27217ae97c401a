"""Charts and tables of the console, from lines of a log."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

from spark_streams.console.report.builders import LogReading
from spark_streams.console.report.report import (
    LINES,
    Chart,
    Line,
)
from spark_streams.console.report.series import Series, thinned
from spark_streams.console.report.svg import draw, time_ticks, value_ticks
from spark_streams.model.counters import BAD, DEAD, LOST
from tests.monitor.test_cli import orders, rstream, state  # noqa: F401 - a fixture


class Words(HTMLParser):
    """The text of a page, and whether every element that was opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and "style" not in self.open:
            self.words.append(data.strip())


def line(at: str, query: str = "q", event: str = "progress", **more: Any) -> dict[str, Any]:
    """A line of the listener."""
    group = {"stream": "s", "group": "g", "consumer": "c", "position": "5-0", "lag": 7, "lag_ms": 80, "pending": 9}
    group |= {"oldest_idle_ms": 11, "entries": 5, "lost": 0, "claimed": 0, "dead": 0}
    group |= {name: more.pop(name) for name in list(more) if name in group or name == "bad"}
    told = {"batch": 1, "batch_ms": 250, "rows": 5, "rows_per_second": 20.0} if event == "progress" else {}
    groups = {"groups": [group]} if event in ("progress", "idle") else {}
    return {
        "at": f"2026-01-01T{at}.000Z",
        "event": event,
        "query": query,
        "id": query,
        "run": "r",
        **told,
        **groups,
        **more,
    }


def test_a_log_adds_up_over_runs_and_keeps_to_what_was_asked_for() -> None:
    reading = LogReading(["s"])
    for one in (
        line("10:00:00", dead=1), line("10:00:01", dead=3, lag=None), line("10:00:02", dead=2, run="later", lost=4),
        line("10:00:03", bad={"n": 2, "m": 1}, dead=2, run="later", lost=4),
        line("10:00:03", stream="other", dead=100, bad={"n": 100}),
    ):  # fmt: skip
        reading.add(one)
    report = reading.report("log")
    assert report.queries is not None
    [query] = report.queries
    assert (query.batches, query.rows, *(query.counts[one] for one in (DEAD, LOST, BAD))) == (5, 25, 5, 4, 3)
    lag, *_ = report.charts
    assert [value for _, value in lag.lines[0].points] == [7, None, 7, 7]
    assert [one.stream for one in report.groups] == ["s"]


def test_each_chart_draws_the_highest_of_its_own_lines() -> None:
    reading = LogReading()
    for at in range(20):
        reading.add(line("10:00:00", group=f"g{at}", lag=at, lag_ms=1000 - at))
    lag, behind, *_ = reading.report("log").charts
    assert [one.name for one in lag.lines] == [f"g{19 - at} of s" for at in range(LINES)]
    assert [one.name for one in behind.lines] == [f"g{at} of s" for at in range(LINES)]
    assert lag.left_out == behind.left_out == 20 - LINES


def test_a_group_has_the_same_colour_in_both_charts() -> None:
    reading = LogReading()
    for at in range(20):
        reading.add(line("10:00:00", group=f"g{at}", lag=at, lag_ms=2000 + at if at > 16 else 1000 - at))
    lag, behind, *_ = reading.report("log").charts
    for chart in (lag, behind):
        assert sorted(one.colour for one in chart.lines) == list(range(LINES))
    of_lag, of_behind = ({one.name: one.colour for one in chart.lines} for chart in (lag, behind))
    both = of_lag.keys() & of_behind.keys()
    assert both == {"g17 of s", "g18 of s", "g19 of s"}
    assert all(of_lag[name] == of_behind[name] for name in both)


def test_a_chart_is_well_formed_and_breaks_where_nothing_is_known() -> None:
    points = ((0, 1.0), (1000, None), (2000, 3.0), (3000, 2.0))
    drawn = draw(Chart("Lag <of> it", "entries", (Line("a & b", points),), 3), 0, 3000)
    root = ElementTree.fromstring(f"<div>{drawn}</div>")
    [path] = root.iter("path")
    assert path.attrib["d"].count("M") == 2
    assert len(list(root.iter("circle"))) == 3
    assert "and 3 more, none of them higher" in "".join(root.itertext())
    assert "no data" in draw(Chart("Lag", "entries", (Line("a", ((0, None),)),)), 0, 1)


def drawn_height(path: str) -> float:
    """How much of the chart's height a line takes."""
    heights = [float(one) for one in re.findall(r"[ML][\d.]+ ([\d.]+)", path)]
    return max(heights) - min(heights)


@pytest.mark.parametrize("unit", ["entries", "ms"])
def test_one_old_group_does_not_flatten_the_others(unit: str) -> None:
    """Each has a scale of its own then, over the same time axis."""
    old = Line("old of s", tuple((at * 1000, 5_000_000.0 + 100 * at) for at in range(60)), 0)
    live = Line("live of s", tuple((at * 1000, float(at % 20 * 100)) for at in range(60)), 1)
    idle = Line("idle of s", tuple((at * 1000, 0.0) for at in range(60)), 2)
    root = ElementTree.fromstring(f"<div>{draw(Chart('Lag', unit, (old, live, idle), 4), 0, 59_000)}</div>")
    paths = {group.attrib["class"]: path.attrib["d"] for group in root.iter("g") for path in group.iter("path")}
    assert drawn_height(paths["c1"]) > 50
    words = [" ".join("".join(text.itertext()).split()) for text in root.iter("text")]
    heads = ["old of s 5,005,900", "live of s 1,900", "idle of s 0"]
    if unit == "entries":
        assert [word for word in words if " of s " in word] == heads
        assert [word for word in words if word in ("0", "500k", "1k", "2k", "5M", "10M")] == [
            "0", "5M", "10M", "0", "1k", "2k", "0",
        ]  # fmt: skip
    legend = "".join(next(root.iter("ul")).itertext())
    assert "each on a scale of its own" in legend
    assert "and 4 more, none of them higher" in legend
    [svg] = root.iter("svg")
    height = float(svg.attrib["viewBox"].split()[3])
    assert all(0 < float(y) <= height for y in re.findall(r' y\d?="([\d.]+)"', ElementTree.tostring(svg).decode()))


def test_lines_of_like_size_share_a_scale_and_so_do_those_that_are_held_against_each_other() -> None:
    small, large = (Line(name, ((0, peak), (1000, peak))) for name, peak in (("a", 10.0), ("b", 150.0)))
    huge = Line("c", ((0, 1e6), (1000, 1e6)))
    for chart in (Chart("Lag", "entries", (large, small)), Chart("Throughput", "per second", (huge, small), 0, True)):
        drawn = str(draw(chart, 0, 1000))
        assert "scale of its own" not in drawn
        assert drawn.count('class="grid"') <= 6
    reading = LogReading()
    for at, lag in enumerate((5_000_000, 5_000_010)):
        reading.add(line(f"10:00:0{at}", group="old", lag=lag))
        reading.add(line(f"10:00:0{at}", group="live", lag=20 * at))
    lag, *_ = reading.report("log").charts
    assert "each on a scale of its own" in str(draw(lag, 0, 1000))


@pytest.mark.parametrize(
    ("top", "unit", "ticks"),
    [
        (0, "entries", [0, 1]),
        (7, "entries", [0, 2, 4, 6, 8]),
        (98_000, "entries", [0, 25_000, 50_000, 75_000, 100_000]),
        (400, "ms", [0, 100, 200, 300, 400]),
        (150_000, "ms", [0, 60_000, 120_000, 180_000]),
    ],
)
def test_axes_have_round_steps_and_reach_the_top(top: float, unit: str, ticks: list[float]) -> None:
    assert value_ticks(top, unit) == ticks


@pytest.mark.parametrize("seconds", [0, 1, 59, 3_600, 86_400, 40 * 86_400])
def test_the_time_axis_has_a_few_round_moments(seconds: int) -> None:
    began = 1_795_165_551_742
    ticks = time_ticks(began, began + 1000 * seconds)
    assert len(ticks) <= 8
    assert all(began <= at <= began + 1000 * seconds for at, _ in ticks)
    assert seconds < 59 or len(ticks) >= 2


def test_thinning_keeps_peaks_and_order() -> None:
    points = [(at, float(at % 10)) for at in range(10_000)]
    points[5_003] = (5_003, 999.0)
    kept = thinned(points, 300)
    assert len(kept) <= 301
    assert (5_003, 999.0) in kept
    assert kept == sorted(kept)


def test_a_line_stays_small_however_long_one_looks() -> None:
    series = Series()
    for at in range(20_000):
        series.add("a", at, 1e6 if at == 4_321 else float(at % 7))
    series.gap(20_000, unbroken={"b"})
    series.gap(20_001, unbroken={"b"})
    assert len(series["a"]) <= 1_201
    assert (4_321, 1e6) in series["a"]
    assert series["a"][-1] == (20_000, None)
    assert series["b"] == []
