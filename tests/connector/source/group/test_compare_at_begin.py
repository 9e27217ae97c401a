"""A new checkpoint for a group that was used before: it continues where the group stands, and its first batch, other
streams, dead letters and retries of an earlier checkpoint make no query stop, lose an entry, or read one twice."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import redis

from spark_streams.connector.errors import DataLossError
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.spark.data_source import ReadMaxRows
from tests.connector.source.group.test_retries import LETTERS, TEXTS, dead
from tools.driving import ALL, LOOK_EACH_TIME, add, begin, drain, pending_count, read, reader, rows, stop_all
from tools.machine_time import machine_seconds
from tools.sending import KilledError, dying_at
from tools.servers.server import Server

STRICT_AND_LENIENT = pytest.mark.parametrize("fails", ["true", "false"])
PATTERN = {"streamsPattern": "p:*"}


def lost(one: StreamReader) -> dict[str, int]:
    found: Any = one.reportLatestOffset().get("lost", {})
    return dict(found)


def logged(offset: dict[str, Any]) -> dict[str, Any]:
    """The offset as Spark's log has it."""
    parsed: dict[str, Any] = json.loads(json.dumps(offset))
    return parsed


@STRICT_AND_LENIENT
@pytest.mark.parametrize("reads", [False, True])
def test_the_first_batch_of_a_new_checkpoint_is_run_again_after_a_kill(
    server: Server, client: redis.Redis, fails: str, reads: bool
) -> None:
    """The mark is of the earlier checkpoint until this batch is committed."""
    add(client, 3)
    assert drain(reader(server), 1) == [[0], [1], [2]]
    add(client, 4, first=3)
    one = reader(server, failOnDataLoss=fails)
    start = one.initialOffset()
    end = logged(one.latestOffset(start, ReadMaxRows(2)))
    if reads:
        assert read(one, start, end) == [3, 4]
    for _ in range(2):  # killed before the commit log; then again
        one = reader(server, failOnDataLoss=fails)
        assert read(one, one.initialOffset(), end) == [3, 4]
    one.commit(end)
    assert drain(one, start=end) == [[5, 6]]
    assert lost(one) == {}
    assert pending_count(client) == 0


@STRICT_AND_LENIENT
def test_an_older_copy_of_the_same_checkpoint_is_still_refused(server: Server, client: redis.Redis, fails: str) -> None:
    """One checkpoint, another one, and then a copy of that from before its second batch."""
    add(client, 2)
    drain(reader(server))
    add(client, 6, first=2)
    one = reader(server)
    offset, ends = one.initialOffset(), []
    for _ in range(3):
        end = one.latestOffset(offset, ReadMaxRows(2))
        read(one, offset, end)
        one.commit(end)
        ends.append(logged(end))
        offset = end
    one = reader(server, failOnDataLoss=fails)
    if fails == "true":
        with pytest.raises(DataLossError, match="older copy"):
            one.latestOffset(ends[0], ALL)
    else:
        assert drain(one, start=ends[0]) == [[4, 5, 6, 7]]


@STRICT_AND_LENIENT
def test_the_earlier_checkpoint_is_an_older_one_after_a_new_one_has_read(
    server: Server, client: redis.Redis, fails: str
) -> None:
    """Both checkpoints belong to the same consumer: the first one lacks what the second one has committed."""
    add(client, 2)
    one = reader(server)
    start = one.initialOffset()
    first = logged(one.latestOffset(start, ALL))
    read(one, start, first)
    one.commit(first)
    add(client, 2, first=2)
    assert drain(reader(server)) == [[2, 3]]
    one = reader(server, failOnDataLoss=fails)
    if fails == "true":
        with pytest.raises(DataLossError, match="older copy"):
            one.latestOffset(first, ALL)
    else:
        assert drain(one, start=first) == [[2, 3]]


@STRICT_AND_LENIENT
@pytest.mark.parametrize("removes", ["keep", "trim", "delete"])
def test_a_stream_that_only_an_earlier_checkpoint_knew_continues_at_its_group(
    server: Server, client: redis.Redis, fails: str, removes: str
) -> None:
    """streams=a,b, then a new checkpoint with a, then a,b again."""
    options = {"failOnDataLoss": fails, "onCommit": removes}
    add(client, 3, "a")
    add(client, 3, "b", first=10)
    assert sum(map(len, drain(reader(server, streams="a,b", **options), 2))) == 6
    add(client, 2, "a", first=3)
    add(client, 2, "b", first=13)
    one = reader(server, streams="a", **options)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [3, 4]
    one.commit(end)
    one = reader(server, streams="a,b", **options)
    assert drain(one, start=logged(end)) == [[13, 14]]
    assert lost(one) == {}


