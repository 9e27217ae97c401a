"""Rows of docs/reference/unnoticed.md and data-loss.md that no plan plays: each happens as the page says."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.errors import DataLossError
from spark_streams.connector.sink.batch_commit import begin_job
from spark_streams.connector.spark.data_source import ReadMaxRows
from tests.connector.sink.keeping import Copy
from tests.connector.sink.writing import batch_of, close, frame, numbers, options, write
from tests.connector.source.supervised import Supervised
from tools.driving import (
    ALL,
    NEVER_AHEAD,
    add,
    drain,
    pending_count,
    read,
    reader,
    stop_all,
)
from tools.sending import KilledError, before_sending, killed
from tools.servers.server import Server, skip_without_xnack

LETTERS = {"mode": "DEADLETTER", "deadLetterStream": "dead"}
LENIENT = {"failOnDataLoss": "false"}
TWO = ReadMaxRows(2)
NOTES, MISSING = "rstream:notes:{s}:g:spark", "rstream:missing:{s}:g:spark"


def claim(client: redis.Redis, consumer: str, *words: object) -> None:
    """XCLAIM of entries of stream s, group g. words: IDs and options."""
    client.execute_command("XCLAIM", "s", "g", consumer, 0, *words)


def test_an_entry_whose_note_alone_is_deleted_gets_no_dead_letter(server: Server, client: redis.Redis) -> None:
    bad = [str(client.xadd("s", {"n": text})) for text in ("a", "b")]
    one = reader(server, **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == []
    [field] = [name for name in client.hkeys(NOTES) if bad[0] in name]
    client.hdel(NOTES, field)
    assert one.latestOffset(end, ALL) == end
    assert [fields["n"] for _, fields in client.xrange("dead")] == ["b"]
    assert pending_count(client) == 0


def test_notes_that_a_failover_loses_amid_their_batch_are_not_missed(server: Server, client: redis.Redis) -> None:
    """The replica has the name of the batch, which was written before its first task."""
    client.xadd("s", {"n": "a"})
    one = reader(server, **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    shares = one.partitions(start, end)
    before = client.hgetall(NOTES)
    assert list(before) == ["batch"]
    assert [row for share in shares for batch in one.read(share) for row in batch.to_pylist()] == []
    assert len(client.hgetall(NOTES)) > 1
    client.delete(NOTES)
    client.hset(NOTES, mapping=before)
    assert one.latestOffset(end, ALL) == end
    assert not client.exists("dead")
    assert pending_count(client) == 0


@pytest.mark.parametrize("is_deleted", [False, True])
def test_what_tasks_have_found_missing_is_not_counted_if_its_key_is_deleted(
    server: Server, client: redis.Redis, is_deleted: bool
) -> None:
    ids = add(client, 3)
    one = reader(server, **LENIENT)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    client.xdel("s", ids[1])
    assert read(one, start, end) == [0, 2]
    assert client.exists(MISSING)
    if is_deleted:
        client.delete(MISSING)
    assert one.latestOffset(end, ALL) == end
    lost: Any = one.reportLatestOffset().get("lost", {})
    assert lost == ({} if is_deleted else {"s": 1})
    assert pending_count(client) == 0


@pytest.mark.parametrize("word", ["", "IDLE", "TIME"])
def test_an_entry_handed_over_with_a_past_time_is_acknowledged_unread(
    server: Server, client: redis.Redis, word: str
) -> None:
    """It is within the range of the batch. Without these words it is read with the next one."""
    ids = add(client, 3)
    client.xgroup_create("s", "g", "0")
    for consumer in ("spark", "bob", "spark"):
        client.xreadgroup("g", consumer, {"s": ">"}, count=1)
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [0, 2]
    time.sleep(0.002)  # else it may be in the millisecond of the batch
    past = {"": [], "IDLE": ["IDLE", 60_000], "TIME": ["TIME", int(time.time() * 1000) - 60_000]}[word]
    claim(client, "spark", ids[1], *past)
    assert drain(one, start=end) == ([] if word else [[1]])
    assert pending_count(client) == 0


def test_entries_claimed_from_a_query_with_claim_idle_while_it_takes_a_batch_come_after_later_ones(
    server: Server, client: redis.Redis
) -> None:
    ids = add(client, 4)
    client.xgroup_create("s", "g", "0")
    client.xreadgroup("g", "spark", {"s": ">"}, count=2)  # of a run that was killed
    one = reader(server, claimIdle="50ms", ordered="true", limits=NEVER_AHEAD)
    start = one.initialOffset()
    with before_sending(b"XREADGROUP", act=lambda *_: claim(client, "bob", *ids[:2]), times=1):
        end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [2, 3]
    time.sleep(0.08)
    assert drain(one, start=end) == [[0, 1]]


def test_an_entry_that_is_claimed_by_force_after_its_commit_is_acknowledged_unread(
    server: Server, client: redis.Redis
) -> None:
    """It is killed after Spark's commit of its last batch. If it has acknowledged it, it reads the entry."""
    for is_acknowledged in (False, True):
        client.flushall()
        ids = add(client, 4)
        one = reader(server, limits=NEVER_AHEAD)
        start = one.initialOffset()
        first = one.latestOffset(start, TWO)
        assert read(one, start, first) == [0, 1]
        end = one.latestOffset(first, TWO)
        assert read(one, first, end) == [2, 3]
        if is_acknowledged:
            assert one.latestOffset(end, ALL) == end
        claim(client, "spark", ids[0], "FORCE")
        assert drain(reader(server), start=end) == ([[0]] if is_acknowledged else [])
        assert pending_count(client) == 0


