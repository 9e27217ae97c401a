"""Entries that leave a stream once every group has acknowledged them (onCommit) are lost to nobody, and say so where a
query is set back to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import redis

from spark_streams.base.ids import StreamId
from spark_streams.connector.counters import LOST
from spark_streams.connector.errors import DataLossError
from spark_streams.connector.source.counting import count_read
from spark_streams.connector.source.group.begin import require_entry_counts
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.spark.data_source import ReadMaxRows
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from spark_streams.connector.wire.xinfo import stream_states
from tools.driving import ALL, LOOK_EACH_TIME, NEVER_AHEAD, add, another_reader, drain, positions, read, reader
from tools.sending import before_sending
from tools.servers.server import Server

HURRY = replace(LOOK_EACH_TIME, lag_check=0.0)


def remover(server: Server, **options: str) -> StreamReader:
    """A query of another group that removes what it can."""
    return another_reader(server, limits=HURRY, group="h", onCommit="delete", **options)


def trim_up_to(client: redis.Redis, entry: str, stream: str = "s") -> None:
    client.xtrim(stream, minid=str(StreamId.parse(entry).next()), approximate=False)


@pytest.mark.parametrize("times", [1, 2, 9])
def test_entries_may_leave_while_they_are_counted(server: Server, client: redis.Redis, times: int) -> None:
    """From below there would be too few of them, again and again."""
    ids = add(client, 900)
    at = iter(range(4, 300, 7))
    with Connection(Address.parse(server.url)) as connection:
        require_entry_counts(connection)
        head = stream_states(connection, ["s"])["s"]

        def removed(*_: object) -> None:
            trim_up_to(client, ids[next(at)])

        with before_sending(b"XRANGE", b"(0-0", act=removed, times=times) as counted:
            assert count_read(connection, "s", head, StreamId.parse(ids[99])) == 100
    assert len(counted) == min(times, 3)


@pytest.mark.parametrize("options", [{}, {"failOnDataLoss": "false"}, {"noAck": "true"},
                                     {"claimIdle": "1m"}])  # fmt: skip
@pytest.mark.parametrize("spoilt", [False, True])
def test_a_query_that_starts_again_has_lost_nothing(
    server: Server, client: redis.Redis, options: dict[str, str], spoilt: bool
) -> None:
    """Amid the stream, at its end, with the stream empty; and where the server has forgotten its counts."""
    add(client, 200)
    other = remover(server)
    others = other.initialOffset()
    one = another_reader(server, limits=NEVER_AHEAD, **options)
    at = one.initialOffset()
    rows: list[int] = []
    for most, more in ((60, 0), (140, 0), (50, 50), (50, 100), (50, 0)):
        add(client, more, first=len(rows))
        end = one.latestOffset(at, ReadMaxRows(most))
        found = read(one, at, end)
        one.commit(end)
        assert not one.batches.counters.entries(LOST)
        one.stop()
        rows, at = rows + found, end
        after = other.latestOffset(others, ALL)
        other.commit(after)
        others = other.latestOffset(after, ALL)
        assert others == after
        assert client.xlen("s") == client.xinfo_stream("s")["entries-added"] - len(rows)
        if spoilt:
            client.execute_command("XGROUP", "SETID", "s", "g", positions(at)["s"])
        one = another_reader(server, limits=NEVER_AHEAD, **options)
    assert rows == list(range(350))
    assert client.xlen("s") == 0


def test_a_group_that_is_made_later_reads_what_is_left(server: Server, client: redis.Redis) -> None:
    add(client, 300)
    other = remover(server)
    at = other.latestOffset(other.initialOffset(), ReadMaxRows(200))
    other.commit(at)
    one = another_reader(server)
    assert drain(one) == [list(range(200, 300))]
    assert not one.batches.counters.entries(LOST)
    at = other.latestOffset(at, ALL)
    other.commit(at)
    assert client.xlen("s") == 0
    late = another_reader(server, group="late")
    assert drain(late) == []
    add(client, 5, first=300)
    assert drain(late) == [[300, 301, 302, 303, 304]]
    assert not late.batches.counters.entries(LOST)


@pytest.mark.parametrize("mode", [{}, {"noAck": "true"}])
def test_missing_entries_are_reported_to_a_query_that_is_set_back(
    server: Server, client: redis.Redis, mode: dict[str, str]
) -> None:
    """Group and checkpoint as they were earlier, to read it once more."""
    add(client, 300)
    options = {"onCommit": "delete", **mode}
    one = reader(server, limits=NEVER_AHEAD, **options)
    start = one.initialOffset()
    early = one.latestOffset(start, ReadMaxRows(100))
    later = one.latestOffset(early, ReadMaxRows(150))
    one.commit(later)
    assert client.xlen("s") == 50
    client.xgroup_setid("s", "g", positions(early)["s"])
    with pytest.raises(DataLossError, match="150 entries above" if mode else "this is an older copy"):
        reader(server, **options).latestOffset(early, ALL)
    lenient = reader(server, **options, failOnDataLoss="false")
    assert drain(lenient, start=early) == [list(range(250, 300))]
    assert lenient.batches.counters.entries(LOST) == {"s": 150}


def test_streams_of_a_pattern_that_were_emptied_go_on(server: Server, client: redis.Redis) -> None:
    options = {"streamsPattern": "in:*", "onCommit": "delete"}
    add(client, 10, "in:1")
    add(client, 10, "in:2")
    one = reader(server, limits=LOOK_EACH_TIME, **options)
    at = one.initialOffset()
    end = one.latestOffset(at, ALL)
    assert sorted(read(one, at, end)) == sorted([*range(10), *range(10)])
    one.commit(end)
    assert (client.xlen("in:1"), client.xlen("in:2")) == (0, 0)
    for restarted in (False, True):
        again = reader(server, limits=LOOK_EACH_TIME, **options) if restarted else one
        assert again.latestOffset(end, ALL) == end
        add(client, 3, "in:1")
        after = again.latestOffset(end, ALL)
        assert read(again, end, after) == [0, 1, 2]
        end = after
    fresh = another_reader(server, limits=LOOK_EACH_TIME, group="fresh", **options)
    at = fresh.initialOffset()
    assert "in:2" not in at["streams"]  # empty: it says nothing yet
    add(client, 2, "in:2", first=50)
    after = fresh.latestOffset(at, ALL)
    assert sorted(read(fresh, at, after)) == [0, 1, 2, 50, 51]


@pytest.mark.parametrize("vanishes", [False, True])
@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_stream_that_appears_while_all_others_are_empty_is_read_from_its_first_entry(
    server: Server, client: redis.Redis, starting: str, vanishes: bool
) -> None:
    """When the query starts again, no stream of the pattern that has entries has its group. vanishes: the new one is
    gone again at once."""
    options = {"streamsPattern": "in:*", "onCommit": "delete", "startingOffsets": starting}
    client.xgroup_create("in:1", "g", "0", mkstream=True)
    add(client, 10, "in:1")
    one = reader(server, limits=LOOK_EACH_TIME, **options)
    at = one.latestOffset(one.initialOffset(), ALL)
    assert read(one, one.initialOffset(), at) == list(range(10))
    one.commit(at)
    assert client.xlen("in:1") == 0
    add(client, 7, "in:2")
    again = reader(server, limits=LOOK_EACH_TIME, failOnDataLoss="false", **options)
    again.initialOffset()
    if vanishes:
        client.delete("in:2")
        assert again.latestOffset(at, ALL) == at
        add(client, 7, "in:2")
    end = again.latestOffset(at, ALL)
    assert read(again, at, end) == list(range(7))
    assert not again.batches.counters.entries(LOST)


def test_a_stream_of_dead_letters_that_was_emptied_is_still_no_input(server: Server, client: redis.Redis) -> None:
    """Its letters are read by name, and removed; the pattern's query does not take the next one for an entry."""
    add(client, 1, "in:1")
    bad = reader(server, streams="in:1", mode="DEADLETTER", deadLetterStream="in:dead", group="bad", onCommit="delete")
    at = bad.latestOffset(bad.initialOffset(), ALL)
    read(bad, bad.initialOffset(), at)
    for n in range(2):
        client.xadd("in:1", {"n": "x"})
        end = bad.latestOffset(at, ALL)
        assert read(bad, at, end) == []
        bad.commit(end)
        assert (client.xlen("in:1"), client.xlen("in:dead")) == (0, 1)
        at = end
        letters = another_reader(server, streams="in:dead", group="letters", onCommit="delete")
        drained: Any = letters.latestOffset(letters.initialOffset(), ALL)
        if n:
            drained = letters.latestOffset(drained, ALL)
        letters.commit(drained)
        assert client.xlen("in:dead") == 0
        letters.stop()
        pattern = another_reader(server, limits=LOOK_EACH_TIME, streamsPattern="in:*", group="all")
        assert "in:dead" not in pattern.latestOffset(pattern.initialOffset(), ALL)["streams"]
        pattern.stop()


