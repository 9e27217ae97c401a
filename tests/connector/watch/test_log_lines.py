"""A log that other programs and strangers have written into: its good lines are read, and memory stays bounded."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from spark_streams.connector.watch.log_lines import LONGEST, read_lines

GROUP = {
    **{"stream": "orders", "group": "g", "consumer": "spark", "entries": 5, "position": "1-1", "lost": 0, "claimed": 0},
    **{"dead": 0, "bad": {"n": 2}, "lag": None, "lag_ms": 850, "pending": 5, "oldest_idle_ms": 64},
}
GOOD = {
    **{"at": "2026-11-20T08:37:31.814Z", "event": "progress", "query": "billing", "id": "i", "run": "r", "batch": 7},
    **{"began": "2026-11-20T08:37:31.181Z", "batch_ms": 633, "rows": 50, "rows_per_second": 79.5, "groups": [GROUP]},
}
BEGIN = '{"at": "2026-11-20T08:37:31.814Z", "event": "progress", "query": "q", "run": "r"'


def line(**other: Any) -> str:
    return json.dumps({**GOOD, **other})


@pytest.mark.parametrize(
    "odd",
    [
        BEGIN + ', "groups": ' + "[" * 100_000 + "]" * 100_000 + "}",
        BEGIN + ', "groups": ' + "[" * 100_000,
        BEGIN + ', "rows": ' + "9" * 5_000 + "}",
        BEGIN + "}",
        "WARN bad value " + line(batch=9),
        "\r" + line(batch=9),
        " " + line(batch=9),
        line(batch=9) + line(batch=9),
        line(query="x" * (LONGEST + 1)),
        "y" * (3 * LONGEST),
        '{"at": 1, "event": ["x"]}',
        *(line(rows=rows) for rows in (float("nan"), float("inf"), 10**400, "x", None, True, [])),
        *(line(**{name: None}) for name in ("at", "event", "query", "run", "batch_ms", "rows_per_second", "groups")),
        *(line(groups=groups) for groups in ({"a": 1}, [5], ["x"], [{}], [{**GROUP, "bad": {"n": "x"}}])),
        *(line(groups=[{**GROUP, name: []}]) for name in GROUP if name not in ("consumer", "entries")),
        *(line(at=at) for at in ("99999-99-99T00:00:00Z", "", "x")),
        line(event="terminated", error=5, message="x"),
        line(event="terminated", error="x"),
    ],
)
def test_a_line_that_lacks_a_value_is_skipped(odd: str) -> None:
    lines = list(read_lines(io.StringIO(f"{line()}\n{odd}\n{line(batch=8)}\n{odd}")))
    assert [value["batch"] for value in lines] == [7, 8]
