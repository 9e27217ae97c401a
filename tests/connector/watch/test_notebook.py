"""What `Watch.lag()` and `Watch.queries()` return: tables for notebooks, and as text."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from spark_streams.connector.lag.survey import GroupLag
from spark_streams.connector.watch.listener import Watch
from spark_streams.connector.watch.notebook import NotebookTable, lag_table, query_table
from spark_streams.connector.watch.progress import WatchedQuery
from spark_streams.connector.wire.address import Address
from tests.connector.watch.test_progress import offset, progress
from tools.servers.server import Server


def group_lag(stream: str, lag: int = 0, **more: Any) -> GroupLag:
    """A group g of this stream."""
    plain: dict[str, Any] = {"at_least": False, "lag_ms": 1500, "pending": 2, "oldest_idle_ms": None}
    return GroupLag(stream, "g", lag, last_delivered="1-0", delivered=1, **(plain | more))


def test_lag_as_text_and_as_html() -> None:
    table = lag_table(
        [group_lag("s", 12_345, oldest_idle_ms=70_000), group_lag("a", 10_000, at_least=True, lag_ms=None)]
    )
    assert repr(table).splitlines() == [
        "Lag",
        "stream  group      lag  behind  pending  oldest pending",
        "a       g      10,000+       ?        2               -",
        "s       g       12,345   1.5 s        2        1 m 10 s",
    ]
    shown = table._repr_html_()
    assert re.findall(r"<td[^>]*>(.*?)</td>", shown)[:3] == ["a", "g", "10,000+"]
    assert re.findall(r"text-align: (\w+)[^>]*>(?:a|10,000\+)</td>", shown) == ["left", "right"]


def test_names_of_others_are_escaped() -> None:
    """A stream's name is written by any client: it runs no script and changes no text around it."""
    shown = lag_table([group_lag('<script>alert("x")</script>\x1b[31m\u202e&')])._repr_html_()
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;" in shown
    assert "&amp;" in shown
    assert not {"\x1b", "\u202e"} & set(shown)
    assert set(re.findall(r"</?(\w+)", shown)) == {"table", "caption", "thead", "tbody", "tr", "th", "td"}


def test_a_table_has_no_colours_of_its_own() -> None:
    """It is readable in a light and in a dark theme."""
    shown = NotebookTable("t", ("a", "b "), (("1", "2"),))._repr_html_()
    assert set(re.findall(r"(?<![-\w])(?:color|background): ([^;\"]+)", shown)) == {"inherit", "transparent"}
    assert re.findall(r"solid (\w+)", shown) == ["currentColor", "currentColor"]


def test_the_state_of_queries() -> None:
    first, second = WatchedQuery("billing", "q1"), WatchedQuery("audit", "q2")
    first.started("r1")
    first.progressed(progress(lost={"s": 4}, claimed={"s": 2}, dead={"t": 1}, bad={"t": {"n": 6}, "s": {"m": 1}}))
    second.started("r2")
    second.terminated("r2", failed=True)
    assert repr(query_table([first, second])).splitlines() == [
        "Queries",
        "query    state    batches  rows  rows/s  lost  claimed  dead letters  bad values",
        "billing  running        1     3      12     4        2             1           7",
        "audit    failed         0     0       ?     0        0             0           0",
    ]
    first.terminated("r1", failed=False)
    assert query_table([first]).rows[0][1] == "stopped"


def test_a_query_that_was_started_again_after_it_failed_and_then_stopped_has_not_failed() -> None:
    query = WatchedQuery("billing", "q1")
    query.started("r1")
    query.terminated("r1", failed=True)
    query.started("r2")
    assert query_table([query]).rows[0][1] == "running"
    query.terminated("r2", failed=False)
    assert query_table([query]).rows[0][1] == "stopped"


@pytest.fixture
def watch(server: Server) -> Watch:
    """One that no Spark tells of anything."""
    spark: Any = None
    return Watch(spark, Address.parse(server.url), None, limit=600.0)


def test_lag_is_asked_for_when_it_is_shown(watch: Watch, client: redis.Redis) -> None:
    client.xgroup_create("s", "g", "0", mkstream=True)
    assert watch.lag().rows == ()
    ours = {"endOffset": offset(), "latestOffset": json.dumps(offset())}
    told = {"id": "q1", "runId": "r1", "name": "billing", "timestamp": "2026-01-01T00:00:00.000Z", "batchId": 0}
    told |= {"batchDuration": 250, "numInputRows": 3, "processedRowsPerSecond": 12.0, "sources": [ours]}
    event: Any = SimpleNamespace(progress=SimpleNamespace(json=json.dumps(told)))
    watch.onQueryProgress(event)
    assert [row[:3] for row in watch.lag().rows] == [("s", "g", "0")]
    client.xadd("s", {"a": "1"})
    client.xadd("s", {"a": "2"})
    assert [row[:3] for row in watch.lag().rows] == [("s", "g", "2")]
    assert [row[:3] for row in watch.queries().rows] == [("billing", "running", "1")]
