"""A consumer group as micro-batches: the reader driven as Spark drives it, without Spark, on both servers."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
import redis

from spark_streams.connector.errors import (
    DataLossError,
    GroupMissingError,
    OffsetError,
    ServerReplyError,
    WrongKeyTypeError,
)
from spark_streams.connector.source.limits import LIMITS
from spark_streams.connector.source.partitioning import ALL as ALL_OF_RANGE
from spark_streams.connector.source.trigger import roles
from spark_streams.connector.spark.data_source import ReadMaxRows
from tools.driving import (
    ALL,
    NEVER_AHEAD,
    SMALL,
    add,
    begin,
    drain,
    others_read_first,
    pending_count,
    positions,
    read,
    reader,
)
from tools.servers.server import Server


def test_a_batch_is_read_and_settled_when_the_next_one_is_asked_for(server: Server, client: redis.Redis) -> None:
    add(client, 250)
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert pending_count(client) == 250
    assert read(one, start, end) == list(range(250))
    assert one.latestOffset(end, ALL) == end
    assert pending_count(client) == 0
    assert positions(one.reportLatestOffset()) == positions(end)


def test_batches_keep_to_the_limit_and_follow_each_other(server: Server, client: redis.Redis) -> None:
    add(client, 100)
    one = reader(server)
    at, rows = one.initialOffset(), []
    sizes = []
    while (end := one.latestOffset(at, ReadMaxRows(45))) != at:
        batch = read(one, at, end)
        sizes.append(len(batch))
        rows += batch
        at = end
    assert sizes == [45, 45, 10]
    assert rows == list(range(100))
    assert pending_count(client) == 0


def test_a_batch_is_cut_into_tasks(server: Server, client: redis.Redis) -> None:
    add(client, 100)
    one = reader(server, entriesPerPartition="40")
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert [p.task.count for p in one.partitions(start, end)] == [30, 30, 40]
    assert all(part.by == ALL_OF_RANGE for p in one.partitions(start, end) for part in p.task.parts)
    assert one.partitions(end, end) == []


def test_limits_go_with_the_reader_to_its_tasks(server: Server, client: redis.Redis) -> None:
    add(client, 50)
    one = reader(server, limits=replace(SMALL, first_page=4, largest_page=6))
    start = one.initialOffset()
    [partition] = one.partitions(start, one.latestOffset(start, ALL))
    task, share = pickle.loads(pickle.dumps((one, partition)))
    assert [len(batch) for batch in task.read(share)] == [4, *[6] * 7, 4]


def test_a_restart_with_an_unfinished_batch_reads_the_same_rows(server: Server, client: redis.Redis) -> None:
    """S5: partitions(start, end) comes first after a restart, with the logged offsets."""
    add(client, 200)
    one = reader(server, limits=NEVER_AHEAD)
    start = one.initialOffset()
    end = one.latestOffset(start, ReadMaxRows(150))
    rows = read(one, start, end)
    add(client, 50, first=200)
    again = reader(server, limits=NEVER_AHEAD)
    assert read(again, start, end) == rows == list(range(150))
    rest = again.latestOffset(end, ALL)
    assert read(again, end, rest) == list(range(150, 250))
    assert again.latestOffset(rest, ALL) == rest
    assert pending_count(client) == 0


def test_entries_reserved_before_a_crash_come_first(server: Server, client: redis.Redis) -> None:
    """A crash between reserving and logging leaves pending entries above the checkpoint."""
    add(client, 120)
    crashed = reader(server)
    start = crashed.initialOffset()
    crashed.latestOffset(start, ALL)
    add(client, 30, first=120)
    again = reader(server)
    end = again.latestOffset(start, ReadMaxRows(50))
    assert read(again, start, end) == list(range(50))
    rest = again.latestOffset(end, ALL)
    assert read(again, end, rest) == list(range(50, 120))
    last = again.latestOffset(rest, ALL)
    assert read(again, rest, last) == list(range(120, 150))
    again.commit(last)
    assert pending_count(client) == 0


def test_a_crash_in_the_first_batch_starts_at_the_same_place(server: Server, client: redis.Redis) -> None:
    """S2: without a checkpoint the group pins the start, also for `latest`."""
    add(client, 10)
    first = reader(server, startingOffsets="latest")
    start = first.initialOffset()
    add(client, 20, first=10)
    assert first.initialOffset() == start
    first.latestOffset(start, ALL)
    again = reader(server, startingOffsets="latest")
    begin = again.initialOffset()
    end = again.latestOffset(begin, ALL)
    assert read(again, begin, end) == list(range(10, 30))


def test_a_group_that_exists_goes_on_where_it_is(server: Server, client: redis.Redis) -> None:
    ids = add(client, 10)
    client.xgroup_create("s", "g", id=ids[5])
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [6, 7, 8, 9]


def test_another_consumer_of_the_group_takes_its_own_entries(server: Server, client: redis.Redis) -> None:
    """R4: a range that others also read from is read through our own pending list."""
    add(client, 300)
    one = reader(server)
    start = begin(one)
    theirs: list[int] = []

    def take(count: int) -> None:
        for _, entries in client.xreadgroup("g", "other", {"s": ">"}, count=count):
            theirs.extend(int(fields["n"]) for _, fields in entries)

    at, ours = start, []
    take(13)
    while (end := one.latestOffset(at, ReadMaxRows(60))) != at:
        # What was reserved while another read in between: plan it as after a restart too.
        batch = read(one, at, end)
        one = reader(server)
        assert read(one, at, end) == batch
        ours += batch
        take(17)
        at = end
    assert sorted(ours + theirs) == list(range(300))
    assert not set(ours) & set(theirs)
    assert pending_count(client) == len(theirs)


def test_a_range_read_by_others_before_our_first_round_is_not_owned(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(client, 200)  # two rounds
    one = reader(server)
    start = one.initialOffset()
    # Between looking at the group and reserving, another consumer reads 10 entries.
    with others_read_first(monkeypatch, client, 10):
        end = one.latestOffset(start, ALL)
    assert not any(part.by == ALL_OF_RANGE for p in one.partitions(start, end) for part in p.task.parts)
    assert read(one, start, end) == list(range(10, 200))


def test_two_streams_share_the_limit_and_settle_alike(server: Server, client: redis.Redis) -> None:
    add(client, 10, "a")
    add(client, 100, "b", first=1000)
    one = reader(server, streams="a,b")
    at, rows = one.initialOffset(), []
    end = one.latestOffset(at, ReadMaxRows(40))
    first = read(one, at, end)
    assert sorted(first) == [*range(10), *range(1000, 1030)]
    rows += first
    while (more := one.latestOffset(end, ReadMaxRows(40))) != end:
        rows += read(one, end, more)
        end = more
    assert sorted(rows) == [*range(10), *range(1000, 1100)]
    assert pending_count(client, "a") == pending_count(client, "b") == 0


def test_available_now_ends_at_what_was_there_when_it_began(server: Server, client: redis.Redis) -> None:
    add(client, 100)
    one = reader(server)
    one.prepareForTriggerAvailableNow()
    at, rows = one.initialOffset(), []
    while (end := one.latestOffset(at, ReadMaxRows(40))) != at:
        rows += read(one, at, end)
        at = end
        add(client, 25, first=1000)
    assert rows == list(range(100))
    assert pending_count(client) == 0


def test_a_stream_that_does_not_exist_is_empty_until_it_does(server: Server, client: redis.Redis) -> None:
    one = reader(server)
    one.prepareForTriggerAvailableNow()
    start = one.initialOffset()
    assert one.latestOffset(start, ALL) == start
    again = reader(server)
    assert again.initialOffset() == start
    add(client, 3)
    assert read(again, start, again.latestOffset(start, ALL)) == [0, 1, 2]


@pytest.mark.parametrize("how", ["deleted", "trimmed"])
def test_entries_gone_before_they_are_read_stop_the_query_or_are_passed_over(
    server: Server, client: redis.Redis, how: str
) -> None:
    ids = add(client, 50)
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    if how == "deleted":
        client.xdel("s", *ids[10:13])
        gone = {10, 11, 12}
    else:
        client.xtrim("s", maxlen=47, approximate=False)
        gone = {0, 1, 2}
    for _ in range(2):
        with pytest.raises(DataLossError, match="3 entries of a batch of 50 were trimmed or deleted"):
            read(one, start, end)
        one = reader(server)
    lenient = reader(server, failOnDataLoss="false")
    assert read(lenient, start, end) == [n for n in range(50) if n not in gone]
    lenient.commit(end)
    assert pending_count(client) == 0


def test_values_with_line_ends_and_mixed_fields_come_through(server: Server, client: redis.Redis) -> None:
    raw = server.client()
    raw.xadd("s", {"n": "1"})
    raw.xadd("s", {"other": b"a\r\nb", "n": "2"})
    raw.xadd("s", {"n": b"\xff"})
    raw.xadd("s", {"n": "4", "": ""})
    one = reader(server)
    start = one.initialOffset()
    assert read(one, start, one.latestOffset(start, ALL)) == [1, 2, None, 4]


def test_a_key_of_another_type_is_named(server: Server, client: redis.Redis) -> None:
    client.set("s", "text")
    with pytest.raises(WrongKeyTypeError, match="key 's' at .* holds another type than a stream"):
        reader(server).initialOffset()


def test_a_checkpoint_of_another_consumer_or_group_is_refused(server: Server, client: redis.Redis) -> None:
    add(client, 5)
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    for other in ({"consumer": "renamed"}, {"group": "h"}):
        with pytest.raises(OffsetError, match="belongs to consumer 'spark' of group 'g'"):
            reader(server, **other).partitions(start, end)
        with pytest.raises(OffsetError, match="set these options back"):
            reader(server, **other).latestOffset(end, ALL)


def test_a_group_created_again_at_the_end_is_not_taken_for_the_old_one(server: Server, client: redis.Redis) -> None:
    add(client, 5)
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    client.xgroup_destroy("s", "g")
    add(client, 5, first=5)
    client.xgroup_create("s", "g", id="$")
    with pytest.raises(DataLossError, match="the entries in between are not pending for consumer 'spark'"):
        reader(server).latestOffset(end, ALL)
    lenient = reader(server, failOnDataLoss="false")
    assert read(lenient, end, lenient.latestOffset(end, ALL)) == list(range(5, 10))


def test_entries_trimmed_before_they_were_delivered_are_counted(server: Server, client: redis.Redis) -> None:
    add(client, 100)
    one = reader(server, limits=NEVER_AHEAD)
    start = one.initialOffset()
    end = one.latestOffset(start, ReadMaxRows(5))
    client.xtrim("s", maxlen=10, approximate=False)
    with pytest.raises(DataLossError, match="85 entries above .* were trimmed or deleted before group 'g' read them"):
        reader(server, limits=NEVER_AHEAD).latestOffset(end, ALL)
    lenient = reader(server, limits=NEVER_AHEAD, failOnDataLoss="false")
    assert read(lenient, end, lenient.latestOffset(end, ALL)) == list(range(90, 100))


def test_a_stream_that_was_trimmed_before_the_group_began_has_lost_nothing(server: Server, client: redis.Redis) -> None:
    add(client, 100)
    client.xtrim("s", maxlen=10, approximate=False)
    one = reader(server, limits=NEVER_AHEAD)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == list(range(90, 100))
    add(client, 5)
    client.xtrim("s", maxlen=0, approximate=False)
    with pytest.raises(DataLossError, match="5 entries"):
        one.latestOffset(end, ALL)


def test_a_stream_added_to_a_query_is_read_by_it(server: Server, client: redis.Redis) -> None:
    add(client, 5)
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    add(client, 3, "t", first=100)
    both = reader(server, streams="s,t")
    more = both.latestOffset(end, ALL)
    assert read(both, end, more) == [100, 101, 102]
    both.commit(more)
    assert pending_count(client, "t") == 0


@pytest.mark.parametrize("entries_read", [3, 7, 1000])
def test_a_group_that_counts_wrong_is_read_to_its_end(server: Server, client: redis.Redis, entries_read: int) -> None:
    add(client, 10)
    client.xgroup_create("s", "g", id="0", entries_read=entries_read)
    one = reader(server, failOnDataLoss="false")
    one.prepareForTriggerAvailableNow()
    at, rows = one.initialOffset(), []
    while (end := one.latestOffset(at, ALL)) != at:
        rows += read(one, at, end)
        at = end
    assert rows == list(range(10))


def test_more_streams_than_the_limit_take_turns(server: Server, client: redis.Redis) -> None:
    add(client, 20, "big")
    one = reader(server, streams="a,big")
    at = one.initialOffset()
    read_from_big = 0
    for n in range(10):
        add(client, 1, "a", first=n)
        end = one.latestOffset(at, ReadMaxRows(1))
        read_from_big += "big" in end["batch"]
        at = end
    assert read_from_big == 5


def test_a_user_who_may_not_read_the_group_gets_a_named_error(redis_server: Server) -> None:
    """The reply of XREADGROUP is suppressed, its error is not. (The bundled engine has no ACLs.)"""
    with redis_server.client(decode_responses=True) as admin:
        admin.flushall()
        add(admin, 3)
        for name, commands in (("mute", ["-xreadgroup"]), ("deaf", ["-echo"])):
            admin.acl_setuser(
                name, enabled=True, passwords=["+pw"], keys=["*"], categories=["+@all"], commands=commands
            )
        admin.xgroup_create("s", "g", id="0")
        for name, words in (("mute", "XREADGROUP"), ("deaf", "ECHO")):
            one = reader(Server("redis", redis_server.url.replace("://", f"://{name}:pw@")))
            with pytest.raises(ServerReplyError, match=f"{words}.*NOPERM"):
                one.latestOffset(one.initialOffset(), ALL)
            one.stop()
            admin.acl_deluser(name)


@pytest.mark.parametrize("options", [{}, {"noAck": "true"}], ids=["group", "noAck"])
def test_a_server_that_suppresses_no_reply_serves_the_same_batches(
    redis_server: Server, options: dict[str, str]
) -> None:
    """Upstash has no CLIENT REPLY: the replies come, and are dropped unparsed. (The bundled engine has no ACLs.)"""
    with redis_server.client() as admin:
        admin.flushall()
        admin.execute_command("ACL", "SETUSER", "loud", "on", ">pw", "~*", "+@all", "-client|reply")
        loud = Server("redis", redis_server.url.replace("://", "://loud:pw@"))
        try:
            for n in range(5_000):
                admin.xadd("s", {"n": n, "$32\r\n": b"*1\r\n" * (n % 200)})
            one = reader(loud, limits=LIMITS, **options)
            assert drain(one, 2_345) == [[*range(2_345)], [*range(2_345, 4_690)], [*range(4_690, 5_000)]]
        finally:
            one.stop()
            admin.acl_deluser("loud")


def test_a_destroyed_group_is_named(server: Server, client: redis.Redis) -> None:
    add(client, 5)
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    client.xgroup_destroy("s", "g")
    with pytest.raises(GroupMissingError, match="no longer has group 'g'"):
        one.latestOffset(end, ALL)


def test_a_group_set_back_below_the_checkpoint_is_set_to_it(server: Server, client: redis.Redis) -> None:
    """Nothing is lost: the stream has the entry at the checkpoint, so all up to there were read."""
    add(client, 5)
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert one.latestOffset(end, ALL) == end
    client.xgroup_setid("s", "g", "0")
    assert reader(server).latestOffset(end, ALL) == end
    assert client.xinfo_groups("s")[0]["last-delivered-id"] == positions(end)["s"]


def test_a_stream_that_vanished_is_named(server: Server, client: redis.Redis) -> None:
    add(client, 5)
    one = reader(server)
    start = one.initialOffset()
    client.delete("s")
    with pytest.raises(DataLossError, match="stream 's' at .* is missing"):
        one.latestOffset(start, ALL)


@pytest.mark.parametrize("taken", [20, 30, 50])
def test_what_others_claim_from_us_meanwhile_hides_nothing(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    """Somebody claims entries of the batch before, as many as a step delivers or more: the step seems to deliver
    nothing, and what it delivered is read all the same."""
    ids = add(client, 200)
    one = reader(server, limits=NEVER_AHEAD, entriesPerPartition="20")
    start = one.initialOffset()
    first = one.latestOffset(start, ReadMaxRows(50))
    assert read(one, start, first) == list(range(50))
    honest = roles.reserve

    def race(*arguments: Any) -> Any:
        client.xclaim("s", "g", "bob", 0, ids[:taken])
        monkeypatch.setattr(roles, "reserve", honest)
        return honest(*arguments)

    monkeypatch.setattr(roles, "reserve", race)
    found = [n for batch in drain(one, 60, first) for n in batch]
    assert found == list(range(50, 200))
    assert pending_count(client) == taken  # bob's


def test_a_commit_acknowledges_nothing_of_a_stream_that_was_created_again_with_lower_ids(
    server: Server, client: redis.Redis
) -> None:
    """Spark commits a batch when the next one is logged: that one may hold entries below the first one's end."""
    for n in range(2):
        client.xadd("s", {"n": n}, id=f"1000-{n + 1}")
    one = reader(server, limits=NEVER_AHEAD, failOnDataLoss="false")
    start = one.initialOffset()
    first = one.latestOffset(start, ALL)
    assert read(one, start, first) == [0, 1]
    client.delete("s")
    for n in range(3):
        client.xadd("s", {"n": n + 2}, id=f"5-{n + 1}")
    second = one.latestOffset(first, ALL)
    one.commit(first)
    assert pending_count(client) == 3
    assert read(one, first, second) == [2, 3, 4]
    assert one.latestOffset(second, ALL) == second
    assert pending_count(client) == 0
