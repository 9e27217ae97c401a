"""A batch is read again when some of its entries are gone (failOnDataLoss=false): what was written of them stays."""

from __future__ import annotations

import functools
import shlex
from collections import Counter
from collections.abc import Iterator

import pytest
import redis

from spark_streams.connector.errors import LedgerError
from spark_streams.connector.keys import MicroBatchName
from spark_streams.connector.source.offset import Range
from tests.connector.sink.writing import (
    KilledError,
    batch_of,
    came_before,
    close,
    dying,
    frame,
    ledger_keys,
    numbers,
    options,
    write,
)
from tools.driving import ALL, add, forget_all, reader
from tools.servers.server import Server

ROWS = list(range(100))
LEFT = ROWS[30:]
SEVENTH = functools.partial(MicroBatchName, "q", 7, "run")  # what tasks are told of their micro-batch
KEPT = {"rstream:sink:{out}:q", "rstream:sink:q", "rstream:told:q"}


@pytest.fixture(autouse=True)
def readers() -> Iterator[None]:
    yield
    forget_all()


def tell(client: redis.Redis, number: int, query_run: str = "") -> None:
    """What a task says that finds fewer entries than the batch held."""
    client.hset("rstream:told:q", f"lossy {number}:{query_run}", 1)


def test_rows_of_an_earlier_run_stay_and_are_counted(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    checked = options(server.url, chunkSize="20")
    with pytest.raises(KilledError):
        write(dying([frame(ROWS[:80])]), checked, batch_of(0))
    tell(client, 0)
    batch = batch_of(0)
    close(checked, batch, write([frame(LEFT[::-1])], checked, batch))
    assert numbers(server) == Counter(ROWS)
    assert "stream 'out': keeping 30 rows of entries that were lost since" in caplog.text
    assert ledger_keys(server) == KEPT


def test_another_attempt_of_a_partition_may_have_fewer_rows(server: Server, client: redis.Redis) -> None:
    """They went between two attempts of one run."""
    checked, batch = options(server.url, chunkSize="20"), batch_of(0)
    with pytest.raises(KilledError):
        write(dying([frame(ROWS[:80])]), checked, batch)

    def fewer():  # type: ignore[no-untyped-def]
        yield frame(LEFT)
        tell(client, 0)  # the source says so when it has read to the end

    close(checked, batch, write(fewer(), checked, batch))
    assert numbers(server) == Counter(ROWS)
    assert ledger_keys(server) == KEPT


@pytest.mark.parametrize("left", [LEFT, []])
def test_a_batch_that_is_done_may_have_fewer_rows(
    server: Server, client: redis.Redis, left: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Killed between the sink and Spark's commit log, trimmed, started again."""
    checked, batch = options(server.url, chunkSize="20"), batch_of(0)
    close(checked, batch, write([frame(ROWS)], checked, batch))
    tell(client, 0)
    again = batch_of(0)
    close(checked, again, write([frame(left)] if left else [], checked, again))
    assert numbers(server) == Counter(ROWS)
    assert f"stream 'out': keeping the 100 rows that batch 0 wrote; it has {len(left)} rows now" in caplog.text


def test_a_report_of_another_batch_does_not_count(server: Server, client: redis.Redis) -> None:
    came_before(server, 1)
    checked = options(server.url, chunkSize="20")
    with pytest.raises(KilledError):
        write(dying([frame(ROWS)]), checked, batch_of(1))
    tell(client, 0)
    batch = batch_of(1)
    with pytest.raises(LedgerError, match="an earlier run of batch 1 of query q wrote 30 rows"):
        close(checked, batch, write([frame(LEFT)], checked, batch))


def test_another_batch_of_the_number_is_not_lossy(server: Server, client: redis.Redis) -> None:
    """The checkpoint was set back after a lossy batch: the batch that is made anew is not passed over."""
    checked = options(server.url, chunkSize="20")
    batch = batch_of(0, query_run="before")
    tell(client, 0, "before")
    close(checked, batch, write([frame(ROWS)], checked, batch))
    anew = batch_of(0, query_run="after")
    with pytest.raises(LedgerError, match="HSET rstream:told:q 'lossy 0:any' 1 on the sink's server"):
        close(checked, anew, write([frame(range(200, 250))], checked, anew))


@pytest.mark.parametrize("told", ["5:before", "5", "5:any"])
def test_a_piece_is_reported_in_each_run_of_the_query(server: Server, client: redis.Redis, told: str) -> None:
    """The checkpoint was set back after a batch was cut: the one that is made anew under its number is no piece."""
    checked = options(server.url, chunkSize="20")
    came_before(server, 5)
    with pytest.raises(KilledError):
        write(dying([frame(ROWS)]), checked, batch_of(5, query_run="before"))
    client.hset("rstream:told:q", f"narrowed {told}", 1)
    anew = batch_of(5, query_run="after")
    with pytest.raises(LedgerError, match="an earlier run of batch 5 of query q wrote"):
        close(checked, anew, write([frame(range(200, 250))], checked, anew))


@pytest.mark.parametrize(("number", "rows"), [(5, []), (5, ROWS[:10]), (6, ROWS[:10])])
def test_a_piece_of_a_batch_whose_marks_were_evicted_is_refused(
    server: Server, client: redis.Redis, number: int, rows: list[int]
) -> None:
    """Nobody can tell which rows of the piece the batch has written before it was cut."""
    checked = options(server.url, chunkSize="20")
    came_before(server, 5)
    with pytest.raises(KilledError):
        write(dying([frame(ROWS)]), checked, batch_of(5))
    [marks] = client.keys("rstream:sink:{out}:q:5:*:0")
    client.delete(marks)
    client.hset("rstream:told:q", f"narrowed {number}:", 1)
    piece = batch_of(number)
    with pytest.raises(LedgerError, match="has lost the marks '5:.*:0' of batch 5 of query q: they were evicted"):
        close(checked, piece, write([frame(rows)] if rows else [], checked, piece))


def test_the_remedy_for_rows_that_differ_leaves_both_and_doubles_none(server: Server, client: redis.Redis) -> None:
    """HSET what the message says: a query that is not repeatable goes on."""
    checked = options(server.url, chunkSize="20")
    with pytest.raises(KilledError):
        write(dying([frame(ROWS)]), checked, batch_of(0))
    batch = batch_of(0)
    with pytest.raises(LedgerError) as error:
        close(checked, batch, write([frame(range(50, 150))], checked, batch))
    command = error.value.message.partition("HSET ")[2].partition(" on the sink's server")[0]
    client.hset(*shlex.split(command))
    batch = batch_of(0)
    close(checked, batch, write([frame(range(50, 150))], checked, batch))
    assert numbers(server) == Counter(range(150))


# -- what the source says -------------------------------------------------------------------------------------------


def replay_error(server: Server, client: redis.Redis, trim: int, **given: str) -> list[str]:
    """What the tasks of a replay say when so many entries are gone."""
    add(client, 50)
    first = reader(server, batch=SEVENTH, failOnDataLoss="false", **given)
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    client.xtrim("s", maxlen=50 - trim, approximate=False)
    again = reader(server, batch=SEVENTH, failOnDataLoss="false", **given)
    for partition in again.partitions(start, end):
        list(again.read(partition))
    found: list[str] = client.hkeys("rstream:told:q")  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("given", [{}, {"noAck": "true"}])
def test_a_replay_reports_missing_entries(server: Server, client: redis.Redis, given: dict[str, str]) -> None:
    assert replay_error(server, client, 0, **given) == []
    client.flushall()
    assert replay_error(server, client, 10, **given) == ["lossy 7:run"]


def test_a_report_replaces_those_of_earlier_batches_alone(server: Server, client: redis.Redis) -> None:
    """A late task takes nothing from the present batch. What the query reads is no kind of a batch."""
    reads = 'reads:["a 5:b", "c"]'
    client.hset("rstream:told:q", mapping={"lossy 6:run": 1, "narrowed 8:run": 1, reads: "{}"})
    assert sorted(replay_error(server, client, 10)) == ["lossy 7:run", "narrowed 8:run", reads]


def test_a_replay_that_has_nothing_left_says_so_in_a_task_of_its_own(server: Server, client: redis.Redis) -> None:
    """Without a task nobody would say it, and nobody would close the batch."""
    assert replay_error(server, client, 50) == ["lossy 7:run"]


def test_a_replay_says_that_others_have_acknowledged_entries(server: Server, client: redis.Redis) -> None:
    """The driver sees that; in a range that others read from, too, the stream cannot make up for it."""
    ids = add(client, 20)
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "bob", {"s": ">"}, count=5)
    first = reader(server, batch=SEVENTH, failOnDataLoss="false")
    start = first.initialOffset()
    client.xreadgroup("g", "bob", {"s": ">"}, count=5)
    end = first.latestOffset(start, ALL)
    assert Range.parse("s", end["batch"]["s"]).count == 10
    client.xack("s", "g", *ids[12:15])
    again = reader(server, batch=SEVENTH, failOnDataLoss="false")
    assert sum(len(batch) for part in again.partitions(start, end) for batch in again.read(part)) == 7
    assert client.hkeys("rstream:told:q") == ["lossy 7:run"]
