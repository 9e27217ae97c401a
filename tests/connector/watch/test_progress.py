"""Spark's progress JSON becomes what the listener counts and writes."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from spark_streams.connector.counters import BAD, CLAIMED, DEAD, LOST, Counts
from spark_streams.connector.errors import ConfigError
from spark_streams.connector.lag.survey import GroupLag
from spark_streams.connector.watch.log_lines import progress_line, read_lines, text
from spark_streams.connector.watch.progress import (
    Activity,
    Health,
    Progress,
    WatchedQuery,
    limit_of,
    offset_in,
    offsets_in,
    read_progress,
)


def offset(**more: Any) -> dict[str, Any]:
    """An offset of group g at s: 7-0, t: 0-0."""
    streams = {"s": "7-0 2.x 7 7", "t": "0-0 0.0 0 0"}
    return {"format": 1, "group": "g", "consumer": "c", "token": "x", "streams": streams, "batch": {}, **more}


def progress(run: str = "r1", batch: int = 0, **counts: dict[str, Any]) -> Progress:
    """A batch of three entries of s, two of which were claimed."""
    end = offset(batch={"s": "6-0 7-0 1 9"}, old={"s": ["0-0 6-0 2 9"]})
    ours = {"endOffset": end, "latestOffset": json.dumps(offset(**counts))}
    others = {"endOffset": 5, "latestOffset": None, "description": "RateStreamV2"}
    told = {"id": "q1", "runId": run, "name": None, "timestamp": "2026-01-01T00:00:00.000Z", "batchId": batch}
    told |= {"batchDuration": 250, "numInputRows": 3, "processedRowsPerSecond": 12.0, "sources": [others, ours]}
    return read_progress(told)


def test_what_a_batch_took_and_what_the_run_has_counted() -> None:
    seen = progress(lost={"s": 4}, claimed={"s": 2}, dead={"t": 1}, bad={"t": {"n": 6}})
    assert (seen.query, seen.batch_ms, seen.rows, seen.rows_per_second) == ("q1", 250, 3, 12.0)
    [source] = seen.sources
    assert [
        (o.stream, o.position, o.entries, *(o.counts[one] for one in (LOST, CLAIMED, DEAD))) for o in source.streams
    ] == [
        ("s", "7-0", 3, 4, 2, 0),
        ("t", "0-0", 0, 0, 0, 1),
    ]
    assert [one.counts.columns(BAD) for one in source.streams] == [{}, {"n": 6}]


def test_the_limit_of_a_batch_by_its_time_is_in_the_lines_of_its_streams() -> None:
    """And without targetBatchTime nothing is."""
    limited = progress(limit=9_625)
    [source] = limited.sources
    assert source.limit == 9_625
    line: Any = progress_line("2026-01-01T00:00:01.000Z", limited, {})
    assert [one["limit"] for one in line["groups"]] == [9_625] * 2
    plain: Any = progress_line("2026-01-01T00:00:01.000Z", progress(), {})
    assert progress().sources[0].limit is None
    assert not any("limit" in one for one in plain["groups"])


def test_a_stream_of_which_a_batch_has_only_claimed_entries_is_reported() -> None:
    back = "rstream:returned:{s}:g"
    end = offset(old={back: ["0-0 5-0 2 9"]})
    end["streams"][back] = "0-0 1.x - 0"
    ours = {"endOffset": end, "latestOffset": json.dumps(offset(claimed={back: 2}))}
    told = {"id": "q1", "runId": "r1", "name": None, "timestamp": "2026-01-01T00:00:00.000Z", "batchId": 1}
    [source] = read_progress(told | {"batchDuration": 250, "numInputRows": 2, "sources": [ours]}).sources
    assert [(one.stream, one.position, one.entries, one.counts[CLAIMED]) for one in source.streams] == [
        (back, "0-0", 2, 2), ("s", "7-0", 0, 0), ("t", "0-0", 0, 0)
    ]  # fmt: skip


def told_in_the_offset(run: str, start: dict[str, Any], latest: dict[str, Any] | None) -> Progress:
    """As Spark 4.0 tells it: no report but what stands in the offset that was made last."""
    ours = {"startOffset": start, "endOffset": latest or start, "latestOffset": latest}
    told = {"id": "q1", "runId": run, "name": None, "timestamp": "2026-01-01T00:00:00.000Z", "batchId": 1}
    return read_progress(told | {"batchDuration": 250, "numInputRows": 3, "sources": [ours]})


def test_counts_in_an_offset_are_those_of_the_run_that_made_it() -> None:
    """The next run begins with it, and has lost nothing; a run that is idle has lost what it has lost."""
    before, then = offset(), offset(token="y", report={"lost": {"s": 29}})
    later = offset(token="z", report={"lost": {"s": 30}})
    query = WatchedQuery("q", "q1")
    lost = []
    for run, start, latest in (("r1", before, then), ("r1", then, then), ("r2", then, then), ("r3", then, None),
                               ("r3", then, later), ("r3", later, later)):  # fmt: skip
        [source] = query.progressed(told_in_the_offset(run, start, latest)).sources
        lost.append(source.streams[0].counts[LOST])
    assert lost == [29, 29, 0, 0, 30, 30]
    assert query.totals["s", "g"] == Counts.read({"lost": 59})


def test_counts_add_up_over_runs_also_where_events_come_late() -> None:
    query = WatchedQuery("q", "q1")
    query.started("r1")
    query.progressed(progress("r1", lost={"s": 1}))
    query.started("r2")  # Spark tells of starts at once, of everything else later
    query.progressed(progress("r1", lost={"s": 3}))
    query.terminated("r1", failed=True)
    query.progressed(progress("r2", lost={"s": 10}, dead={"s": 1}, bad={"s": {"n": 2}}))
    query.progressed(progress("r2", lost={"s": 10}, dead={"s": 1}, bad={"s": {"n": 5, "m": 1}}))
    assert query.running
    assert query.totals["s", "g"] == Counts.read({"lost": 13, "dead": 1, "bad": {"n": 5, "m": 1}})
    for run in range(10):
        query.started(f"later{run}")
        query.progressed(progress(f"later{run}", lost={"s": 1}, bad={"s": {"n": 1}}))
    query.terminated("later9", failed=False)
    assert query.totals["s", "g"] == Counts.read({"lost": 23, "dead": 1, "bad": {"n": 15, "m": 1}})
    assert (query.running, query.failures, query.batches, query.rows) == (False, 1, 14, 42)


def test_a_log_line_is_read_back_between_the_lines_of_others() -> None:
    standing = GroupLag("s", "g", 12, True, 900, 3, 40, "7-0", 5)
    line = text(progress_line("2026-01-01T00:00:01.000Z", progress(bad={"s": {"n": 6}}), {("s", "g"): standing}))
    assert "\n" not in line
    quoted = line.replace("2026-01-01", "2025-01-01")  # by another program, which may quote what a stranger has written
    log = io.StringIO(f"WARN something\nWARN {quoted}\n{line}\n{line[:50]}\n{{}}\n")
    log.name = "log"
    [back] = list(read_lines(log))
    assert (back["at"], back["began"]) == ("2026-01-01T00:00:01.000Z", "2026-01-01T00:00:00.000Z")
    assert back["groups"][0] == {
        "stream": "s", "group": "g", "consumer": "c", "entries": 3, "position": "7-0", "lost": 0, "claimed": 0,
        "dead": 0, "bad": {"n": 6}, "lag": 12, "lag_ms": 900, "pending": 3, "oldest_idle_ms": 40, "lag_at_least": True,
    }  # fmt: skip
    assert back["groups"][1]["lag"] is None


def test_a_file_without_such_a_line_is_refused() -> None:
    log = io.StringIO("nothing\n")
    log.name = "log"
    with pytest.raises(ConfigError, match="log holds no line"):
        list(read_lines(log))


def test_offsets_are_found_in_the_text_of_an_exception() -> None:
    first, second = offset(), offset(streams={"s": "9-0"})
    said = (
        f'x {{"a" {{Python@1f: {json.dumps(first)}}}\nAvailable: {{Python@1f: {json.dumps(second)}, Rate: {{"n": 1}}}}'
    )
    assert list(offsets_in(said)) == [first, second]


def test_offsets_are_found_beside_a_value_of_any_depth() -> None:
    """Spark's error has the value that a cast refused."""
    deep = '{"":' + "[" * 100_000
    assert list(offsets_in(f"{json.dumps(offset())} {deep} {json.dumps(offset())}")) == [offset()] * 2


