"""A server that comes back from an older file, or a replica that lagged: what is lost is named, nothing is twice."""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql.types import LongType, StructType

from spark_streams.connector.errors import LedgerError
from spark_streams.connector.keys import MicroBatchName
from spark_streams.connector.sink.batch import Batch
from spark_streams.connector.sink.batch_commit import void_batch
from spark_streams.connector.sink.writers import BatchWriter
from tests.connector.sink.keeping import Copy
from tests.connector.sink.writing import (
    batch_of,
    came_before,
    close,
    frame,
    killed_before_chunk,
    ledger_keys,
    numbers,
    options,
    write,
)
from tests.remedies import hset_of
from tools.servers.server import Server

ROWS = list(range(100, 160))


def batch_done(server: Server, batch: Batch, rows: list[int], stream: str = "out") -> None:
    checked = options(server.url, stream=stream, chunkSize="20")
    close(checked, batch, write([frame(rows)] if rows else [], checked, batch))


def head(stream: str) -> str:
    return f"rstream:sink:{{{stream}}}:q"


def lost_in_the_midst(server: Server) -> None:
    """Batch 1 was complete, and the server has lost the last 20 rows and its end."""
    checked = options(server.url, chunkSize="20")
    batch_done(server, batch_of(0), [1, 2, 3])
    batch = batch_of(1)
    killed_before_chunk(3, [frame(ROWS)], checked, batch)
    before = Copy(server)
    close(checked, batch, write([frame(ROWS)], checked, batch))
    before.bring_back()
    assert len(numbers(server)) == 43


@pytest.mark.parametrize("stream", ["out", "other"])
def test_the_lost_end_of_the_batch_before_is_an_error_and_its_remedy_doubles_nothing(
    server: Server, stream: str
) -> None:
    """Whether the next batch writes to that stream, or another one does."""
    lost_in_the_midst(server)
    expected = (
        r"batch 1 of query q is not done in stream 'out', where the ledger has 40 of its rows, but Spark has begun"
    )
    for _ in range(2):
        with pytest.raises(LedgerError, match=expected) as error:
            batch_done(server, batch_of(2), [7, 8], stream)
    obey(server, error.value.message)
    batch_done(server, batch_of(2), [7, 8], stream)
    batch_done(server, batch_of(3), [9], stream)
    assert numbers(server) + (numbers(server, "other") if stream == "other" else Counter()) == Counter(
        [1, 2, 3, *ROWS[:40], 7, 8, 9]
    )
    assert ledger_keys(server) == {head(stream), "rstream:sink:q"}


def test_a_batch_without_rows_says_what_the_one_before_has_lost(server: Server) -> None:
    lost_in_the_midst(server)
    with pytest.raises(LedgerError, match="batch 1 of query q is not done in stream 'out'"):
        batch_done(server, batch_of(2), [])


def test_a_batch_that_is_run_again_writes_what_the_server_has_lost(server: Server) -> None:
    """Killed before Spark's commit log: the replay finds the marks that are left."""
    lost_in_the_midst(server)
    batch_done(server, batch_of(1), ROWS[::-1])
    assert numbers(server) == Counter([1, 2, 3, *ROWS])


def obey(server: Server, message: str) -> None:
    key, field, value = hset_of(message)
    with server.client() as client:
        assert client.exists(key)
        client.hset(key, field, value)


@pytest.mark.parametrize("out", ["out", "my out"])
def test_what_a_stream_has_lost_alone_is_an_error(server: Server, out: str) -> None:
    """Its node of a cluster came back from an older file; the query's record stands on another one."""
    batch_done(server, batch_of(0), [1, 2, 3], out)
    before = Copy(server, out.encode())
    batch_done(server, batch_of(1), ROWS, out)
    before.bring_back()
    expected = f"batch 1 of query q was done in stream '{out}', but the stream's ledger has only batch 0"
    for stream in (out, "other"):
        with pytest.raises(LedgerError, match=expected) as error:
            batch_done(server, batch_of(2), [7, 8], stream)
    obey(server, error.value.message)
    batch_done(server, batch_of(2), [7, 8], "other")
    assert (numbers(server, out), numbers(server, "other")) == (Counter([1, 2, 3]), Counter([7, 8]))


