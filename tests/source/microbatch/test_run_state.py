"""What a run knows between triggers, and the offset of a batch as a function of what was taken."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis

from spark_streams.errors import ServerUnreachableError
from spark_streams.model.ids import StreamId
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.microbatch.batch_contents import BatchContents
from spark_streams.source.microbatch.run_state import RunState
from spark_streams.source.microbatch.trigger import Trigger, end_of_batch
from spark_streams.source.offset import Claimed, Count, Offset, Share
from spark_streams.source.stream_reader import StreamReader
from spark_streams.spark.read_limits import ReadMaxRows
from tools.driving import ALL, NEVER_AHEAD, add, begin, drain, read, reader
from tools.servers.server import Server

BEGIN = Offset("g", "c", {"s": StreamId(5, 0)}, token="before", lost={"s": 1})


def options(mode: str) -> SourceOptions:
    given = {"url": "redis://localhost", "streams": "s", "group": "g", "mode": mode, "deadLetterStream": "dead"}
    return SourceOptions.parse(given)


def run_state(one: StreamReader) -> RunState:
    return one.batches._run


def test_nothing_is_known_before_the_first_trigger_and_the_groups_after_it(server: Server, client: redis.Redis) -> None:
    ids = add(client, 10)
    one = reader(server, limits=NEVER_AHEAD)
    start = one.initialOffset()
    assert not run_state(one).is_known
    one.latestOffset(start, ALL)
    assert run_state(one).is_known
    assert run_state(one).expected_positions == {"s": StreamId.parse(ids[-1])}


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
    honest, given = Trigger.next, []

    def breaks(self: Trigger, *arguments: object) -> object:
        given.append(arguments[-2])
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


def test_the_offset_is_a_function_of_the_checkpoint_and_what_was_taken() -> None:
    ranges = [EntryRange("s", StreamId(5, 0), StreamId(8, 0), 3, owned=True)]
    claimed = {"s": [Claimed("c~claim~x", 2)]}
    end = end_of_batch(BEGIN, BatchContents(claimed, ranges, ranges), "t", {"s": Count(9, 9)}, options("DEADLETTER"))
    assert end == Offset(
        "g",
        "c",
        {"s": StreamId(8, 0)},
        {"s": Share(3, True, StreamId(5, 0))},
        {"s": (Claimed("c~claim~x", 2),)},
        "t",
        counts={"s": Count(9, 9)},
        lost={"s": 1},
        notes=True,
    )


def test_a_batch_of_losses_stands_where_it_begins() -> None:
    end = end_of_batch(BEGIN, BatchContents({}), "t", {}, options("DEADLETTER"))
    assert end == replace(BEGIN, token="t")
    assert not end.held


def test_losses_that_tasks_noted_are_in_the_next_offset(server: Server, client: redis.Redis) -> None:
    """So that the checkpoint has all that were counted."""
    ids = add(client, 10)
    one = reader(server, limits=NEVER_AHEAD, failOnDataLoss="false")
    start = one.initialOffset()
    first = one.latestOffset(start, ALL)
    client.xdel("s", *ids[3:5])
    assert len(read(one, start, first)) == 8
    add(client, 5, first=10)
    second = one.latestOffset(first, ALL)
    assert one.reportLatestOffset()["lost"] == {"s": 2}
    assert second["losses"] == {"s": 2}


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
    monkeypatch.setattr(one.batches, "_run", run_state(one).unknown())
    one.commit(end)
    found += [n for batch in drain(one, start=end) for n in batch]
    assert sorted(found) == list(range(10))