# -- limits that docs/reference/unnoticed.md and data-loss.md state --------------------------------------------------


def test_what_a_deleted_stream_got_after_the_last_trigger_is_not_counted(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, 5)
    one = reader(server, failOnDataLoss="false", limits=NEVER_AHEAD)
    end = one.latestOffset(one.initialOffset(), ReadMaxRows(3))
    add(client, 4, first=5)
    client.delete("s")
    drain(one, start=end)
    assert one.reportLatestOffset()["lost"] == {"s": 2}
    assert "that are counted: at least 2" in caplog.text


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_batch_that_is_read_again_after_its_commit_lacks_what_the_query_has_removed(
    server: Server, client: redis.Redis, strict: str
) -> None:
    """Spark's commit log has lost its last file."""
    add(client, 5)
    options = {"onCommit": "delete", "failOnDataLoss": strict}
    one = reader(server, **options)
    end = one.latestOffset(start := one.initialOffset(), ALL)
    assert read(one, start, end) == [0, 1, 2, 3, 4]
    assert one.latestOffset(end, ALL) == end
    one.batches.worker.wait()
    assert client.xlen("s") == 0
    again = reader(server, **options)
    if strict == "true":
        with pytest.raises(DataLossError):
            read(again, start, end)
    else:
        assert read(again, start, end) == []