def test_an_entry_that_is_released_while_its_batch_is_read_is_read_twice(server: Server, client: redis.Redis) -> None:
    skip_without_xnack(client)
    ids = add(client, 3)
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, TWO)
    assert read(one, start, end) == [0, 1]
    assert client.execute_command("XNACK", "s", "g", "FAIL", "IDS", 1, ids[1]) == 1
    assert drain(one, start=end) == [[2], [1]]


def test_pieces_of_a_cut_batch_that_another_query_takes_are_reported_as_lost(
    server: Server, client: redis.Redis
) -> None:
    add(client, 40)
    first = Supervised(server, {7})
    while first.starts < 4:
        assert not first.start()
    stop_all()
    time.sleep(0.05)
    taken = [n for batch in drain(reader(server, consumer="other", claimIdle="20ms")) for n in batch]
    assert 7 in taken
    with pytest.raises(DataLossError, match="another client has acknowledged or claimed them"):
        first.start()


def test_a_query_moves_once_more_on_a_server_from_after_a_seek(server: Server, client: redis.Redis) -> None:
    """The server is restored to the state between the seek and the next batch."""
    add(client, 4)
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [0, 1, 2, 3]
    assert one.latestOffset(end, ALL) == end
    stop_all()
    words = ["groups", "seek", "s", "--group", "g", "--to", "earliest", "--yes", "--url", server.url]
    assert CliRunner().invoke(main, words).exit_code == 0
    older = Copy(server)
    again = reader(server)
    later = again.latestOffset(end, ALL)
    assert read(again, end, later) == [0, 1, 2, 3]
    assert again.latestOffset(later, ALL) == later
    stop_all()
    older.bring_back()
    assert drain(reader(server), start=later) == [[0, 1, 2, 3]]


