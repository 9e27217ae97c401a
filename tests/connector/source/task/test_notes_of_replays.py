"""A note of an earlier run lives until its entry has a dead letter, or was read again as good.

The driver dies between the end of the sink's write and Spark's commit. The next run replays the batch, and its tasks
read all of its entries, some, or none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import redis

from spark_streams.connector.errors import InvalidOptionError
from spark_streams.connector.source.stream_reader import StreamReader
from tools.driving import ALL, SCHEMA, SMALL, add, drain, others_read_first, pending_count, read, reader, rows
from tools.sending import at_each_point
from tools.servers.server import Server

pytestmark = pytest.mark.in_turn

LETTERS = {"mode": "DEADLETTER", "deadLetterStream": "dead"}
TEXT = pa.schema([("n", pa.string())])


def bad(client: redis.Redis, *numbers: int, stream: str = "s") -> list[str]:
    """Add entries that do not fit. Return their IDs."""
    return [str(client.xadd(stream, {"n": f"bad {n}"})) for n in numbers]


def killed_before_commit(server: Server, limits: Any = SMALL, **options: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a first batch whose tasks read all entries, and die before Spark commits it."""
    first = reader(server, limits=limits, **options)
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    rows(first, start, end)
    return start, end


def dead_numbers(client: redis.Redis, stream: str = "dead") -> list[str]:
    return sorted(fields["n"] for _, fields in client.xrange(stream))


def due_notes(client: redis.Redis) -> list[str]:
    """Fields of notes on entries that have no dead letter yet."""
    hashes = [client.hgetall(key) for key in client.keys("rstream:notes*")]
    return [field for fields in hashes for field, value in fields.items() if " letter " in field and value]


def finish(query: StreamReader, end: dict[str, Any]) -> None:
    """Let Spark commit the batch and trigger again."""
    query.commit(end)
    assert drain(query, start=end) == []


@pytest.mark.parametrize("options", [{}, {"noAck": "true"}, {"entriesPerPartition": "2"}, {"maxDeliveries": "9"}])
def test_a_function_that_skips_a_replayed_batch_leaves_its_dead_letters(
    server: Server, client: redis.Redis, options: dict[str, str]
) -> None:
    add(client, 3)
    bad(client, 0, 1)
    start, end = killed_before_commit(server, **LETTERS, **options)
    again = reader(server, **LETTERS, **options)
    assert again.partitions(start, end), "the function returns early, so no task runs"
    finish(again, end)
    assert dead_numbers(client) == ["bad 0", "bad 1"]
    assert pending_count(client) == 0
    assert not due_notes(client)


def test_a_batch_that_is_replayed_three_times_and_skipped_leaves_one_dead_letter(
    server: Server, client: redis.Redis
) -> None:
    bad(client, 0)
    start, end = killed_before_commit(server, **LETTERS)
    for _ in range(3):
        again = reader(server, **LETTERS)
        again.partitions(start, end)
        again.partitions(start, end)  # for another action on the same batch
    finish(again, end)
    assert drain(reader(server, **LETTERS), start=end) == []
    assert dead_numbers(client) == ["bad 0"]


def test_an_entry_of_a_skipped_batch_is_retried(server: Server, client: redis.Redis) -> None:
    bad(client, 0)
    options = {**LETTERS, "retryDelay": "1ms"}
    start, end = killed_before_commit(server, **options)
    again = reader(server, **options)
    again.partitions(start, end)
    again.commit(end)
    offset, batches = end, 0
    for _ in range(20):  # the retry fails, too, in a batch of its own
        new = again.latestOffset(offset, ALL)
        if new != offset:
            assert read(again, offset, new) == []
            batches += 1
        offset = new
    assert batches == 1
    assert dead_numbers(client) == ["bad 0"]


def test_a_skipped_batch_of_a_retry_leaves_the_dead_letter(server: Server, client: redis.Redis) -> None:
    """The entry is in the stream of returned entries, under another ID."""
    bad(client, 0)
    options = {**LETTERS, "retryDelay": "1ms"}
    first = reader(server, **options)
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    rows(first, start, end)
    first.commit(end)
    retried = end
    while retried == end:
        retried = first.latestOffset(end, ALL)
    assert read(first, end, retried) == []
    again = reader(server, **options)
    again.partitions(end, retried)
    finish(again, retried)
    assert dead_numbers(client) == ["bad 0"]


