"""A query with noAck reads what lies between two ids, and its group is a bookmark: it stands where all is committed."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from typing import Any

import pytest
import redis

from spark_streams.connector.errors import DataLossError
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.spark.data_source import ReadMaxRows
from tests.remedies import carry_out
from tools.driving import ALL, SMALL, add, drain, positions, read, reader, stop_all
from tools.sending import before_sending
from tools.servers.server import Server

NO_ACK = {"noAck": "true"}
LENIENT = {"failOnDataLoss": "false"}
PARTS = replace(SMALL, smallest_task=20)  # batches of fifty entries have several tasks
FIFTY = ReadMaxRows(50)


def in_parts(server: Server, **options: str) -> StreamReader:
    return reader(server, limits=PARTS, **NO_ACK, **options)


def group_state(client: redis.Redis) -> tuple[str, int | None, int | None]:
    """Where the group stands, how many entries it has read, and its lag."""
    [group] = client.xinfo_groups("s")
    return group["last-delivered-id"], group["entries-read"], group["lag"]


def spread(client: redis.Redis, count: int) -> list[str]:
    """Entries n = 0, 1, …, three milliseconds apart; their ids."""
    pipe = client.pipeline(transaction=False)
    for n in range(count):
        pipe.xadd("s", {"n": n}, id=f"{1_700_000_000_000 + 3 * n}-0")
    return [str(i) for i in pipe.execute()]


def trim(client: redis.Redis, ids: list[str], count: int) -> None:
    """The oldest entries go."""
    client.xtrim("s", minid=ids[count], approximate=False)


def lost(one: StreamReader) -> int:
    told: Any = one.reportLatestOffset().get("lost", {})
    return int(told.get("s", 0))


def test_batches_have_the_limit_and_the_group_shows_exactly_what_is_read(server: Server, client: redis.Redis) -> None:
    ids = spread(client, 620)
    one = in_parts(server)
    at, batches, tasks = one.initialOffset(), list[list[int]](), list[int]()
    while (end := one.latestOffset(at, FIFTY)) != at:
        number = sum(map(len, batches))
        one.batches.worker.wait()
        last = ids[number - 1] if number else "0-0"
        assert group_state(client) == (last, number, 620 - number), "the batch before is committed, and counted"
        tasks.append(len(one.partitions(at, end)))
        batches.append(read(one, at, end))
        at = end
    assert [n for batch in batches for n in batch] == list(range(620))
    assert [len(batch) for batch in batches] == [*[50] * 12, 20]
    assert min(tasks[:-1]) > 1
    assert group_state(client) == (ids[-1], 620, 0)
    assert [group["name"] for group in client.xinfo_groups("s")] == ["g"], "the scratch group is gone"


def test_the_group_stands_at_the_end_after_a_seek_back_and_a_batch_that_ends_at_the_same_id(
    server: Server, client: redis.Redis
) -> None:
    ids, at = spread(client, 5), None
    for _run in range(2):
        one = reader(server, **NO_ACK)
        at = at or one.initialOffset()
        end = one.latestOffset(at, ALL)
        assert read(one, at, end) == list(range(5))
        one.commit(end)
        assert one.latestOffset(end, ALL) == end
        one.stop()
        assert group_state(client) == (ids[-1], 5, 0)
        at = end
        carry_out(server, "(rstream groups seek s --group g --to earliest --even-active --yes)")


def test_a_scratch_group_that_a_killed_run_has_left_changes_nothing_and_goes(
    server: Server, client: redis.Redis
) -> None:
    """Also if nothing has to be divided: it would hold entries back for the server's own trims."""
    ids = spread(client, 120)
    scratch = "rstream-probe:g:spark"
    client.xgroup_create("s", scratch, ids[90])
    one = in_parts(server)
    at = one.initialOffset()
    end = one.latestOffset(at, FIFTY)
    assert read(one, at, end) == list(range(50))
    assert [group["name"] for group in client.xinfo_groups("s")] == ["g"]
    client.xgroup_create("s", scratch, ids[10])
    again = in_parts(server)
    last = again.latestOffset(end, ALL)
    assert read(again, end, last) == list(range(50, 120))
    assert [group["name"] for group in client.xinfo_groups("s")] == ["g"]
    client.xgroup_create("s", scratch, ids[10])
    stop_all()
    reader(server).latestOffset(last, ALL)  # a run without noAck
    assert [group["name"] for group in client.xinfo_groups("s")] == ["g"]
    add(client, 1, first=120)
    plain = reader(server)
    later = plain.latestOffset(last, ALL)
    assert read(plain, last, later) == [120]
    client.xgroup_create("s", scratch, ids[10])  # of a run with noAck that no offset tells of
    stop_all()
    reader(server).latestOffset(later, ALL)
    assert [group["name"] for group in client.xinfo_groups("s")] == ["g"]


