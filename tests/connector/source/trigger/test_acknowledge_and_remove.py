"""onCommit: what every group is done with leaves the stream, and nothing that anybody still needs."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import redis

from spark_streams.connector.counters import LOST
from spark_streams.connector.errors import InvalidOptionError
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.spark.data_source import ReadMaxRows
from tests.connector.source.moved_group import read_two_of_ten, stopped_by_a_moved_group
from tests.connector.source.trigger.hour_of_traffic import STREAM, hour
from tools.driving import (
    ALL,
    SMALL,
    add,
    another_reader,
    drain,
    pending_count,
    read,
    reader,
)
from tools.sending import KilledError, before_sending, killed, reply_lost
from tools.servers.server import Server

HURRY = replace(
    SMALL, lag_check=0.0, pattern_interval=0.0, pattern_interval_each=0.0
)  # streams in which others are behind are looked at every time
MODES: list[dict[str, str]] = [{}, {"noAck": "true"}]


def still() -> float:
    """A clock that stands: nothing ever takes long."""
    return 0.0


def one_of(server: Server, **options: str) -> StreamReader:
    return another_reader(server, limits=HURRY, now=still, **{"onCommit": "delete", **options})


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


def knows_acked(client: redis.Redis) -> bool:
    try:
        client.execute_command("XTRIM", "nothing", "MAXLEN", "9", "ACKED")
    except redis.ResponseError:
        return False
    return True


def ids_of(client: redis.Redis, stream: str = "s") -> list[str]:
    return [str(entry) for entry, _ in client.xrange(stream)]


class Reading:
    """A query that goes batch by batch, may be killed between any two steps, and goes on from its checkpoint."""

    def __init__(self, server: Server, most: int = 40, **options: str) -> None:
        self.server, self.limit, self.options = server, ReadMaxRows(most), options
        self.log: list[dict[str, Any]] = []
        self.committed = 0
        self.rows: list[int] = []
        self.one = one_of(server, **options)
        self.started = False

    def kill(self) -> None:
        self.one.stop()
        self.one = one_of(self.server, **self.options)
        self.started = False

    def step(self) -> bool:
        """A batch; False where there is nothing to read."""
        if not self.started:
            self.started = True
            if not self.log:
                self.log = [self.one.initialOffset()]
            elif self.committed < len(self.log) - 1:
                self._run(self.log[-2], self.log[-1])  # what was in flight
                return True
        begin = self.log[self.committed]
        end = self.one.latestOffset(begin, self.limit)
        if end == begin:
            return False
        self.log.append(end)
        self._run(begin, end)
        return True

    def _run(self, begin: dict[str, Any], end: dict[str, Any]) -> None:
        found = read(self.one, begin, end)
        self.committed = len(self.log) - 1
        self.rows += found

    def drain(self) -> None:
        while self.step():
            pass


# -- what goes, and when -------------------------------------------------------------------------------------------


def test_by_default_nothing_goes(server: Server, client: redis.Redis) -> None:
    add(client, 500)
    with before_sending(b"XTRIM", act=lambda *_: None) as trims:
        assert sum(map(len, drain(reader(server), 100))) == 500
    assert client.xlen("s") == 500
    assert not trims


def test_what_is_read_by_a_claim_alone_is_deleted(server: Server, client: redis.Redis) -> None:
    """Of a stream that the query has read nothing else of: no offset of it has a position there."""
    add(client, 1, "s:1")
    one = one_of(server, streamsPattern="s:*", claimIdle="1h")
    start = one.initialOffset()
    client.xgroup_create("s:2", "g", "0", mkstream=True)
    ids = add(client, 3, "s:2")
    client.xreadgroup("g", "bob", {"s:2": ">"})
    client.xclaim("s:2", "g", "bob", 0, ids, idle=7_200_000)
    end = one.latestOffset(start, ALL)
    assert sorted(read(one, start, end)) == [0, 0, 1, 2]
    assert "s:2" not in end["batch"]
    assert one.latestOffset(end, ALL) == end
    assert client.xlen("s:2") == 0


@pytest.mark.parametrize("mode", MODES)
def test_what_is_committed_is_deleted(server: Server, client: redis.Redis, mode: dict[str, str]) -> None:
    ids = add(client, 500)
    one = one_of(server, **mode)
    start = one.initialOffset()
    end = one.latestOffset(start, ReadMaxRows(130))
    assert ids_of(client) == ids
    assert read(one, start, end) == list(range(130))
    assert ids_of(client) == ids  # it is not committed yet
    after = one.latestOffset(end, ReadMaxRows(130))
    one.batches.worker.wait()
    assert ids_of(client) == ids[130:]
    assert read(one, end, after) == list(range(130, 260))
    one.commit(after)
    assert ids_of(client) == ids[260:]
    assert sum(map(len, drain(one, start=after))) == 240
    assert client.xlen("s") == 0
    add(client, 20, first=500)
    assert client.xinfo_stream("s")["entries-added"] == 520


def test_what_is_committed_is_trimmed_by_whole_nodes(server: Server, client: redis.Redis) -> None:
    ids = add(client, 30_000)
    one = another_reader(server, onCommit="trim")
    start = one.initialOffset()
    end = one.latestOffset(start, ReadMaxRows(25_130))
    one.commit(end)
    left = ids_of(client)
    assert left[-4_870:] == ids[-4_870:]
    assert 4_870 <= len(left) < 5_300  # a node holds a hundred entries or so


@pytest.mark.parametrize("how", ["trim", "delete"])
def test_what_another_group_needs_stays(server: Server, client: redis.Redis, how: str) -> None:
    ids = add(client, 1_000)
    client.xgroup_create("s", "slow", "0")
    client.xgroup_create("s", "never", "0")
    one = one_of(server, onCommit=how)
    assert sum(map(len, drain(one, 300))) == 1_000
    assert ids_of(client) == ids
    client.xgroup_destroy("s", "never")
    client.xreadgroup("slow", "bob", {"s": ">"}, count=600)
    client.xack("s", "slow", *ids[:450])
    at = one.latestOffset(one.initialOffset(), ALL)
    assert one.latestOffset(at, ALL) == at  # nothing to read: it looks whether others have come further
    left = ids_of(client)
    assert left == ids[450:] if how == "delete" else left[-550:] == ids[450:] and len(left) < 1_000


def test_the_last_one_that_acknowledges_need_not_be_a_query(server: Server, client: redis.Redis) -> None:
    """Another client is behind, and no batch comes any more."""
    ids = add(client, 300)
    client.xgroup_create("s", "slow", "0")
    query = Reading(server)
    query.drain()
    assert ids_of(client) == ids
    client.xreadgroup("slow", "bob", {"s": ">"})
    client.xack("s", "slow", *ids)
    query.drain()
    assert ids_of(client) == []
    with before_sending(b"XTRIM", act=lambda *_: None) as trims:
        query.drain()
    assert not trims  # nobody is behind any more


def test_an_idle_query_looks_after_others_now_and_then(server: Server, client: redis.Redis) -> None:
    clock = Clock()
    add(client, 10)
    client.xgroup_create("s", "slow", "0")
    one = another_reader(server, limits=replace(SMALL, lag_check=10.0), now=clock.now, onCommit="delete")
    at = one.latestOffset(one.initialOffset(), ALL)
    with before_sending(b"XTRIM", act=lambda *_: None) as trims:
        looks = []
        for clock.time in (0.0, 1.0, 9.0, 11.0, 12.0, 20.0, 22.0):
            assert one.latestOffset(at, ALL) == at
            looks.append(len(trims))
    assert looks == [1, 1, 1, 2, 2, 2, 3]


def test_entries_between_pending_ones_go_where_the_server_can(server: Server, client: redis.Redis) -> None:
    ids = add(client, 400)
    client.xgroup_create("s", "slow", "0")
    client.xreadgroup("slow", "bob", {"s": ">"}, count=300)
    client.xack("s", "slow", *[entry for at, entry in enumerate(ids[:300]) if at % 10 != 7])
    assert sum(map(len, drain(one_of(server), 100))) == 400
    pending = [entry for at, entry in enumerate(ids[:300]) if at % 10 == 7]
    assert ids_of(client) == (pending + ids[300:] if knows_acked(client) else ids[7:])
    group = next(one for one in client.xinfo_groups("s") if one["name"] == "slow")
    assert (group["entries-read"], group["lag"]) == (300, 100)


def test_walking_past_much_that_is_pending_takes_a_small_part_of_the_time(server: Server, client: redis.Redis) -> None:
    if not knows_acked(client):
        return
    clock = Clock()
    add(client, 400)
    client.xgroup_create("s", "stuck", "0")
    client.xreadgroup("stuck", "bob", {"s": ">"}, count=1)
    one = another_reader(server, limits=HURRY, now=clock.now, onCommit="delete")

    def takes_a_second(*_: object) -> None:
        clock.time += 1.0

    at = one.latestOffset(one.initialOffset(), ALL)
    one.commit(at)
    client.xreadgroup("stuck", "bob", {"s": ">"})
    with before_sending(b"ACKED", act=takes_a_second) as walks:
        walked = []
        for clock.time in (1.0, 2.0, 20.0, 22.0, 23.0, 40.0, 43.0):
            one.latestOffset(at, ALL)
            walked.append(len(walks))
    assert walked == [1, 1, 1, 2, 2, 2, 3]


def test_a_stream_that_is_read_without_a_group_is_left_alone(server: Server, client: redis.Redis) -> None:
    """The checkpoint names a stream that the options no longer name. A batch without entries forgets it."""
    add(client, 10, "s")
    add(client, 10, "t")
    one = one_of(server, streams="s,t")
    end = one.latestOffset(one.initialOffset(), ALL)
    client.xgroup_destroy("t", "g")
    again = reader(server, limits=HURRY, onCommit="delete")
    found: Any = again.latestOffset(end, ALL)
    assert found["streams"].keys() == {"s"}
    assert (client.xlen("s"), client.xlen("t")) == (0, 10)


def test_a_batch_read_has_no_commit(server: Server) -> None:
    from spark_streams.connector.options.source_options import BatchSourceOptions

    with pytest.raises(InvalidOptionError, match=r"'onCommit' belongs to spark.readStream, not to spark.read"):
        BatchSourceOptions.parse({"streams": "s", "onCommit": "delete"})


# -- nobody loses an entry -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "seed"), [("trim", 0), ("delete", 1), ("delete", 2)])
def test_every_group_gets_every_entry_once_whichever_query_dies_when(
    server: Server, client: redis.Redis, how: str, seed: int
) -> None:
    """Queries of two modes, two that share a group, and a client that is none, each at its pace."""
    chance = random.Random(seed)
    client.xgroup_create("s", "other", "0", mkstream=True)
    queries = {
        "plain": Reading(server, 50, group="plain", onCommit=how),
        "lenient": Reading(server, 17, group="lenient", onCommit=how, failOnDataLoss="false"),
        "noAck": Reading(server, 30, group="noAck", noAck="true", onCommit=chance.choice([how, "keep"])),
        "ann": Reading(server, 20, group="both", consumer="ann", onCommit=how),
        "bob": Reading(server, 35, group="both", consumer="bob", onCommit=how),
    }
    for query in queries.values():
        query.step()
    added, pending, others = 0, list[str](), list[str]()
    for _ in range(60):
        what = chance.choice([*queries, *queries, "add", "add", "other", "kill"])
        if what == "add":
            count = chance.randint(1, 150)
            add(client, count, first=added)
            added += count
        elif what == "other":
            found = client.xreadgroup("other", "c", {"s": ">"}, count=80)
            pending += [entry for _, entries in found for entry, _ in entries]
            done = chance.sample(pending, chance.randint(0, len(pending)))
            if done:
                client.xack("s", "other", *done)
            others += done
            pending = [entry for entry in pending if entry not in done]
        elif what == "kill":
            queries[chance.choice([*queries])].kill()
        else:
            queries[what].step()
    for query in queries.values():
        query.drain()
    while found := client.xreadgroup("other", "c", {"s": ">"}):
        pending += [entry for _, entries in found for entry, _ in entries]
    if pending:
        client.xack("s", "other", *pending)
    assert len({*others, *pending}) == added == len(others) + len(pending)
    for name in ("plain", "lenient", "noAck"):
        assert sorted(queries[name].rows) == list(range(added)), name
    assert sorted(queries["ann"].rows + queries["bob"].rows) == list(range(added))
    add(client, 1, first=added)  # with it everybody commits what is left
    for query in queries.values():
        query.drain()
    client.xreadgroup("other", "c", {"s": ">"}, noack=True)
    for query in (*queries.values(), *queries.values()):
        query.drain()
    assert all(not query.one.batches.counters.entries(LOST) for query in queries.values())
    assert client.xlen("s") == 0 if how == "delete" else client.xlen("s") < 200


@pytest.mark.parametrize("mode", [{}, {"noAck": "true"}])
@pytest.mark.parametrize(("how", "stride"), [(killed, 5), (reply_lost, 17)])
def test_killed_at_every_request(
    server: Server, client: redis.Redis, mode: dict[str, str], how: Any, stride: int
) -> None:
    """Each of its requests (every so many) is the last one of a run, or its reply is never heard."""
    requests, kills, added = len(mode), 0, 0
    while True:
        client.flushall()
        client.xgroup_create("s", "other", "0", mkstream=True)
        ids = add(client, 60, first=added)
        client.xreadgroup("other", "c", {"s": ">"}, count=45)
        client.xack("s", "other", *ids[:20], *ids[30:45])
        query = Reading(server, 25, **mode)
        with before_sending(act=_at_call(requests, how)) as met:
            while True:
                try:
                    query.drain()
                    break
                except KilledError:
                    kills += 1
                    query.kill()
        assert sorted(query.rows) == list(range(60)), requests
        kept = {str(entry) for entry, _ in client.xrange("s")}
        pending = {*ids[20:30], *ids[45:]}
        assert kept == (pending if knows_acked(client) else {*ids[20:]})
        assert pending_count(client) == 0
        query.one.stop()
        requests += stride
        if requests >= len(met):
            break
    assert requests > 20
    assert kills > 3 or how is reply_lost


@pytest.mark.long
def test_the_memory_of_a_stream_stays_flat(server: Server) -> None:
    """An hour of 500 entries a second through three groups, two of them killed on the way."""
    entries = 1_800_000
    curve, readings, _ = hour(server.url, entries, print)
    for reading in readings:
        assert (reading.reads == 1).all()
        assert pending_count(server.client(), STREAM, reading.group) == 0
    assert [reading.kills for reading in readings] == [4, 0, 3]
    assert curve[-1].length == 0
    assert max(point.length for point in curve) <= 100_000
    late = [point.used for point in curve[len(curve) // 2 :]]
    assert max(late) < 1.2 * max(point.used for point in curve[: len(curve) // 2])


def _at_call(number: int, how: Any) -> Any:
    left = number

    def act(*arguments: Any) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            how(*arguments)

    return act


def test_entries_that_a_moved_group_has_passed_stay(server: Server, client: redis.Redis) -> None:
    """They are named in an error, which says how to read them."""
    end, ids = stopped_by_a_moved_group(server, client, onCommit="delete")
    assert ids_of(client) == ids[2:]
    client.xgroup_setid("s", "g", ids[4])
    assert drain(reader(server, onCommit="delete"), start=end) == [[5, 6, 7, 8, 9]]


def test_a_commit_keeps_what_a_moved_group_has_passed(server: Server, client: redis.Redis) -> None:
    one, end, ids = read_two_of_ten(server, client, onCommit="delete")
    client.xgroup_setid("s", "g", ids[6])
    one.commit(end)
    assert ids_of(client) == ids[2:]