def test_entries_that_wait_for_a_retry_are_lost_with_their_key(server: Server, client: redis.Redis) -> None:
    client.xadd("s", {"n": "x"})
    one = reader(server, retryDelay="1ms", **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == []
    assert one.latestOffset(end, ALL) == end
    assert client.delete("rstream:retry:{s}:g:1")
    time.sleep(0.005)
    assert drain(one, start=end) == []
    assert "lost" not in one.reportLatestOffset()
    assert not client.exists("dead")


@pytest.mark.parametrize("has_forgotten", [False, True])
def test_what_is_removed_unread_behind_a_forgotten_count_is_not_noticed(
    server: Server, client: redis.Redis, has_forgotten: bool
) -> None:
    """Redis 7.0 forgets how many entries a group has read when it restarts; here XGROUP SETID drops the number."""
    ids = add(client, 12)
    one = reader(server, limits=NEVER_AHEAD)
    start = one.initialOffset()
    end = one.latestOffset(start, ReadMaxRows(4))
    assert read(one, start, end) == [0, 1, 2, 3]
    one.latestOffset(end, ReadMaxRows(0))
    stop_all()
    client.xreadgroup("g", "bob", {"s": ">"}, count=2)
    if has_forgotten:
        client.xgroup_setid("s", "g", ids[5])
    client.xtrim("s", maxlen=3, approximate=False)
    again = reader(server, limits=NEVER_AHEAD)
    if has_forgotten:
        assert drain(again, start=end) == [[9, 10, 11]]
    else:
        with pytest.raises(DataLossError):
            again.latestOffset(end, ALL)


@pytest.mark.parametrize("deletes", [False, True])
def test_others_who_join_and_delete_what_they_have_read_hide_an_earlier_deletion(
    server: Server, client: redis.Redis, deletes: bool
) -> None:
    """The group was the query's alone, and has read past the deleted entries."""
    ids = add(client, 40)
    one = reader(server, limits=NEVER_AHEAD, **LENIENT)
    at = one.initialOffset()
    for _ in range(3):
        end = one.latestOffset(at, ReadMaxRows(6))
        client.xdel("s", *ids[13:15])
        read(one, at, end)
        at = end
    [(_, entries)] = client.xreadgroup("g", "bob", {"s": ">"}, count=3)
    if deletes:
        client.xdel("s", *[entry for entry, _ in entries])
    end = one.latestOffset(at, ReadMaxRows(6))
    read(one, at, end)
    one.latestOffset(end, ReadMaxRows(6))
    lost: Any = one.reportLatestOffset().get("lost", {})
    assert lost == ({} if deletes else {"s": 2})


def test_what_has_left_the_stream_stays_pending_until_the_group_passes_it_again(
    server: Server, client: redis.Redis
) -> None:
    """The group is set back below it."""
    ids = add(client, 4)
    one = reader(server)
    start = one.initialOffset()
    one.latestOffset(start, ALL)
    client.xdel("s", ids[2])
    client.xgroup_setid("s", "g", ids[0])
    one = reader(server, limits=NEVER_AHEAD, **LENIENT)
    end = one.latestOffset(start, ReadMaxRows(1))
    assert read(one, start, end) == [0]
    assert ids[2] in [pending["message_id"] for pending in client.xpending_range("s", "g", "-", "+", 9)]
    assert drain(one, 1, end) == [[1], [3]]
    assert pending_count(client) == 0


def test_rows_are_missing_if_a_task_is_killed_before_it_knows_that_its_stream_was_replaced(
    server: Server, client: redis.Redis
) -> None:
    """The server refuses the rows within the transaction that notes them as written."""

    def use_up_the_ids(*_: object) -> None:
        client.xtrim("out", maxlen=0, approximate=False)
        client.execute_command("XSETID", "out", f"{2**64 - 1}-{2**64 - 1}")

    checked, rows = options(server.url, chunkSize="10"), [frame(range(20))]
    client.xadd("out", {"n": -1})
    refusing = before_sending(b"EXEC", act=use_up_the_ids, times=1)
    with refusing, before_sending(b"DECRBY", act=killed), pytest.raises(KilledError):
        write(rows, checked, batch_of(0))
    client.delete("out")
    batch = batch_of(0)
    close(checked, batch, write(rows, checked, batch))
    assert set(numbers(server)) == set(range(10, 20))


@pytest.mark.parametrize("reads_past", [False, True])
def test_what_is_removed_unread_is_not_noticed_if_another_consumer_reads_past_it(
    engine_server: Server, reads_past: bool
) -> None:
    """Redis 7.0 counts wrong then, and it is noticed."""
    server, client = engine_server, engine_server.client(decode_responses=True)
    client.flushall()
    add(client, 2)
    client.xgroup_create("s", "g", "0")
    client.xgroup_createconsumer("s", "g", "bob")
    one = reader(server, limits=NEVER_AHEAD)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [0, 1]
    assert one.latestOffset(end, ALL) == end
    ids = add(client, 4, first=2)
    client.xdel("s", ids[0])
    if reads_past:
        client.xreadgroup("g", "bob", {"s": ">"}, count=1)
        assert drain(one, start=end) == [[4, 5]]
    else:
        with pytest.raises(DataLossError, match="at least 1 entry"):
            drain(one, start=end)


LEFT = {  # what others do in the group of a query that was alone, before its next batch
    "have finished": ((), [[2, 3, 4]], None),
    "have finished, and the query has looked": (("look",), [[2, 3, 4]], None),
    "have finished and deleted": (("delete",), [[]], {"s": 3}),
}


@pytest.mark.parametrize("what", LEFT)
def test_others_who_join_read_and_leave_stop_the_query_without_need(
    server: Server, client: redis.Redis, what: str
) -> None:
    """A lenient query reads again what they have finished. If they have deleted it, too, the number is wrong."""
    more, found, lost = LEFT[what]
    add(client, 2)
    one = reader(server, limits=NEVER_AHEAD)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [0, 1]
    assert one.latestOffset(end, ALL) == end
    ids = add(client, 3, first=2)
    client.xreadgroup("g", "bob", {"s": ">"})
    client.xack("s", "g", *ids)
    if "look" in more:  # a run that ends after it has looked has written nothing
        assert one.latestOffset(end, ALL) == end
        one = reader(server, limits=NEVER_AHEAD)
    if "delete" in more:
        client.xdel("s", *ids)
    client.xgroup_delconsumer("s", "g", "bob")
    with pytest.raises(DataLossError, match="the entries in between are not pending"):
        one.latestOffset(end, ALL)
    lenient = reader(server, limits=NEVER_AHEAD, **LENIENT)
    assert drain(lenient, start=end) == found
    assert lenient.reportLatestOffset().get("lost") == lost


def test_an_entry_whose_acknowledgement_alone_is_lost_is_a_dead_letter_twice(
    server: Server, client: redis.Redis
) -> None:
    ids = add(client, 1)
    client.xgroup_create("s", "g", "0")
    client.xreadgroup("g", "bob", {"s": ">"})
    claims = {"claimIdle": "20ms", "maxDeliveries": "3", "deadLetterStream": "dead"}
    for letters in (1, 2):  # the server has lost the acknowledgement of the first one
        claim(client, "bob", ids[0], "RETRYCOUNT", 3, "FORCE")
        time.sleep(0.03)
        assert drain(reader(server, **claims)) == []
        assert client.xlen("dead") == letters
        assert pending_count(client) == 0


def test_a_batch_of_a_job_that_has_ended_is_lost_in_silence(server: Server) -> None:
    """`df.write`: no batch follows that would notice it."""
    checked = options(server.url)
    before = Copy(server)
    batch = begin_job(checked.address)
    close(checked, batch, write([frame([1, 2])], checked, batch))
    assert numbers(server) == {1: 1, 2: 1}
    before.bring_back()
    another = begin_job(checked.address)
    close(checked, another, write([frame([3])], checked, another))
    assert numbers(server) == {3: 1}


def test_a_marker_of_an_earlier_checkpoint_stands_for_a_batch_of_a_new_one(server: Server) -> None:
    """Named writes of another query are written again, under the same numbers."""
    checked = options(server.url)
    for query in ("first", "second"):
        batch = batch_of(0, query)
        close(checked, batch, write([frame([0])], checked, batch))
    assert numbers(server) == {0: 2}
