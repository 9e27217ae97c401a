"""Who is in a group, and what is a checkpoint: cases in which a loss was silent, or a query was stuck."""

from __future__ import annotations

import json
import time

import pytest
import redis

from spark_streams.connector.errors import DataLossError
from spark_streams.connector.source.commit_mark import committed_key
from spark_streams.connector.spark.data_source import ReadMaxRows
from tests.connector.source.moved_group import stopped_by_a_moved_group
from tests.remedies import carry_out
from tools.driving import ALL, NEVER_AHEAD, add, begin, drain, pending_count, positions, read, reader, stop_all
from tools.sending import before_sending, in_turn, lost
from tools.servers.server import Server, skip_without_xnack

LENIENT = {"failOnDataLoss": "false"}


def with_a_fatal_entry(server: Server, client: redis.Redis) -> tuple[dict[str, object], list[str]]:
    """Return the checkpoint of a query that is alone in a group with a fatal entry, and the IDs of ten entries. It has
    read nine of them, and ten more are unread."""
    skip_without_xnack(client)
    client.xgroup_create("s", "g", id="0", mkstream=True)
    ids = add(client, 10)
    client.xreadgroup("g", "bob", {"s": ">"}, count=1)
    client.execute_command("XNACK", "s", "g", "FATAL", "IDS", 1, ids[0])
    client.xgroup_delconsumer("s", "g", "bob")
    one = reader(server, limits=NEVER_AHEAD)
    end = one.latestOffset(start := begin(one), ALL)
    assert read(one, start, end) == list(range(1, 10))
    assert one.latestOffset(end, ALL) == end
    stop_all()
    return end, ids + add(client, 10, first=10)


def test_beside_a_fatal_entry_deletions_are_reported(server: Server, client: redis.Redis) -> None:
    end, ids = with_a_fatal_entry(server, client)
    client.xdel("s", *ids[12:15])
    one = reader(server)
    with pytest.raises(DataLossError, match="3 entries"):
        drain(one, start=end)


def test_beside_a_fatal_entry_a_group_that_was_set_forward_stops_the_query(server: Server, client: redis.Redis) -> None:
    end, ids = with_a_fatal_entry(server, client)
    client.xgroup_setid("s", "g", ids[15], entries_read=16)
    with pytest.raises(DataLossError, match="above the checkpoint's") as raised:
        reader(server).latestOffset(end, ALL)
    stop_all()
    carry_out(server, str(raised.value))
    assert drain(reader(server), start=end) == [list(range(10, 20))]
    assert pending_count(client) == 1


def test_beside_a_fatal_entry_a_group_that_was_set_back_is_set_to_the_checkpoint(
    server: Server, client: redis.Redis
) -> None:
    end, ids = with_a_fatal_entry(server, client)
    client.xgroup_setid("s", "g", ids[3])
    assert drain(reader(server), start=end) == [list(range(10, 20))]


def test_entries_that_were_released_above_the_position_are_the_querys_own(server: Server, client: redis.Redis) -> None:
    """They were reserved for the next batch when the query was killed."""
    skip_without_xnack(client)
    ids = add(client, 5)
    one = reader(server, limits=NEVER_AHEAD)
    end = one.latestOffset(start := begin(one), ALL)
    assert read(one, start, end) == list(range(5))
    assert one.latestOffset(end, ALL) == end
    ids += add(client, 5, first=5)
    one.latestOffset(end, ALL)
    stop_all()
    client.execute_command("XNACK", "s", "g", "FAIL", "IDS", 3, *ids[7:])
    assert sorted(n for batch in drain(reader(server), start=end) for n in batch) == list(range(5, 10))
    assert pending_count(client) == 0


