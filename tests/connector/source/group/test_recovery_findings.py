"""Groups, streams and entries that are gone: a named error, or counted and passed over."""

from __future__ import annotations

import contextlib
import logging

import pytest
import redis

from spark_streams.connector.counters import LOST
from spark_streams.connector.errors import DataLossError, GroupMissingError, WrongKeyTypeError
from spark_streams.connector.spark.data_source import ReadMaxRows
from spark_streams.connector.wire.connection import Connection
from tests.remedies import carry_out
from tools.driving import ALL, add, begin, drain, pending_count, read, reader, stop_all
from tools.sending import KilledError, dying_at
from tools.servers.server import Server

LENIENT = {"failOnDataLoss": "false"}


def test_a_destroyed_group_is_made_again_at_the_checkpoint(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, 20)
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ReadMaxRows(8))
    client.xgroup_destroy("s", "g")
    with pytest.raises(GroupMissingError, match="no longer has group 'g'"):
        reader(server).latestOffset(end, ALL)
    with caplog.at_level(logging.WARNING, "spark_streams.source"):
        assert drain(reader(server, **LENIENT), start=end) == [list(range(8, 20))]
    assert "The query creates the group at the checkpoint" in caplog.text
    assert pending_count(client) == 0


def test_a_group_that_is_destroyed_during_a_batch_is_created_by_the_command_in_the_error(
    server: Server, client: redis.Redis
) -> None:
    """The query must ask the group what has killed the batch."""
    options = {"maxDeliveries": "1", "deadLetterStream": "dead"}
    add(client, 20)
    one = reader(server, **options)
    start = one.initialOffset()
    end = one.latestOffset(start, ReadMaxRows(8))
    one.partitions(start, end)  # its run dies of it
    client.xgroup_destroy("s", "g")
    again = reader(server, **options)
    again.initialOffset()
    with pytest.raises(GroupMissingError, match="no longer has group 'g'.* --start 0-0") as raised:
        again.partitions(start, end)
    stop_all()
    carry_out(server, str(raised.value))
    last = reader(server, **options)
    found = read(last, start, end)
    found += [n for batch in drain(last, start=end) for n in batch]
    found += [int(fields["n"]) for _, fields in client.xrange("dead")]
    assert sorted(found) == list(range(20))
    assert pending_count(client) == 0


@pytest.mark.parametrize("what", ["stands", "trimmed to the checkpoint", "trimmed above it", "begun anew"])
def test_a_missing_group_has_lost_what_its_stream_has_lost(server: Server, client: redis.Redis, what: str) -> None:
    """Not what the stream still holds above the checkpoint."""
    ids = add(client, 20)
    one = reader(server, **LENIENT)
    start = one.initialOffset()
    end = one.latestOffset(start, ReadMaxRows(8))
    client.xgroup_destroy("s", "g")
    if what == "begun anew":
        client.delete("s")
        add(client, 2, first=20)
    elif what != "stands":
        client.xtrim("s", minid=ids[8 if what == "trimmed to the checkpoint" else 11], approximate=False)
    lost = {"trimmed above it": 3, "begun anew": 12}.get(what, 0)
    rest = [20, 21] if what == "begun anew" else list(range(8 + lost, 20))
    assert drain(one, start=end) == [rest]
    assert one.reportLatestOffset().get("lost", {}) == ({"s": lost} if lost else {})
    assert pending_count(client) == 0


def test_a_stream_that_was_flushed_and_begun_again_is_read_from_its_start(server: Server, client: redis.Redis) -> None:
    add(client, 20)
    one = reader(server, **LENIENT)
    start = one.initialOffset()
    end = one.latestOffset(start, ReadMaxRows(8))
    assert read(one, start, end) == list(range(8))
    client.flushall()
    client.xadd("s", {"n": 100}, id="5-0")
    more = one.latestOffset(end, ALL)
    assert read(one, end, more) == [100]
    assert one.reportLatestOffset()["lost"] == {"s": 12}  # what the group had yet to read when it was last seen
    assert read(reader(server, **LENIENT), end, more) == [100]  # and so after a crash
    again = reader(server, **LENIENT)
    add(client, 2, first=101)
    assert drain(again, start=more) == [[101, 102]]


