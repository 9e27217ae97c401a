"""A counter travels in one way: a row of model.counters.TABLE is all that a new one needs to be shown everywhere."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace
from typing import Any

import pytest

from spark_streams.connector import counters
from spark_streams.connector.counters import TABLE, Counts, RunCounter
from spark_streams.connector.source.group.recovery import RunCounters
from spark_streams.connector.spark.data_source import REPORT, StartingReader
from spark_streams.connector.watch.log_lines import progress_line, read_lines, text
from spark_streams.connector.watch.notebook import query_table
from spark_streams.connector.watch.progress import Progress, WatchedQuery, read_progress
from spark_streams.connector.watch.query_metrics import QueryCollector, tables
from spark_streams.operations.console.query_logs import QueryLogs
from spark_streams.operations.console.site import environment
from tools.reference import log_counters, metrics_of

LATE = RunCounter("late", "entries", "Entries that came late.", "late entries", "rstream_late_entries")
ODD = RunCounter("odd", "values", "Values that are odd.", "odd values", "rstream_odd_values", is_alarm=True)
QUIET = RunCounter("quiet", "entries", "Entries that only the log shows.", at_zero=False)


@pytest.fixture(autouse=True)
def _new_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "TABLE", (*TABLE, LATE, ODD, QUIET))


def counted() -> RunCounters:
    """A run that has counted in stream s."""
    run = RunCounters()
    run.entries(LATE)["s"] += 7
    run.entries(QUIET)["s"] += 2
    run.values(ODD)["s", "amount"] += 4
    run.values(ODD)["s", "n"] += 1
    return run


def progressed(latest: dict[str, Any]) -> Progress:
    """The progress of a batch without entries. latest: what the source says of its counters."""
    end = {"format": 1, "group": "g", "consumer": "c", "token": "x", "streams": {"s": "7-0 2.x 7 7"}, "batch": {}}
    ours = {"startOffset": {**end, "token": "w"}, "endOffset": end, "latestOffset": {**end, **latest}}
    told = {"id": "q1", "runId": "r1", "name": "q", "timestamp": "2026-01-01T00:00:00.000Z", "batchId": 0}
    return read_progress(told | {"batchDuration": 250, "numInputRows": 3, "sources": [ours]})


def test_a_new_counter_is_in_the_report_of_the_source_and_in_the_progress() -> None:
    report = counted().to_json()
    assert report == {"late": {"s": 7}, "odd": {"s": {"amount": 4, "n": 1}}, "quiet": {"s": 2}}
    [source] = progressed(report).sources
    counts = source.streams[0].counts
    assert [counts[counter] for counter in (LATE, ODD, QUIET)] == [7, 5, 2]
    assert counts.columns(ODD) == {"amount": 4, "n": 1}


def test_before_spark_4_2_a_new_counter_is_in_the_offset() -> None:
    reader: Any = SimpleNamespace(
        initialOffset=lambda: {"token": "a"},
        latestOffset=lambda start, limit: {"token": "b"},
        getDefaultReadLimit=lambda: None,
        reportLatestOffset=lambda: {"ends": {}, **counted().to_json()},
    )
    assert StartingReader(reader).latestOffset() == {"token": "b", REPORT: counted().to_json()}


def test_a_new_counter_is_in_log_lines_which_are_read_back_also_if_they_are_older() -> None:
    line: Any = progress_line("2026-01-01T00:00:01.000Z", progressed(counted().to_json()), {})
    [group] = line["groups"]
    assert (group["late"], group["odd"], group["quiet"]) == (7, {"amount": 4, "n": 1}, 2)
    zero: Any = progress_line("2026-01-01T00:00:01.000Z", progressed({}), {})
    assert (zero["groups"][0]["late"], zero["groups"][0]["odd"], "quiet" in zero["groups"][0]) == (0, {}, False)
    older = json.loads(text(zero))
    del older["groups"][0]["late"]
    wrong = json.loads(text(zero))
    wrong["groups"][0]["late"] = "seven"
    log = io.StringIO("\n".join(map(text, (line, wrong, older))))
    log.name = "log"
    assert list(read_lines(log)) == [json.loads(text(line)), older]
    logs = QueryLogs()
    logs.add(line)
    [row] = logs.queries
    assert [row.counts[counter] for counter in (LATE, ODD, QUIET)] == [7, 5, 2]


def test_a_new_counter_is_a_column_of_notebooks_and_of_the_console_if_it_has_a_heading() -> None:
    query = WatchedQuery("q", "q1")
    query.progressed(progressed(counted().to_json()))
    table = query_table([query])
    assert table.columns[-2:] == ("late entries ", "odd values ")
    assert table.rows[0][-2:] == ("7", "5")
    row = SimpleNamespace(name="q", batches=1, rows=3, longest_ms=250, counts=query.totals["s", "g"], failures=[])
    page = environment().from_string('{% import "parts.html" as parts with context %}{{ parts.queries([row]) }}')
    shown = page.render(row=row)
    assert '<th scope="col" class="n">late entries</th>' in shown
    assert '<td class="n">7</td>' in shown
    assert '<span class="bad">5</span>' in shown
    assert "quiet" not in shown


def test_a_new_counter_is_a_metric_and_a_row_of_the_reference_if_it_has_a_name_there() -> None:
    pytest.importorskip("prometheus_client")
    query = WatchedQuery("q", "q1")
    query.progressed(progressed(counted().to_json()))
    lags: Any = SimpleNamespace(fetch=lambda keys: {}, margins=lambda keys: {}, waiting=lambda keys: {}, answers=True)
    samples = {
        (sample.name, sample.labels.get("column")): sample.value
        for metric in QueryCollector(lambda: [query], lags).collect()
        for sample in metric.samples
    }
    assert samples["rstream_late_entries_total", None] == 7
    assert samples["rstream_odd_values_total", "amount"] == 4
    assert samples["rstream_odd_values_total", "n"] == 1
    printed = metrics_of(tables())
    assert "| `rstream_odd_values_total` | counter | query, stream, group, column | Values that are odd. |" in printed
    assert "Entries that only the log shows" not in printed
    assert "| `quiet` | entries | Entries that only the log shows. Only above zero. |" in log_counters()


def test_counts_of_runs_add_up_by_column() -> None:
    total = Counts.read({"late": 1, "odd": {"n": 2}}) + Counts.read({"late": 2, "odd": {"n": 1, "m": 1}})
    assert (total[LATE], total.columns(ODD)) == (3, {"n": 3, "m": 1})