@pytest.mark.parametrize("tasks", [0, 1, 2, 3])
def test_a_replay_that_runs_some_tasks_leaves_one_dead_letter_for_each_entry(
    server: Server, client: redis.Redis, tasks: int
) -> None:
    """As `limit` and `show` do. The entries fit in none of both runs."""
    for n in range(9):
        bad(client, n)
        add(client, 2, first=n)
    start, end = killed_before_commit(server, **LETTERS, entriesPerPartition="27")
    again = reader(server, entriesPerPartition="9", **LETTERS)
    shares = again.partitions(start, end)
    assert len(shares) == 3
    for share in shares[:tasks]:
        assert list(again.read(share))
    finish(again, end)
    assert dead_numbers(client) == [f"bad {n}" for n in range(9)]
    assert pending_count(client) == 0


def test_a_task_that_is_ended_early_leaves_the_notes_on_what_it_has_not_read(
    server: Server, client: redis.Redis
) -> None:
    """A LIMIT closes the generator. Pages have at most seven entries here."""
    for n in range(30):
        bad(client, n)
        add(client, 1, first=n)
    start, end = killed_before_commit(server, **LETTERS)
    again = reader(server, TEXT, **LETTERS)
    [share, *_] = again.partitions(start, end)
    pages = again.read(share)
    given = next(pages)["n"].to_pylist()
    pages.close()  # type: ignore[attr-defined]
    finish(again, end)
    good_now = {text for text in given if text.startswith("bad")}
    assert good_now
    assert set(dead_numbers(client)) == {f"bad {n}" for n in range(30)} - good_now
    assert not due_notes(client)


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED", "DEADLETTER"])
@pytest.mark.parametrize("streams", ["s", "s,t"])
def test_entries_that_are_read_again_as_good_leave_no_dead_letter(
    server: Server, client: redis.Redis, mode: str, streams: str
) -> None:
    """The run that replays the batch has another schema, or another mode."""
    bad(client, 0, 1)
    bad(client, 2, stream="t")
    add(client, 5)
    start, end = killed_before_commit(server, **LETTERS, streams=streams)
    schema = TEXT if mode == "DEADLETTER" else SCHEMA
    again = reader(
        server, schema, mode=mode, streams=streams, **({"deadLetterStream": "dead"} if schema is TEXT else {})
    )
    rows(again, start, end)
    assert not due_notes(client)
    finish(again, end)
    assert not client.exists("dead")


def test_only_entries_that_are_still_bad_become_dead_letters(server: Server, client: redis.Redis) -> None:
    client.xadd("s", {"n": str(1 << 40)})  # fits 64 bits, not 32
    bad(client, 0)
    narrow = pa.schema([("n", pa.int32())])
    first = reader(server, narrow, **LETTERS)
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    assert rows(first, start, end) == []
    again = reader(server, **LETTERS)
    assert read(again, start, end) == [1 << 40]
    third = reader(server, **LETTERS)
    third.partitions(start, end)
    finish(third, end)
    assert dead_numbers(client) == ["bad 0"]


def test_a_mode_without_dead_letters_does_not_pass_over_notes_of_entries_that_nobody_read_again(
    server: Server, client: redis.Redis
) -> None:
    bad(client, 0)
    start, end = killed_before_commit(server, **LETTERS)
    again = reader(server)
    again.partitions(start, end)
    with pytest.raises(InvalidOptionError, match="Set mode=DEADLETTER and deadLetterStream again for one run"):
        again.latestOffset(end, ALL)
    assert pending_count(client) == 1
    finish(reader(server, **LETTERS), end)
    assert dead_numbers(client) == ["bad 0"]


