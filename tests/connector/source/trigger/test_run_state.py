"""What a run knows between triggers, and the offset of a batch as a function of what was taken."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import ServerUnreachableError
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.group.snapshot import GroupState
from spark_streams.connector.source.offset import Offset, Range, StreamOffset
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.source.trigger.batch_contents import BatchContents
from spark_streams.connector.source.trigger.roles import GroupRole
from spark_streams.connector.source.trigger.run_state import QueryState, RunState
from spark_streams.connector.source.trigger.trigger import Trigger, end_of_batch
from spark_streams.connector.spark.data_source import ReadMaxRows
from spark_streams.connector.wire.xinfo import StreamState
from tools.driving import ALL, NEVER_AHEAD, add, begin, drain, read, reader
from tools.servers.server import Server

BEGIN = Offset(
    "g",
    "c",
    {"s": StreamOffset(StreamId(5, 0), 2, "before", 5, 5)},
    {"s": Range("s", StreamId(2, 0), StreamId(5, 0), 3, 1600)},
    token="before",
)


def offset(state: QueryState, contents: BatchContents) -> Offset:
    """The end of batch `t` of a query with a pending list and mode DEADLETTER."""
    given = {"url": "redis://localhost", "streams": "s", "group": "g", "mode": "DEADLETTER", "deadLetterStream": "dead"}
    options = SourceOptions.parse(given)
    return end_of_batch(state, contents, "t", options, GroupRole())


def run_state(one: StreamReader) -> RunState:
    return one.batches._steps.run


def test_nothing_is_known_before_the_first_trigger_and_the_groups_after_it(server: Server, client: redis.Redis) -> None:
    ids = add(client, 10)
    one = reader(server, limits=NEVER_AHEAD)
    start = one.initialOffset()
    assert not run_state(one).is_known
    one.latestOffset(start, ALL)
    assert run_state(one).is_known
    assert run_state(one).positions == {"s": StreamId.parse(ids[-1])}


@pytest.mark.parametrize("error", [ServerUnreachableError("it closed the connection"), RuntimeError("anything else")])
def test_whatever_goes_wrong_leaves_nothing_known(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """And the query goes on from what the server says."""
    add(client, 10)
    one = reader(server, limits=NEVER_AHEAD)
    start = one.initialOffset()
    first = one.latestOffset(start, ALL)
    assert read(one, start, first) == list(range(10))
    add(client, 10, first=10)
    honest = Trigger.next
    given: list[Any] = []

    def breaks(self: Trigger, *arguments: object) -> object:
        given.append(arguments[-1])
        found = honest(self, *arguments)  # type: ignore[arg-type]
        if len(given) == 1:
            raise error
        return found

    monkeypatch.setattr(Trigger, "next", breaks)
    if isinstance(error, RuntimeError):
        with pytest.raises(RuntimeError):
            one.latestOffset(first, ALL)
        assert run_state(one) == run_state(one).unknown()
    second = one.latestOffset(first, ALL)
    assert [run.is_known for run in given] == [True, False]
    assert read(one, first, second) == list(range(10, 20))
    assert drain(one, start=second) == []
    assert client.xpending("s", "g")["pending"] == 0


def state(run: RunState) -> QueryState:
    """A query that is alone in its group, with an entry above its position."""
    head = StreamState(StreamId(9, 0), 4, 9, StreamId(6, 0), top=StreamId(9, 0))
    group = GroupState(StreamId(5, 0), 5, 4, 0)
    return QueryState(BEGIN, {"s": head}, {"s": group}, run.has_acknowledged(BEGIN), run=run)


@pytest.mark.parametrize("is_acknowledged", [False, True])
def test_the_offset_is_a_function_of_the_checkpoint_and_what_was_taken(is_acknowledged: bool) -> None:
    """It names the batch before if that is acknowledged in the background."""
    new = Range("s", StreamId(5, 0), StreamId(8, 0), 3, 1700)
    after = {"s": GroupState(StreamId(8, 0), 8, 1, 3)}
    run = RunState(acknowledged=BEGIN) if is_acknowledged else RunState()
    end = offset(state(run), BatchContents(new={"s": new}, after=after, run=run))
    assert end == Offset(
        "g",
        "c",
        {"s": StreamOffset(StreamId(8, 0), 3, "t", 8, 9)},
        {"s": new},
        unacknowledged={} if is_acknowledged else BEGIN.new,
        token="t",
        notes=True,
    )


def test_a_batch_that_only_keeps_a_correction_is_where_it_begins() -> None:
    run = RunState(acknowledged=BEGIN)
    end = offset(state(run), BatchContents(run=run))
    assert end == Offset("g", "c", {"s": BEGIN.at["s"]._replace(added=9)}, token="t")
    assert not end.held


def test_entries_that_tasks_miss_are_in_the_progress(server: Server, client: redis.Redis) -> None:
    ids = add(client, 10)
    one = reader(server, limits=NEVER_AHEAD, failOnDataLoss="false")
    start = one.initialOffset()
    first = one.latestOffset(start, ALL)
    client.xdel("s", *ids[3:5])
    assert len(read(one, start, first)) == 8
    add(client, 5, first=10)
    second = one.latestOffset(first, ALL)
    assert one.reportLatestOffset()["lost"] == {"s": 2}
    assert read(one, first, second) == [10, 11, 12, 13, 14]


def test_a_commit_by_a_run_that_knows_nothing_leaves_what_was_handed_over(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection broke while the batch was planned, and meanwhile another client handed entries to the query."""
    add(client, 10)
    one = reader(server, limits=NEVER_AHEAD)
    at = begin(one)
    [(_, bobs)] = client.xreadgroup("g", "bob", {"s": ">"}, count=3)
    end = one.latestOffset(at, ReadMaxRows(3))
    found = read(one, at, end)
    at, end = end, one.latestOffset(end, ALL)
    found += read(one, at, end)
    client.xclaim("s", "g", "spark", 0, [entry for entry, _ in bobs])
    monkeypatch.setattr(one.batches._steps, "run", run_state(one).unknown())
    one.commit(end)
    found += [n for batch in drain(one, start=end) for n in batch]
    assert sorted(found) == list(range(10))