@pytest.mark.parametrize("deleted", [range(100, 103), range(49, 52), range(297, 300), range(0, 300, 2)])
def test_deleted_entries_do_not_change_the_limit(server: Server, client: redis.Redis, deleted: range) -> None:
    """The server's own counter is an estimate then."""
    ids = spread(client, 300)
    one = in_parts(server, **LENIENT)
    at = one.latestOffset(one.initialOffset(), ReadMaxRows(1))
    client.xdel("s", *[ids[n] for n in deleted])
    left = [n for n in range(1, 300) if n not in deleted]
    batches = []
    while (end := one.latestOffset(at, FIFTY)) != at:
        batches.append(read(one, at, end))
        at = end
    assert [n for batch in batches for n in batch] == left
    assert [len(batch) for batch in batches if batch][:-1] == [50] * ((len(left) - 1) // 50)
    assert lost(one) == len([n for n in deleted if n])


def test_a_query_that_is_killed_goes_on_wherever_that_was(server: Server, client: redis.Redis) -> None:
    """After the offset was logged, after tasks have read, and after the commit log."""
    spread(client, 300)
    at, found = in_parts(server).initialOffset(), list[int]()
    while True:
        one = in_parts(server)
        end = one.latestOffset(at, FIFTY)
        if end == at:
            break
        assert in_parts(server).latestOffset(at, FIFTY)["batch"] == end["batch"], "not logged: made again"
        once = read(in_parts(server), at, end)
        assert read(in_parts(server), at, end) == once
        found += once
        at = end
    assert found == list(range(300))
    assert group_state(client)[1:] == (300, 0)
    assert lost(one) == 0


@pytest.mark.parametrize("most", [50, None])
def test_entries_trimmed_before_a_task_reads_them_are_reported(
    server: Server, client: redis.Redis, most: int | None
) -> None:
    ids = spread(client, 300)
    one = in_parts(server)
    limit = ALL if most is None else ReadMaxRows(most)
    at = one.initialOffset()
    end = one.latestOffset(at, limit)
    trim(client, ids, 7)
    for _ in range(3):
        with pytest.raises(DataLossError, match="stream 's': 7 entries of a batch"):
            read(one, at, end)
        one = in_parts(server)
    lenient = in_parts(server, **LENIENT)
    assert read(lenient, at, end)[0] == 7
    later = lenient.latestOffset(end, limit)
    assert lost(lenient) == 7
    rest = [*read(lenient, end, later), *(n for batch in drain(lenient, most, later) for n in batch)]
    assert rest == list(range(ids.index(positions(end)["s"]) + 1, 300))


def test_entries_deleted_during_a_batch_are_reported_too(server: Server, client: redis.Redis) -> None:
    ids = spread(client, 300)
    one = in_parts(server)
    end = one.latestOffset(at := one.initialOffset(), ALL)
    client.xdel("s", *ids[100:103])
    with pytest.raises(DataLossError, match="stream 's': 3 entries of a batch"):
        read(one, at, end)


def test_rows_that_nobody_wants_are_no_loss(server: Server, client: redis.Redis) -> None:
    """A LIMIT ends tasks early, and others never run."""
    ids = spread(client, 300)
    one = in_parts(server)
    end = one.latestOffset(at := one.initialOffset(), FIFTY)
    task, share = pickle.loads(pickle.dumps((one, one.partitions(at, end)[0])))
    rows = task.read(share)
    next(rows)
    rows.close()
    after = one.latestOffset(end, FIFTY)
    read_up_to = ids.index(positions(end)["s"]) + 1
    one.batches.worker.wait()
    assert group_state(client)[0] == positions(end)["s"]
    assert read(one, end, after)[0] == read_up_to
    assert [n for batch in drain(one, 50, after) for n in batch][-1] == 299
    assert (lost(one), group_state(client)[1:]) == (0, (300, 0))


def test_an_older_copy_of_the_checkpoint_that_does_not_know_a_stream_is_refused(
    server: Server, client: redis.Redis
) -> None:
    """The group has moved on over entries that the copy has not read, and no position of the copy sets it back."""
    options = {**NO_ACK, "streamsPattern": "o:*"}
    looking = replace(SMALL, pattern_interval=0.0, pattern_interval_each=0.0)
    add(client, 5, "o:1")
    one = reader(server, limits=looking, **options)
    older = one.latestOffset(one.initialOffset(), ALL)
    add(client, 3, "o:2", first=100)
    end = one.latestOffset(older, ALL)
    assert read(one, older, end) == [100, 101, 102]
    assert one.latestOffset(end, ALL) == end
    with pytest.raises(
        DataLossError, match="stream 'o:2', and consumer 'spark' .* this is an older copy of the checkpoint"
    ):
        reader(server, limits=looking, **options).latestOffset(older, ALL)
    assert drain(reader(server, limits=looking, **options, **LENIENT), None, older) == [[100, 101, 102]]


def test_a_server_that_has_lost_a_batch_is_noticed(server: Server) -> None:
    with server.client() as raw, server.client(decode_responses=True) as client:
        spread(client, 300)
        one = in_parts(server)
        first = one.latestOffset(at := one.initialOffset(), ALL)
        assert len(read(one, at, first)) == 300
        assert one.latestOffset(first, ALL) == first
        dump = raw.dump("s")
        assert dump is not None
        pipe = client.pipeline(transaction=False)
        for n in range(300, 500):
            pipe.xadd("s", {"n": n})
        pipe.execute()
        second = one.latestOffset(first, FIFTY)
        assert second["streams"]["s"].endswith(" 350 500")
        assert read(one, first, second)[0] == 300
        stop_all()
        raw.delete("s")
        raw.restore("s", 0, dump)
        with pytest.raises(DataLossError, match="the server has lost at least 200 entries"):
            in_parts(server).latestOffset(second, ALL)
        lenient = in_parts(server, **LENIENT)
        later = lenient.latestOffset(second, ALL)
        assert lost(lenient) == 200
        add(client, 9, first=900)
        assert [n for batch in drain(lenient, None, later) for n in batch] == list(range(900, 909))


def test_a_server_that_has_lost_what_was_read_is_noticed_though_the_group_is_a_batch_behind(server: Server) -> None:
    """A replica that lagged becomes the master: the batch that was committed last is gone from it."""
    with server.client() as raw, server.client(decode_responses=True) as client:
        add(client, 40)
        one = reader(server, **NO_ACK)
        first = one.latestOffset(at := one.initialOffset(), ALL)
        assert len(read(one, at, first)) == 40
        assert one.latestOffset(first, ALL) == first
        dump = raw.dump("s")
        assert dump is not None
        add(client, 5, first=40)
        second = one.latestOffset(first, ALL)
        assert read(one, first, second) == list(range(40, 45))
        stop_all()
        raw.delete("s")
        raw.restore("s", 0, dump)
        add(client, 3, first=100)
        with pytest.raises(DataLossError, match="the server has lost at least 2 entries"):
            reader(server, **NO_ACK).latestOffset(second, ALL)
        lenient = reader(server, **NO_ACK, **LENIENT)
        assert [n for batch in drain(lenient, None, second) for n in batch] == [100, 101, 102]


@pytest.mark.parametrize("takes", ["xtrim", "xdel"])
def test_a_server_restored_before_the_group_was_set_is_noticed_when_more_is_lost(server: Server, takes: str) -> None:
    """The group stands at the checkpoint, and the server has fewer entries up to there than the query has read."""
    with server.client() as raw, server.client(decode_responses=True) as client:
        add(client, 40)
        one = reader(server, **NO_ACK)
        first = one.latestOffset(one.initialOffset(), ALL)
        assert one.latestOffset(first, ALL) == first
        dump = raw.dump("s")
        assert dump is not None
        add(client, 5, first=40)
        second = one.latestOffset(first, ALL)
        stop_all()
        raw.delete("s")
        raw.restore("s", 0, dump)
        # What a run does at that moment that has looked at the server before.
        client.execute_command("XGROUP", "SETID", "s", "g", positions(second)["s"], "ENTRIESREAD", 45)
        ids = add(client, 5, first=100)
        if takes == "xtrim":
            client.xtrim("s", minid=ids[3], approximate=False)
            with pytest.raises(DataLossError, match="the server has lost at least 1 entry"):
                reader(server, **NO_ACK).latestOffset(second, ALL)
        else:
            client.xdel("s", *ids[:3])
            again = reader(server, **NO_ACK)
            third = again.latestOffset(second, ALL)
            assert read(again, second, third) == [103, 104]
            with pytest.raises(DataLossError, match="the server has lost"):
                again.latestOffset(third, ALL)


def test_a_batch_that_a_server_has_lost_before_its_tasks_read_it_is_noticed(server: Server) -> None:
    with server.client() as raw, server.client(decode_responses=True) as client:
        spread(client, 300)
        one = in_parts(server)
        first = one.latestOffset(at := one.initialOffset(), ALL)
        assert len(read(one, at, first)) == 300
        assert one.latestOffset(first, ALL) == first
        dump = raw.dump("s")
        assert dump is not None
        add(client, 200, first=300)
        second = one.latestOffset(first, FIFTY)
        stop_all()
        raw.delete("s")
        raw.restore("s", 0, dump)
        add(client, 9, first=900)
        with pytest.raises(DataLossError, match="stream 's'"):
            read(in_parts(server), first, second)
        for _ in range(2):
            with pytest.raises(DataLossError, match="stream 's': the server has lost"):
                in_parts(server).latestOffset(second, ALL)
        lenient = in_parts(server, **LENIENT)
        later = lenient.latestOffset(second, ALL)
        assert lost(lenient) >= 50
        assert read(lenient, second, later) == list(range(900, 909))
        assert lenient.latestOffset(later, ALL) == later


def test_what_comes_after_the_end_of_an_available_now_run_is_not_lost(server: Server, client: redis.Redis) -> None:
    """All that the run was to read is deleted. Its batch ends where the run ends, and later entries lie above that."""
    ids = add(client, 3)
    one = reader(server, **NO_ACK, **LENIENT)
    start = one.initialOffset()
    at = one.latestOffset(start, ALL)
    assert read(one, start, at) == [0, 1, 2]
    stop_all()
    ids += add(client, 4, first=3)
    one = reader(server, **NO_ACK, **LENIENT)
    one.prepareForTriggerAvailableNow()
    client.xdel("s", *ids)
    add(client, 2, first=7)
    for _ in range(4):
        at = one.latestOffset(at, ALL)
    assert lost(one) == 4
    assert one.latestOffset(at, ALL) == at  # the run ends
    assert drain(reader(server, **NO_ACK), None, at) == [[7, 8]]


def test_a_stream_that_is_read_no_more_keeps_its_count(server: Server, client: redis.Redis) -> None:
    """The offsets of batches without it say how many entries were read of it."""
    ids = spread(client, 200)
    one = in_parts(server, streams="s,t")
    start = one.initialOffset()
    end = one.latestOffset(start, FIFTY)
    had = read(one, start, end)
    assert in_parts(server, streams="t").latestOffset(end, FIFTY) == end
    client.xadd("t", {"n": 1000}, id=ids[-1])
    other = in_parts(server, streams="t")
    later = other.latestOffset(end, FIFTY)
    assert read(other, end, later) == [1000]
    client.xtrim("s", minid=ids[len(had)], approximate=False)
    rest = [n for batch in drain(in_parts(server, streams="s,t"), 50, later) for n in batch]
    assert sorted(had + rest) == list(range(200))


def test_a_run_to_the_end_does_not_look_for_what_went_with_its_stream(server: Server, client: redis.Redis) -> None:
    """Where it was to end lies beyond the stream that is there now."""
    add(client, 4)
    one = reader(server, **NO_ACK, **LENIENT)
    one.prepareForTriggerAvailableNow()
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [0, 1, 2, 3]
    client.delete("s")
    last = one.latestOffset(end, ALL)
    assert read(one, end, last) == []
    assert one.latestOffset(last, ALL) == last
    assert one.reportLatestOffset().get("lost", {}) == {}


def test_a_run_that_gives_no_ack_up_and_fails_leaves_the_count_to_the_next_run(
    server: Server, client: redis.Redis
) -> None:
    ids = spread(client, 200)
    one = in_parts(server)
    start = one.initialOffset()
    first = one.latestOffset(start, FIFTY)
    count = len(read(one, start, first))
    end = one.latestOffset(first, FIFTY)
    count += len(read(one, first, end))
    client.xdel("s", *ids[count + 5 : count + 8])
    one = reader(server)
    rest = one.latestOffset(end, ALL)
    assert len(read(one, end, rest)) == 200 - count - 3
    with pytest.raises(DataLossError, match="3 entries above"):
        one.latestOffset(rest, ALL)
    again = reader(server, **LENIENT)
    last = again.latestOffset(rest, ALL)
    assert (lost(again), read(again, rest, last)) == (3, [])


def test_a_stream_that_vanishes_before_its_scratch_group_is_destroyed_is_no_error(
    server: Server, client: redis.Redis
) -> None:
    for stream in ("s", "t"):
        add(client, 100, stream)
    one = in_parts(server, streams="s,t", **LENIENT)
    start = one.initialOffset()
    with before_sending(b"DESTROY", act=lambda *_: client.delete("t"), times=1) as destroyed:
        end = one.latestOffset(start, FIFTY)
    assert destroyed
    assert read(one, start, end) == list(range(25))


def test_a_round_trip_of_many_streams_keeps_the_server_busy_for_a_moment_only(
    server: Server, client: redis.Redis
) -> None:
    """Commands that arrive together are executed without a pause (R15)."""
    streams = [f"s{n}" for n in range(20)]
    for stream in streams:
        add(client, 60, stream)
    one = in_parts(server, streams=",".join(streams))
    start = one.initialOffset()
    with before_sending(b"NOACK", act=lambda *_: None) as rounds:
        end = one.latestOffset(start, ReadMaxRows(800))
    counts = [sum(map(int, re.findall(rb"COUNT\r\n\$\d+\r\n(\d+)", request))) for request in rounds]
    assert max(counts) <= SMALL.reserve_round + SMALL.reserve_step
    assert len(read(one, start, end)) == 800


def test_a_group_that_begins_in_another_stream_of_the_name_stays_there(server: Server, client: redis.Redis) -> None:
    """A run that has begun in the stream before, and has read nothing of it, does not set the group back."""
    one = reader(server, startingOffsets="latest", **NO_ACK, **LENIENT)
    start = one.initialOffset()
    assert one.latestOffset(start, ALL) == start

    def made_again(*_: Any) -> None:
        client.delete("s")
        add(client, 1)

    with before_sending(b"STREAM", b"s", act=made_again, times=1):
        again = one.initialOffset()
    one.latestOffset(again, ALL)
    [entry] = client.xrange("s")
    assert group_state(client) == (entry[0], 1, 0)
