"""A query with noAck reads what lies between two ids, and its group is a bookmark: it stands where all is committed."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
import redis

from spark_streams.errors import DataLossError
from spark_streams.source.stream_reader import StreamReader
from spark_streams.spark.read_limits import ReadMaxRows
from tools.driving import ALL, SMALL, add, drain, read, reader, stop_all
from tools.servers.server import Server

NO_ACK = {"noAck": "true"}
LENIENT = {"failOnDataLoss": "false"}
# Ends are estimates, and batches of fifty entries have several tasks.
ESTIMATED = replace(SMALL, read_ids=0, smallest_task=20)
FIFTY = ReadMaxRows(50)


def estimating(server: Server, **options: str) -> StreamReader:
    return reader(server, limits=ESTIMATED, **NO_ACK, **options)


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


def test_batches_have_about_the_limit_and_the_group_tells_exactly_what_is_read(
    server: Server, client: redis.Redis
) -> None:
    ids = spread(client, 600)
    one = estimating(server)
    at, found, tasks = one.initialOffset(), list[list[int]](), list[int]()
    while (end := one.latestOffset(at, FIFTY)) != at:
        number = sum(map(len, found))
        last = ids[number - 1] if number else "0-0"
        assert group_state(client) == (last, number, 600 - number), "the batch before is committed, and counted"
        tasks.append(len(one.partitions(at, end)))
        found.append(read(one, at, end))
        at = end
    assert [n for batch in found for n in batch] == list(range(600))
    assert max(map(len, found)) <= 100
    assert len(found) >= 8
    assert min(tasks[:-1]) > 1
    assert group_state(client) == (ids[-1], 600, 0)


def test_a_query_that_is_killed_goes_on_wherever_that_was(server: Server, client: redis.Redis) -> None:
    """After the offset was logged, after tasks have read, and after the commit log."""
    spread(client, 300)
    at, found = estimating(server).initialOffset(), list[int]()
    while True:
        one = estimating(server)
        end = one.latestOffset(at, FIFTY)
        if end == at:
            break
        assert estimating(server).latestOffset(at, FIFTY)["streams"] == end["streams"], "not logged: made again"
        once = read(estimating(server), at, end)
        assert read(estimating(server), at, end) == once
        found += once
        at = end
    assert found == list(range(300))
    assert group_state(client)[1:] == (300, 0)
    assert lost(one) == 0


@pytest.mark.parametrize("most", [50, None])
def test_entries_trimmed_before_a_task_reads_them_are_reported_when_the_batch_is_committed(
    server: Server, client: redis.Redis, most: int | None
) -> None:
    """The end of the batch is an estimate, or it is cut by estimates: no task knows what it should have found."""
    ids = spread(client, 300)
    one = estimating(server)
    limit = ALL if most is None else ReadMaxRows(most)
    at = one.initialOffset()
    end = one.latestOffset(at, limit)
    trim(client, ids, 7)
    assert read(one, at, end)[0] == 7
    for _ in range(3):
        with pytest.raises(DataLossError, match="stream 's': 7 entries above .* were trimmed or deleted before"):
            one.latestOffset(end, limit)
        one = estimating(server)
    lenient = estimating(server, **LENIENT)
    later = lenient.latestOffset(end, limit)
    assert lost(lenient) == 7
    assert later["losses"] == {"s": 7}
    found = [*read(lenient, end, later), *(n for batch in drain(lenient, most, later) for n in batch)]
    assert found == list(range(ids.index(end["streams"]["s"]) + 1, 300))
    again = estimating(server, **LENIENT)
    assert again.latestOffset(later, ReadMaxRows(0)) == later
    assert lost(again) == 0, "a checkpoint knows it"


def test_a_batch_that_is_read_again_tells_the_sink_that_entries_may_be_gone(
    server: Server, client: redis.Redis
) -> None:
    """An exactly-once sink has rows of it that do not come again."""
    ids = spread(client, 300)
    one = estimating(server, **LENIENT)
    at = one.latestOffset(one.initialOffset(), FIFTY)
    end = one.latestOffset(at, FIFTY)

    def lossy() -> set[bool]:
        return {share.batch.lossy for share in estimating(server, **LENIENT).partitions(at, end)}  # type: ignore[attr-defined]

    assert lossy() == {False}
    trim(client, ids, ids.index(at["streams"]["s"]) + 5)
    assert lossy() == {True}


def test_entries_deleted_during_a_batch_are_reported_too(server: Server, client: redis.Redis) -> None:
    ids = spread(client, 300)
    one = estimating(server)
    end = one.latestOffset(at := one.initialOffset(), ALL)
    client.xdel("s", *ids[100:103])
    assert len(read(one, at, end)) == 297
    with pytest.raises(DataLossError, match="stream 's': 3 entries above"):
        one.latestOffset(end, ALL)


def test_rows_that_nobody_wants_are_no_loss(server: Server, client: redis.Redis) -> None:
    """A LIMIT ends tasks early, and others never run: then what is left in the stream is counted."""
    ids = spread(client, 300)
    one = estimating(server)
    end = one.latestOffset(at := one.initialOffset(), FIFTY)
    task, share = pickle.loads(pickle.dumps((one, one.partitions(at, end)[0])))
    rows = task.read(share)
    next(rows)
    rows.close()
    after = one.latestOffset(end, FIFTY)
    read_up_to = ids.index(end["streams"]["s"]) + 1
    assert group_state(client)[0] == end["streams"]["s"]
    assert read(one, end, after)[0] == read_up_to
    assert [n for batch in drain(one, 50, after) for n in batch][-1] == 299
    assert (lost(one), group_state(client)[1:]) == (0, (300, 0))


def test_an_older_copy_of_the_checkpoint_that_does_not_know_a_stream_is_refused(
    server: Server, client: redis.Redis
) -> None:
    """The group has moved on over entries that the copy has not read, and no position of the copy sets it back."""
    options = {**NO_ACK, "streamsPattern": "o:*"}
    looking = replace(SMALL, pattern_interval=0.0)
    add(client, 5, "o:1")
    one = reader(server, limits=looking, **options)
    older = one.latestOffset(one.initialOffset(), ALL)
    add(client, 3, "o:2", first=100)
    end = one.latestOffset(older, ALL)
    assert read(one, older, end) == [100, 101, 102]
    assert one.latestOffset(end, ALL) == end
    with pytest.raises(
        DataLossError, match="stream 'o:2', and consumer 'spark' .* This is an older copy of the checkpoint"
    ):
        reader(server, limits=looking, **options).latestOffset(older, ALL)
    assert drain(reader(server, limits=looking, **options, **LENIENT), None, older) == [[100, 101, 102]]


def test_a_server_that_has_lost_a_batch_and_its_notes_is_noticed_without_a_number(server: Server) -> None:
    """The end of the batch was an estimate, and nobody can tell how many entries it had."""
    with server.client() as raw, server.client(decode_responses=True) as client:
        spread(client, 300)
        one = estimating(server)
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
        assert second["counts"]["s"] == "300 500 before"
        assert read(one, first, second)[0] == 300
        stop_all()
        for key in ("s", *raw.keys("rstream:notes:*")):
            raw.delete(key)
        raw.restore("s", 0, dump)
        with pytest.raises(DataLossError, match="lost at least 1 entry .* perhaps some of them read and"):
            estimating(server).latestOffset(second, ALL)
        lenient = estimating(server, **LENIENT)
        later = lenient.latestOffset(second, ALL)
        assert lost(lenient) == 1
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
        add(client, 9, first=100)
        with pytest.raises(DataLossError, match="the server has lost .* 5 of them read and committed"):
            reader(server, **NO_ACK).latestOffset(second, ALL)
        lenient = reader(server, **NO_ACK, **LENIENT)
        assert [n for batch in drain(lenient, None, second) for n in batch] == list(range(100, 109))


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
        client.execute_command("XGROUP", "SETID", "s", "g", second["streams"]["s"], "ENTRIESREAD", 45)
        ids = add(client, 5, first=100)
        if takes == "xtrim":
            client.xtrim("s", minid=ids[3], approximate=False)
            with pytest.raises(DataLossError, match="the server has lost 2 entries, 2 of them read and committed"):
                reader(server, **NO_ACK).latestOffset(second, ALL)
        else:
            client.xdel("s", *ids[:3])
            again = reader(server, **NO_ACK)
            third = again.latestOffset(second, ALL)
            assert read(again, second, third) == [103, 104]
            with pytest.raises(DataLossError, match="the server has lost"):
                again.latestOffset(third, ALL)


def test_a_batch_that_a_server_has_lost_before_its_tasks_read_it_is_noticed(server: Server) -> None:
    """The end of the batch was an estimate: its tasks find nothing, and do not know that there was something."""
    with server.client() as raw, server.client(decode_responses=True) as client:
        spread(client, 300)
        one = estimating(server)
        first = one.latestOffset(at := one.initialOffset(), ALL)
        assert len(read(one, at, first)) == 300
        assert one.latestOffset(first, ALL) == first
        dump = raw.dump("s")
        assert dump is not None
        add(client, 200, first=300)
        second = one.latestOffset(first, FIFTY)
        assert second["counts"]["s"] == "300 500 before"
        stop_all()
        raw.delete("s")
        raw.restore("s", 0, dump)
        add(client, 9, first=900)
        assert read(estimating(server), first, second) == []
        for _ in range(2):
            with pytest.raises(DataLossError, match="stream 's'.* at least 1 entry"):
                estimating(server).latestOffset(second, ALL)
        lenient = estimating(server, **LENIENT)
        later = lenient.latestOffset(second, ALL)
        assert lost(lenient) == 1
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
    assert at["losses"] == {"s": 4}
    assert one.latestOffset(at, ALL) == at  # the run ends
    assert drain(reader(server, **NO_ACK), None, at) == [[7, 8]]


def test_a_stream_that_is_read_no_more_keeps_the_number_that_its_last_tasks_told(
    server: Server, client: redis.Redis
) -> None:
    """The notes of its tasks are taken once; the offsets of batches without it say how much it had."""
    ids = spread(client, 200)
    one = estimating(server, streams="s,t")
    start = one.initialOffset()
    end = one.latestOffset(start, FIFTY)
    had = read(one, start, end)
    assert "before" in end["counts"]["s"]
    assert estimating(server, streams="t").latestOffset(end, FIFTY) == end  # takes the notes, and is killed
    client.xadd("t", {"n": 1000}, id=ids[-1])
    other = estimating(server, streams="t")
    later = other.latestOffset(end, FIFTY)
    assert read(other, end, later) == [1000]
    client.xtrim("s", minid=ids[len(had)], approximate=False)
    rest = [n for batch in drain(estimating(server, streams="s,t"), 50, later) for n in batch]
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


def test_a_run_that_gives_no_ack_up_and_fails_leaves_to_the_next_what_the_last_batch_has_read(
    server: Server, client: redis.Redis
) -> None:
    ids = spread(client, 200)
    one = estimating(server)
    start = one.initialOffset()
    first = one.latestOffset(start, FIFTY)
    count = len(read(one, start, first))
    end = one.latestOffset(first, FIFTY)
    count += len(read(one, first, end))
    client.xdel("s", *ids[count + 5 : count + 8])
    with pytest.raises(DataLossError, match="3 entries above"):
        reader(server).latestOffset(end, ALL)
    again = reader(server, **LENIENT)
    rest = again.latestOffset(end, ALL)
    assert lost(again) == 3
    assert len(read(again, end, rest)) == 200 - count - 3
    assert again.latestOffset(rest, ALL) == rest
    again.commit(rest)
    assert client.keys("rstream:notes:*") == []


def test_a_run_that_gives_no_ack_up_removes_the_last_notes_of_all_streams(server: Server, client: redis.Redis) -> None:
    for stream in ("s", "t"):
        add(client, 200, stream)
    one = estimating(server, streams="s,t")
    start = one.initialOffset()
    end = one.latestOffset(start, FIFTY)
    read(one, start, end)
    assert drain(reader(server, streams="s,t"), start=end)
    assert client.keys("rstream:notes:*") == []
