"""Charts of the console: which lines are drawn, where, and what the page has of them."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from spark_streams.operations.console.charts import (
    LINES,
    Chart,
    ChartLine,
    charts_of,
    drawing,
    lag_charts,
    sparkline,
    thinned,
    time_ticks,
    value_ticks,
)
from spark_streams.operations.console.site import environment

LINES_OF_CHART = '{% from "charts.html" import lines %}<div>{{ lines(chart, drawing(chart, began, ended)) }}</div>'


def drawn(chart: Chart, began: int, ended: int) -> ElementTree.Element:
    """The chart as the page has it; well-formed."""
    return ElementTree.fromstring(
        environment().from_string(LINES_OF_CHART).render(chart=chart, began=began, ended=ended)
    )


def text_of(element: ElementTree.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def test_each_chart_draws_the_highest_of_its_own_lines() -> None:
    lag, behind = lag_charts({("s", f"g{at}"): [(0, at, 1000 - at)] for at in range(20)})
    assert [one.name for one in lag.lines] == [f"g{19 - at} of s" for at in range(LINES)]
    assert [one.name for one in behind.lines] == [f"g{at} of s" for at in range(LINES)]
    assert lag.left_out == behind.left_out == 20 - LINES


def test_a_group_has_the_same_colour_in_both_charts() -> None:
    lag, behind = lag_charts({("s", f"g{at}"): [(0, at, 2000 + at if at > 16 else 1000 - at)] for at in range(20)})
    for chart in (lag, behind):
        assert sorted(one.colour for one in chart.lines) == list(range(LINES))
    of_lag, of_behind = ({one.name: one.colour for one in chart.lines} for chart in (lag, behind))
    both = of_lag.keys() & of_behind.keys()
    assert both == {"g17 of s", "g18 of s", "g19 of s"}
    assert all(of_lag[name] == of_behind[name] for name in both)


def test_points_of_several_logs_are_drawn_in_order_of_time() -> None:
    [chart] = charts_of(("Batch time", "ms", {"a": [(2000, 1.0), (0, None), (1000, 3.0)]}))
    assert chart.lines[0].points == [(0, None), (1000, 3.0), (2000, 1.0)]


def test_a_chart_is_well_formed_and_breaks_where_nothing_is_known() -> None:
    points = ((0, 1.0), (1000, None), (2000, 3.0), (3000, 2.0))
    root = drawn(Chart("Lag <of> it", "entries", (ChartLine("a & b", points),), 3), 0, 3000)
    [path] = root.iter("path")
    assert path.attrib["d"] == "M0.00 66.67 M66.67 0.00 L100.00 33.33"
    assert [(dot.attrib["cx"], dot.attrib["cy"]) for dot in root.iter("circle")] == [
        ("0.0%", "66.67%"), ("66.67%", "0.0%"), ("100.0%", "33.33%")
    ]  # fmt: skip
    assert [text_of(title) for title in root.iter("title")][1] == "a & b: 3 at 00:00:02 UTC"
    assert "and 3 more, none of them higher" in text_of(root)
    assert text_of(drawn(Chart("Lag", "entries", (ChartLine("a", ((0, None),)),)), 0, 1)) == "no data"


@pytest.mark.parametrize("unit", ["entries", "ms"])
def test_one_old_group_does_not_flatten_the_others(unit: str) -> None:
    """Each has a scale of its own then, over the same time axis, which is drawn once."""
    old = ChartLine("old of s", tuple((at * 1000, 5_000_000.0 + 100 * at) for at in range(60)), 0)
    live = ChartLine("live of s", tuple((at * 1000, float(at % 20 * 100)) for at in range(60)), 1)
    idle = ChartLine("idle of s", tuple((at * 1000, 0.0) for at in range(60)), 2)
    chart = Chart("Lag", unit, (old, live, idle), 4)
    panels = drawing(chart, 0, 59_000).panels
    assert [[line.name for line in panel.lines] for panel in panels] == [["old of s"], ["live of s"], ["idle of s"]]
    heights = [dot.y for dot in panels[1].lines[0].dots]
    assert max(heights) - min(heights) > 90
    root = drawn(chart, 0, 59_000)
    if unit == "entries":
        heads = [text_of(head) for head in root.iter("p")]
        assert heads == ["old of s 5,005,900", "live of s 1,900", "idle of s 0"]
        labels = [text.text for text in root.iter("text") if text.attrib.get("class") == "y"]
        assert labels == ["0", "5M", "10M", "0", "1k", "2k", "0", "1"]
    [legend] = root.iter("ul")
    assert text_of(legend) == "each on a scale of its own and 4 more, none of them higher"
    assert [group.attrib["class"] for group in root.iter("g")].count("times") == 1


def test_lines_of_like_size_share_a_scale_and_so_do_those_that_are_held_against_each_other() -> None:
    small, large = (ChartLine(name, ((0, peak), (1000, peak))) for name, peak in (("a", 10.0), ("b", 150.0)))
    huge = ChartLine("c", ((0, 1e6), (1000, 1e6)))
    for chart in (Chart("Lag", "entries", (large, small)), Chart("Throughput", "per second", (huge, small), 0, True)):
        [panel] = drawing(chart, 0, 1000).panels
        assert len(panel.values) <= 6
        assert "scale of its own" not in text_of(drawn(chart, 0, 1000))
    assert drawing(Chart("Lag", "entries", (huge, small)), 0, 1000).has_own_scales


def test_a_small_line_goes_from_zero_to_its_maximum_and_a_constant_is_in_the_middle() -> None:
    assert sparkline([0, 5, None, 10]) == "M0.00 100.00 L33.33 50.00 M100.00 0.00"
    assert sparkline([7, 7]) == "M0.00 50.00 L100.00 50.00"
    assert sparkline([0, 0]) == "M0.00 100.00 L100.00 100.00"
    assert sparkline([]) == ""


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
