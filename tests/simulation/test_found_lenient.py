"""What the simulation has found of runs with failOnDataLoss=false: the shortest way there, by hand."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from spark_streams.connector.errors import DataLossError
from spark_streams.connector.source.trigger import observe
from spark_streams.connector.spark.data_source import ReadMaxRows
from spark_streams.connector.wire.connection import Connection
from tests.simulation.test_found import LENIENT, at_rest, lost
from tools.driving import ALL, NEVER_AHEAD, add, begin, drain, pending_count, positions, read, reader
from tools.key_copies import copies, make_again
from tools.sending import before_sending, in_turn
from tools.sending import lost as broken
from tools.servers.server import Server


@pytest.mark.parametrize("options", [{}, {"noAck": "true"}], ids=["group", "bookmark"])
def test_a_stream_made_again_with_ids_around_the_checkpoint_is_not_the_old_one(
    server: Server, client: redis.Redis, options: dict[str, str]
) -> None:
    for n in range(6):
        client.xadd("s", {"n": n}, id=f"5-{n}")
    one = reader(server, **options)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [*range(6)]
    client.delete("s")
    client.xadd("s", {"n": 6}, id="1-0")
    client.xadd("s", {"n": 7}, id="9-0")
    again = reader(server, **options, **LENIENT)
    assert drain(again, start=end) == [[6, 7]]


def test_a_server_restored_before_an_acknowledgement_leaves_nothing_pending(
    server: Server, client: redis.Redis
) -> None:
    add(client, 2)
    one = reader(server, limits=NEVER_AHEAD)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [0, 1]
    add(client, 2, first=2)
    raw = server.client()
    before = copies(raw, raw.scan_iter())
    more = one.latestOffset(end, ALL)
    assert read(one, end, more) == [2, 3]
    one.batches.worker.wait()
    client.flushall()
    make_again(raw, before)
    assert positions(one.latestOffset(more, ALL)) == positions(more)
    assert pending_count(client) == 0


def test_an_entry_that_was_read_is_not_counted_if_its_batch_is_read_again(server: Server, client: redis.Redis) -> None:
    """The commit log has lost its last file, after the batch was acknowledged."""
    ids = add(client, 2)
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [0, 1]
    assert one.latestOffset(end, ALL) == end
    client.xdel("s", ids[0])
    again = reader(server, **LENIENT)
    again.initialOffset()
    assert read(again, start, end) == [1]
    last = reader(server, **LENIENT)
    at_rest(last, end)
    assert lost(last) == {}


def test_entries_that_were_handed_over_while_a_batch_was_acknowledged_are_read(
    server: Server, client: redis.Redis
) -> None:
    """An AvailableNow run has no trigger after that."""
    add(client, 3)
    one = reader(server, limits=NEVER_AHEAD)
    start = begin(one)
    client.xgroup_createconsumer("s", "g", "bob")
    end = one.latestOffset(start, one.getDefaultReadLimit())
    assert read(one, start, end) == [0, 1, 2]
    client.xack("s", "g", *[found["message_id"] for found in client.xpending_range("s", "g", "-", "+", 2)])
    add(client, 1, first=3)
    client.xreadgroup("g", "bob", {"s": ">"})
    client.xclaim("s", "g", "spark", 0, [client.xpending_range("s", "g", "-", "+", 9, "bob")[0]["message_id"]])
    assert drain(one, start=end) == [[3]]
    assert pending_count(client) == 0


def test_a_planned_batch_is_planned_again_if_entries_were_trimmed(server: Server, client: redis.Redis) -> None:
    """What is lost is counted once, though the plan has named it."""
    add(client, 6)
    options = {"noAck": "true", "maxEntriesPerTrigger": "1", **LENIENT}
    one = reader(server, **options)
    start = one.initialOffset()
    limit = one.getDefaultReadLimit()
    end = one.latestOffset(start, limit)
    assert read(one, start, end) == [0]
    client.xtrim("s", maxlen=2, approximate=False)
    assert drain(one, 1, start=end) == [[4], [5]]
    assert lost(one) == {"s": 3}


def test_a_group_that_was_set_forward_is_set_back_beside_pending_entries(server: Server, client: redis.Redis) -> None:
    ids = add(client, 5)
    one = reader(server, limits=NEVER_AHEAD, maxEntriesPerTrigger="1")
    start = one.initialOffset()
    end = one.latestOffset(start, one.getDefaultReadLimit())
    assert read(one, start, end) == [0]
    one.latestOffset(end, one.getDefaultReadLimit())
    client.xgroup_setid("s", "g", ids[4])
    again = reader(server, **LENIENT)
    more = again.latestOffset(end, ALL)
    assert read(again, end, more) == [1, 2, 3, 4]
    assert lost(again) == {}
    assert again.latestOffset(more, ALL) == more
    assert reader(server).latestOffset(more, ALL) == more


def test_a_server_restored_under_a_run_that_has_set_its_group_makes_it_read_nothing_again(
    server: Server, client: redis.Redis
) -> None:
    """What the run knows to be committed is above what the server knows: it would look as if others had handed it."""
    add(client, 2)
    one = reader(server, limits=NEVER_AHEAD, **LENIENT)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [0, 1]
    add(client, 2, first=2)
    raw = server.client()
    before = copies(raw, raw.scan_iter())
    more = one.latestOffset(end, ALL)
    assert read(one, end, more) == [2, 3]
    assert one.latestOffset(more, ALL) == more
    client.flushall()
    make_again(raw, before)
    assert one.latestOffset(more, ALL) == more
    assert pending_count(client) == 0


@pytest.mark.parametrize("options", [{}, {"noAck": "true"}], ids=["group", "bookmark"])
def test_what_an_older_batch_finds_missing_that_is_run_again_is_counted(
    server: Server, client: redis.Redis, options: dict[str, str]
) -> None:
    ids = add(client, 2)
    one = reader(server, **options)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [0, 1]
    add(client, 1, first=2)
    more = one.latestOffset(end, ALL)
    assert read(one, end, more) == [2]
    assert one.latestOffset(more, ALL) == more
    client.xdel("s", ids[0])
    again = reader(server, **options, **LENIENT)
    again.initialOffset()
    assert read(again, start, end) == [1]
    last = reader(server, **options, **LENIENT)
    assert drain(last, start=end) == [[2]]
    assert lost(last) == {"s": 1}


@pytest.mark.parametrize("to", ["9-1", "9-2"], ids=["amid", "last"])
def test_entries_over_which_a_group_was_set_are_read_if_the_query_began_ahead_of_its_stream(
    server: Server, client: redis.Redis, to: str
) -> None:
    """The entry below the query's position is none of its own."""
    add(client, 1, stream="t")
    options = {"streams": "s,t", "startingOffsets": '{"s": "5-0", "t": "0"}'}
    one = reader(server, **options)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [0]
    for n, entry in enumerate(["1-0", "9-0", "9-1", "9-2"]):
        client.xadd("s", {"n": n}, id=entry)
    client.xgroup_setid("s", "g", to)
    again = reader(server, **options, **LENIENT)
    assert drain(again, start=end) == [[1, 2, 3]]
    assert lost(again) == {}


