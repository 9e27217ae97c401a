"""alerts.yml and grafana.json: they ask for metrics that there are, and a real Prometheus takes them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import redis
from prometheus_client.core import Metric

from spark_streams.base.ids import StreamId
from spark_streams.connector.source.offset import Range
from spark_streams.connector.watch.latency import Latency
from spark_streams.connector.watch.metrics_page import MetricsPage
from spark_streams.connector.watch.progress import WatchedQuery
from spark_streams.connector.watch.query_metrics import LagCache
from spark_streams.connector.watch.query_metrics import QueryCollector as OfQueries
from spark_streams.connector.wire.address import Address
from spark_streams.operations.monitor.exported_metrics import ExportedMetrics
from spark_streams.operations.monitor.snapshots import SnapshotCache, StreamFilter
from tests.connector.deadletter.making import fill
from tests.operations.monitor.dashboard import CONF, ROOT, board, panels
from tests.operations.monitor.prometheus import Prometheus, needs_prometheus, promtool, running_prometheus
from tests.project.test_docs import anchors
from tools.machine_time import machine_seconds
from tools.servers.server import Server
from tools.waiting import until

ALERTS = CONF / "alerts.yml"
PAGES = "https://github.com/spark-streams/spark-streams/blob/main/docs/"
NOW = 1_800_000_000_000
METRICS = ROOT / "docs" / "reference" / "metrics.md"


class WithLatency:
    """The exporter's metrics, and the latency of a query that commits entries after two seconds."""

    def __init__(self, snapshots: SnapshotCache, lags: LagCache) -> None:
        self._exported, self._query = ExportedMetrics(snapshots), WatchedQuery("etl", "1")
        self._of_queries = OfQueries(lambda: [self._query], lags)

    def collect(self) -> Iterable[Metric]:
        part = Range("orders", StreamId(NOW - 2_500, 0), StreamId(NOW - 1_500, 0), 50)
        self._query.latencies.setdefault(("orders", "g"), Latency()).add(part, {}, NOW)
        yield from self._exported.collect()
        yield from (one for one in self._of_queries.collect() if one.name == "rstream_latency_seconds")


@pytest.fixture
def snapshots(server: Server) -> Iterator[SnapshotCache]:
    made = SnapshotCache(Address.parse(server.url), StreamFilter(), 0.5, 8.0, lambda line: None)
    yield made
    made.close()


