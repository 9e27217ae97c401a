"""Keys with a time to live vanish while a query runs (`volatile-lru`): nothing is twice, an error has a name."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import redis

from spark_streams.connector.errors import RStreamError
from spark_streams.connector.sink.batch_commit import begin_job
from tests.connector.sink.writing import close, frame, killed_before_chunk, numbers, options, write
from tests.seeds import seeds
from tools.driving import ALL, SMALL, add, read, reader
from tools.sending import before_sending
from tools.servers.server import Server

pytestmark = pytest.mark.random


def evicting(client: redis.Redis, chance: random.Random, share: float) -> Callable[..., None]:
    """Return what deletes about this share of the keys that have a time to live."""

    def evict(*_: object) -> None:
        for key in sorted(client.scan_iter("*")):
            if client.pttl(key) > 0 and chance.random() < share:
                client.delete(key)

    return evict


@pytest.mark.parametrize("seed", seeds(6))
def test_a_job_whose_ledger_is_evicted_writes_each_row_once_or_says_why(
    server: Server, client: redis.Redis, seed: int
) -> None:
    chance = random.Random(seed)
    checked = options(server.url, chunkSize="20")
    batch, error = begin_job(checked.address), None
    with before_sending(b"EXEC", act=evicting(client, chance, chance.choice([0.05, 0.3, 1.0]))):
        try:
            close(checked, batch, write([frame(range(200))], checked, batch))
        except RStreamError as found:
            error = found.condition
    found = numbers(server)
    assert max(found.values(), default=0) <= 1
    assert error is not None or len(found) == 200


@pytest.mark.parametrize("seed", seeds(6))
def test_a_query_whose_leases_are_evicted_reads_each_entry_once_or_says_why(
    server: Server, client: redis.Redis, seed: int
) -> None:
    chance = random.Random(seed)
    ids = add(client, 300)
    query = reader(server, limits=SMALL)
    offset, rows, errors = query.initialOffset(), list[int](), list[str]()
    with before_sending(b"XINFO", act=evicting(client, chance, 0.3)):
        while len(rows) < len(ids) and len(errors) < 9:
            try:
                end = query.latestOffset(offset, ALL)
                rows += read(query, offset, end)
                query.commit(end)
                offset = end
            except RStreamError as error:
                errors.append(error.condition)
                query = reader(server, limits=SMALL)
    assert sorted(rows) == [*range(300)]


def test_a_job_that_was_killed_and_whose_ledger_is_gone(server: Server, client: redis.Redis) -> None:
    """Its second attempt cannot know what the first one has written."""
    checked = options(server.url, chunkSize="20")
    batch = begin_job(checked.address)
    killed_before_chunk(4, [frame(range(200))], checked, batch)
    evicting(client, random.Random(1), 1.0)()
    with pytest.raises(RStreamError) as refused:
        close(checked, batch, write([frame(range(200))], checked, batch))
    assert max(numbers(server).values()) == 1, refused
