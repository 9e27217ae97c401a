"""Values that do not fit, columns that no entry has a field for: counted, and said once, without a note too many."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
import redis

from spark_streams.connector.options.source_options import BatchSourceOptions
from spark_streams.connector.source.batch_reader import BatchReader
from spark_streams.connector.source.rows.columns import Columns
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.source.task.notes import notes_key
from tools.driving import ALL, NEVER_AHEAD, add, drain, reader, rows
from tools.servers.server import Server

SCHEMA = pa.schema([("n", pa.int64()), ("other", pa.string())])
LETTERS = {"mode": "DEADLETTER", "deadLetterStream": "dead"}


@pytest.fixture(autouse=True)
def _warnings_are_kept(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.WARNING, "spark_streams.source"):
        yield


def some_bad(client: redis.Redis, count: int, stream: str = "s", **more: str) -> list[str]:
    """Entries of which every third does not fit; their ids."""
    pipe = client.pipeline(transaction=False)
    for n in range(count):
        pipe.xadd(stream, {"n": f"bad {n}" if n % 3 == 0 else n, **more})
    return [str(i) for i in pipe.execute()]


def bad(one: StreamReader) -> Any:
    """What the query's progress says of bad values."""
    return one.reportLatestOffset().get("bad")


def run_batch(one: StreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """The next batch, read by its tasks; its end."""
    end = one.latestOffset(start, ALL)
    rows(one, start, end)
    return end


@pytest.mark.parametrize("options", [{}, {"mode": "DROPMALFORMED"}, LETTERS, {"noAck": "true"}])
def test_bad_values_are_counted_batch_by_batch_and_reported_once(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture, options: dict[str, str]
) -> None:
    ids = some_bad(client, 30, other="x")
    some_bad(client, 6, "t", other="x")
    one = reader(server, SCHEMA, limits=NEVER_AHEAD, streams="s,t", entriesPerPartition="7", **options)
    at = run_batch(one, one.initialOffset())
    assert bad(one) is None, "the batch may not be committed yet"
    some_bad(client, 3, other="x")
    at = run_batch(one, at)
    assert bad(one) == {"s": {"n": 10}, "t": {"n": 2}}
    assert one.latestOffset(at, ALL) == at
    assert bad(one) == {"s": {"n": 11}, "t": {"n": 2}}
    [text] = caplog.messages
    assert text.startswith(
        "stream 's' and 1 more, column 'n': 12 of 36 entries of this batch have a value that does not "
    )
    assert f"The first has the form b'xxx 9' (x: a letter, 9: a digit) in entry {ids[0]}. " in text
    hashes = [client.hgetall(key) for key in client.keys("rstream:notes*")]
    assert not [field for fields in hashes for field, value in fields.items() if field != "batch" and value]


def test_tasks_that_run_again_count_once(server: Server, client: redis.Redis) -> None:
    """Also where the later run is ended early, by a LIMIT, or the earlier one was."""
    some_bad(client, 60, other="x")
    one = reader(server, SCHEMA, limits=NEVER_AHEAD)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    rows(one, start, end)
    rows(one, start, end)
    [share] = one.partitions(start, end)
    for _ in range(2):
        ended = iter(one.read(share))
        next(ended)
        ended.close()  # type: ignore[attr-defined]  # it is a generator
    assert one.latestOffset(end, ALL) == end
    assert bad(one) == {"s": {"n": 20}}


def test_a_task_that_is_ended_early_tells_what_it_saw(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    some_bad(client, 60, other="x")
    one = reader(server, SCHEMA)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    [share] = one.partitions(start, end)
    ended = iter(one.read(share))
    next(ended)
    ended.close()  # type: ignore[attr-defined]  # it is a generator
    assert one.latestOffset(end, ALL) == end
    assert bad(one) == {"s": {"n": 3}}, "of a first page of seven"
    assert len(caplog.messages) == 1


def test_nothing_is_written_where_there_is_nothing_to_tell(server: Server, client: redis.Redis) -> None:
    add(client, 20)
    one = reader(server)
    run_batch(one, one.initialOffset())
    assert not client.keys("rstream:notes*")


def test_a_batch_that_a_killed_run_did_not_report_is_reported_by_the_next(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever mode that one reads in."""
    some_bad(client, 30)
    end = run_batch(stopped := reader(server, SCHEMA), stopped.initialOffset())
    again = reader(server, SCHEMA, mode="FAILFAST")
    assert again.latestOffset(end, ALL) == end
    assert bad(again) == {"s": {"n": 10}}
    assert [text.split(":")[0] for text in caplog.messages] == ["stream 's', column 'n'", "column 'other' is null"]
    assert "mode PERMISSIVE" in caplog.messages[0]


def test_what_was_noted_of_a_batch_that_is_read_again_does_not_count(server: Server, client: redis.Redis) -> None:
    some_bad(client, 30)
    crashed = reader(server, SCHEMA)
    start = crashed.initialOffset()
    end = run_batch(crashed, start)
    text = reader(server, pa.schema([("n", pa.string())]))
    assert len(rows(text, start, end)) == 30
    assert text.latestOffset(end, ALL) == end
    assert bad(text) is None


# -- columns without a field -------------------------------------------------------------------------------------------


def test_a_column_that_is_a_field_of_no_entry_is_reported_with_the_nearest(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, 40)
    add(client, 40, "t")
    schema = pa.schema([("n", pa.int64()), ("nn", pa.string()), ("_id", pa.string()), ("_corrupt_record", pa.string())])
    one = reader(server, schema, streams="s,t", entriesPerPartition="10")
    assert drain(one)
    assert caplog.messages == [
        "column 'nn' is null: none of 80 entries of this batch has a field of that name. Did you mean 'n'? They have: n"
    ]
    assert not client.keys("rstream:notes*")


def test_a_column_that_some_entries_have_is_as_usual(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Though a task sees none of them, and a later batch holds none: those have no note to leave any more."""
    add(client, 40)
    client.xadd("s", {"n": 40, "other": "x"})
    one = reader(server, SCHEMA, limits=NEVER_AHEAD, entriesPerPartition="10")
    at = run_batch(one, one.initialOffset())
    add(client, 10, first=41)
    run_batch(one, at)
    assert not client.keys("rstream:notes*")
    assert not caplog.messages


def test_a_server_that_takes_no_note_does_not_end_the_query(
    redis_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Its memory is full: entries can be read and acknowledged, and that is what makes room."""
    with redis_server.client(decode_responses=True) as client:
        client.flushall()
        some_bad(client, 30)
        one = reader(redis_server, SCHEMA, limits=NEVER_AHEAD)
        start = one.initialOffset()
        end = one.latestOffset(start, ALL)
        one.partitions(start, end)  # the mark of a first batch is written: without memory, the batch waits for it
        client.config_set("maxmemory", "1")
        try:
            assert len(rows(one, start, end)) == 30
        finally:
            client.config_set("maxmemory", "0")
        assert not client.exists(notes_key("s", one.batches.member))
    assert [text.split(":")[0] for text in caplog.messages] == [
        "values that do not fit their column are not counted", "stream 's', column 'n'", "column 'other' is null",
    ]  # fmt: skip
    assert "10 of 30 entries that this task has read" in caplog.messages[1]


# -- spark.read --------------------------------------------------------------------------------------------------------


def batch_reader(server: Server, **options: str) -> BatchReader:
    checked = BatchSourceOptions.parse({"url": server.url, "streams": "s", **options})
    return BatchReader(checked, Columns(SCHEMA, True, checked.mode))


def test_a_batch_read_says_it_once_in_a_process(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """However many of its tasks run there; of absent columns its first task speaks for all."""
    some_bad(client, 900)
    client.xadd("s", {"n": 1, "other": "in the last task alone"})
    one = batch_reader(server, entriesPerPartition="100", mode="DROPMALFORMED")
    for again in (1, 2):
        shares = one.partitions()
        assert len(shares) > 2
        for share in shares:
            task, copy = pickle.loads(pickle.dumps((one, share)))
            assert list(task.read(copy))
        assert [text.split(":")[0] for text in caplog.messages] == again * [
            "stream 's', column 'n'", "column 'other' is null",
        ]  # fmt: skip
    assert "set mode to PERMISSIVE or FAILFAST" in caplog.messages[0]
    assert "entries that a task has read" in caplog.messages[0]


def test_a_batch_read_that_is_ended_early_says_what_it_saw(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """`show()` takes the first rows."""
    some_bad(client, 900, other="x")
    one = batch_reader(server)
    ended = iter(one.read(one.partitions()[0]))
    next(ended)
    assert not caplog.messages
    ended.close()  # type: ignore[attr-defined]  # it is a generator
    assert "column 'n': 67 of 200 entries that a task has read have a value that does not fit BIGINT" in caplog.text