def test_entries_waiting_for_retry_are_reported_if_there_are_any() -> None:
    seen = progress(retried={"s": 5}, waiting={"s": {"entries": 2, "due": 1_700_000_000_000}})
    first, second = progress_line("now", seen, {})["groups"]
    assert (first["retried"], first["waiting"], first["due"]) == (5, 2, 1_700_000_000_000)
    assert not {"retried", "waiting", "due"} & second.keys()


# -- When a query counts as alive --------------------------------------------------------------------------------------


ACTIVE = True, "Getting offsets from \x1b[31mrstream"
WAITS = False, "Waiting for next trigger"


class World:
    """A health with a limit of 60 s, and what decides about it."""

    def __init__(self) -> None:
        self.now, self.activity = 1000.0, dict[str, Activity]()
        self.health = Health(60, self.activity.get, lambda: self.now)

    def after(self, seconds: float) -> str | None:
        self.now += seconds
        return self.health.trouble()


def test_a_query_whose_triggers_end_is_alive() -> None:
    world = World()
    world.health.seen("run", "totals", "started")
    for event in ("progress", "idle", "idle", "progress"):
        assert world.after(60) is None
        world.health.seen("run", "totals", event)
    world.activity["run"] = ACTIVE
    assert world.after(60) is None
    reason = world.after(2)
    assert reason is not None
    assert reason.startswith("query 'totals' has ended no trigger since 20")
    assert "(62 s, unhealthy_after is 60 s). Its last event is 'progress', and Spark says: Getting offsets" in reason
    assert "rstream doctor" in reason
    world.health.seen("run", "totals", "idle")
    assert world.after(1) is None


