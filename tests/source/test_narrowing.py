"""A batch that kills its query is narrowed until the entry that does it is alone, and dead; everything else flows."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import redis

from spark_streams.errors import ServerUnreachableError
from spark_streams.source.narrow import Failure, Narrowing, note_failure
from spark_streams.source.offsets import Offset
from spark_streams.wire.address import Address
from spark_streams.wire.connection import Connection
from tests.servers import Server
from tests.source.driving import ALL, add, drain, pending_count, read, reader

OPTIONS = {"maxDeliveries": "2", "deadLetterStream": "dead"}


class PoisonError(Exception):
    """The query has died."""


class Supervised:
    """A query that dies of certain entries and is started again, as Spark does it: the last offsets come first."""

    def __init__(self, server: Server, poison: set[int], **options: str) -> None:
        self.server, self.poison, self.options = server, poison, {**OPTIONS, **options}
        self.log: list[dict[str, Any]] = []  # the offset log
        self.committed = 0  # how many offsets of it are in the commit log
        self.rows: list[int] = []
        self.starts = 0

    def run(self) -> None:
        """Until there is nothing more to read."""
        while True:
            self.starts += 1
            assert self.starts < 60
            one = reader(self.server, **self.options)
            first = one.initialOffset()
            if not self.log:
                self.log, self.committed = [first], 1
            try:
                if len(self.log) > self.committed:
                    self._batch(one)
                while (end := one.latestOffset(self.log[-1], ALL)) != self.log[-1]:
                    self.log.append(end)
                    self._batch(one)
            except PoisonError:
                continue
            return

    def _batch(self, one: Any) -> None:
        start, end = self.log[-2:]
        for _ in range(2):  # two actions on one batch
            found = read(one, start, end)
        if self.poison & set(found):
            raise PoisonError
        self.rows += found
        self.committed = len(self.log)


def test_a_connection_that_breaks_while_a_run_is_counted_counts_it_once(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(client, 3)
    one = reader(server, **OPTIONS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    honest = Narrowing._remember

    def breaks(self: Narrowing, *given: Any) -> None:
        honest(self, *given)
        monkeypatch.setattr(Narrowing, "_remember", honest)
        raise ServerUnreachableError("it closed the connection")

    monkeypatch.setattr(Narrowing, "_remember", breaks)
    assert read(one, start, end) == [0, 1, 2]
    [key] = client.keys("rstream:attempts*")
    assert json.loads(str(client.get(key)))["runs"] == 1


@pytest.mark.parametrize("poison", [set(), {0}, {137}, {299}, {5, 6, 250}])
def test_the_entry_that_kills_is_found_and_the_others_flow_once_and_in_order(
    server: Server, client: redis.Redis, poison: set[int]
) -> None:
    ids = add(client, 300)
    query = Supervised(server, poison)
    query.run()
    assert query.rows == [n for n in range(300) if n not in poison]
    letters = [fields for _, fields in client.xrange("dead")]
    assert [(fields["n"], fields["dl.id"], fields["dl.reason"]) for fields in letters] == [
        (str(n), ids[n], "poison") for n in sorted(poison)
    ]
    assert pending_count(client) == 0
    assert {one["name"]: one["pending"] for one in client.xinfo_consumers("s", "g")} == {"spark": 0}
    assert query.starts <= 1 + 2 * bool(poison) + 5 * len(poison)


def test_new_entries_and_many_streams(server: Server, client: redis.Redis) -> None:
    add(client, 100, "a")
    add(client, 100, "b", first=1000)
    query = Supervised(server, {40, 1063}, streams="a,b")
    query.run()
    add(client, 20, "a", first=100)
    query.run()
    assert sorted(query.rows) == [n for n in [*range(120), *range(1000, 1100)] if n not in (40, 1063)]
    assert sorted(fields["n"] for _, fields in client.xrange("dead")) == ["1063", "40"]
    assert pending_count(client, "a") == pending_count(client, "b") == 0


def test_claimed_entries_are_narrowed_too(server: Server, client: redis.Redis) -> None:
    client.xgroup_create("s", "g", id="0", mkstream=True)
    add(client, 50)
    client.xreadgroup("g", "bob", {"s": ">"}, count=40)
    query = Supervised(server, {7}, claimIdle="1ms", maxDeliveries="9")
    query.run()
    assert sorted(query.rows) == [n for n in range(50) if n != 7]
    [(_, letter)] = client.xrange("dead")
    assert letter["n"] == "7"
    assert pending_count(client) == 0


def test_the_reason_is_told_where_somebody_knew_it(server: Server, client: redis.Redis) -> None:
    add(client, 1)
    query = Supervised(server, {0})
    one = reader(server, **OPTIONS)
    first = one.initialOffset()
    with Connection(Address.parse(server.url)) as connection:
        note_failure(connection, Offset.from_json(first), Failure("ZeroDivisionError", "division by zero"))
    query.run()
    [(_, letter)] = client.xrange("dead")
    assert (letter["dl.error"], letter["dl.message"]) == ("ZeroDivisionError", "division by zero")
    assert letter["dl.stage"] == "query"


def test_without_a_limit_a_batch_stays_whole(server: Server, client: redis.Redis) -> None:
    add(client, 30)
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    for _ in range(5):
        assert read(reader(server), start, end) == list(range(30))


def cut(server: Server, client: redis.Redis, **options: str) -> list[dict[str, Any]]:
    """A batch of 32 entries that has been cut to the first two: where it begins and ends."""
    add(client, 32)
    one = reader(server, **OPTIONS, **options)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    one.partitions(start, end)
    assert read(reader(server, **OPTIONS, **options), start, end) == list(range(32))
    assert read(reader(server, **OPTIONS, **options), start, end) == [0, 1]
    return [start, end]


def test_a_committed_piece_whose_settling_a_crash_cut_off_is_not_read_again(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = cut(server, client)
    one = reader(server, **OPTIONS)
    offsets.append(one.latestOffset(offsets[-1], ALL))
    monkeypatch.setattr(one.batches._beside, "submit", lambda job: None)
    offsets.append(one.latestOffset(offsets[-1], ALL))
    again = reader(server, **OPTIONS)
    assert read(again, *offsets[-2:]) == [4, 5]
    assert [n for batch in drain(again, at=offsets[-1]) for n in batch] == list(range(6, 32))


def test_a_cut_batch_stays_cut_without_a_limit(server: Server, client: redis.Redis) -> None:
    offsets = cut(server, client)
    again = reader(server)
    assert read(again, *offsets) == [0, 1]
    assert [n for batch in drain(again, at=offsets[-1]) for n in batch] == list(range(2, 32))
    assert pending_count(client) == 0


def test_at_most_once_reads_the_pieces_of_a_cut_batch(server: Server, client: redis.Redis) -> None:
    offsets = cut(server, client)
    again = reader(server, delivery="at-most-once")
    assert [n for batch in drain(again, at=offsets[-1]) for n in batch] == list(range(2, 32))
    assert {one["name"]: one["pending"] for one in client.xinfo_consumers("s", "g")} == {"spark": 0}


def test_entries_that_were_deleted_before_their_batch_is_cut_are_counted_once(
    server: Server, client: redis.Redis
) -> None:
    """XCLAIM drops them."""
    lenient = {**OPTIONS, "failOnDataLoss": "false"}
    ids = add(client, 32)
    one = reader(server, **lenient)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    one.partitions(start, end)
    client.xdel("s", ids[0], *ids[10:13])
    read(reader(server, **lenient), start, end)
    again = reader(server, **lenient)
    assert read(again, start, end) == [1]
    assert [n for batch in drain(again, at=end) for n in batch] == [n for n in range(2, 32) if n not in (10, 11, 12)]
    assert again.reportLatestOffset()["lost"] == {"s": 4}


def test_a_query_that_has_only_claimed_so_far_is_narrowed_too(server: Server, client: redis.Redis) -> None:
    one = reader(server, streamsPattern="p:*", claimIdle="1ms", **OPTIONS)
    start = one.initialOffset()
    add(client, 3, "p:1")
    client.xgroup_create("p:1", "g", id="0")
    client.xreadgroup("g", "bob", {"p:1": ">"})
    time.sleep(0.01)
    end = one.latestOffset(start, ALL)
    assert end["streams"] == {}
    assert read(one, start, end) == [0, 1, 2]