def test_what_a_stream_that_was_begun_again_has_lost_unread_is_counted(server: Server, client: redis.Redis) -> None:
    """The query has read nothing of it."""
    add(client, 20)
    one = reader(server, **LENIENT)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert len(read(one, start, end)) == 20
    client.delete("s")
    add(client, 6, first=20)
    client.xtrim("s", maxlen=4, approximate=False)
    again = reader(server, **LENIENT)
    more = again.latestOffset(end, ALL)
    assert read(again, end, more) == [22, 23, 24, 25]
    assert again.reportLatestOffset()["lost"] == {"s": 2}


def test_a_missing_stream_stops_a_strict_query(server: Server, client: redis.Redis) -> None:
    add(client, 20)
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ReadMaxRows(8))
    client.flushall()
    with pytest.raises(DataLossError, match="stream 's' at .* is missing, and so is its group 'g'"):
        one.latestOffset(end, ALL)
    client.xadd("s", {"n": 100}, id="5-0")
    with pytest.raises(DataLossError, match="stream 's' at .* is missing, and so is its group 'g'"):
        reader(server).latestOffset(end, ALL)


@pytest.mark.parametrize("read_before", [True, False])
def test_a_group_that_was_created_again_ahead_of_unread_entries_stops_a_strict_query(
    server: Server, client: redis.Redis, read_before: bool
) -> None:
    """It was destroyed while the query was down, and its stream had nothing in the last batch. A query that begins
    makes no group anew where it has read before."""
    options = {"streams": "a,b", "startingOffsets": "latest"}
    one = reader(server, **options)
    at = one.initialOffset()
    for stream in ["b", "a"] if read_before else ["a"]:
        add(client, 3, stream)
        start, at = at, one.latestOffset(at, ALL)
        assert read(one, start, at) == [0, 1, 2]
    assert one.latestOffset(at, ALL) == at
    add(client, 3, "b", first=10)
    client.xgroup_destroy("b", "g")
    for _ in range(2):
        again = reader(server, **options)
        again.initialOffset()
        with pytest.raises(GroupMissingError, match="stream 'b' at .* no longer has group 'g'"):
            again.latestOffset(at, ALL)
    assert drain(reader(server, **options, **LENIENT), start=at) == [[10, 11, 12]]


def test_a_stream_that_was_created_again_with_lower_ids_and_emptied_stops_a_strict_query(
    server: Server, client: redis.Redis
) -> None:
    """It has had more entries than the query has read, and none of those that the query has read."""
    client.xadd("s", {"n": 1}, id="1700000000000-0")
    one = reader(server)
    end = one.latestOffset(one.initialOffset(), ALL)
    client.delete("s")
    for n in range(1, 6):
        client.xadd("s", {"n": n}, id=f"{n}-0")
    client.xtrim("s", maxlen=0, approximate=False)
    again = reader(server)
    again.initialOffset()  # Spark asks for it also if there is a checkpoint
    for _ in range(2):
        with pytest.raises(DataLossError, match="stream 's' at .* is missing, and so is its group 'g'"):
            again.latestOffset(end, ALL)


def test_a_key_of_another_type_is_an_error_either_way(server: Server, client: redis.Redis) -> None:
    add(client, 5)
    one = reader(server, **LENIENT)
    start = one.initialOffset()
    client.delete("s")
    client.set("s", "text")
    with pytest.raises(WrongKeyTypeError, match="key 's' at .* holds another type than a stream"):
        one.latestOffset(start, ALL)


def test_entries_trimmed_before_they_were_read_are_counted_once(server: Server, client: redis.Redis) -> None:
    add(client, 100)
    one = reader(server, **LENIENT)
    start = one.initialOffset()
    at = one.latestOffset(start, ReadMaxRows(10))
    client.xtrim("s", maxlen=50, approximate=False)
    client.xtrim("s", maxlen=40, approximate=False)
    found = drain(one, 15, start=at)
    assert [n for batch in found for n in batch] == list(range(60, 100))
    assert one.reportLatestOffset()["lost"] == {"s": 50}
    client.xtrim("s", maxlen=0, approximate=False)
    assert [n for batch in drain(one, start=at) for n in batch] == []


