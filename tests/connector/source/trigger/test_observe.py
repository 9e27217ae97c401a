"""What others do to checkpoint, group and server between two triggers or two runs: entries are read once, or named."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from spark_streams.connector.errors import DataLossError, StreamStateError
from spark_streams.connector.source.commit_mark import Mark
from spark_streams.connector.source.offset import Offset, StreamOffset
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.source.trigger import observe
from spark_streams.connector.spark.data_source import ReadMaxRows
from spark_streams.connector.wire.connection import Connection
from tests.remedies import carry_out
from tools.driving import ALL, NEVER_AHEAD, add, begin, drain, pending_count, positions, read, reader, stop_all
from tools.servers.server import Server

LENIENT = {"failOnDataLoss": "false"}
TEN = ReadMaxRows(10)


def batches(one: StreamReader, count: int, at: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """So many batches of ten are read; the offset log, with where they began."""
    log = [one.initialOffset() if at is None else at]
    for _ in range(count):
        end = one.latestOffset(log[-1], TEN)
        assert len(read(one, log[-1], end)) == 10
        log.append(end)
    one.commit(log[-1])
    return log


def read_all(lenient: StreamReader, begin: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """Read batches of ten until there are no more; the numbers, and the last offset."""
    numbers: list[int] = []
    while (end := lenient.latestOffset(begin, TEN)) != begin:
        numbers += read(lenient, begin, end)
        lenient.commit(end)
        begin = end
    return numbers, begin


def lost(one: StreamReader) -> int:
    counts: Any = one.reportLatestOffset().get("lost", {})
    return int(counts.get("s", 0))


# -- a checkpoint that is older than what is committed --------------------------------------------------------------


@pytest.mark.parametrize("options", [{}], ids=str)
@pytest.mark.parametrize("shared", [False, True])
def test_an_older_copy_of_the_checkpoint_is_noticed(
    server: Server, client: redis.Redis, options: dict[str, str], shared: bool
) -> None:
    add(client, 50)
    one = reader(server, limits=NEVER_AHEAD, **options)
    at = begin(one)
    if shared:
        client.xgroup_createconsumer("s", "g", "other")
    log = batches(one, 4, at)
    assert one.latestOffset(log[4], ReadMaxRows(1)) != log[4]
    causes = (
        "an older copy of the checkpoint, its last files are missing, or another checkpoint was used with this group"
    )
    with pytest.raises(DataLossError, match=causes) as raised:
        reader(server, limits=NEVER_AHEAD, **options).latestOffset(log[2], TEN)
    stop_all()
    carry_out(server, str(raised.value), *(["--even-active"] if shared else []))
    again = reader(server, limits=NEVER_AHEAD, **options)
    assert [n for batch in drain(again, 10, log[2]) for n in batch][:30] == list(range(20, 50))


def test_a_batch_that_the_commit_log_has_lost_is_not_taken_for_one_of_another_history(
    server: Server, client: redis.Redis
) -> None:
    """The checkpoint was copied before the batch, and the copy used."""
    add(client, 40)
    log = batches(reader(server, limits=NEVER_AHEAD), 3)
    copy = reader(server, limits=NEVER_AHEAD, **LENIENT)
    other = copy.latestOffset(log[2], TEN)
    assert read(copy, log[2], other) == list(range(20, 30))
    assert copy.latestOffset(other, ReadMaxRows(0)) == other
    with pytest.raises(DataLossError, match="an older copy of the checkpoint"):
        read(reader(server, limits=NEVER_AHEAD), log[2], log[3])


@pytest.mark.parametrize("to", [2, 1, None], ids=["its position", "below it", "lenient"])
@pytest.mark.parametrize("before", [{}, {"noAck": "true"}], ids=["", "noAck before"])
def test_the_newer_checkpoint_is_noticed_after_an_older_copy_was_used(
    server: Server, client: redis.Redis, to: int | None, before: dict[str, str]
) -> None:
    """The numbers of the older copy go on after those of the newer one, also if it is killed before Spark has logged
    where it goes on. before: options of the runs before."""
    add(client, 50)
    log = batches(reader(server, limits=NEVER_AHEAD, **before), 4)
    stop_all()
    options, first = (LENIENT, 2) if to is None else ({}, to)
    if to is not None:
        seek(server, positions(log[to])["s"])
    reader(server, limits=NEVER_AHEAD, **options).latestOffset(log[2], TEN)  # it is killed
    stop_all()
    older = reader(server, limits=NEVER_AHEAD, **options)
    end = older.latestOffset(log[2], TEN)
    assert read(older, log[2], end) == list(range(10 * first, 10 * first + 10))
    older.latestOffset(end, TEN)
    stop_all()
    with pytest.raises(DataLossError, match="an older copy of the checkpoint"):
        reader(server, limits=NEVER_AHEAD).latestOffset(log[4], TEN)
    stop_all()
    assert reader(server, limits=NEVER_AHEAD).latestOffset(end, TEN) != end


def test_what_has_left_above_an_older_copy_is_counted(server: Server, client: redis.Redis) -> None:
    ids = add(client, 50)
    log = batches(reader(server, limits=NEVER_AHEAD), 4)
    stop_all()
    client.xtrim("s", minid=ids[25], approximate=False)
    older = reader(server, limits=NEVER_AHEAD, **LENIENT)
    assert drain(older, 10, log[2]) == [list(range(25, 35)), list(range(35, 45)), list(range(45, 50))]
    assert older.reportLatestOffset()["lost"] == {"s": 5}


def test_a_missing_group_that_is_there_again_is_not_marked(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was restored between the look and the repair. The last batch is pending again: its mark would hide
    that."""
    ids = add(client, 50)
    one = reader(server, limits=NEVER_AHEAD)
    log = batches(one, 3)
    before = client.get(MARK)
    end = one.latestOffset(log[3], TEN)
    assert read(one, log[3], end) == list(range(30, 40))
    stop_all()
    client.xgroup_destroy("s", "g")
    honest = observe.carry_out

    def restored(*given: Any) -> Any:
        monkeypatch.setattr(observe, "carry_out", honest)
        client.set(MARK, before)
        client.xgroup_create("s", "g", ids[29], entries_read=30)
        client.xreadgroup("g", "spark", {"s": ">"}, count=10)
        return honest(*given)

    monkeypatch.setattr(observe, "carry_out", restored)
    assert drain(reader(server, limits=NEVER_AHEAD, **LENIENT), 10, end) == [list(range(40, 50))]
    assert pending_count(client) == 0


