"""Hands on the group of a query: refused while it lives; and what it does when it is started again, as
docs/guide/change-a-group.md says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from spark_streams.base.ids import StreamId
from spark_streams.connector.admin import groups as guard
from spark_streams.connector.errors import DataLossError, GroupMissingError, GroupSharedError
from spark_streams.connector.source.group_client import lease_key
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.spark.data_source import ReadMaxRows
from tests.operations.groups.conftest import Rstream, RstreamJson
from tests.remedies import carry_out
from tools.driving import ALL, NEVER_AHEAD, add, begin, drain, pending_count, read, reader, stop_all
from tools.sending import before_sending
from tools.servers.server import Server
from tools.waiting import until

TEN = ReadMaxRows(10)
LENIENT = {"failOnDataLoss": "false"}
G = ("s", "--group", "g")


@dataclass
class Query:
    """A query that has read twenty entries of fifty in two batches. log: its checkpoint after each batch; ids: of the
    stream; third: a third batch, of ten more entries, that is in the checkpoint's log and was not committed; None: it
    was stopped in good order."""

    server: Server
    log: list[dict[str, Any]]
    ids: list[str]
    third: dict[str, Any] | None = None

    def resume(self, **options: str) -> list[int]:
        """What it reads when it is started with its checkpoint: as Spark does, the logged batch first."""
        one, at, found = reader(self.server, limits=NEVER_AHEAD, **options), self.log[-1], []
        if self.third is not None:
            found, at = read(one, at, self.third), self.third
        return found + self.rest(one, at)

    def start_over(self, **options: str) -> list[int]:
        """What it reads with a new checkpoint."""
        return self.rest(reader(self.server, limits=NEVER_AHEAD, **options), None)

    def rest(self, one: StreamReader, at: dict[str, Any] | None) -> list[int]:
        self.lost = one.reportLatestOffset
        return [n for batch in drain(one, 10, at) for n in batch]


@pytest.fixture(params=["stopped", "reserved", "logged"])
def query(request: pytest.FixtureRequest, server: Server, client: redis.Redis) -> Query:
    """Stopped in good order; or killed with ten entries in hand that no batch had yet, or that were a logged batch."""
    return make_query(server, client, request.param)


def make_query(server: Server, client: redis.Redis, how: str, **options: str) -> Query:
    ids = add(client, 50)
    one = reader(server, limits=NEVER_AHEAD, **options)
    log = [one.initialOffset()]
    for _ in range(2):
        log.append(one.latestOffset(log[-1], TEN))
        assert len(read(one, log[-2], log[-1])) == 10
    one.commit(log[-1])
    third = one.latestOffset(log[-1], TEN) if how != "stopped" else None
    if how == "stopped":
        assert one.latestOffset(log[-1], ReadMaxRows(0)) == log[-1]
    stop_all()
    return Query(server, log, ids, third if how == "logged" else None)


# -- while it lives ----------------------------------------------------------------------------------------------------

HANDS = {
    "seek": ["seek", *G, "--to", "earliest"],
    "claim": ["claim", *G, "--from", "spark", "--to", "bob"],
    "ack": ["ack", *G, "--all"],
    "delete": ["delete", *G],
    "delete its consumer": ["delete", *G, "--consumer", "spark", "--forget-pending"],
    "create": ["create", *G],
}


@pytest.mark.parametrize("hand", list(HANDS))
def test_a_query_that_lives_is_left_alone(
    server: Server, client: redis.Redis, rstream: Rstream, rstream_json: RstreamJson, hand: str
) -> None:
    add(client, 20)
    one = reader(server, limits=NEVER_AHEAD)
    at = one.initialOffset()
    end = one.latestOffset(at, TEN)
    if hand == "create":
        client.xgroup_destroy("s", "g")
    before = client.xinfo_stream("s", full=True)
    for words in ([], ["--even-active"]) if hand != "create" else ([],):
        ran = rstream("groups", *HANDS[hand], *words, "--yes")
        assert ran.exit_code == 1, ran.output
        assert "RSTREAM_GROUP_IN_USE" in ran.stderr
        assert "a query is running as consumer 'spark' of group 'g' of stream 's' (process " in ran.stderr
    if hand != "create":
        assert "a query is running" in rstream_json("groups", *HANDS[hand], code=3)["refused"][0]
    assert client.xinfo_stream("s", full=True)["groups"] == before["groups"]
    if hand != "create":
        assert read(one, at, end) == list(range(10))


@pytest.mark.parametrize("hand", list(HANDS))
def test_a_query_that_starts_meanwhile_is_not_cut_under_its_feet(
    server: Server, client: redis.Redis, rstream: Rstream, monkeypatch: pytest.MonkeyPatch, hand: str
) -> None:
    """Between the look at its lease and the change."""
    query = make_query(server, client, "reserved")
    if hand == "create":
        client.xgroup_destroy("s", "g")
    options = LENIENT if hand == "create" else {}
    started: list[StreamReader] = []
    honest = guard.transact

    def racing(*arguments: Any) -> Any:
        if not started:
            started.append(reader(server, limits=NEVER_AHEAD, **options))
            started[0].latestOffset(query.log[-1], TEN)
        return honest(*arguments)

    monkeypatch.setattr(guard, "transact", racing)
    ran = rstream("groups", *HANDS[hand], "--yes")
    assert ran.exit_code == 1, ran.output
    assert "a query is running as consumer 'spark'" in ran.stderr
    assert query.rest(started[0], query.log[-1]) == list(range(20, 50))
    assert pending_count(client) == 0


@pytest.mark.parametrize("hand", ["seek", "delete"])
@pytest.mark.parametrize("moment", ["WATCH", "MULTI"])
def test_a_query_that_was_not_in_the_group_yet_and_starts_meanwhile(
    server: Server, client: redis.Redis, rstream: Rstream, hand: str, moment: str
) -> None:
    """The change is refused; if it is too late for that, the error says so."""
    make_query(server, client, "stopped")

    def start(*_: object) -> None:
        late = reader(server, limits=NEVER_AHEAD, beside=True, consumer="late")
        late.latestOffset(late.initialOffset(), TEN)

    before = client.xinfo_groups("s")[0]["last-delivered-id"]
    with before_sending(moment.encode(), act=start, times=1):
        ran = rstream("groups", *HANDS[hand], "--even-active", "--yes")
    assert (ran.exit_code, "RSTREAM_GROUP_IN_USE" in ran.stderr, "'late'" in ran.stderr) == (1, True, True), ran.stderr
    [group] = client.xinfo_groups("s") or [None]
    if moment == "WATCH":
        assert group is not None
        assert StreamId.parse(group["last-delivered-id"]) > StreamId.parse(before)
    else:
        assert "The change is made" in ran.stderr
        assert group is None or group["last-delivered-id"] <= before


@pytest.mark.parametrize("hand", ["seek", "delete"])
def test_a_query_that_has_read_nothing_yet_is_left_alone(
    server: Server, client: redis.Redis, rstream: Rstream, rstream_json: RstreamJson, hand: str
) -> None:
    """It holds its lease, and has no consumer in the group."""
    make_query(server, client, "stopped")
    client.xgroup_setid("s", "g", "$")
    idle = reader(server, limits=NEVER_AHEAD, beside=True, consumer="idle", **LENIENT)
    idle.initialOffset()
    assert [one["name"] for one in client.xinfo_consumers("s", "g")] == ["spark"]
    before = client.xinfo_groups("s")
    assert "a query is running as consumer 'idle'" in rstream_json("groups", *HANDS[hand], code=3)["refused"][0]
    ran = rstream("groups", *HANDS[hand], "--even-active", "--yes")
    assert (ran.exit_code, "a query is running as consumer 'idle'" in ran.stderr) == (1, True), ran.stderr
    assert client.xinfo_groups("s") == before


def test_a_query_that_has_only_asked_where_the_group_is_before_a_seek_is_named(
    server: Server, client: redis.Redis, rstream: Rstream
) -> None:
    """It has its lease, and no consumer yet. Where it begins is what the group was before."""
    query = make_query(server, client, "stopped")
    late = reader(server, limits=NEVER_AHEAD, consumer="late")
    begun: list[Any] = []
    with before_sending(b"MULTI", act=lambda *_: begun.append(late.initialOffset()), times=1):
        ran = rstream("groups", "seek", *G, "--to", query.ids[4], "--even-active", "--yes")
    assert (ran.exit_code, "query 'late' has begun to run" in ran.stderr) == (1, True), ran.stderr
    assert "The change is made" in ran.stderr
    assert client.xinfo_groups("s")[0]["last-delivered-id"] == query.ids[4]


def test_the_lease_of_a_process_that_is_dead_hinders_nobody(
    server: Server, client: redis.Redis, rstream_json: RstreamJson, rstream: Rstream
) -> None:
    make_query(server, client, "reserved")
    key = lease_key("s", "g", "spark")
    from spark_streams.connector.wire.lease import Processes

    client.set(key, json.dumps({**Processes().this(), "pid": 999_999_999, "born": "1"}))
    assert rstream_json("groups", "seek", *G, "--to", "-5")["refused"] == []
    client.set(key, json.dumps({**Processes().this(), "space": "another machine", "host": "there"}))
    ran = rstream("groups", "seek", *G, "--to", "-5", "--yes")
    assert (ran.exit_code, "on there)" in ran.stderr) == (1, True)


# -- seek --------------------------------------------------------------------------------------------------------------


def test_after_a_seek_back(query: Query, client: redis.Redis, rstream_json: RstreamJson) -> None:
    told = rstream_json("groups", "seek", *G, "--to", query.ids[4], "--yes")
    assert told["then"][0].startswith("query 'spark' has a checkpoint; rstream help change-a-group")
    replayed = [] if query.third is None else list(range(20, 30))
    assert query.resume() == [*replayed, *range(5, 50)]
    assert pending_count(client) == 0


def test_after_a_raw_setid_back_the_query_sets_its_group_to_the_checkpoint(query: Query, client: redis.Redis) -> None:
    """It is alone, and has read the entries in between."""
    client.xgroup_setid("s", "g", query.ids[4])
    assert query.resume() == list(range(20, 50))
    assert pending_count(client) == 0


def test_after_a_raw_setid_forward_a_strict_query_stops(query: Query, client: redis.Redis) -> None:
    client.xgroup_setid("s", "g", query.ids[39], entries_read=40)
    with pytest.raises(DataLossError, match="above the checkpoint's .* are not pending for consumer 'spark'") as raised:
        query.resume()
    stop_all()
    carry_out(query.server, str(raised.value))
    assert query.resume() == list(range(20, 50))
    assert pending_count(client) == 0


def test_after_a_seek_back_a_new_checkpoint_begins_there(
    query: Query, client: redis.Redis, rstream_json: RstreamJson
) -> None:
    rstream_json("groups", "seek", *G, "--to", query.ids[4], "--yes")
    assert query.start_over() == list(range(5, 50))
    assert pending_count(client) == 0


@pytest.mark.parametrize("options", [{}, LENIENT], ids=["strict", "lenient"])
def test_after_a_seek_forward_the_query_goes_on_behind_it(
    query: Query, client: redis.Redis, rstream_json: RstreamJson, options: dict[str, str]
) -> None:
    told = rstream_json("groups", "seek", *G, "--to", query.ids[39], "--yes")
    assert told["then"][0].startswith("query 'spark' has a checkpoint; rstream help change-a-group")
    held = list(range(20, 30)) if query.third is not None or pending_count(client) else []
    assert query.resume(**options) == [*held, *range(40, 50)]
    assert query.lost().get("lost", {}) == {}
    assert pending_count(client) == 0


def test_a_seek_moves_a_query_with_no_ack_too(server: Server, client: redis.Redis, rstream_json: RstreamJson) -> None:
    query = make_query(server, client, "stopped", noAck="true")
    for to in (query.ids[4], query.ids[39]):
        told = rstream_json("groups", "seek", *G, "--to", to, "--yes")
        assert told["then"][0].startswith("query 'spark' has a checkpoint; rstream help change-a-group")
        assert query.resume(noAck="true") == list(range(query.ids.index(to) + 1, 50))
        stop_all()


def test_a_seek_moves_a_query_whose_consumer_was_deleted(
    server: Server, client: redis.Redis, rstream_json: RstreamJson
) -> None:
    query = make_query(server, client, "stopped", consumer="etl-1")
    client.xgroup_delconsumer("s", "g", "etl-1")
    told = rstream_json("groups", "seek", *G, "--to", query.ids[39], "--yes")
    assert told["then"][0].startswith("query 'etl-1' has a checkpoint; rstream help change-a-group")
    assert query.resume(consumer="etl-1") == list(range(40, 50))


# -- entries for a query without a pending list ----------------------------------------------------------------------


def test_nothing_is_handed_to_a_query_with_no_ack_until_it_runs_without(
    server: Server, client: redis.Redis, rstream: Rstream, rstream_json: RstreamJson
) -> None:
    query = make_query(server, client, "stopped", noAck="true")
    client.xclaim("s", "g", "bob", 0, query.ids[:5], force=True)
    words = ["claim", *G, "--to", "spark", "--from", "bob", "--even-active"]
    for yes in ([], ["--yes"]):
        ran = rstream("groups", *words, *yes)
        assert ran.exit_code == (1 if yes else 3)
        assert "reads stream 's' with noAck=true, so it cannot read entries" in ran.stderr
    assert pending_count(client) == 5
    # As the message says.
    one, at = reader(server, limits=NEVER_AHEAD), query.log[-1]
    found = read(one, at, end := one.latestOffset(at, TEN))
    while rstream("groups", *words, "--yes").exit_code:
        found += read(one, at := end, end := one.latestOffset(end, TEN))
    while (end := one.latestOffset(at := end, TEN)) != at:
        found += read(one, at, end)
    assert sorted(found) == [*range(5), *range(20, 50)]
    assert pending_count(client) == 0
    last = reader(server, limits=NEVER_AHEAD, noAck="true")
    with pytest.raises(GroupSharedError, match="delete the consumer: that is refused while") as refused:
        last.latestOffset(end, TEN)
    stop_all()
    carry_out(server, str(refused.value), "--even-active")
    assert query.rest(reader(server, limits=NEVER_AHEAD, noAck="true"), end) == []


def test_a_consumer_with_pending_entries_beside_a_query_with_no_ack_keeps_them_whatever_the_error_advises(
    server: Server, client: redis.Redis, rstream: Rstream, rstream_json: RstreamJson
) -> None:
    """Another consumer has joined the group and read. Without noAck the query shares the group with it."""
    query = make_query(server, client, "reserved", noAck="true")
    client.xreadgroup("g", "bob", {"s": ">"}, count=5)
    with pytest.raises(GroupSharedError, match="'bob' .5 pending entries. is in group .* Set noAck=false"):
        query.resume(noAck="true")
    ran = rstream("groups", "delete", *G, "--consumer", "bob", "--even-active", "--yes")
    assert (ran.exit_code, "5 entries of stream 's' are pending for consumer 'bob'" in ran.stderr) == (1, True)
    assert query.resume() == list(range(25, 50))
    assert pending_count(client) == 5
    client.xack("s", "g", *query.ids[20:25])  # bob has finished
    stop_all()
    rstream_json("groups", "delete", *G, "--consumer", "bob", "--even-active", "--yes")


# -- entries again -----------------------------------------------------------------------------------------------------


def test_a_query_reads_a_part_of_its_stream_again_with_the_checkpoint_that_it_has(
    query: Query, client: redis.Redis, rstream_json: RstreamJson
) -> None:
    committed = str(client.get("rstream:committed:{s}:g:spark")).partition(" ")[0]
    words = ["replay", *G, "--from", query.ids[5], "--to", committed]
    planned = rstream_json(*words)
    told = rstream_json(*words, "--yes")
    assert told["streams"] == planned["streams"]
    assert "reads these entries again with its next batches" in told["then"][0]
    handed = told["streams"][0]["entries"]
    assert handed in (5, 15)  # up to what it has committed for certain
    assert sorted(query.resume()) == sorted([*range(5, 5 + handed), *range(20, 50)])
    assert pending_count(client) == 0


def test_a_query_that_lives_reads_what_it_is_handed(
    server: Server, client: redis.Redis, rstream_json: RstreamJson
) -> None:
    add(client, 50)
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "bob", {"s": ">"}, count=5)
    one = reader(server, limits=NEVER_AHEAD)
    at = one.initialOffset()
    found: list[int] = []
    for _ in range(2):
        end = one.latestOffset(at, TEN)
        found += read(one, at, end)
        at = end
    told = rstream_json("groups", "claim", *G, "--from", "bob", "--to", "spark", "--even-active", "--yes")
    assert (told["streams"][0]["entries"], told["streams"][0]["above"]) == (5, 0)
    found += [n for batch in drain(one, 10, at) for n in batch]
    assert sorted(found) == list(range(50))
    assert pending_count(client) == 0


def test_nothing_is_handed_to_a_query_above_what_it_has_committed(
    server: Server, client: redis.Redis, rstream_json: RstreamJson
) -> None:
    add(client, 50)
    one = reader(server, limits=NEVER_AHEAD)
    at = one.initialOffset()
    one.latestOffset(at, TEN)
    client.xreadgroup("g", "bob", {"s": ">"}, count=5)
    hand_over = ("groups", "claim", *G, "--from", "bob", "--to", "spark", "--even-active", "--yes")
    told = rstream_json(*hand_over)  # the mark says where the query begins
    assert (told["streams"][0]["entries"], told["streams"][0]["above"]) == (0, 5)


# -- entries that are taken --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hand", [["ack", *G, "--all"], ["claim", *G, "--from", "spark", "--to", "bob"]])
def test_after_entries_of_a_query_were_taken(
    query: Query, client: redis.Redis, rstream_json: RstreamJson, hand: list[str]
) -> None:
    held = pending_count(client)
    told = rstream_json("groups", *hand, "--yes")
    assert sum(one["entries"] for one in told["streams"]) == held
    if held:
        assert told["then"][0].startswith("query 'spark' has a checkpoint; rstream help change-a-group")
    if held and query.third is None and hand[0] == "ack":
        with pytest.raises(DataLossError, match="above the checkpoint's .* are not pending for consumer 'spark'"):
            query.resume()
        assert query.resume(**LENIENT) == list(range(20, 50))
        return
    if query.third is not None and hand[0] == "claim":  # bob has them now, and may have read them
        with pytest.raises(DataLossError, match="10 entries above .* of a batch of 10 .*another client has .* claimed"):
            query.resume()
        assert query.resume(**LENIENT) == list(range(30, 50))
        assert (query.lost()["lost"], pending_count(client)) == ({"s": 10}, 10)
        return
    reads = query.resume()
    assert reads == list(range(20 if query.third is not None or not held else 30, 50))


def test_after_entries_were_taken_of_a_batch_whose_range_others_shared(
    server: Server, client: redis.Redis, rstream_json: RstreamJson
) -> None:
    add(client, 50)
    one = reader(server, limits=NEVER_AHEAD)
    log = [begin(one)]
    client.xgroup_createconsumer("s", "g", "bob")
    log.append(one.latestOffset(log[-1], TEN))
    read(one, log[0], log[1])
    one.commit(log[1])
    # Bob reads amid the second batch: it is the query's by its pending list.
    from spark_streams.connector.source.trigger import roles

    honest = roles.reserve

    def race(*arguments: Any) -> Any:
        client.xreadgroup("g", "bob", {"s": ">"}, count=3)
        return honest(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roles, "reserve", race)
        end = one.latestOffset(log[1], TEN)
    stop_all()
    rstream_json("groups", "ack", *G, "--consumer", "spark", "--limit", "4", "--yes")
    with pytest.raises(DataLossError, match="4 entries above .* of a batch of 10"):
        read(reader(server, limits=NEVER_AHEAD), log[1], end)
    assert len(read(reader(server, limits=NEVER_AHEAD, **LENIENT), log[1], end)) == 6


# -- what is deleted ---------------------------------------------------------------------------------------------------


def test_after_its_consumer_was_deleted(query: Query, client: redis.Redis, rstream_json: RstreamJson) -> None:
    held = pending_count(client)
    told = rstream_json("groups", "delete", *G, "--consumer", "spark", "--forget-pending", "--yes")
    assert told["streams"][0]["pending"] == held
    assert client.keys("rstream:*") == []
    if held and query.third is None:
        assert told["then"][0].startswith("query 'spark' has a checkpoint; rstream help change-a-group")
        with pytest.raises(DataLossError, match="above the checkpoint's .* not pending for consumer 'spark'"):
            query.resume()
        assert query.resume(**LENIENT) == list(range(20, 50))
    else:
        assert query.resume() == list(range(20, 50))
    assert pending_count(client) == 0


def test_after_its_group_was_deleted(
    query: Query, client: redis.Redis, rstream_json: RstreamJson, rstream: Rstream
) -> None:
    told = rstream_json("groups", "delete", *G, "--yes")
    assert client.keys("rstream:*") == []
    with pytest.raises(GroupMissingError):
        query.resume()
    # As it is printed.
    stop_all()
    [line] = told["then"]
    command = line.partition("create the group again: rstream ")[2].split(" ")
    assert rstream(*command).exit_code == 0
    assert query.resume() == list(range(20, 50))
    assert pending_count(client) == 0


def test_after_its_group_was_deleted_a_lenient_query_makes_it_again(
    query: Query, client: redis.Redis, rstream_json: RstreamJson
) -> None:
    rstream_json("groups", "delete", *G, "--yes")
    assert query.resume(**LENIENT) == list(range(20, 50))
    assert pending_count(client) == 0


def test_a_new_checkpoint_after_a_seek_back_is_not_taken_for_an_old_one(
    server: Server, client: redis.Redis, rstream_json: RstreamJson
) -> None:
    """The query dies in its first batch with the next one reserved: what it had committed before the seek lies above
    its new checkpoint."""
    query = make_query(server, client, "stopped")
    rstream_json("groups", "seek", *G, "--to", "earliest", "--yes")
    one = reader(server)
    at = one.initialOffset()
    end = one.latestOffset(at, ReadMaxRows(5))
    found = read(one, at, end)
    until_reserved(client, query.ids[5])
    found += query.rest(reader(server, limits=NEVER_AHEAD), end)
    assert found == list(range(50))


def until_reserved(client: redis.Redis, entry: str) -> None:
    """Wait until the group has been given this entry."""
    until(lambda: client.xpending_range("s", "g", entry, entry, 1), f"entry {entry} is not pending")


@pytest.mark.parametrize("has_read_another", [False, True])
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize(("to", "expected"), [("0-0", range(10)), ("5-0", range(5, 10)), ("8-0", range(8, 10))])
def test_a_seek_holds_in_a_stream_of_which_nothing_was_read(
    server: Server,
    client: redis.Redis,
    rstream_json: RstreamJson,
    to: str,
    expected: range,
    is_killed: bool,
    has_read_another: bool,
) -> None:
    """Also if the run that finds the new position dies before Spark logs it. The query began after entry 5."""
    for n in range(5):
        client.xadd("s", {"n": n}, id=f"{n + 1}-0")
    options = {"startingOffsets": "latest", "streams": "s,t"}
    client.xadd("t", {"n": 100}, id="1-0")
    one = reader(server, limits=NEVER_AHEAD, **options)
    start = begin(one)
    if has_read_another:
        client.xadd("t", {"n": 101}, id="2-0")
        end = one.latestOffset(start, ALL)
        assert read(one, start, end) == [101]
        start = end
    stop_all()
    for n in range(5, 10):
        client.xadd("s", {"n": n}, id=f"{n + 1}-0")
    rstream_json("groups", "seek", *G, "--to", to, "--yes")
    if is_killed:
        killed = reader(server, limits=NEVER_AHEAD, **options)
        killed.latestOffset(start if has_read_another else killed.initialOffset(), ReadMaxRows(0))
    again = reader(server, limits=NEVER_AHEAD, **options)
    if not has_read_another:  # Spark has logged no offset: it asks again where the query begins
        start = again.initialOffset()
    assert [n for batch in drain(again, start=start) for n in batch] == list(expected)
    assert pending_count(client) == 0
    client.xadd("s", {"n": 10}, id="11-0")
    client.xgroup_destroy("t", "g")
    stop_all()
    new = reader(server, **{**options, "streams": "s"})  # a new checkpoint: nothing is taken for a loss
    assert drain(new) == [[10]]


def test_the_remedy_of_a_group_whose_consumer_was_deleted_is_enough(server: Server, client: redis.Redis) -> None:
    """The query is not called as most are, so only the command can name it."""
    add(client, 20)
    one = reader(server, limits=NEVER_AHEAD, consumer="etl-1")
    end = one.latestOffset(start := begin(one), TEN)
    assert read(one, start, end) == list(range(10))
    one.latestOffset(end, TEN)
    stop_all()
    client.xgroup_delconsumer("s", "g", "etl-1")
    with pytest.raises(DataLossError, match="To go on without them, run") as raised:
        reader(server, consumer="etl-1").latestOffset(end, ALL)
    stop_all()
    skip = str(raised.value).rsplit("run: ", 1)[1]
    carry_out(server, f"({skip})")
    add(client, 3, first=20)
    assert [n for batch in drain(reader(server, consumer="etl-1"), start=end) for n in batch] == [20, 21, 22]


def test_a_correction_that_spark_has_not_logged_is_reported_once(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream was missing. The run that creates it again dies before Spark logs the new position."""
    add(client, 20)
    one = reader(server, limits=NEVER_AHEAD)
    end = one.latestOffset(start := begin(one), ALL)
    assert read(one, start, end) == list(range(20))
    assert one.latestOffset(end, ALL) == end
    stop_all()
    client.delete("s")
    killed = reader(server, **LENIENT)
    killed.latestOffset(end, ALL)
    stop_all()
    add(client, 3, first=20)
    again = reader(server)
    assert [n for batch in drain(again, start=end) for n in batch] == [20, 21, 22]
    assert "lost" not in again.reportLatestOffset()
    assert "Lost entries" not in caplog.text