@pytest.mark.parametrize("query", ["q", "q.dead letters"])  # as with transaction="dead letters"
def test_a_closed_batch_that_is_run_again_is_written_after_the_command_of_the_error(server: Server, query: str) -> None:
    batch_done(server, batch_of(0, query), [1, 2, 3])
    before = Copy(server, b"out")
    batch_done(server, batch_of(1, query), ROWS)
    before.bring_back()
    with pytest.raises(LedgerError, match="was complete, with 60 rows") as error:
        batch_done(server, batch_of(1, query), ROWS)
    obey(server, error.value.message)
    batch_done(server, batch_of(1, query), ROWS)
    assert numbers(server) == Counter([1, 2, 3, *ROWS])


def test_a_batch_that_was_finished_without_the_ledger_is_none_that_was_lost(server: Server) -> None:
    """Killed under exactly-once, run again with delivery=at-least-once, and the next batches exactly once again."""
    checked = options(server.url, chunkSize="20")
    batch_done(server, batch_of(0), [1, 2])
    killed = batch_of(1)
    killed_before_chunk(3, [frame(ROWS)], checked, killed)
    void_batch(checked.address, batch_of(1))
    assert ledger_keys(server) == {"rstream:sink:q"}
    with pytest.raises(LedgerError):
        write([frame(ROWS)], checked, Batch("q", 0, killed.run, expires=False))
    write([frame(ROWS)], checked, killed)  # a task that stood still
    batch_done(server, batch_of(2), [3])
    assert numbers(server) == Counter([1, 2, *ROWS[:40], 3])


def test_batches_that_a_checkpoint_was_set_back_to_may_be_written_without_the_ledger(server: Server) -> None:
    """The remedy for that: what it says of the later ones stays, and the query goes on from there."""
    came_before(server, 3)
    for number in (3, 4, 5):
        batch_done(server, batch_of(number), [number])
    with pytest.raises(LedgerError, match="batch 4 .* batch 5 of the query is done. .* delivery=at-least-once writes"):
        batch_done(server, batch_of(4), [4])
    for number in (4, 5):
        write_plainly(server, number)
    batch_done(server, batch_of(6), [6])
    assert numbers(server) == Counter([3, 4, 4, 5, 5, 6])
    assert ledger_keys(server) == {head("out"), "rstream:sink:q"}


def write_plainly(server: Server, number: int) -> None:
    """One batch with delivery=at-least-once, as its writer does it."""
    checked = options(server.url, delivery="at-least-once")
    writer = BatchWriter(checked, StructType().add("n", LongType()), False, is_micro_batch=True)
    written = writer.write_part_of(writer.batch_of(MicroBatchName("q", number)), iter([frame([number])]))
    writer.commit([written])


def test_a_query_that_never_had_a_ledger_gets_none(server: Server) -> None:
    void_batch(options(server.url).address, batch_of(1))
    assert ledger_keys(server) == set()


def test_batches_of_the_previous_version_are_continued(server: Server) -> None:
    """It did not say which batch is closed."""
    with server.client() as client:
        client.hset("rstream:sink:q", mapping={"out": 4, "other": 4, "open": 5})
        for name in ("out", "other"):
            client.hset(head(name), mapping={"batch": 4, "done": 4, "rows": 2, "total": 5})
    batch_done(server, batch_of(5), ROWS)
    assert ledger_keys(server) == {"rstream:sink:{out}:q", "rstream:sink:{open}:q", "rstream:sink:q"}
    batch_done(server, batch_of(6), [1])
    assert numbers(server) == Counter([*ROWS, 1])
    assert ledger_keys(server) == {"rstream:sink:{out}:q", "rstream:sink:q"}