def test_an_older_copy_from_before_the_first_batch_of_a_stream_reads_it_once(
    server: Server, client: redis.Redis
) -> None:
    """Also if it is killed before Spark has logged that the numbers go on after those of the newer one."""
    add(client, 10, "t")
    options = {"streams": "s,t", "startingOffsets": "5-5", **LENIENT}
    log = batches(reader(server, limits=NEVER_AHEAD, **options), 1)
    add(client, 10)
    log = batches(reader(server, limits=NEVER_AHEAD, **options), 1, log[1])
    assert reader(server, limits=NEVER_AHEAD, **options).latestOffset(log[1], TEN) == log[1]
    for _ in range(2):  # the second one is killed
        stop_all()
        older = reader(server, limits=NEVER_AHEAD, **options)
        end = older.latestOffset(log[0], TEN)
    assert read(older, log[0], end) == list(range(10))
    stop_all()
    assert drain(reader(server, limits=NEVER_AHEAD, **options), start=end) == []


def test_an_earlier_checkpoint_is_noticed_after_a_new_one_has_followed_a_seek(
    server: Server, client: redis.Redis
) -> None:
    add(client, 50)
    log = batches(reader(server, limits=NEVER_AHEAD), 4)
    stop_all()
    seek(server, positions(log[1])["s"])
    renewed = reader(server, limits=NEVER_AHEAD)
    start = renewed.initialOffset()
    end = renewed.latestOffset(start, TEN)
    assert read(renewed, start, end) == list(range(10, 20))
    stop_all()
    with pytest.raises(DataLossError, match="an older copy of the checkpoint"):
        reader(server, limits=NEVER_AHEAD).latestOffset(log[4], TEN)
    stop_all()
    assert reader(server, limits=NEVER_AHEAD).latestOffset(end, TEN) != end


