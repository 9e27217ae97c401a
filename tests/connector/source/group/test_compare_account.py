"""Entries that are trimmed or deleted before the query has read them: whatever the server's counters know, they are
named, or counted where that is allowed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from spark_streams.connector.errors import DataLossError
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.quota import BatchQuota
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.spark.data_source import ReadMaxRows
from tools.driving import ALL, NEVER_AHEAD, add, begin, drain, read, reader, stop_all
from tools.sending import before_sending
from tools.servers.server import Server

LENIENT = {"failOnDataLoss": "false"}


def lost(one: StreamReader) -> int:
    """Entries of stream s that this run has passed over."""
    counts: Any = one.reportLatestOffset().get("lost", {})
    return int(counts.get("s", 0))


def trim(client: redis.Redis, ids: list[str], below: int) -> None:
    client.xtrim("s", minid=ids[below], approximate=False)


@contextlib.contextmanager
def before_reserving(monkeypatch: pytest.MonkeyPatch, what: Any) -> Iterator[None]:
    """Once, between the query's look at the stream and its choosing what to take of it."""
    honest = BatchQuota.divide
    waiting = [what]

    def race(*arguments: Any) -> Any:
        while waiting:
            waiting.pop()()
        return honest(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(BatchQuota, "divide", race)
        yield


def test_a_group_that_begins_at_an_id_notices_what_is_trimmed_at_once(server: Server, client: redis.Redis) -> None:
    """The server does not know how much such a group has read."""
    ids = add(client, 100)
    options = {"startingOffsets": ids[9]}
    one = reader(server, **options)
    at = one.initialOffset()
    trim(client, ids, 40)
    with pytest.raises(DataLossError, match=rf"stream 's': 30 entries above {ids[9]} were trimmed or deleted"):
        one.latestOffset(at, ReadMaxRows(5))
    lenient = reader(server, **options, **LENIENT)
    assert [n for batch in drain(lenient, 25, at) for n in batch] == list(range(40, 100))
    assert lost(lenient) == 30


def test_a_group_that_begins_at_an_id_knows_its_lag(server: Server, client: redis.Redis) -> None:
    ids = add(client, 3000)
    begin(reader(server, startingOffsets=ids[9]))
    assert client.xinfo_groups("s")[0]["lag"] == 2990
    client.xgroup_destroy("s", "g")
    begin(reader(server, startingOffsets=ids[2990]))
    assert client.xinfo_groups("s")[0]["lag"] == 9
    client.xgroup_destroy("s", "g")
    client.xdel("s", *ids[:5])
    trim(client, ids, 20)
    begin(reader(server, startingOffsets="earliest"))
    assert (client.xinfo_groups("s")[0]["entries-read"], client.xinfo_groups("s")[0]["lag"]) == (20, 2980)


def test_trimming_is_noticed_behind_an_entry_that_was_deleted_ahead_of_the_group(
    server: Server, client: redis.Redis
) -> None:
    """XDEL ahead of the group makes the server forget how much it has read."""
    ids = add(client, 100)
    one = reader(server, limits=NEVER_AHEAD)
    start = one.initialOffset()
    at = one.latestOffset(start, ReadMaxRows(10))
    assert read(one, start, at) == list(range(10))
    client.xdel("s", ids[80])
    more = one.latestOffset(at, ReadMaxRows(10))
    assert read(one, at, more) == list(range(10, 20))
    assert client.xinfo_groups("s")[0]["lag"] is None
    trim(client, ids, 69)
    with pytest.raises(DataLossError, match=f"stream 's': 50 entries above {ids[19]} were trimmed or deleted"):
        one.latestOffset(more, ReadMaxRows(10))
    with pytest.raises(DataLossError, match="stream 's': 50 entries above"):
        reader(server, limits=NEVER_AHEAD).latestOffset(more, ReadMaxRows(10))
    lenient = reader(server, limits=NEVER_AHEAD, **LENIENT)
    assert [n for b in drain(lenient, 10, more) for n in b] == [n for n in range(69, 100) if n != 80]
    assert lost(lenient) == 50


def test_what_is_trimmed_from_a_batch_without_a_pending_list_is_noticed_when_it_is_read_again(
    server: Server, client: redis.Redis
) -> None:
    ids = add(client, 30)
    one = reader(server, noAck="true")
    start = one.initialOffset()
    at = one.latestOffset(start, ReadMaxRows(10))
    trim(client, ids, 5)
    for _ in range(3):
        with pytest.raises(DataLossError, match="5 entries of a batch of 10 were"):
            read(one, start, at)
        one = reader(server, noAck="true")
    lenient = reader(server, noAck="true", **LENIENT)
    assert read(lenient, start, at) == [5, 6, 7, 8, 9]
    assert drain(lenient, None, at) == [list(range(10, 30))]
    assert lost(lenient) == 5


def test_a_group_without_a_pending_list_that_is_set_back_notices_what_was_trimmed(
    server: Server, client: redis.Redis
) -> None:
    """What a crash has kept from the offset log is delivered again."""
    ids = add(client, 30)
    one = reader(server, noAck="true")
    start = one.initialOffset()
    at = one.latestOffset(start, ReadMaxRows(10))
    one.latestOffset(at, ReadMaxRows(10))
    trim(client, ids, 15)
    again = reader(server, noAck="true")
    with pytest.raises(DataLossError, match=f"stream 's': 5 entries above {ids[9]} were trimmed or deleted"):
        again.latestOffset(at, ReadMaxRows(10))
    lenient = reader(server, noAck="true", **LENIENT)
    assert [n for batch in drain(lenient, 10, at) for n in batch] == list(range(15, 30))
    assert lost(lenient) == 5


def test_a_batch_without_a_pending_list_behind_a_deleted_entry_is_counted(server: Server, client: redis.Redis) -> None:
    ids = add(client, 60)
    one = reader(server, noAck="true")
    at = one.latestOffset(one.initialOffset(), ReadMaxRows(5))
    client.xdel("s", ids[50])
    end = one.latestOffset(at, ReadMaxRows(20))
    assert Range.parse("s", end["batch"]["s"]).count == len(read(one, at, end)) == 20
    assert client.xinfo_groups("s")[0]["lag"] is None
    trim(client, ids, 12)
    with pytest.raises(DataLossError, match="7 entries above"):
        read(reader(server, noAck="true"), at, end)


@pytest.mark.parametrize("options", [{}, {"noAck": "true"}], ids=str)
def test_entries_deleted_unread_amid_others_are_noticed_when_the_group_has_come_to_the_end(
    server: Server, client: redis.Redis, options: dict[str, str]
) -> None:
    ids = add(client, 40)

    def begun(**more: str) -> tuple[StreamReader, dict[str, Any]]:
        one = reader(server, limits=NEVER_AHEAD, **options, **more)
        start = one.initialOffset()
        at = one.latestOffset(start, ReadMaxRows(10))
        assert len(read(one, start, at)) == 10
        return one, at

    one, at = begun()
    client.xdel("s", *ids[20:23])
    end = one.latestOffset(at, ALL)
    with pytest.raises(DataLossError, match="3 entries above"):
        read(one, at, end) and one.latestOffset(end, ALL)
    client.xgroup_destroy("s", "g")
    client.delete("s")
    ids = add(client, 40)
    one, at = begun(group="h", **LENIENT)
    client.xdel("s", *ids[20:23])
    assert [n for batch in drain(one, 15, at) for n in batch] == [*range(10, 20), *range(23, 40)]
    assert lost(one) == 3


def test_the_newest_entry_deleted_unread_is_noticed(server: Server, client: redis.Redis) -> None:
    ids = add(client, 10)
    one = reader(server)
    at = one.initialOffset()
    at = one.latestOffset(at, ALL)
    ids += add(client, 1, first=10)
    client.xdel("s", ids[-1])
    with pytest.raises(DataLossError, match="stream 's': 1 entry above"):
        one.latestOffset(at, ALL)
    lenient = reader(server, **LENIENT)
    remembered = lenient.latestOffset(at, ALL)
    assert read(lenient, at, remembered) == []
    assert lenient.latestOffset(remembered, ALL) == remembered
    assert lost(lenient) == 1
    add(client, 3, first=11)
    assert drain(lenient, None, remembered) == [[11, 12, 13]]
    assert lost(lenient) == 1


@pytest.mark.parametrize("options", [{}, {"noAck": "true"}], ids=str)
def test_trimming_between_the_look_and_the_reserving_is_noticed(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    ids = add(client, 40)
    one = reader(server, **options)
    at = one.initialOffset()
    with before_reserving(monkeypatch, lambda: trim(client, ids, 12)):
        end = one.latestOffset(at, ALL)
    with pytest.raises(DataLossError, match="12 entries (above|of a batch)"):  # a task says so, or the next look
        read(one, at, end) and one.latestOffset(end, ALL)
    client.xgroup_destroy("s", "g")
    ids = add(client, 12, first=40)
    lenient = reader(server, group="h", **options, **LENIENT)
    at = lenient.initialOffset()
    with before_reserving(monkeypatch, lambda: client.xtrim("s", maxlen=30, approximate=False)):
        found = drain(lenient, 25, at)
    assert [n for batch in found for n in batch] == list(range(22, 52))
    assert lost(lenient) == 10


def test_everything_trimmed_before_the_first_batch_is_noticed(server: Server, client: redis.Redis) -> None:
    add(client, 20)
    one = reader(server)
    at = one.initialOffset()
    client.xtrim("s", maxlen=0, approximate=False)
    with pytest.raises(DataLossError, match="stream 's': 20 entries above 0-0"):
        one.latestOffset(at, ALL)


def test_what_a_group_had_missed_before_the_query_is_no_loss_of_it(server: Server, client: redis.Redis) -> None:
    """Redis goes on counting from what such a group has read: its lag never comes to 0 again."""
    ids = add(client, 20)
    client.xgroup_create("s", "g", id="0")
    trim(client, ids, 5)
    client.xreadgroup("g", "other", {"s": ">"}, noack=True)
    client.xgroup_delconsumer("s", "g", "other")
    one = reader(server)
    at = one.initialOffset()
    assert one.latestOffset(at, ALL) == at
    add(client, 5, first=20)
    assert drain(one, None, at) == [list(range(20, 25))]


def test_a_loss_that_was_counted_is_not_counted_again_by_later_batches_or_runs(
    server: Server, client: redis.Redis
) -> None:
    ids = add(client, 40)
    one = reader(server, **LENIENT)
    at = one.initialOffset()
    trim(client, ids, 10)
    end = one.latestOffset(at, ReadMaxRows(5))
    assert read(one, at, end) == list(range(10, 15))
    assert lost(one) == 10
    again = reader(server)
    assert [n for batch in drain(again, 10, end) for n in batch] == list(range(15, 40))
    assert lost(again) == 0


def test_others_in_the_group_and_what_they_read_is_no_loss(server: Server, client: redis.Redis) -> None:
    """Also if they come and go."""
    add(client, 60)
    one = reader(server)
    at = begin(one)
    found: list[int] = []
    for step in range(6):
        client.xreadgroup("g", f"other{step}", {"s": ">"}, count=3)
        end = one.latestOffset(at, ReadMaxRows(5))
        found += read(one, at, end)
        at = end
    assert len(found) == 30


def test_trimming_is_noticed_in_a_group_that_others_read_from(server: Server, client: redis.Redis) -> None:
    ids = add(client, 60)
    one = reader(server)
    at = begin(one)
    client.xreadgroup("g", "other", {"s": ">"}, count=10)
    end = one.latestOffset(at, ReadMaxRows(10))
    assert read(one, at, end) == list(range(10, 20))
    trim(client, ids, 30)
    with pytest.raises(DataLossError, match="stream 's': at least 10 entries above"):
        one.latestOffset(end, ALL)
    lenient = reader(server, **LENIENT)
    assert [n for batch in drain(lenient, 50, end) for n in batch] == list(range(30, 60))
    assert lost(lenient) == 10


@pytest.mark.parametrize("away", [True, False])
def test_trimming_is_noticed_though_others_hold_entries_and_the_server_has_forgotten_what_was_read(
    server: Server, client: redis.Redis, away: bool
) -> None:
    """XGROUP SETID without ENTRIESREAD, to where the group stands: what was read up to there has not changed."""
    ids = add(client, 30)
    one = reader(server, limits=NEVER_AHEAD)
    start = one.initialOffset()
    at = one.latestOffset(start, ReadMaxRows(10))
    assert read(one, start, at) == list(range(10))
    at = one.latestOffset(at, ReadMaxRows(0)) if away else at
    client.xclaim("s", "g", "bob", 0, ids[:2])
    client.xgroup_setid("s", "g", ids[9])
    trim(client, ids, 25)
    one = reader(server, limits=NEVER_AHEAD) if away else one
    with pytest.raises(DataLossError, match=f"15 entries above {ids[9]} were trimmed"):
        one.latestOffset(at, ALL)


@pytest.mark.parametrize("read_before", [0, 4])
def test_trimming_is_noticed_in_a_group_that_a_restored_server_has_below_what_others_had_read(
    server: Server, read_before: int
) -> None:
    """What the restored group has not delivered, it has to deliver. Here others had read 10 of these entries."""
    with server.client() as raw, server.client(decode_responses=True) as client:
        add(client, 10)
        one = reader(server, limits=NEVER_AHEAD, streams="s,t")
        at = begin(one)
        if read_before:
            client.xreadgroup("g", "bob", {"s": ">"}, count=read_before)
        dump = raw.dump("s")
        assert dump is not None
        client.xreadgroup("g", "bob", {"s": ">"})
        client.xadd("t", {"n": 50})
        end = one.latestOffset(at, ALL)
        assert read(one, at, end) == [50]
        stop_all()
        raw.delete("s")
        raw.restore("s", 0, dump)
        ids = add(client, 5, first=10)
        trim(client, ids, 2)
        with pytest.raises(DataLossError, match=f"stream 's': at least {12 - read_before} entries above 0-0"):
            reader(server, limits=NEVER_AHEAD, streams="s,t").latestOffset(end, ALL)
        lenient = reader(server, limits=NEVER_AHEAD, streams="s,t", **LENIENT)
        assert [n for batch in drain(lenient, None, end) for n in batch] == [12, 13, 14]
        assert lost(lenient) == 12 - read_before


def test_trimming_is_counted_in_a_shared_group_that_a_restored_server_has_below_the_checkpoint(server: Server) -> None:
    """What the checkpoint knows to be read is of its own position, and not of the one at which the query goes on."""
    with server.client() as raw, server.client(decode_responses=True) as client:
        add(client, 6)
        one = reader(server, limits=NEVER_AHEAD)
        at = begin(one)
        end = one.latestOffset(at, ALL)
        assert read(one, at, end) == list(range(6))
        client.xgroup_createconsumer("s", "g", "bob")
        end = one.latestOffset(end, ALL)
        dump = raw.dump("s")
        assert dump is not None
        add(client, 5, first=6)
        later = one.latestOffset(end, ALL)
        assert read(one, end, later) == list(range(6, 11))
        stop_all()
        raw.delete("s")
        raw.restore("s", 0, dump)
        trim(client, add(client, 7, first=11), 4)
        lenient = reader(server, limits=NEVER_AHEAD, **LENIENT)
        assert [n for batch in drain(lenient, None, later) for n in batch] == [15, 16, 17]
        assert lost(lenient) == 4


@pytest.mark.parametrize("restarted", [False, True])
def test_what_is_added_below_a_start_that_lies_ahead_is_no_loss(
    server: Server, client: redis.Redis, restarted: bool
) -> None:
    """Such as a startingTimestamp of this evening."""
    options = {"streams": "a,s", "startingOffsets": "1000-0"}
    one = reader(server, limits=NEVER_AHEAD, **options)
    at = one.initialOffset()
    for n in range(1, 5):
        client.xadd("s", {"n": n}, id=f"{n}-0")
        client.xadd("a", {"n": -n}, id=f"{1000 + n}-0")
        end = one.latestOffset(at, ALL)
        assert read(one, at, end) == [-n]
        at, one = end, reader(server, limits=NEVER_AHEAD, **options) if restarted else one
    for n in range(5):
        client.xadd("s", {"n": n}, id=f"{998 + n}-0")
    end = one.latestOffset(at, ALL)
    assert read(one, at, end) == [3, 4]
    client.xadd("s", {"n": 5}, id="1005-0")
    client.xtrim("s", maxlen=0, approximate=False)
    with pytest.raises(DataLossError, match="stream 's': 1 entry above 1002-0"):
        reader(server, limits=NEVER_AHEAD, **options).latestOffset(end, ALL)


@pytest.mark.parametrize("looks", ["none", "one", "restarted"])
@pytest.mark.parametrize("gone", ["trimmed", "deleted"])
def test_what_goes_before_the_first_look_above_a_start_that_lies_ahead_is_noticed(
    server: Server, client: redis.Redis, gone: str, looks: str
) -> None:
    """The stream was empty, or ended below the start, when the group was made."""
    options = {"startingOffsets": "5-5"}
    client.xadd("s", {"n": -1}, id="1-0")
    one = reader(server, **options)
    at = one.initialOffset()
    if looks != "none":
        assert one.latestOffset(at, ALL) == at
    if looks == "restarted":
        one = reader(server, **options)
    client.xadd("s", {"n": -2}, id="2-0")
    for n in range(3):
        client.xadd("s", {"n": n}, id=f"{6 + n}-0")
    if gone == "trimmed":
        client.xtrim("s", minid="7-0", approximate=False)
    else:
        client.xdel("s", "1-0", "2-0", "6-0")
    # How many of those that are gone lay below the start, nobody knows: as many as were added since the last look.
    with pytest.raises(DataLossError, match="stream 's': 2 entries above 5-5"):
        one.latestOffset(at, ALL)
    lenient = reader(server, **options, **LENIENT)
    assert [n for batch in drain(lenient, 10, at) for n in batch] == [1, 2]


@pytest.mark.parametrize("looks", [0, 1])
def test_a_stream_that_is_trimmed_to_nothing_above_a_start_that_lies_ahead(
    server: Server, client: redis.Redis, looks: int
) -> None:
    one = reader(server, startingOffsets="5-5")
    at = one.initialOffset()
    for _ in range(looks):
        assert one.latestOffset(at, ALL) == at
    add(client, 2)
    client.xtrim("s", maxlen=0, approximate=False)
    with pytest.raises(DataLossError, match="stream 's': 2 entries above 5-5"):
        one.latestOffset(at, ALL)


@pytest.mark.parametrize("no_ack", ["false", "true"])
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("before", [0, 3])
def test_a_start_that_lies_ahead_may_be_passed_between_two_looks(
    server: Server, client: redis.Redis, before: int, restarted: bool, no_ack: str
) -> None:
    """What was added below it is still there."""
    options = {"startingOffsets": "5-0", "noAck": no_ack}
    for n in range(before):
        client.xadd("s", {"n": -n}, id=f"1-{n + 1}")
    client.xtrim("s", maxlen=1, approximate=False)
    one = reader(server, **options)
    at = one.initialOffset()
    assert one.latestOffset(at, ALL) == at
    one = reader(server, **options) if restarted else one
    for n in range(8):
        client.xadd("s", {"n": n}, id=f"{2 + n}-0")
    assert [n for batch in drain(one, 3, at) for n in batch] == [4, 5, 6, 7]


def test_what_is_deleted_above_the_begin_before_the_first_batch_is_lost(server: Server, client: redis.Redis) -> None:
    """A batch of another stream is logged, so the stream has an account, and no batch."""
    add(client, 3)
    one = reader(server, streams="s,t", startingOffsets="latest", limits=NEVER_AHEAD)
    start = begin(one)
    add(client, 1, "t", first=10)
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [10]
    stop_all()
    ids = add(client, 8, first=3)
    client.xdel("s", *ids[5:])
    with pytest.raises(DataLossError, match="3 entries"):
        drain(reader(server, streams="s,t"), start=end)


def test_what_is_deleted_while_the_entries_below_the_begin_are_counted_is_lost(
    server: Server, client: redis.Redis
) -> None:
    add(client, 3)
    one = reader(server, streams="s,t", startingOffsets="latest", limits=NEVER_AHEAD)
    start = begin(one)
    add(client, 1, "t", first=10)
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [10]
    ids = add(client, 8, first=3)
    with before_sending(b"XRANGE", act=lambda *_: client.xdel("s", ids[4])):
        after = one.latestOffset(end, ALL)
    assert read(one, end, after) == [3, 4, 5, 6, 8, 9, 10]
    with pytest.raises(DataLossError, match="1 entry"):
        one.latestOffset(after, ALL)


def test_what_a_server_counts_as_read_after_it_was_missed_hides_no_later_loss(
    server: Server, client: redis.Redis
) -> None:
    """A newer server counts what was trimmed unread as read, with the next entry that it delivers (FACTS R16)."""
    ids = add(client, 7)
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "bob", {"s": ">"}, count=1)
    one = reader(server, limits=NEVER_AHEAD)
    end = one.latestOffset(start := one.initialOffset(), ReadMaxRows(1))
    assert read(one, start, end) == [1]
    stop_all()
    trim(client, ids, 5)
    lenient = reader(server, limits=NEVER_AHEAD, **LENIENT)
    for expected in (5, 6):
        end = lenient.latestOffset(start := end, ReadMaxRows(1))
        assert read(lenient, start, end) == [expected]
    assert lost(lenient) == 3
    stop_all()
    ids = add(client, 7, first=7)
    trim(client, ids, 2)
    last = reader(server, limits=NEVER_AHEAD, **LENIENT)
    assert [n for batch in drain(last, None, end) for n in batch] == [9, 10, 11, 12, 13]
    assert lost(last) == 2