def metrics(page: str) -> dict[str, str]:
    """What a page explains: the help of each metric, by the name that its samples have."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", page, re.M))
    helps = re.findall(r"^# HELP (\S+) (.*)$", page, re.M)
    return {name: text for name, text in helps if name in kinds}


def of_queries(server: Server) -> dict[str, str]:
    standings = LagCache(Address.parse(server.url))
    page = MetricsPage(OfQueries(lambda: [WatchedQuery("etl", "1")], standings)).text()
    standings.close()
    return metrics(page)


def named_metrics() -> set[str]:
    """The metrics that rules and panels name."""
    return {
        re.sub("(?<=latency_seconds)_(bucket|count)$", "", name)
        for file in (ALERTS, CONF / "grafana.json")
        for name in re.findall(r"\brstream_\w+", file.read_text(encoding="utf-8"))
    }


def test_only_metrics_that_there_are_are_asked_for(server: Server, snapshots: SnapshotCache) -> None:
    there = metrics(MetricsPage(ExportedMetrics(snapshots)).text()).keys() | of_queries(server).keys()
    assert named_metrics() <= there
    assert len(named_metrics()) > 20


def test_what_both_pages_say_they_say_in_the_same_words(server: Server, snapshots: SnapshotCache) -> None:
    ours, theirs = metrics(MetricsPage(ExportedMetrics(snapshots)).text()), of_queries(server)
    shared = ours.keys() & theirs.keys()
    assert len(shared) == 9
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}


def test_the_docs_have_a_row_for_each_metric(server: Server, snapshots: SnapshotCache) -> None:
    text = METRICS.read_text(encoding="utf-8")
    there = metrics(MetricsPage(ExportedMetrics(snapshots)).text()).keys() | of_queries(server).keys()
    rows = " ".join(line for line in text.splitlines() if line.startswith("| `rstream_"))
    assert {name for name in there if f"`{name}`" not in rows} == set()


def test_each_alert_names_a_heading_that_exists() -> None:
    """What to do."""
    text = ALERTS.read_text(encoding="utf-8")
    links = re.findall(rf"^          runbook_url: {PAGES}([\w/-]+\.md)#([\w-]+)$", text, re.M)
    assert len(links) == text.count("- alert: ") == 18
    wrong = [f"{page}#{anchor}" for page, anchor in links if anchor not in anchors(ROOT / "docs" / page)]
    assert not wrong


def test_the_panels_have_a_place_each_and_a_unit() -> None:
    every = board()["panels"]
    assert len({one["id"] for one in every}) == len(every)
    taken: set[tuple[int, int]] = set()
    for one in every:
        at = one["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, one["title"]
        taken |= cells
    assert all(one.unit and one.queries for one in panels("1m"))


@pytest.mark.in_turn
@needs_prometheus
def test_the_rules_are_rules_and_fire_when_they_should() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(ALERTS))
    tests = Path(__file__).with_name("alerts_test.yml")
    assert "SUCCESS" in promtool("test", "rules", str(tests))
    tested = set(re.findall(r"alertname: (\w+)\n +exp_alerts", tests.read_text(encoding="utf-8")))
    assert tested == set(re.findall(r"- alert: (\w+)", ALERTS.read_text(encoding="utf-8")))


@needs_prometheus
def test_promtool_finds_nothing_wrong_with_the_page(
    server: Server, client: redis.Redis, snapshots: SnapshotCache
) -> None:
    client.xadd('or"ders\n', {"n": 1})
    client.xgroup_create('or"ders\n', "g\\", id="0")
    fill(server, 3)
    assert promtool("check", "metrics", given=MetricsPage(ExportedMetrics(snapshots)).text()) == ""


@pytest.mark.in_turn
@needs_prometheus
def test_every_panel_has_data_in_a_prometheus_that_scrapes(
    server: Server, client: redis.Redis, snapshots: SnapshotCache, tmp_path: Path
) -> None:
    client.config_set("maxmemory", "1gb")
    for stream in ("orders", "payments"):
        client.xadd(stream, {"n": 1})
        client.xgroup_create(stream, "g", id="0")
    client.xreadgroup("g", "ann", {"orders": ">"})
    fill(server, 5, stream="orders")
    lags = LagCache(Address.parse(server.url))
    page = MetricsPage(WithLatency(snapshots, lags), port=0)
    try:
        with running_prometheus(tmp_path, f"127.0.0.1:{page.port}", ALERTS) as prometheus:
            left = {(one.title, query) for one in panels("10s") for query, _ in one.queries}

            def all_filled() -> bool:
                left.difference_update([one for one in left if prometheus.series(one[1])])
                return not left

            until(all_filled, "a panel is empty", log=lambda: f"empty panels and their queries: {left}", interval=0.25)
            labels = [one["metric"]["group"] for one in prometheus.series("rstream_lag_entries")]
            assert labels == ["g", "g"]
            rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
            assert [rule["lastError"] for rule in rules if rule.get("lastError")] == []
            assert _firing(prometheus) == {"RStreamDeadLettersArrive"}
            [p50] = prometheus.series(next(query for query in filled_queries("From XADD to commit") if "(0.5" in query))
            assert 1 < float(p50["value"][1]) <= 2.5
    finally:
        page.close()
        lags.close()
        client.config_set("maxmemory", "0")


def filled_queries(title: str) -> list[str]:
    """What a panel asks."""
    return [query for one in panels("10s") if one.title == title for query, _ in one.queries]


def _firing(prometheus: Prometheus) -> set[str]:
    """The alerts that fire, once all rules have been looked at."""
    deadline = machine_seconds() + 30
    while machine_seconds() < deadline:
        rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
        if all(rule["health"] == "ok" for rule in rules) and (
            found := {rule["name"] for rule in rules if rule["state"] == "firing"}
        ):
            return found
        time.sleep(0.25)
    raise AssertionError("Prometheus has not looked at its rules")
