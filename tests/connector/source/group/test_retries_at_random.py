"""Entries that fail and are tried again, at random: queries of a group that die anywhere, change their schema and take
turns; in the end each entry was processed once, or is one dead letter."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from typing import Any
from unittest import mock

import pytest
import redis

from spark_streams.connector.errors import RStreamError
from spark_streams.connector.keys import returned_stream
from spark_streams.connector.source.stream_reader import StreamReader
from tests.connector.source.group.test_retries import TEXTS, TOLD
from tests.seeds import seeds
from tools.driving import ALL, another_reader, forget_all, pending_count, rows
from tools.machine_time import machine_seconds
from tools.once import once
from tools.sending import KilledError, dying_at
from tools.servers.server import Server

STREAMS = ("s", "{t}x")


class Query:
    """One consumer of the group with its checkpoint: logged, the last batch in the offset log; committed, in the commit
    log; found: rows of committed batches."""

    def __init__(self, server: Server, consumer: str, chance: random.Random) -> None:
        self.server, self.consumer, self.chance = server, consumer, chance
        self.found: Counter[tuple[str, str]] = Counter()
        self.logged: dict[str, Any] | None = None
        self.committed: dict[str, Any] | None = None
        self.reader: StreamReader | None = None
        self.has_begun = False  # this run

    def start(self, schema: Any = None) -> None:
        """A new run, with other delays maybe, or another schema."""
        self.die()
        delays = self.chance.choice(["1ms", "1ms,2ms", "3ms,1ms,2ms"])
        given = {"mode": "DEADLETTER", "deadLetterStream": "dead", "retryDelay": delays, "consumer": self.consumer}
        schema = schema or self.chance.choice([TOLD, TOLD, TEXTS])
        self.reader = another_reader(self.server, schema, streams=",".join(STREAMS), **given)

    def die(self) -> None:
        """Its lease ends with it, for this process lives on."""
        if self.reader is not None:
            with contextlib.suppress(RStreamError):
                self.reader.stop()
        self.reader = None
        self.has_begun = False

    def trigger(self) -> bool:
        """As Spark goes through one; whether there was anything."""
        assert self.reader is not None
        if not self.has_begun:  # each run asks where the query would begin (docs/internals/facts.md, S2)
            first = self.reader.initialOffset()
            self.has_begun = True
            if self.committed is None or (self.logged == self.committed and not self.committed["token"]):
                self.committed = self.logged = first
        if self.logged == self.committed:
            self.logged = self.reader.latestOffset(self.committed, ALL)
        if self.logged == self.committed:
            return False
        assert self.logged is not None
        taken = [(row["_stream"], row["_id"]) for row in rows(self.reader, self.committed, self.logged)]
        self.committed = self.logged
        self.found.update(taken)
        self.reader.commit(self.committed)
        return True


@pytest.mark.random
@pytest.mark.parametrize("seed", seeds(2))
def test_each_entry_ends_once(server: Server, client: redis.Redis, seed: int) -> None:
    live(server, client, random.Random(seed))


def live(server: Server, client: redis.Redis, chance: random.Random) -> None:
    """One life from an empty server on."""
    client.flushall()
    queries = [Query(server, name, chance) for name in ("a", "b")[: chance.randint(1, 2)]]
    added: set[tuple[str, str]] = set()
    with mock.patch("spark_streams.connector.wire.lease.Lease._take"):
        try:
            for _ in range(chance.randint(10, 40)):
                query = chance.choice(queries)
                if chance.random() < 0.4:
                    for _ in range(chance.randint(1, 6)):
                        stream, value = chance.choice(STREAMS), chance.choice(["1", "bad"])
                        added.add((stream, str(client.xadd(stream, {"n": value}))))
                if query.reader is None or chance.random() < 0.1:
                    query.start()
                if chance.random() < 0.2:
                    time.sleep(0.003)
                try:
                    with dying_at(chance.randint(1, 60), chance.random() < 0.5):
                        query.trigger()
                except KilledError:
                    query.die()
            for query in queries:
                query.start(TOLD)
            _to_the_end(client, queries)
        finally:
            for query in queries:
                query.die()
            forget_all()
    letters = [(f["dl.stream"], f["dl.id"]) for _, f in client.xrange("dead")]
    judgement = once(added, [*(entry for query in queries for entry in query.found.elements()), *letters])
    assert not judgement, judgement
    for stream in STREAMS:
        for name in (stream, returned_stream(stream, "g")):
            assert not client.exists(name) or pending_count(client, name) == 0


def _to_the_end(client: redis.Redis, queries: list[Query]) -> None:
    deadline, idle = machine_seconds() + 30, 0
    while idle < 3:
        busy = [query.trigger() for query in queries]
        names = [*client.scan_iter("rstream:retry:*"), *client.scan_iter("rstream:returned:*")]
        idle = 0 if any(busy) or any(client.xlen(name) for name in names) else idle + 1
        assert machine_seconds() < deadline, [(name, client.xlen(name)) for name in names]