@STRICT_AND_LENIENT
def test_a_stream_of_the_pattern_that_was_empty_for_a_new_checkpoint_is_none_of_an_older_copy(
    server: Server, client: redis.Redis, fails: str
) -> None:
    """onCommit has emptied it."""
    options = {**PATTERN, "failOnDataLoss": fails, "onCommit": "delete"}
    add(client, 3, "p:a")
    add(client, 3, "p:b", first=10)
    assert sum(map(len, drain(reader(server, limits=LOOK_EACH_TIME, **options)))) == 6
    assert client.xlen("p:b") == 0
    add(client, 1, "p:a", first=3)
    one = reader(server, limits=LOOK_EACH_TIME, **options)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [3]
    one.commit(end)
    add(client, 2, "p:b", first=13)
    one = reader(server, limits=LOOK_EACH_TIME, **options)
    assert drain(one, start=logged(end)) == [[13, 14]]
    assert lost(one) == {}


@pytest.mark.in_turn
@STRICT_AND_LENIENT
@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("bad", ["middle", "last", "all"])
def test_dead_letters_of_a_killed_run_are_not_lost_for_a_new_checkpoint(
    server: Server, client: redis.Redis, fails: str, batches: int, bad: str
) -> None:
    """The run is killed at each request while it writes dead letters and acknowledges its batch."""
    options = {**LETTERS, "failOnDataLoss": fails}
    turn, is_over = 0, False
    while not is_over:
        turn += 1
        for executed in (False, True):
            stop_all()
            client.flushall()
            one = reader(server, **options)
            offset = one.initialOffset()
            for n in range(batches):
                values = [f"{n}{i}" for i in range(4)]
                places = {"first": [0], "middle": [1, 2], "last": [3], "all": [0, 1, 2, 3]}[bad]
                for place, value in enumerate(values):
                    client.xadd("s", {"n": f"bad {value}" if place in places else value})
                end = one.latestOffset(offset, ALL)
                rows(one, offset, end)
                if n < batches - 1:
                    one.commit(end)
                    offset = end
            try:
                with dying_at(turn, executed):
                    one.commit(end)
                is_over = True
            except KilledError:
                pass
            client.xadd("s", {"n": "99"})
            one = reader(server, **options)
            found = [n for batch in drain(one) for n in batch]
            assert 99 in found
            assert lost(one) == {}
            good = {int(f"{batches - 1}{i}") for i in range(4) if i not in places}
            assert set(found) - {99} <= good
            assert len(found) == len(set(found))
            assert sorted(letter["dl.id"] for letter in dead(client)) == sorted({one["dl.id"] for one in dead(client)})
            assert len(dead(client)) == len(places) * batches
            assert pending_count(client) == 0
    assert turn > 3


@STRICT_AND_LENIENT
@pytest.mark.parametrize("acknowledged", [[0], [2], [3], [0, 1, 2]])
@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("removes", ["keep", "trim"])
def test_entries_that_a_killed_run_has_acknowledged_are_not_lost_for_a_new_checkpoint(
    server: Server, client: redis.Redis, fails: str, acknowledged: list[int], before: int, removes: str
) -> None:
    """A kill between two pages of XACK: only the others are read again."""
    options = {"failOnDataLoss": fails, "onCommit": removes}
    if before:
        add(client, before, first=100)
        drain(reader(server, **options))
    ids = add(client, 4)
    one = reader(server, **options)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [0, 1, 2, 3]
    client.xack("s", "g", *[ids[n] for n in acknowledged])
    add(client, 2, first=4)
    one = reader(server, **options)
    found = [n for batch in drain(one, 3) for n in batch]
    assert found == [n for n in range(6) if n not in acknowledged]
    assert lost(one) == {}


@STRICT_AND_LENIENT
def test_entries_that_were_removed_before_the_first_offset_are_still_a_loss(
    server: Server, client: redis.Redis, fails: str
) -> None:
    """No batch was ever logged, so nothing can have been acknowledged: the account begins with the group."""
    ids = add(client, 6)
    one = reader(server)
    one.latestOffset(one.initialOffset(), ReadMaxRows(0))  # creates the group, and is killed before Spark logs
    client.xtrim("s", minid=ids[2], approximate=False)
    one = reader(server, failOnDataLoss=fails)
    if fails == "true":
        with pytest.raises(DataLossError, match="2 entries"):
            drain(one)
    else:
        assert drain(one) == [[2, 3, 4, 5]]
        assert lost(one) == {"s": 2}