def test_what_spark_says_is_one_printable_line() -> None:
    world = World()
    world.health.seen("run", "a\nb\x1b", "started")
    world.activity["run"] = ACTIVE
    reason = world.after(61)
    assert reason is not None
    assert reason.removesuffix("\n").isprintable()


def test_a_query_between_two_triggers_is_alive() -> None:
    """Its interval is longer than the limit."""
    world = World()
    world.health.seen("run", "totals", "progress")
    world.activity["run"] = WAITS
    assert world.after(3600) is None
    world.activity["run"] = ACTIVE
    assert world.after(0) is not None


def test_a_query_that_spark_does_not_know_any_more_is_not_alive() -> None:
    world = World()
    world.health.seen("run", "totals", "progress")
    assert world.after(60) is None
    assert "has ended no trigger" in (world.after(1) or "")


def test_a_program_without_a_query_is_alive_for_the_limit() -> None:
    """Before the first query, and after the last one."""
    world = World()
    assert world.after(60) is None
    assert "no query runs since 20" in (world.after(1) or "")
    world.health.seen("run", "totals", "started")
    assert world.after(60) is None
    world.health.ended("run")
    assert world.after(60) is None
    assert "(61 s" in (world.after(1) or "")


def test_each_running_query_counts() -> None:
    world = World()
    world.health.seen("run 1", "totals", "progress")
    world.health.seen("run 2", "etl", "progress")
    world.after(61)
    world.health.seen("run 2", "etl", "progress")
    assert "query 'totals'" in (world.after(0) or "")
    world.health.ended("run 1")
    assert world.after(0) is None


@pytest.mark.parametrize("text", ["", "10", "soon", "29s", "100ms"])
def test_a_limit_that_an_idle_query_exceeds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        limit_of(text)
    assert limit_of("10m") == 600


def test_an_offset_is_read_as_each_pyspark_tells_it() -> None:
    """PySpark 4.0 gives a query's last progress the text of a Python dict, later ones JSON, a listener the object."""
    offset = {"format": 1, "group": "g", "consumer": "it's", "streams": {"s": "5-0 1."}, "noAck": True}
    assert [offset_in(told) for told in (offset, json.dumps(offset), str(offset))] == [offset] * 3
    others: list[Any] = [None, 7, "7", "null", "{'a': b}", "{'", '{"a": 1}', "{'a': " + "[" * 100_000]
    assert [offset_in(other) for other in others] == [None] * len(others)