def seek(server: Server, to: str) -> None:
    carry_out(server, f"(rstream groups seek s --group g --to {to} --yes)")


MARK = "rstream:committed:{s}:g:spark"


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("newest", [4, 2], ids=["newest", "older copy"])
@pytest.mark.parametrize("is_accepted", [False, True], ids=["strict", "lenient"])
def test_a_missing_commit_mark_is_noticed(
    server: Server, client: redis.Redis, shared: bool, newest: int, is_accepted: bool
) -> None:
    """Nobody knows whether the checkpoint is the newest. Alone, its entries are read either way; a lenient query in a
    shared group counts one. Then the mark is there again."""
    add(client, 50)
    one = reader(server, limits=NEVER_AHEAD)
    at = begin(one)
    if shared:
        client.xgroup_createconsumer("s", "g", "other")
    log = batches(one, 4, at)
    stop_all()
    client.delete(MARK)
    with pytest.raises(DataLossError, match="has no commit mark: .*set failOnDataLoss=false for one run") as raised:
        reader(server, limits=NEVER_AHEAD).latestOffset(log[newest], TEN)
    stop_all()
    assert not client.exists(MARK)
    if not is_accepted:
        carry_out(server, str(raised.value), "--even-active")
    again = reader(server, limits=NEVER_AHEAD, **(LENIENT if is_accepted else {}))
    is_skipped = shared and is_accepted
    expected = list(range(40 if is_skipped else 10 * newest, 50))
    numbers, end = read_all(again, log[newest])
    assert (numbers, lost(again)) == (expected, int(is_skipped))
    stop_all()
    assert StreamOffset.parse(end["streams"]["s"]).mark == Mark.parse(client.get(MARK).encode())
    assert reader(server).latestOffset(end, TEN) == end


@pytest.mark.parametrize("shared", [False, True])
def test_a_mark_that_is_deleted_under_a_running_query_is_written_again(
    server: Server, client: redis.Redis, shared: bool
) -> None:
    """The run itself knows that its checkpoint is the newest."""
    add(client, 20)
    one = reader(server, limits=NEVER_AHEAD)
    at = begin(one)
    if shared:
        client.xgroup_createconsumer("s", "g", "other")
    log = batches(one, 2, at)
    assert one.latestOffset(log[2], TEN) == log[2]
    client.delete(MARK)
    client.xgroup_createconsumer("s", "g", "another")  # else the run does not look for the mark
    assert one.latestOffset(log[2], TEN) == log[2]
    assert client.exists(MARK)
    add(client, 5, first=20)
    end = one.latestOffset(log[2], TEN)
    assert read(one, log[2], end) == list(range(20, 25))
    assert lost(one) == 0


def test_a_group_that_is_set_back_is_noticed_without_a_mark(server: Server, client: redis.Redis) -> None:
    """The run knows what it has committed. It sets the group to there: otherwise it would read an entry again."""
    ids = add(client, 50)
    one = reader(server, limits=NEVER_AHEAD)
    log = batches(one, 4)
    client.xgroup_setid("s", "g", ids[30])
    client.delete(MARK)
    assert read_all(one, log[4])[0] == list(range(40, 50))


def test_a_batch_is_not_read_again_without_a_commit_mark(server: Server, client: redis.Redis) -> None:
    """Spark's commit log does not have the batch, so it may be that of an older copy."""
    add(client, 40)
    log = batches(reader(server, limits=NEVER_AHEAD), 3)
    stop_all()
    client.delete(MARK)
    with pytest.raises(DataLossError, match="has no commit mark"):
        read(reader(server, limits=NEVER_AHEAD), log[2], log[3])


def test_a_query_without_a_pending_list_needs_no_commit_mark(server: Server, client: redis.Redis) -> None:
    add(client, 20)
    log = batches(reader(server, noAck="true"), 1)
    client.delete(MARK)
    assert [n for b in drain(reader(server, noAck="true"), 10, log[1]) for n in b] == list(range(10, 20))


