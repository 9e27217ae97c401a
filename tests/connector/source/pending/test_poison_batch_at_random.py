"""Whatever a query dies of, and however often: no good entry becomes a letter, every other does, all is read once.

tests/seeds.py says which seeds the random test has.
"""

from __future__ import annotations

import random
import threading

import pytest
import redis

from spark_streams.connector.spark.data_source import ReadMaxRows
from spark_streams.connector.wire.connection import Connection
from tests.connector.source.supervised import DiedError, Supervised, consumers, dead_letters
from tests.seeds import seeds
from tools.driving import ALL, add, pending_count
from tools.once import once
from tools.servers.server import Server


@pytest.mark.in_turn
@pytest.mark.parametrize("needs_entries", [False, True], ids=["whatever is read", "only for entries"])
def test_no_entry_becomes_a_dead_letter_because_a_server_was_down(
    server: Server, client: redis.Redis, needs_entries: bool
) -> None:
    add(client, 64)
    query = Supervised(server, set())
    query.away, query.needs_entries = lambda: True, needs_entries
    for _ in range(120):
        assert not query.start()
        assert len(consumers(client)) <= 140
    assert len(client.keys("rstream:*")) <= 10
    query.away = lambda: False
    query.run(3)
    assert sorted(query.rows) == list(range(64))
    assert dead_letters(client) == []
    assert pending_count(client) == 0
    assert consumers(client) == {"spark": 0}


@pytest.mark.in_turn
def test_what_is_held_is_bounded_while_entries_keep_coming(server: Server, client: redis.Redis) -> None:
    """And something that only entries need is away."""
    query = Supervised(server, set())
    query.away, query.needs_entries = lambda: True, True
    for at in range(150):
        add(client, 40, first=40 * at)
        assert not query.start()
    assert len(consumers(client)) <= 260
    query.away = lambda: False
    query.run(1)
    assert sorted(query.rows) == list(range(40 * 150))
    assert dead_letters(client) == []
    assert consumers(client) == {"spark": 0}


class Weather:
    """What strikes a run, by chance: outages that last for a while, and a driver that is killed at any command."""

    def __init__(self, chance: random.Random, query: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
        self._chance, self._query = chance, query
        self._often = chance.choice([0.02, 0.1, 0.3, 0.6])
        self._longest = chance.choice([1, 3, 25])
        self._left = 0
        self._kills = chance.choice([0.0, 0.0, 0.005])
        self._driver = threading.current_thread()
        honest = Connection.send

        def send(connection: Connection, data: bytes | memoryview) -> None:
            before, after = self._is_killed(), self._is_killed()
            if before:
                raise DiedError
            honest(connection, data)
            if after:
                raise DiedError

        monkeypatch.setattr(Connection, "send", send)

    def away(self) -> bool:
        """Whether there is an outage now."""
        if not self._left and self._chance.random() < self._often:
            self._left = self._chance.randint(1, self._longest)
        struck = self._left > 0
        self._left -= struck
        return struck

    def clear_up(self) -> None:
        """From here on nothing happens."""
        self._often = self._kills = 0.0
        self._left = 0

    def _is_killed(self) -> bool:
        if threading.current_thread() is not self._driver or not self._query.is_running:
            return False
        return self._chance.random() < self._kills


class Producer:
    """Entries with numbers of their own in some streams; poison: those that kill."""

    def __init__(self, chance: random.Random, client: redis.Redis) -> None:
        self._chance, self._client = chance, client
        self.streams = ["a", "b", "c"][: chance.randint(1, 3)]
        self.poison: set[int] = set()
        self.added = 0
        self._share = chance.choice([0.0, 0.01, 0.05])

    def add(self, most: int) -> None:
        """Up to so many in each stream."""
        for stream in self.streams:
            count = self._chance.randint(0, most)
            add(self._client, count, stream, first=self.added)
            new = range(self.added, self.added + count)
            self.poison |= {n for n in new if self._chance.random() < self._share}
            self.added += count

    def lose(self, most: int) -> None:
        """Another consumer of the group reads up to so many, and dies."""
        if self._client.exists(self.streams[0]) and self._client.xinfo_groups(self.streams[0]):
            self._client.xreadgroup("g", "rogue", {self.streams[0]: ">"}, count=most)

    def goes_good(self) -> None:
        """No more poison."""
        self._share = 0.0


def run(server: Server, client: redis.Redis, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One seed of the random test."""
    chance = random.Random(seed)
    client.flushall()
    producer = Producer(chance, client)
    producer.add(chance.choice([1, 20, 120]))
    most = chance.choice([None, 1, 7, 40])
    claims = {"claimIdle": "1ms"} if chance.random() < 0.3 else {}
    query = Supervised(
        server,
        producer.poison,
        ALL if most is None else ReadMaxRows(most),
        streams=",".join(producer.streams),
        maxDeliveries=str(chance.choice([2, 3] if claims else [1, 2, 3])),
        **claims,
    )
    query.needs_entries = chance.random() < 0.5
    weather = Weather(chance, query, monkeypatch)
    query.away = weather.away
    more = chance.choice([0, 1, 6])
    for _ in range(chance.randint(1, 100)):
        query.start()
        producer.add(more)
        if claims and chance.random() < 0.3:
            producer.lose(5)
    weather.clear_up()
    producer.goes_good()
    starts = query.starts
    while not query.start() or len(dead_letters(client)) < len(producer.poison):
        producer.add(8)
        assert query.starts - starts <= 20 + 30 * len(producer.poison), "it does not come to an end"
    assert not (judgement := once(set(range(producer.added)) - producer.poison, query.rows)), judgement
    assert sorted(dead_letters(client)) == sorted(producer.poison)
    for stream in producer.streams:
        assert pending_count(client, stream) == 0
        assert {name: held for name, held in consumers(client, stream).items() if name != "rogue"} == {"spark": 0}
    assert len(client.keys("rstream:*")) <= 6 * len(producer.streams)


@pytest.mark.random
@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.in_turn
def test_at_random(server: Server, client: redis.Redis, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"RSTREAM_SEED={seed}")
    run(server, client, seed, monkeypatch)
