"""Keys with a time to live vanish while a query runs (`volatile-lru`): nothing is twice, an error has a name."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator

import pytest
import redis

from spark_streams.connector.errors import RStreamError
from spark_streams.connector.sink.batch_commit import begin_job
from spark_streams.connector.spark.data_source import ReadMaxRows
from tests.connector.deadletter.making import fill, redrive
from tests.connector.sink.writing import batch_of, close, frame, killed_before_chunk, numbers, options, write
from tests.seeds import seeds
from tools.driving import ALL, SMALL, add, forget_all, read, reader
from tools.sending import before_sending
from tools.servers.server import Server, running_redis

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


@contextlib.contextmanager
def volatile_random(server: Server, chance: random.Random) -> Iterator[list[str]]:
    """The server's memory is full again and again: it evicts keys of its choice. Yield their names."""
    evicted, ended = list[str](), threading.Event()

    def fill() -> None:
        with server.client() as client, client.pubsub() as events:
            events.subscribe("__keyevent@0__:evicted")
            while not ended.wait(chance.uniform(0.0, 0.02)):
                for n in range(6):
                    client.set(f"other {n}", b"x" * 20_000, ex=600)
                client.config_set("maxmemory", client.info("memory")["used_memory"] - chance.randrange(120_000))
                with contextlib.suppress(redis.OutOfMemoryError):
                    client.set("other", 1, ex=600)
                client.config_set("maxmemory", 0)
                while message := events.get_message():
                    evicted.append(str(message["data"], "utf-8") if isinstance(message["data"], bytes) else "")

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        yield evicted
    finally:
        ended.set()
        thread.join()


@pytest.mark.usefixtures("redis_server")
@pytest.mark.parametrize("seed", seeds(3))
def test_a_query_jobs_and_a_redrive_while_the_server_evicts_keys_of_its_choice(seed: int) -> None:
    """A batch that fails is planned and written again, as by Spark that is started again; a job that fails is not."""
    settings = ("--maxmemory-policy", "volatile-random", "--notify-keyspace-events", "Ee")
    with running_redis(*settings) as server, server.client() as client:
        add(client, 1_200)
        fill(server, 400, stream="t")
        checked, errors = options(server.url, chunkSize="20"), list[str]()
        query, offset, end, number = reader(server, limits=SMALL), None, None, 0
        with volatile_random(server, random.Random(seed)) as evicted:
            while len(errors) < 40:
                try:
                    offset = query.initialOffset() if offset is None else offset
                    if end is None and (end := query.latestOffset(offset, ReadMaxRows(40))) == offset:
                        break
                    found, batch = read(query, offset, end), batch_of(number)
                    close(checked, batch, write([frame(found)], checked, batch))
                    query.commit(end)
                    offset, end, number = end, None, number + 1
                    job = begin_job(checked.address)
                    close(
                        checked, job, write([frame(range(10_000 + 100 * number, 10_060 + 100 * number))], checked, job)
                    )
                    redrive(server, limit=40)
                except RStreamError as error:
                    errors.append(error.condition)
                    query = reader(server, limits=SMALL)
        forget_all()
        written = numbers(server)
        assert max(written.values()) == 1, errors
        assert sum(n < 10_000 for n in written) == 1_200, errors
        assert sorted(int(fields[b"n"]) for _, fields in client.xrange("t")) == [*range(400)]
        assert {name.split(":")[1] for name in evicted if name.startswith("rstream:")} & {"session", "sink", "redrive"}