def test_an_older_copy_of_the_checkpoint_is_all_that_counts_without_a_pending_list(
    server: Server, client: redis.Redis
) -> None:
    add(client, 50)
    log = batches(reader(server, noAck="true"), 4)
    assert [n for b in drain(reader(server, noAck="true"), 10, log[2]) for n in b] == list(range(20, 50))


# -- groups that are moved ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("running", [True, False])
def test_a_group_that_is_set_forward_is_noticed(server: Server, client: redis.Redis, running: bool) -> None:
    ids = add(client, 50)
    one = reader(server, limits=NEVER_AHEAD)
    log = batches(one, 2)
    client.xgroup_setid("s", "g", ids[29])
    with pytest.raises(
        DataLossError,
        match=rf"group 'g' of stream 's' is at {ids[29]}, above the checkpoint's {ids[19]}",
    ):
        (one if running else reader(server, limits=NEVER_AHEAD)).latestOffset(log[2], TEN)
    lenient = reader(server, limits=NEVER_AHEAD, **LENIENT)
    assert [n for batch in drain(lenient, 10, log[2]) for n in batch] == list(range(20, 50))
    assert lost(lenient) == 0


@pytest.mark.parametrize("options", [{}], ids=str)
@pytest.mark.parametrize(("start", "added"), [("latest", 0), ("latest", 5), ("5-5", 0)])
def test_a_stream_that_joins_the_list_and_is_not_read_yet_has_no_group_that_was_set_forward(
    server: Server, client: redis.Redis, options: dict[str, str], start: str, added: int
) -> None:
    add(client, 30)
    log = batches(reader(server, limits=NEVER_AHEAD, **options), 1)
    for _ in range(added):
        client.xadd("t", {"n": 0})
    stop_all()
    both = {"streams": "s,t", "startingOffsets": start, **options}
    log = batches(reader(server, limits=NEVER_AHEAD, **both), 1, log[-1])
    stop_all()
    again = reader(server, limits=NEVER_AHEAD, **both)
    client.xadd("t", {"n": 99})
    assert sorted(n for batch in drain(again, 20, log[-1]) for n in batch) == [*range(20, 30), 99]


def test_a_stream_created_again_and_one_whose_group_is_missing_differ_in_what_they_lost(
    server: Server, client: redis.Redis
) -> None:
    """It has had more entries than the one before, and some of them are deleted: fewer than were read."""
    add(client, 20)
    log = batches(reader(server, limits=NEVER_AHEAD), 1)
    client.delete("s")
    time.sleep(0.002)
    again = add(client, 25, first=100)
    client.xdel("s", *again[4:6])
    with pytest.raises(DataLossError, match="'s' at .* is missing.* Another stream was created"):
        reader(server, limits=NEVER_AHEAD).latestOffset(log[1], TEN)
    lenient = reader(server, limits=NEVER_AHEAD, **LENIENT)
    assert [n for batch in drain(lenient, None, log[1]) for n in batch] == [*range(100, 104), *range(106, 125)]
    assert lost(lenient) == 10 + 2


@pytest.mark.parametrize("options", [{}, {"noAck": "true"}], ids=str)
def test_where_a_query_has_begun_is_not_taken_for_what_it_has_committed(
    server: Server, client: redis.Redis, options: dict[str, str]
) -> None:
    """It was killed before its first checkpoint, left one stream out, and reads it again."""
    begins = {"startingOffsets": "5-5", **options}
    begin(reader(server, streams="s,t", **begins))
    add(client, 5)
    one = reader(server, **begins)
    end = one.latestOffset(one.initialOffset(), ALL)
    assert read(one, one.initialOffset(), end) == list(range(5))
    add(client, 5, "t", first=10)
    assert drain(reader(server, streams="s,t", **begins), start=end) == [list(range(10, 15))]