def test_a_query_that_was_stopped_before_its_first_entry_goes_on(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark logs its initial offset, which has no token."""
    add(client, 5)
    options = {"startingOffsets": "latest"}
    start = reader(server, **options).initialOffset()
    for _ in range(3):
        one = reader(server, **options)
        assert one.latestOffset(start, ALL) == start
        stop_all()
    assert "--to latest" not in caplog.text
    add(client, 3, first=5)
    assert drain(reader(server, **options), start=start) == [[5, 6, 7]]


def test_a_new_checkpoint_reads_from_the_beginning_after_a_batch_was_cut(server: Server, client: redis.Redis) -> None:
    """The record of failed batches is of the old checkpoint."""
    options = {"maxDeliveries": "1", "deadLetterStream": "dead"}
    add(client, 40)
    one = reader(server, **options)
    end = one.latestOffset(start := begin(one), ALL)
    read(one, start, end)
    stop_all()
    assert read(reader(server, **options), start, end) == []
    assert len(json.loads(client.get("rstream:attempts:{s}:g:spark") or "{}")["pieces"]) == 40
    stop_all()
    client.xgroup_destroy("s", "g")
    client.delete("rstream:committed:{s}:g:spark")
    again = reader(server, **options, **LENIENT)
    assert sorted(n for batch in drain(again) for n in batch) == list(range(40))
    assert again.reportLatestOffset().get("lost", {}) == {}


@pytest.mark.parametrize("reads_past", [False, True])
def test_an_unread_entry_that_is_deleted_from_a_shared_group_is_reported(
    server: Server, client: redis.Redis, reads_past: bool
) -> None:
    add(client, 10)
    one = reader(server, limits=NEVER_AHEAD, **LENIENT)
    start = begin(one)
    client.xgroup_createconsumer("s", "g", "bob")
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == list(range(10))
    assert one.latestOffset(end, ALL) == end
    ids = add(client, 10, first=10)
    client.xdel("s", ids[5])
    if reads_past:
        found = one.latestOffset(end, ALL)
        assert read(one, end, found) == [n for n in range(10, 20) if n != 15]
    else:
        one.latestOffset(end, ALL)
    assert one.reportLatestOffset()["lost"] == {"s": 1}


def test_a_query_may_have_any_consumer_name(server: Server, client: redis.Redis) -> None:
    """Also the name that another query had for its claims once."""
    add(client, 10)
    one = reader(server, consumer="a", claimIdle="1ms", limits=NEVER_AHEAD)
    end = one.latestOffset(begin(one), ALL)
    other = reader(server, consumer="a~claim~b", limits=NEVER_AHEAD)
    add(client, 5, first=10)
    theirs = other.latestOffset(start := other.initialOffset(), ALL)
    assert one.latestOffset(end, ALL) == end
    assert read(other, start, theirs) == list(range(10, 15))


@pytest.mark.parametrize("vanishes", ["group", "stream"])
def test_a_group_that_comes_back_while_the_query_creates_it_ends_nothing(
    server: Server, client: redis.Redis, vanishes: str
) -> None:
    """The server is restored meanwhile. The query leaves the group and the commit mark as they are, and looks again."""
    ids = add(client, 10)
    one = reader(server, limits=NEVER_AHEAD, **LENIENT)
    end = one.latestOffset(start := begin(one), ALL)
    assert read(one, start, end) == list(range(10))
    assert one.latestOffset(end, ALL) == end
    add(client, 5, first=10)
    stop_all()
    mark, dump = client.get(committed_key("s", "g", "spark")), client.dump("s")
    if vanishes == "group":
        client.xgroup_destroy("s", "g")
    else:
        client.delete("s")

    def come_back(*_: object) -> None:
        client.restore("s", 0, dump, replace=True)

    marks: list[object] = []
    one = reader(server, limits=NEVER_AHEAD, **LENIENT)
    with (
        before_sending(b"CREATE", act=come_back, times=1),
        before_sending(b"XREADGROUP", act=lambda *_: marks.append(client.get(committed_key("s", "g", "spark")))),
    ):
        assert drain(one, start=end) == [list(range(10, 15))]
    assert marks[0] == mark
    assert client.xinfo_groups("s")[0]["last-delivered-id"] > ids[-1]
    assert pending_count(client) == 0


def test_a_group_that_is_set_forward_while_a_query_begins_stops_it(server: Server, client: redis.Redis) -> None:
    """After the look that is compared, and before entries are reserved: nothing below the group's position is read."""
    ids = add(client, 10)
    one = reader(server, maxEntriesPerTrigger="5", limits=NEVER_AHEAD)
    end = one.latestOffset(start := begin(one), ReadMaxRows(5))
    assert read(one, start, end) == list(range(5))
    one = reader(server, maxEntriesPerTrigger="5", limits=NEVER_AHEAD)
    one.initialOffset()
    with (
        before_sending(b"XACK", act=lambda *_: client.xgroup_setid("s", "g", ids[-1]), times=1),
        pytest.raises(DataLossError, match="above the checkpoint's"),
    ):
        one.latestOffset(end, ALL)


def test_a_group_that_is_set_forward_after_a_seek_stops_the_query(server: Server, client: redis.Redis) -> None:
    end, ids = stopped_by_a_moved_group(server, client)
    client.xgroup_setid("s", "g", ids[4])
    assert drain(reader(server), start=end) == [[5, 6, 7, 8, 9]]


def test_a_consumer_that_reads_a_stream_of_which_the_query_has_read_nothing_and_leaves_is_no_loss(
    server: Server, client: redis.Redis
) -> None:
    """The offset says that the group was shared, also if its batch has no entry of the stream."""
    add(client, 2)
    one = reader(server, streams="s,t", limits=NEVER_AHEAD)
    end = one.latestOffset(start := begin(one), ALL)
    assert read(one, start, end) == [0, 1]
    client.xgroup_createconsumer("t", "g", "bob")
    add(client, 2, first=2)
    after = one.latestOffset(end, ALL)
    assert read(one, end, after) == [2, 3]
    add(client, 3, "t", first=10)
    client.xreadgroup("g", "bob", {"t": ">"}, count=2, noack=True)
    client.xgroup_delconsumer("t", "g", "bob")
    assert drain(reader(server, streams="s,t"), start=after) == [[12]]


@pytest.mark.parametrize("options", [{}, {"noAck": "true"}])
def test_a_seek_to_the_checkpoint_is_over_with_the_next_batch(
    server: Server, client: redis.Redis, options: dict[str, str]
) -> None:
    """The next batch of the stream is committed, and the query is killed before it acknowledges it."""
    add(client, 2)
    one = reader(server, streams="s,t", limits=NEVER_AHEAD, **options)
    end = one.latestOffset(start := begin(one), ALL)
    assert read(one, start, end) == [0, 1]
    one.commit(end)
    stop_all()
    carry_out(server, "(rstream groups seek t --group g --to earliest --even-active --yes)")
    add(client, 2, "t", first=10)
    one = reader(server, streams="s,t", limits=NEVER_AHEAD, **options)
    after = one.latestOffset(end, ALL)
    assert read(one, end, after) == [10, 11]
    one = reader(server, streams="s,t", limits=NEVER_AHEAD, **options)
    assert one.latestOffset(after, ALL) == after


@pytest.mark.parametrize("options", [{}, {"noAck": "true"}])
def test_a_seek_before_the_first_batch_is_over_with_that_batch(
    server: Server, client: redis.Redis, options: dict[str, str]
) -> None:
    """Spark has logged where the query begins. The first batch is committed, and the query is killed before it
    acknowledges it."""
    ids = add(client, 4)
    client.xgroup_create("s", "g", id=ids[-1])
    one = reader(server, limits=NEVER_AHEAD, **options)
    start = begin(one)
    assert one.latestOffset(start, ALL) == start
    stop_all()
    carry_out(server, f"(rstream groups seek s --group g --to {ids[1]} --even-active --yes)")
    one = reader(server, limits=NEVER_AHEAD, **options)
    end = one.latestOffset(start, ALL)
    one = reader(server, limits=NEVER_AHEAD, **options)  # killed before the tasks have run
    assert read(one, start, end) == [2, 3]
    one = reader(server, limits=NEVER_AHEAD, **options)
    assert one.latestOffset(end, ALL) == end


def test_without_no_ack_a_query_goes_on_after_a_batch_whose_bookmark_was_not_set(
    server: Server, client: redis.Redis
) -> None:
    ids = add(client, 4)
    one = reader(server, noAck="true", limits=NEVER_AHEAD)
    end = one.latestOffset(start := begin(one), ReadMaxRows(2))
    assert read(one, start, end) == [0, 1]
    client.xdel("s", ids[1])
    assert drain(reader(server), start=end) == [[2, 3]]


def test_a_group_that_is_set_forward_while_entries_are_claimed_stops_the_query(
    server: Server, client: redis.Redis
) -> None:
    add(client, 5)
    client.xgroup_create("s", "g", "0")
    client.xreadgroup("g", "bob", {"s": ">"}, count=2)
    one = reader(server, claimIdle="1ms", limits=NEVER_AHEAD)
    start = begin(one)
    time.sleep(0.01)
    end = one.latestOffset(start, ALL)
    assert sorted(read(one, start, end)) == list(range(5))
    client.xgroup_delconsumer("s", "g", "bob")
    assert one.latestOffset(end, ALL) == end
    ids = add(client, 5, first=5)
    with before_sending(b"CLIENT", b"SKIP", act=lambda *_: client.xgroup_setid("s", "g", ids[-1]), times=1):
        after = one.latestOffset(end, ALL)
    with pytest.raises(DataLossError, match="above the checkpoint's"):
        one.latestOffset(after, ALL)


@pytest.mark.parametrize("looks", range(1, 4))
def test_a_connection_that_breaks_after_a_report_does_not_report_it_again(
    server: Server, client: redis.Redis, looks: int
) -> None:
    """The first look finds the loss, the second one confirms it, the third one follows the repair."""
    add(client, 10)
    one = reader(server, limits=NEVER_AHEAD, **LENIENT)
    end = one.latestOffset(start := begin(one), ReadMaxRows(2))
    assert read(one, start, end) == [0, 1]
    client.xtrim("s", maxlen=3, approximate=False)
    one = reader(server, limits=NEVER_AHEAD, **LENIENT)
    one.initialOffset()
    passed = [lambda *_: None] * (looks - 1)
    with before_sending(b"MULTI", b"XINFO", act=in_turn(*passed, lost), times=looks):
        after = one.latestOffset(end, ALL)
    assert read(one, end, after) == [7, 8, 9]
    assert one.reportLatestOffset()["lost"] == {"s": 5}


def test_an_older_checkpoint_is_noticed_in_each_stream(server: Server, client: redis.Redis) -> None:
    """An operator sets the group of one stream back, as the error says. The query still stops at the other stream."""
    add(client, 2), add(client, 2, "t", first=10)
    one = reader(server, streams="s,t", limits=NEVER_AHEAD)
    older = one.latestOffset(start := begin(one), ALL)
    assert sorted(read(one, start, older)) == [0, 1, 10, 11]
    add(client, 2, first=2), add(client, 2, "t", first=12)
    end = one.latestOffset(older, ALL)
    assert sorted(read(one, older, end)) == [2, 3, 12, 13]
    one.commit(end)
    stop_all()
    for stream in ("s", "t"):
        with pytest.raises(DataLossError, match=f"of stream '{stream}', and consumer 'spark' .* has committed a later"):
            reader(server, streams="s,t").latestOffset(older, ALL)
        stop_all()
        carry_out(
            server, f"(rstream groups seek {stream} --group g --to {positions(older)[stream]} --even-active --yes)"
        )
    assert sorted(n for batch in drain(reader(server, streams="s,t"), start=older) for n in batch) == [2, 3, 12, 13]