@pytest.mark.parametrize("taken_by", ["XCLAIM", "XACK"])
def test_an_entry_that_another_consumer_has_taken_is_that_consumers(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, taken_by: str
) -> None:
    """It judges the entry, and may write the dead letter itself."""
    client.xgroup_create("s", "g", "0", mkstream=True)
    add(client, 1)
    [taken, _] = bad(client, 0, 1)
    options = {**LETTERS, "failOnDataLoss": "false"}
    with others_read_first(monkeypatch, client, 1):  # so the range has entries of another consumer
        start, end = killed_before_commit(server, **options)
    if taken_by == "XCLAIM":
        client.xclaim("s", "g", "bob", 0, [taken])
    else:
        client.xack("s", "g", taken)
    again = reader(server, **options)
    again.partitions(start, end)
    assert drain(again, start=end)[1:] == []
    assert dead_numbers(client) == ["bad 1"]


def test_entries_that_a_task_has_missed_are_counted_if_the_replay_is_skipped(
    server: Server, client: redis.Redis
) -> None:
    ids = add(client, 6)
    options = {"failOnDataLoss": "false"}
    first = reader(server, **options)
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    client.xdel("s", *ids[1:3])
    assert read(first, start, end) == [0, 3, 4, 5]
    again = reader(server, **options)
    again.partitions(start, end)
    again.latestOffset(end, ALL)
    assert again.reportLatestOffset()["lost"] == {"s": 2}


@pytest.mark.parametrize("tasks", [1, 2])
def test_entries_that_several_runs_have_missed_are_counted_once(
    server: Server, client: redis.Redis, tasks: int
) -> None:
    """Also if the runs divide the batch in other ways, and the last one reads a part."""
    ids = add(client, 20)
    options = {"failOnDataLoss": "false"}
    first = reader(server, entriesPerPartition="20", **options)
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    client.xdel("s", ids[1], ids[15])
    read(first, start, end)
    for size in ("5", "10"):
        again = reader(server, entriesPerPartition=size, **options)
        for share in again.partitions(start, end)[:tasks]:
            list(again.read(share))
    again.latestOffset(end, ALL)
    assert again.reportLatestOffset()["lost"] == {"s": 2}


def test_a_batch_that_was_cut_reads_its_pieces_again(server: Server, client: redis.Redis) -> None:
    """Entries that are set aside are read again in a batch of their own, so the notes of the first run do not count."""
    bad(client, 0, 1)
    add(client, 30)
    options = {**LETTERS, "maxDeliveries": "1"}
    start, end = killed_before_commit(server, **options)
    for _ in range(4):
        again = reader(server, **options)
        again.partitions(start, end)
    assert not due_notes(client)
    numbers = [n for batch in drain(again, start=end) for n in batch]
    assert sorted(numbers) == list(range(30))
    assert dead_numbers(client) == ["bad 0", "bad 1"]
    assert pending_count(client) == 0


@pytest.mark.parametrize("replayed", ["skipped", "read", "read as text"])
def test_killed_at_any_command_of_a_replay_each_entry_is_a_row_or_a_dead_letter(
    server: Server, client: redis.Redis, replayed: str
) -> None:
    """Before and after each request of a replay, of its tasks and of the trigger after it. Then it is run again."""
    schema = TEXT if replayed == "read as text" else SCHEMA
    limits = replace(SMALL, note_page=1)
    expected = [] if replayed == "read as text" else ["bad 0", "bad 1"]
    batch: dict[str, Any] = {}

    def begin() -> None:
        client.flushall()
        bad(client, 0)
        add(client, 2)
        bad(client, 1)
        batch["start"], batch["end"] = killed_before_commit(server, limits, **LETTERS)
        batch["committed"] = False

    def replay() -> None:
        for key in client.keys("rstream:lease:*"):  # its holder was killed
            client.delete(key)
        again = reader(server, schema, limits=limits, **LETTERS)
        if not batch["committed"]:
            for share in again.partitions(batch["start"], batch["end"]):
                if replayed != "skipped":
                    list(again.read(share))
            batch["committed"] = True
        finish(again, batch["end"])

    def check() -> None:
        assert dead_numbers(client) == expected
        assert pending_count(client) == 0
        assert not due_notes(client)

    assert at_each_point(begin, replay, check) > 10