def test_a_group_that_was_set_back_is_set_to_the_checkpoint(server: Server, client: redis.Redis) -> None:
    ids = add(client, 50)
    log = batches(reader(server, limits=NEVER_AHEAD), 2)
    client.xgroup_setid("s", "g", ids[4])
    lenient = reader(server, limits=NEVER_AHEAD)
    assert [n for batch in drain(lenient, 10, log[2]) for n in batch] == list(range(20, 50))
    assert lost(lenient) == 0
    assert pending_count(client) == 0


@pytest.mark.parametrize("others", [False, True])
def test_a_group_that_was_set_back_below_a_start_that_lies_ahead_is_set_there(
    server: Server, client: redis.Redis, others: bool
) -> None:
    """What it delivers there is not for the query, and would stay pending. A shared group says so."""
    one = reader(server, startingOffsets="1000-0")
    at = one.initialOffset()
    assert one.latestOffset(at, ALL) == at
    if others:
        client.xgroup_createconsumer("s", "g", "bob")
    client.xgroup_setid("s", "g", "0")
    for n in range(3):
        client.xadd("s", {"n": -1}, id=f"{n + 1}-0")
    if others:
        with pytest.raises(StreamStateError, match="is at 0-0, below the checkpoint's 1000-0"):
            one.latestOffset(at, ALL)
        return
    assert one.latestOffset(at, ALL) == at
    assert pending_count(client) == 0
    client.xadd("s", {"n": 7}, id="1001-0")
    assert drain(one, start=at) == [[7]]


def restore(client: redis.Redis, dump: bytes) -> None:
    """The server comes back as it was."""
    client.restore("s", 0, dump, replace=True)


@pytest.mark.parametrize("then", ["nothing", "new entries"])
def test_entries_lost_by_a_restarted_server_are_named_or_counted(server: Server, then: str) -> None:
    """Those of batches that are committed, too."""
    with server.client() as raw, server.client(decode_responses=True) as client:
        add(client, 20)
        one = reader(server, limits=NEVER_AHEAD)
        log = batches(one, 1)
        dump, marks = raw.dump("s"), {key: raw.get(key) for key in raw.keys("rstream:committed:*")}
        add(client, 20, first=20)
        log = batches(one, 3, log[1])
        assert dump is not None
        restore(raw, dump)
        for key, value in marks.items():
            raw.set(key, value or b"")
        if then == "new entries":
            add(client, 5, first=100)
        with pytest.raises(DataLossError, match="the server has lost at least (20|15) entries"):
            reader(server, limits=NEVER_AHEAD).latestOffset(log[3], TEN)
        lenient = reader(server, limits=NEVER_AHEAD, **LENIENT)
        numbers, end = read_all(lenient, log[3])
        assert numbers == ([100, 101, 102, 103, 104] if then == "new entries" else [])
        add(client, 5, first=200)
        assert read_all(lenient, end)[0] == list(range(200, 205))
        assert lost(lenient) >= 15
        assert pending_count(client) == 0


def test_an_empty_server_counts_what_the_checkpoint_knows_to_be_unread(server: Server, client: redis.Redis) -> None:
    add(client, 50)
    log = batches(reader(server), 2)
    client.flushall()
    with pytest.raises(DataLossError, match="stream 's' at .* is missing"):
        reader(server).latestOffset(log[2], TEN)
    lenient = reader(server, **LENIENT)
    assert drain(lenient, start=log[2]) == [[]]  # the checkpoint remembers it
    assert lost(lenient) == 30


# -- streams that are others ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, LENIENT], ids=["strict", "lenient"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_stream_that_the_query_was_told_to_leave_may_be_deleted(
    server: Server, client: redis.Redis, options: dict[str, str], restarted: bool
) -> None:
    add(client, 5, "a")
    add(client, 5, "b", first=100)
    one = reader(server, streams="a,b", **options)
    at = one.initialOffset()
    end = one.latestOffset(at, ALL)
    assert len(read(one, at, end)) == 10
    if restarted:
        one.latestOffset(end, ALL)
        client.delete("b")
    one = reader(server, streams="a", **options)
    add(client, 5, "a", first=5)
    more = one.latestOffset(end, ALL)
    assert read(one, end, more) == [5, 6, 7, 8, 9]
    client.delete("b")
    assert one.latestOffset(more, ALL) == more
    again = reader(server, streams="a", **options)
    add(client, 5, "a", first=10)
    assert drain(again, None, more) == [[10, 11, 12, 13, 14]]
    assert pending_count(client, "a") == 0


