"""What the page Queries has of the lines of logs."""

from __future__ import annotations

from typing import Any

from spark_streams.connector.counters import BAD, DEAD, LOST
from spark_streams.operations.console.query_logs import QueryLogs


def line(at: str, event: str = "progress", **more: Any) -> dict[str, Any]:
    """A line of the listener."""
    group = {"stream": "s", "group": "g", "consumer": "c", "position": "5-0", "lag": 7, "lag_ms": 80, "pending": 9}
    group |= {"oldest_idle_ms": 11, "entries": 5, "lost": 0, "claimed": 0, "dead": 0}
    group |= {name: more.pop(name) for name in list(more) if name in group or name == "bad"}
    told = {"batch": 1, "batch_ms": 250, "rows": 5, "rows_per_second": 20.0, "groups": [group]}
    shown = told if event == "progress" else {}
    return {"at": f"2026-01-01T{at}.000Z", "event": event, "query": "q", "id": "q", "run": "r", **shown, **more}


def test_counts_add_up_over_the_runs_of_a_query() -> None:
    """A line has the counts of its run so far, so the last one of each run and group counts."""
    logs = QueryLogs()
    for one in (
        line("10:00:00", dead=1), line("10:00:01", dead=3, lag=None), line("10:00:02", dead=2, run="later", lost=4),
        line("10:00:03", bad={"n": 2, "m": 1}, dead=2, run="later", lost=4),
        line("10:00:04", stream="other", dead=100, batch_ms=900),
    ):  # fmt: skip
        logs.add(one)
    [query] = logs.queries
    assert (query.batches, query.rows, query.longest_ms) == (5, 25, 900)
    assert [query.counts[one] for one in (DEAD, LOST, BAD)] == [105, 4, 3]
    lag, behind, speed, took = logs.charts()
    assert {one.name: [value for _, value in one.points] for one in lag.lines} == {
        "g of s": [7, None, 7, 7], "g of other": [7]
    }  # fmt: skip
    assert [value for _, value in took.lines[0].points] == [250, 250, 250, 250, 900]
    assert (behind.unit, speed.unit, logs.ended - logs.began) == ("ms", "per second", 4000)


def test_failed_runs_are_shown_in_order_of_time() -> None:
    logs = QueryLogs()
    assert (logs.queries, logs.failures, logs.ended) == ([], [], 0)
    for at in ("10:00:09", "10:00:05"):
        logs.add(line(at, "terminated", error="RSTREAM_DECODE", message=f"at {at}"))
    logs.add(line("10:00:10", "terminated"))
    assert [failure.message for failure in logs.failures] == ["at 10:00:05", "at 10:00:09"]
    assert len(logs.queries[0].failures) == 2