def test_a_consumer_that_is_deleted_while_another_group_is_repaired_is_missed(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks at the groups. It does not look like another consumer that has read, and left."""
    options = {"streams": "s,t", **LENIENT}
    add(client, 1)
    add(client, 2, stream="t")
    one = reader(server, limits=NEVER_AHEAD, **options)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert sorted(read(one, start, end)) == [0, 0, 1]
    assert one.latestOffset(end, ALL) == end
    add(client, 2, stream="t", first=2)
    one.latestOffset(end, ALL)
    client.xgroup_destroy("s", "g")
    carry_out = observe.carry_out

    def delete_meanwhile(*arguments: Any) -> Any:
        client.xgroup_delconsumer("t", "g", "spark")
        return carry_out(*arguments)

    monkeypatch.setattr(observe, "carry_out", delete_meanwhile)
    again = reader(server, **options)
    assert drain(again, start=end) == [[2, 3]]
    assert lost(again) == {}


def test_an_older_checkpoint_does_not_lower_the_mark_of_a_stream_that_is_read_no_more(
    server: Server, client: redis.Redis
) -> None:
    """With the mark lowered, what the newer checkpoint had read would be passed over in silence."""
    options = {"maxEntriesPerTrigger": "1", "streams": "s,t"}
    client.xadd("t", {"n": 9})
    add(client, 2)
    one = reader(server, limits=NEVER_AHEAD, **options)
    at = one.initialOffset()
    ends = []
    for _ in range(3):
        end = one.latestOffset(at, one.getDefaultReadLimit())
        read(one, at, end)
        ends.append(end)
        at = end
    assert one.latestOffset(at, one.getDefaultReadLimit()) == at
    mark = client.get("rstream:committed:{s}:g:spark")
    older = reader(server, **{**options, "streams": "t"}, **LENIENT)
    drain(older, start=ends[0])
    assert client.get("rstream:committed:{s}:g:spark") == mark


def test_the_loss_of_a_stream_that_is_missing_and_had_nothing_unread_is_not_named_again(
    server: Server, client: redis.Redis
) -> None:
    """The query begins again at the same position. The checkpoint must not keep the numbers of the old stream."""
    options = {"noAck": "true"}
    one = reader(server, **options, **LENIENT)
    start = begin(one)
    add(client, 3)
    client.xtrim("s", maxlen=0, approximate=False)
    end = at_rest(one, start)
    assert lost(one) == {"s": 3}
    client.delete("s")
    again = reader(server, **options, **LENIENT)
    end = at_rest(again, end)
    assert lost(again) == {}
    strict = reader(server, **options)
    assert strict.latestOffset(end, ALL) == end
    add(client, 2, first=3)
    assert drain(strict, start=end) == [[3, 4]]


@pytest.mark.parametrize("trims", [True, False], ids=["trimmed", "deleted"])
def test_an_older_checkpoint_of_a_stream_that_was_created_again_reads_what_is_left(
    server: Server, client: redis.Redis, trims: bool
) -> None:
    """The mark is of the newer checkpoint. As many entries were added to the new stream and are missing as the older
    one has read, so the query does not notice that the stream is another one."""
    add(client, 6)
    one = reader(server, **LENIENT)
    start = begin(one)
    older = one.latestOffset(start, ALL)
    assert read(one, start, older) == [*range(6)]
    assert one.latestOffset(older, ALL) == older
    client.delete("s")
    ids = add(client, 3, first=6)
    newer = one.latestOffset(older, ALL)
    assert read(one, older, newer) == [6, 7, 8]
    assert one.latestOffset(newer, ALL) == newer
    ids += add(client, 3, first=9)
    if trims:
        client.xtrim("s", minid=ids[4], approximate=False)
    else:
        client.xdel("s", *ids[:4])
    with pytest.raises(DataLossError, match="this is an older copy of the checkpoint"):
        reader(server).latestOffset(older, ALL)
    again = reader(server, **LENIENT)
    end = again.latestOffset(older, ALL)
    assert read(again, older, end) == [10, 11]
    assert again.latestOffset(end, ALL) == end


def test_a_loss_that_grows_while_the_connection_breaks_is_counted_once(server: Server, client: redis.Redis) -> None:
    """Five entries were reported, and the run had not yet noted where it goes on."""
    add(client, 10)
    one = reader(server, limits=NEVER_AHEAD, **LENIENT)
    start = begin(one)
    end = one.latestOffset(start, ReadMaxRows(2))
    assert read(one, start, end) == [0, 1]
    client.xtrim("s", maxlen=3, approximate=False)
    one = reader(server, limits=NEVER_AHEAD, **LENIENT)
    one.initialOffset()

    def trimmed_and_lost(connection: Connection, request: bytes) -> None:
        client.xtrim("s", maxlen=2, approximate=False)
        broken(connection, request)

    unchanged = [lambda *_: None] * 2
    with before_sending(b"MULTI", b"XINFO", act=in_turn(*unchanged, trimmed_and_lost), times=3):
        after = one.latestOffset(end, ALL)
    assert read(one, end, after) == [8, 9]
    assert lost(one) == {"s": 6}