# -- what only some runs do -----------------------------------------------------------------------------------------


def test_a_run_without_a_pending_list_that_comes_to_no_checkpoint_takes_nothing_along(
    server: Server, client: redis.Redis
) -> None:
    """It is killed with its first batch in hand, and the next run has a pending list again."""
    add(client, 50)
    log = batches(reader(server, limits=NEVER_AHEAD), 2)
    reader(server, limits=NEVER_AHEAD, noAck="true").latestOffset(log[2], TEN)
    reader(server, limits=NEVER_AHEAD, noAck="true").latestOffset(log[2], TEN)
    again = reader(server, limits=NEVER_AHEAD)
    assert [n for batch in drain(again, 10, log[2]) for n in batch] == list(range(20, 50))
    assert client.keys("rstream:start:*") == []


def test_a_server_that_is_set_back_under_a_running_query_is_noticed(server: Server) -> None:
    """What was acknowledged is pending again: it is acknowledged again, and read no more."""
    with server.client() as raw, server.client(decode_responses=True) as client:
        add(client, 20)
        one = reader(server, limits=NEVER_AHEAD)
        at = one.initialOffset()
        end = one.latestOffset(at, ALL)
        assert len(read(one, at, end)) == 20
        dump, marks = raw.dump("s"), {key: raw.get(key) for key in raw.keys("rstream:committed:*")}
        assert one.latestOffset(end, ALL) == end
        assert dump is not None
        restore(raw, dump)
        for key in raw.keys("rstream:committed:*"):
            raw.delete(key)
        for key, value in marks.items():
            raw.set(key, value or b"")
        assert one.latestOffset(end, ALL) == end
        assert pending_count(client) == 0


def test_a_stream_that_vanishes_while_a_lenient_query_begins_stops_nothing(server: Server, client: redis.Redis) -> None:
    add(client, 3, "a")
    add(client, 3, "b", first=10)
    one = reader(server, streams="a,b", **LENIENT)
    send, trips = Connection.send, 0

    def vanishing(self: Connection, data: bytes) -> None:
        nonlocal trips
        trips += b"XGROUP" in data
        if trips == 1 and b"XGROUP" in data:
            client.delete("b")
        send(self, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "send", vanishing)
        at = begin(one)
    assert drain(one, None, at) == [[0, 1, 2]]


def test_an_older_checkpoint_of_a_stream_that_was_left_out_for_a_while_is_noticed(
    server: Server, client: redis.Redis
) -> None:
    add(client, 3, "a")
    add(client, 3, "b", first=10)
    one = reader(server, streams="a,b")
    at = one.initialOffset()
    older = one.latestOffset(at, ALL)
    assert sorted(read(one, at, older)) == [0, 1, 2, 10, 11, 12]
    add(client, 1, "a", first=3)
    newer = one.latestOffset(older, ALL)
    assert read(one, older, newer) == [3]
    for at in (newer, older):
        assert reader(server, streams="b").latestOffset(at, ALL) == at
    with pytest.raises(
        DataLossError, match="the checkpoint is at .* of stream 'a', and .* has committed a later batch"
    ):
        reader(server, streams="a,b").latestOffset(older, ALL)


def test_a_stream_that_was_left_out_and_is_missing_stops_no_run_whose_connection_breaks(
    server: Server, client: redis.Redis
) -> None:
    """Its group has nothing to acknowledge."""
    for stream in ("s", "t"):
        client.xadd(stream, {"n": 0})
    one = reader(server, limits=NEVER_AHEAD, streams="s,t", **LENIENT)
    at = begin(one)
    end = one.latestOffset(at, ALL)
    assert read(one, at, end) == [0, 0]
    stop_all()
    one = reader(server, limits=NEVER_AHEAD, streams="t", **LENIENT)
    assert one.latestOffset(end, ALL) == end
    client.flushall()
    client.xadd("t", {"n": 1})
    client.client_kill_filter(_type="normal", skipme=True)
    last = one.latestOffset(end, ALL)
    assert (read(one, end, last), sorted(last["streams"])) == ([1], ["t"])


