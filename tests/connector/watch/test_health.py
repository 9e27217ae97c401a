"""When a query counts as alive."""

from __future__ import annotations

import pytest

from spark_streams.connector.watch.progress import Activity, Health, limit_of

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