def test_entries_deleted_while_pending_are_counted_when_their_batch_is_settled(
    server: Server, client: redis.Redis
) -> None:
    ids = add(client, 50)
    one = reader(server, entriesPerPartition="10", **LENIENT)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    client.xdel("s", *ids[3:5], ids[40])
    gone = {3, 4, 40}
    expected = [n for n in range(50) if n not in gone]
    assert read(one, start, end) == expected
    assert read(one, start, end) == expected  # a task that runs twice notes the same
    assert "lost" not in one.reportLatestOffset()
    assert one.latestOffset(end, ALL) == end
    assert one.reportLatestOffset()["lost"] == {"s": 3}
    assert pending_count(client) == 0


@pytest.mark.parametrize("how", [{"streams": "a,b"}, {"streamsPattern": "[ab]"}], ids=["named", "pattern"])
@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("trip", range(1, 14))
def test_a_stream_that_vanishes_at_any_round_trip_takes_only_itself(
    server: Server,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    how: dict[str, str],
    restarted: bool,
    trip: int,
) -> None:
    """A lenient query goes on with the others, wherever in a trigger the stream is deleted."""
    add(client, 10, "a")
    add(client, 10, "b", first=100)
    one = reader(server, **how, **LENIENT)
    start = one.initialOffset()
    at = one.latestOffset(start, ReadMaxRows(8))
    first = read(one, start, at)
    if restarted:
        one = reader(server, **how, **LENIENT)
    trips = 0
    send = Connection.send

    def vanishing(self: Connection, data: bytes) -> None:
        nonlocal trips
        trips += 1
        if trips == trip:
            client.delete("b")
        send(self, data)

    monkeypatch.setattr(Connection, "send", vanishing)
    found = [n for batch in drain(one, 8, start=at) for n in batch]
    assert trips >= trip
    assert [n for n in first + found if n < 100] == list(range(10))
    assert len(set(first + found)) == len(first + found)
    assert pending_count(client, "a") == 0


def test_a_task_that_goes_on_after_its_batch_is_committed_counts_nothing(server: Server, client: redis.Redis) -> None:
    """A second attempt that stood still finds the batch's entries removed, and writes them as missing."""
    add(client, 5)
    one = reader(server, **LENIENT)
    end = one.latestOffset(one.initialOffset(), ALL)
    one.commit(end)
    client.xtrim("s", maxlen=0, approximate=False)
    client.hset("rstream:missing:{s}:g:spark", f"{end['token']} run 0-0/9-0", 5)
    again = reader(server, **LENIENT)
    add(client, 1, first=5)
    assert drain(again, start=end) == [[5]]
    assert again.reportLatestOffset().get("lost", {}) == {}
    assert not client.exists("rstream:missing:{s}:g:spark")


@pytest.mark.parametrize("more", [0, 3], ids=["nothing to read", "more to read"])
def test_losses_of_a_batch_are_reported_by_the_run_that_acknowledges_it(
    server: Server, client: redis.Redis, more: int
) -> None:
    """Also if it ends before Spark has logged its offset. No later run reports them again."""
    ids = add(client, 5)
    one = reader(server, **LENIENT)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    client.xdel("s", *ids[1:3])
    assert read(one, start, end) == [0, 3, 4]
    add(client, more, first=5)
    lost = []
    for _ in range(3):  # the runs end before Spark logs their offset
        end_of_run = one.latestOffset(end, ALL)
        one.batches.worker.wait()
        lost.append(one.reportLatestOffset().get("lost"))
        one = reader(server, **LENIENT)
    assert lost == [{"s": 2}, None, None]
    assert read(one, end, end_of_run) == list(range(5, 5 + more))
    assert drain(one, start=end_of_run) == []


