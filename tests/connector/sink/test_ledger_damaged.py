"""Keys of the ledger that are deleted or evicted: what is left of it keeps rows from being doubled, or it is named."""

from __future__ import annotations

from collections import Counter

import pytest
import redis

from spark_streams.connector.errors import LedgerError
from spark_streams.connector.sink.batch_commit import begin_job
from tests.connector.sink.keeping import Copy
from tests.connector.sink.writing import (
    KilledError,
    batch_of,
    close,
    dying,
    frame,
    ledger_keys,
    numbers,
    options,
    write,
)
from tools.servers.server import Server

ROWS = list(range(60))
ONCE = Counter(ROWS)


def test_a_head_that_is_deleted_before_a_replay_doubles_nothing(server: Server, client: redis.Redis) -> None:
    """The marks tell who has written, too."""
    checked = options(server.url, chunkSize="10")
    with pytest.raises(KilledError):
        write(dying([frame(ROWS[:40])]), checked, batch_of(0))
    assert client.delete("rstream:sink:{out}:q") == 1
    batch = batch_of(0)
    close(checked, batch, write([frame(ROWS[::-1])], checked, batch))
    assert numbers(server) == ONCE
    assert ledger_keys(server) == {"rstream:sink:{out}:q", "rstream:sink:q"}


def test_a_head_that_is_deleted_between_attempts_doubles_nothing(server: Server, client: redis.Redis) -> None:
    checked, batch = options(server.url, chunkSize="10"), batch_of(0)

    def deleting():  # type: ignore[no-untyped-def]
        yield frame(ROWS[:40])
        client.delete("rstream:sink:{out}:q")
        yield frame(ROWS[40:])

    with pytest.raises(
        LedgerError, match="deleted or changed .*: another attempt reads from the marks which rows are written"
    ):
        write(deleting(), checked, batch)
    close(checked, batch, write([frame(ROWS)], checked, batch))
    assert numbers(server) == ONCE


@pytest.mark.parametrize("is_job", [True, False])
def test_marks_that_are_deleted_between_attempts_are_named(server: Server, client: redis.Redis, is_job: bool) -> None:
    checked = options(server.url, chunkSize="10")
    batch = begin_job(checked.address) if is_job else batch_of(0)
    with pytest.raises(KilledError):
        write(dying([frame(ROWS[:40])]), checked, batch)
    before = numbers(server)
    client.delete(*client.keys("*:0"))
    with pytest.raises(LedgerError, match=r"has lost the marks '.*:0' of .*: they were evicted or deleted"):
        write([frame(ROWS)], checked, batch)
    assert numbers(server) == before


def test_marks_that_are_deleted_before_a_replay_are_named(server: Server, client: redis.Redis) -> None:
    checked = options(server.url, chunkSize="10")
    with pytest.raises(KilledError):
        write(dying([frame(ROWS[:40])]), checked, batch_of(0))
    client.delete(*client.keys("*:0"))
    with pytest.raises(
        LedgerError, match="delivery=at-least-once writes its rows that are in the stream a second time"
    ):
        write([frame(ROWS)], checked, batch_of(0))


@pytest.mark.parametrize("others_write", [False, True], ids=["all", "some"])
def test_a_list_of_marks_that_is_deleted_is_named(server: Server, client: redis.Redis, others_write: bool) -> None:
    """The marks exist, and a replay would not find them. The list may have names that were added since."""
    checked, batch = options(server.url, chunkSize="10"), batch_of(0)
    with pytest.raises(KilledError):
        write(dying([frame(ROWS[:40])]), checked, batch)
    assert client.delete("rstream:sink:{out}:q:parts") == 1
    if others_write:
        with pytest.raises(KilledError):
            write(dying([frame(ROWS[40:50])]), checked, batch, partition=1)
    before = numbers(server)
    with pytest.raises(LedgerError, match=r"has lost the marks '0:.*' of batch 0 .*: they were evicted or deleted"):
        write([frame(ROWS)], checked, batch_of(0))
    assert numbers(server) == before


def test_a_job_whose_record_is_missing_has_ended(server: Server, client: redis.Redis) -> None:
    checked = options(server.url, chunkSize="10")
    batch = begin_job(checked.address)
    client.delete(batch.record)
    with pytest.raises(LedgerError, match="its record .* is missing"):
        write([frame(ROWS)], checked, batch)
    assert client.keys("*") == []


def test_rows_that_a_failover_has_lost_are_written_when_the_query_is_started_again(server: Server) -> None:
    """As the message says; nothing is to be deleted for that."""
    checked, batch = options(server.url, chunkSize="10"), batch_of(0)
    first = write([frame(ROWS[:30])], checked, batch, 0)
    before = Copy(server)
    second = write([frame(ROWS[30:])], checked, batch, 1)
    before.bring_back()
    expected = "has 60 rows for stream 'out', but the ledger has 30. .*To write the missing rows, and no row twice,"
    with pytest.raises(LedgerError, match=expected):
        close(checked, batch, first, second)
    batch = batch_of(0)
    close(checked, batch, write([frame(ROWS[::-1])], checked, batch))
    assert numbers(server) == ONCE


def test_a_job_that_a_failover_has_cut_back_says_how_many_rows_may_be_missing(server: Server) -> None:
    checked = options(server.url, chunkSize="10")
    batch = begin_job(checked.address)
    before = Copy(server)
    result = write([frame(ROWS)], checked, batch)
    before.bring_back()
    with pytest.raises(LedgerError, match="60 rows may be missing. Running the job again writes the others a"):
        close(checked, batch, result)