def test_what_is_handed_to_a_query_that_has_just_begun_is_read(server: Server, client: redis.Redis) -> None:
    """Before its first batch, at entries that others were given."""
    add(client, 8)
    client.xgroup_create("s", "g", id="0")
    [(_, entries)] = client.xreadgroup("g", "bob", {"s": ">"}, count=5)
    one = reader(server)
    at = one.initialOffset()
    client.xclaim("s", "g", "spark", 0, [entry for entry, _ in entries[:3]])
    assert sorted(n for batch in drain(one, start=at) for n in batch) == [0, 1, 2, 5, 6, 7]
    assert pending_count(client) == 2


@pytest.mark.parametrize("options", [{}, {"noAck": "true"}], ids=str)
def test_a_stream_that_was_left_out_before_the_first_batch_is_taken_in_again(
    server: Server, client: redis.Redis, options: dict[str, str]
) -> None:
    """Its commit mark says where the query was to begin, and is no sign of a newer checkpoint."""
    add(client, 3)
    latest = {"startingOffsets": "latest", **options}
    begin(reader(server, streams="s,t", **latest))
    add(client, 2, "t", first=10)
    one = reader(server, streams="t", **latest)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [10, 11]
    add(client, 2, first=3)
    assert drain(reader(server, streams="s,t", **latest), start=end) == [[3, 4]]


def test_claimed_entries_above_a_group_that_is_set_back_are_read_once(server: Server, client: redis.Redis) -> None:
    """The group gives them again, so they must not stay claimed."""
    ids = add(client, 10)
    claiming = {"claimIdle": "1ms"}
    one = reader(server, limits=NEVER_AHEAD, **claiming)
    start = one.initialOffset()
    end = one.latestOffset(start, ReadMaxRows(5))
    assert read(one, start, end) == [0, 1, 2, 3, 4]
    assert one.latestOffset(end, ReadMaxRows(0)) == end
    client.xreadgroup("g", "bob", {"s": ">"})
    time.sleep(0.01)
    again = reader(server, limits=NEVER_AHEAD, **claiming)
    assert Offset.from_json(again.latestOffset(end, ALL)).held == 5  # killed here
    client.xgroup_delconsumer("s", "g", "bob")
    client.xgroup_setid("s", "g", ids[4])
    last = reader(server, limits=NEVER_AHEAD, **claiming)
    assert [n for batch in drain(last, start=end) for n in batch] == [5, 6, 7, 8, 9]
    assert pending_count(client) == 0


def test_what_is_handed_to_a_query_that_was_killed_in_its_first_batch_is_read(
    server: Server, client: redis.Redis
) -> None:
    """The commit mark says where the query begins, so entries below that are no part of the batch."""
    add(client, 8)
    client.xgroup_create("s", "g", id="0")
    [(_, entries)] = client.xreadgroup("g", "bob", {"s": ">"}, count=5)
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [5, 6, 7]
    client.xclaim("s", "g", "spark", 0, [entry for entry, _ in entries[:3]])
    assert drain(reader(server), start=end) == [[0, 1, 2]]
    assert pending_count(client) == 2


@pytest.mark.parametrize("taken", [2, 5])
@pytest.mark.parametrize("options", [{}, {"claimIdle": "30m"}], ids=str)
def test_what_is_handed_over_in_place_of_taken_entries_is_read_at_once(
    server: Server, client: redis.Redis, options: dict[str, str], taken: int
) -> None:
    """As many are pending as the last batch has, and not all of them are its entries."""
    ids = add(client, 8)
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "bob", {"s": ">"}, count=3)
    one = reader(server, limits=NEVER_AHEAD, **options)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [3, 4, 5, 6, 7]
    client.xclaim("s", "g", "bob", 0, ids[3 : 3 + taken])
    client.xclaim("s", "g", "spark", 0, ids[:2])
    assert drain(one, start=end) == [[0, 1]]
    assert pending_count(client) == 1 + taken