@pytest.mark.parametrize("no_ack", ["false", "true"], ids=["default", "noAck"])
@pytest.mark.parametrize("streams", ["s", "s,t"])
def test_losses_that_tasks_have_found_are_counted_wherever_the_driver_is_killed(
    server: Server, client: redis.Redis, streams: str, no_ack: str
) -> None:
    """They are deleted after they were reported. A run that is killed in between leaves them to the next run, which
    reports them once more."""
    names = streams.split(",")
    options = {"streams": streams, "noAck": no_ack, **LENIENT}
    end: dict[str, object] = {}

    def begin_again() -> None:
        client.flushall()
        ids = {name: add(client, 5, name) for name in names}
        one = reader(server, **options)
        start = one.initialOffset()
        end.update(one.latestOffset(start, ALL))
        for name in names:
            client.xdel(name, *ids[name][1:3])
        assert read(one, start, end) == [0, 3, 4] * len(names)

    reported = set()
    for turn in range(2, 1000):
        begin_again()
        one = reader(server, **options)
        with contextlib.suppress(KilledError), dying_at(turn // 2, executed=turn % 2 == 1) as sent:
            one.latestOffset(end, ALL)
        first = one.batches.counters.entries(LOST)
        stop_all()
        client.delete(*[f"rstream:lease:{{{name}}}:g:spark" for name in names])  # its process has ended
        one = reader(server, **options)
        assert one.latestOffset(end, ALL) == end
        for name in names:
            times = [first[name], one.batches.counters.entries(LOST)[name]]
            assert max(times) == 2, sent[-1:]
            reported.add((*times,))
        if len(sent) < turn // 2:
            break
    assert turn > 20
    assert reported == {(0, 2), (2, 2), (2, 0)}


@pytest.mark.parametrize("trip", range(1, 7))
def test_a_connection_that_breaks_at_any_round_trip_counts_losses_once(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, trip: int
) -> None:
    ids = add(client, 5)
    one = reader(server, **LENIENT)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    client.xdel("s", *ids[1:3])
    assert read(one, start, end) == [0, 3, 4]
    trips = 0
    send = Connection.send

    def breaking(self: Connection, data: bytes) -> None:
        nonlocal trips
        trips += 1
        send(self, data)
        if trips == trip:
            self.close()

    monkeypatch.setattr(Connection, "send", breaking)
    one.latestOffset(end, ALL)
    assert trips >= trip
    assert one.reportLatestOffset()["lost"] == {"s": 2}


def test_losses_of_a_batch_that_is_read_again_in_other_runs_are_counted_once(
    server: Server, client: redis.Redis
) -> None:
    ids = add(client, 20)
    crashed = reader(server, entriesPerPartition="1", **LENIENT)
    start = crashed.initialOffset()
    end = crashed.latestOffset(start, ALL)
    client.xdel("s", *ids[3:18:4])
    read(crashed, start, end)
    again = reader(server, **LENIENT)
    assert read(again, start, end) == [n for n in range(20) if n not in (3, 7, 11, 15)]
    assert drain(again, start=end) == []
    assert again.reportLatestOffset()["lost"] == {"s": 4}


def test_a_stream_whose_last_entries_were_deleted_unread_does_not_end_an_available_now_run(
    server: Server, client: redis.Redis
) -> None:
    options = {"streams": "a,b", "maxEntriesPerTrigger": "1", **LENIENT}
    reader(server, **options).initialOffset()
    add(client, 1, "a")
    client.xdel("a", *add(client, 1, "a"))
    client.xdel("a", *add(client, 1, "a"))
    add(client, 3, "b", first=10)
    one = reader(server, **options)
    one.prepareForTriggerAvailableNow()
    assert sorted(n for batch in drain(one, limit=1) for n in batch) == [0, 10, 11, 12]


def test_a_stream_that_vanished_unread_while_the_query_was_down_is_named(server: Server, client: redis.Redis) -> None:
    options = {"streams": "a,b"}
    one = reader(server, **options)
    start = one.initialOffset()
    add(client, 1, "a")
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [0]
    add(client, 2, "b")
    client.delete("b")
    again = reader(server, **options)
    again.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError):
        again.latestOffset(end, ALL)


@pytest.mark.parametrize("options", [{}, LENIENT])
def test_a_stream_that_was_left_out_for_a_while_goes_on_where_it_began(
    server: Server, client: redis.Redis, options: dict[str, str]
) -> None:
    """Before it has been in any batch."""
    given = {"startingOffsets": "latest", **options}
    add(client, 2, "b")
    one = reader(server, streams="a,b", **given)
    start = one.initialOffset()
    assert one.latestOffset(start, ALL) == start
    one = reader(server, streams="a", **given)
    start = one.initialOffset()
    add(client, 1, "a", first=10)
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [10]
    add(client, 1, "b", first=2)
    assert drain(reader(server, streams="a,b", **given), start=end) == [[2]]