def test_the_retries_of_a_stream_without_entries_come_under_a_new_checkpoint(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream of the pattern is empty while entries of it wait."""
    caplog.set_level(logging.WARNING, "spark_streams.source")
    options = {**PATTERN, **LETTERS, "retryDelay": "40ms"}
    client.xadd("p:a", {"n": "bad"})
    one = reader(server, **options, onCommit="delete")
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    rows(one, start, end)
    one.commit(end)
    assert client.xlen("p:a") == 0
    one = reader(server, TEXTS, limits=LOOK_EACH_TIME, **options)
    at, found, deadline = one.initialOffset(), [], machine_seconds() + 20
    while not found:
        assert machine_seconds() < deadline, "the retry never comes"
        end = one.latestOffset(at, ALL)
        if end != at:
            found += rows(one, at, end)
            one.commit(end)
            at = end
    assert [row["n"] for row in found] == ["bad"]
    assert "did you mean" not in caplog.text


def used(server: Server, client: redis.Redis) -> None:
    """A group that was used, on a stream that is gone since."""
    ids = add(client, 4, "p:a")
    assert sum(map(len, drain(reader(server, **PATTERN)))) == 4
    stop_all()
    client.rename("p:a", "elsewhere")
    assert ids


def back(client: redis.Redis) -> None:
    client.rename("elsewhere", "p:a")


@pytest.mark.parametrize("restarts", [False, True])
def test_a_first_offset_without_streams_is_a_new_checkpoint_for_those_that_come(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture, restarts: bool
) -> None:
    """Spark logs the first offset of a query even if it is empty (a pattern that matches nothing)."""
    caplog.set_level(logging.WARNING, "spark_streams.source")
    used(server, client)
    one = reader(server, limits=LOOK_EACH_TIME, **PATTERN)
    start = logged(one.initialOffset())
    assert one.latestOffset(start, ALL) == start
    back(client)
    add(client, 1, "p:a", first=4)
    if restarts:
        one = reader(server, limits=LOOK_EACH_TIME, **PATTERN)
    assert drain(one, start=start) == [[4]]
    assert "group 'g' already exists on stream 'p:a'" in caplog.text


@pytest.mark.parametrize("restarts", [False, True])
def test_a_first_offset_without_streams_begins_again_with_a_new_checkpoint(
    server: Server, client: redis.Redis, restarts: bool
) -> None:
    """onNewCheckpoint=restart."""
    options = {**PATTERN, "onNewCheckpoint": "restart"}
    used(server, client)
    one = reader(server, limits=LOOK_EACH_TIME, **options)
    start = logged(one.initialOffset())
    assert one.latestOffset(start, ALL) == start
    back(client)
    if restarts:
        one = reader(server, limits=LOOK_EACH_TIME, **options)
    assert drain(one, start=start) == [[0, 1, 2, 3]]


@STRICT_AND_LENIENT
def test_a_checkpoint_whose_tokens_do_not_name_it_continues(server: Server, client: redis.Redis, fails: str) -> None:
    """As the first versions have written them: the next batch names the checkpoint."""
    add(client, 2)
    one = reader(server)
    end = one.latestOffset(one.initialOffset(), ALL)
    old = json.loads(json.dumps(end).replace(end["token"], "5f1c9a0be37d"))
    add(client, 2, first=2)
    one = reader(server, failOnDataLoss=fails)
    assert read(one, one.initialOffset(), old) == [0, 1]
    one.commit(old)
    one = reader(server, failOnDataLoss=fails)
    assert drain(one, start=old) == [[2, 3]]
    assert lost(one) == {}


def test_a_loss_that_an_empty_batch_has_counted_is_none_of_a_new_checkpoint(
    server: Server, client: redis.Redis
) -> None:
    """A lenient run counts it with a batch without entries; a strict run with a new checkpoint begins after it."""
    add(client, 3)
    begin(reader(server))
    client.xtrim("s", maxlen=0)
    lenient = reader(server, failOnDataLoss="false")
    assert drain(lenient) == [[]]
    assert lost(lenient) == {"s": 3}
    add(client, 2, first=3)
    assert drain(reader(server)) == [[3, 4]]


def test_a_loss_that_a_batch_of_another_stream_has_kept_is_none_of_a_new_checkpoint(
    server: Server, client: redis.Redis
) -> None:
    """The stream of the loss has no batch yet: its mark is still that of its begin."""
    add(client, 3)
    add(client, 1, "t")
    begin(reader(server, streams="s,t"))
    client.xtrim("s", maxlen=0)
    lenient = reader(server, streams="s,t", failOnDataLoss="false")
    assert drain(lenient) == [[0]]
    assert lost(lenient) == {"s": 3}
    add(client, 2, first=3)
    assert drain(reader(server, streams="s,t")) == [[3, 4]]
