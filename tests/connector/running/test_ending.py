"""Ending a query between two batches: what its batch has read is acknowledged by the trigger after it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from spark_streams.connector.running import ending as stopping
from spark_streams.connector.running.ending import Stop, end_between_batches, wait_for_end

BATCH, LOOKING, WAITING = "Processing new data", "Getting offsets from RStream", "Waiting for data to arrive"


class Query:
    """One whose status is that of a script, one line of it for each question: (batch that ended last, trigger is
    active, message). The last line stays."""

    def __init__(self, script: list[tuple[int, bool, str]]) -> None:
        self.script = script
        self.isActive = True

    @property
    def lastProgress(self) -> SimpleNamespace:
        return SimpleNamespace(batchId=self.script[0][0], timestamp="")

    @property
    def status(self) -> dict[str, Any]:
        _, is_active, message = self.script[0] if len(self.script) == 1 else self.script.pop(0)
        return {"isTriggerActive": is_active, "message": message}

    def stop(self) -> None:
        self.isActive = False

    def exception(self) -> None:
        return None


class EndingQuery:
    """A query that is no longer active, but has not left Spark's list of queries yet."""

    def __init__(self) -> None:
        self.is_listed = True

    def awaitTermination(self, seconds: float | None = None) -> bool | None:
        if seconds is not None:
            return True
        self.is_listed = False
        return None


def test_a_query_that_has_ended_has_released_its_name() -> None:
    query = EndingQuery()
    assert wait_for_end(cast(StreamingQuery, query), Stop())
    assert not query.is_listed


NEXT_LOOKS = [(2, True, LOOKING)] * 3
IS_TOLD = [(1, True, BATCH)] * 2 + [(2, True, BATCH)] * 30  # its trigger takes its time to end


@pytest.mark.parametrize(
    "script",
    [
        [*IS_TOLD, *NEXT_LOOKS, (2, True, WAITING)],
        [*IS_TOLD, (2, False, BATCH), *NEXT_LOOKS, (2, True, BATCH)],
        [*IS_TOLD, *NEXT_LOOKS, (2, True, BATCH)],
    ],
)
def test_the_trigger_after_the_batch_has_looked(script: list[tuple[int, bool, str]]) -> None:
    query = Query([*script, (3, False, "nobody asks any more")])
    assert end_between_batches(cast(StreamingQuery, query), 60, Stop())
    assert len(query.script) == 1, "it has asked until then"
    assert not query.isActive


def test_a_trigger_that_comes_later_is_not_waited_for() -> None:
    query = Query([(1, True, BATCH), (2, True, BATCH), (2, False, BATCH)])
    assert end_between_batches(cast(StreamingQuery, query), 60, Stop())


def test_nothing_in_flight_is_not_waited_for() -> None:
    query = Query([(1, False, BATCH)])
    assert end_between_batches(cast(StreamingQuery, query), 0, Stop())


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stop]:
    """The signals are its own; no moment is too short for a second one."""
    monkeypatch.setattr(stopping, "_REPEAT_WINDOW", -1.0)
    one = Stop()
    one.listen()
    yield one
    one.restore()


class Interrupted(Query):
    """Ctrl-C is pressed in the midst of each of its calls."""

    whole = 0

    @property
    def status(self) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGINT)
        self.whole += 1
        return super().status


def test_ctrl_c_cuts_no_call_in_two(stop: Stop) -> None:
    """A reply that nobody has read would be taken for that of the next call."""
    query = Interrupted([(1, True, BATCH)])
    with pytest.raises(KeyboardInterrupt):
        end_between_batches(cast(StreamingQuery, query), 60, stop)
    assert (query.whole, query.isActive, stop.is_requested) == (2, True, True)


def test_a_third_one_does_not_wait_for_a_call(stop: Stop) -> None:
    with stop.checked():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        stop.check()