def test_a_stream_of_the_pattern_that_vanishes_with_unread_entries_is_named(
    server: Server, client: redis.Redis
) -> None:
    """No batch has come from it, but the checkpoint has counted what it holds."""
    add(client, 3, "a")
    add(client, 2, "b")
    one = reader(server, streamsPattern="?", maxEntriesPerTrigger="1")
    start = one.initialOffset()
    end = one.latestOffset(start, one.getDefaultReadLimit())
    (taken,) = end["batch"]
    other = "b" if taken == "a" else "a"
    client.delete(other)
    with pytest.raises(DataLossError, match=rf"stream '{other}' .* is missing"):
        one.latestOffset(end, one.getDefaultReadLimit())


def test_a_no_ack_query_does_not_take_a_new_stream_for_the_one_it_knows(server: Server, client: redis.Redis) -> None:
    """It was made anew, with more entries than the checkpoint has read."""
    options = {"noAck": "true"}
    add(client, 3)
    one = reader(server, **options)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [0, 1, 2]
    client.flushall()
    add(client, 5, first=10)
    again = reader(server, **options)
    again.initialOffset()
    with pytest.raises(DataLossError, match="stream 's' at .* is missing, and so is its group 'g'"):
        again.latestOffset(end, ALL)


MODES = [LENIENT, {"noAck": "true", **LENIENT}]


@pytest.mark.parametrize("options", MODES, ids=["plain", "noAck"])
def test_a_stream_that_is_created_again_with_the_ids_it_had_is_read_once_more(
    server: Server, client: redis.Redis, options: dict[str, str]
) -> None:
    """The query goes on from the first entry until an offset says so, and not each time that it comes to that id."""
    ids = add(client, 3)
    one = reader(server, **options)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [0, 1, 2]
    client.delete("s")
    empty = one.latestOffset(end, ALL)
    for n, entry in enumerate(ids):
        client.xadd("s", {"n": n}, id=entry)
    found = []
    for _ in range(4):
        after = one.latestOffset(empty, ALL)
        found += read(one, empty, after) if after != empty else []
        empty = after
    assert found == [0, 1, 2]


@pytest.mark.parametrize("options", MODES, ids=["plain", "noAck"])
def test_a_stream_that_vanishes_under_an_available_now_run_does_not_keep_it_from_ending(
    server: Server, client: redis.Redis, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """The stream is created again, empty: it does not come to where the run was to end."""
    add(client, 4)
    one = reader(server, **options)
    one.prepareForTriggerAvailableNow()
    start = one.initialOffset()
    at = one.latestOffset(start, ALL)
    client.delete("s")
    assert read(one, start, at) == []
    for _ in range(5):
        end = one.latestOffset(at, ALL)
        if end == at:
            break
        assert read(one, at, end) == []
        at = end
    else:
        pytest.fail(f"the run does not end: {caplog.text}")


@pytest.mark.parametrize("options", [{}, {"noAck": "true"}])
def test_after_a_server_was_restored_losses_are_counted_again(
    server: Server, client: redis.Redis, options: dict[str, str]
) -> None:
    options = {**options, "failOnDataLoss": "false"}
    add(client, 4)
    one = reader(server, **options)
    end = one.latestOffset(start := begin(one), ReadMaxRows(2))
    assert read(one, start, end) == [0, 1]
    dump = client.dump("s")
    add(client, 6, first=4)
    after = one.latestOffset(end, ALL)
    assert len(read(one, end, after)) == 8
    one.commit(after)
    stop_all()
    client.restore("s", 0, dump, replace=True)
    one = reader(server, **options)
    restored = one.latestOffset(after, ALL)
    assert one.latestOffset(restored, ALL) == restored
    stop_all()
    add(client, 3, first=20)
    client.xtrim("s", maxlen=1, approximate=False)
    one = reader(server, **options)
    ended = one.latestOffset(restored, ALL)
    assert read(one, restored, ended) == [22]
    one.latestOffset(ended, ALL)
    assert one.reportLatestOffset()["lost"]["s"] == 2
