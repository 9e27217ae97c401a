"""What the simulation has found: the shortest way there, by hand."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import redis

from spark_streams.connector.source.stream_reader import StreamReader
from tools.driving import ALL, add, drain, pending_count, read, reader
from tools.servers.server import Server
from tools.simulation.patched import product
from tools.simulation.run import run
from tools.simulation.setup import NEVER_AHEAD, Plan, Setup, Step

LENIENT = {"failOnDataLoss": "false"}
FIVE_MORE = Step("add", amount=0.6)
BOB_READS_TWO = Step("read", amount=0.2)


def at_rest(one: StreamReader, at: dict[str, Any]) -> dict[str, Any]:
    """The offset at which a query that has nothing to read comes to rest, after one batch at most, of no entries."""
    end = one.latestOffset(at, ALL)
    if end != at:
        assert read(one, at, end) == []
        assert one.latestOffset(end, ALL) == end
    return end


def lost(one: StreamReader) -> dict[str, int]:
    """What a run says that it has lost."""
    found: Any = one.reportLatestOffset().get("lost", {})
    return dict(found)


def test_a_loss_is_counted_once_however_often_the_query_is_started(server: Server, client: redis.Redis) -> None:
    add(client, 3)
    one = reader(server, **LENIENT)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [0, 1, 2]
    add(client, 2)
    client.xtrim("s", maxlen=0, approximate=False)
    found = []
    for _ in range(3):
        one = reader(server, **LENIENT)
        end = at_rest(one, end)
        found.append(lost(one))
    assert found == [{"s": 2}, {}, {}]


def test_entries_that_were_read_are_not_lost_with_an_empty_server(server: Server, client: redis.Redis) -> None:
    add(client, 3)
    one = reader(server, **LENIENT)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [0, 1, 2]
    client.flushall()
    found = []
    for _ in range(3):
        one = reader(server, **LENIENT)
        one.prepareForTriggerAvailableNow()
        end = at_rest(one, end)
        found.append(lost(one))
    assert found == [{}, {}, {}]


def test_a_rolled_back_checkpoint_of_a_shared_group_counts_what_it_passes_over(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, 2)
    one = reader(server, **LENIENT)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [0, 1]
    add(client, 2, first=2)
    more = one.latestOffset(end, ALL)
    assert read(one, end, more) == [2, 3]
    assert one.latestOffset(more, ALL) == more
    add(client, 1, first=4)
    client.xreadgroup("g", "bob", {"s": ">"})
    again = reader(server, **LENIENT)
    with caplog.at_level(logging.WARNING, "spark_streams.source"):
        rest = [n for batch in drain(again, start=end) for n in batch]
    assert rest == []
    assert lost(again) == {"s": 1}, "nobody can tell which of them the query has read"
    assert "Lost entries of stream 's' that are counted: at least 1" in caplog.text
    assert pending_count(client) == 1


def test_what_is_deleted_unread_after_a_group_was_made_again_is_counted(server: Server, client: redis.Redis) -> None:
    one = reader(server, startingOffsets="5-5", **LENIENT)
    start = one.initialOffset()
    client.delete("s")
    end = at_rest(one, start)
    client.xdel("s", *add(client, 1))
    again = reader(server, startingOffsets="5-5", **LENIENT)
    end = at_rest(again, end)
    assert lost(again) == {"s": 1}


def fails(
    server: Server, client: redis.Redis, *steps: str | Step, sink: str, ahead: int = NEVER_AHEAD, **options: str
) -> list[str]:
    """The kinds of failures of a plan: these streams, the first one with two entries, and these steps."""
    given = {"startingOffsets": "earliest", "streams": "s:0", **options}
    setup = Setup(7, len(given["streams"].split(",")), sink, ahead, 0, given, before=2)
    plan = Plan(setup, tuple(Step(one) if isinstance(one, str) else one for one in steps))
    with product():
        return [failure.kind for failure in run(server, client, plan).failures]


def test_what_a_lenient_run_has_counted_need_not_be_named_after_its_stream_was_left_out(
    server: Server, client: redis.Redis
) -> None:
    """The strict query comes to rest without the stream, and then reads it again."""

    def restart(streams: str) -> Step:
        return Step("restart", options=(("streams", streams), ("startingOffsets", "earliest")))

    lenient = {"maxEntriesPerTrigger": "1", "streams": "s:0,s:1", **LENIENT}
    steps = ["trigger", "flush", "trigger", restart("s:1"), "trigger", restart("s:0,s:1"), "trigger"]
    assert not fails(server, client, *steps, sink="recorder", **lenient)


def test_a_batch_that_is_done_in_the_sink_is_not_set_aside(server: Server, client: redis.Redis) -> None:
    """The query is killed between the sink and the commit log, as often as maxDeliveries says."""
    options = {"maxDeliveries": "1", "deadLetterStream": "dead"}
    assert not fails(server, client, "trigger", "lose_commits", sink="once", **options)


def test_an_older_checkpoint_that_lacks_only_claimed_entries_is_documented(server: Server, client: redis.Redis) -> None:
    """The last batch had only entries that were handed to the query, so it moved no position."""
    steps: list[str | Step] = [
        "trigger",
        FIVE_MORE,
        BOB_READS_TWO,
        "trigger",
        "trigger",
        Step("give", amount=0.9),
        "trigger",
        "trigger",
    ]
    assert not fails(server, client, *steps, Step("rollback", amount=0.01, how=0.9), sink="recorder")


def test_rows_that_a_kept_batch_does_not_have_are_documented(server: Server, client: redis.Redis) -> None:
    """The checkpoint is set back. The new batch of a used number is killed, and loses entries before it runs again: the
    sink keeps the rows of the earlier batch."""
    steps: list[str | Step] = [
        "trigger",
        FIVE_MORE,
        "trigger",
        "trigger",
        Step("rollback", amount=0.01, how=0.9),
        FIVE_MORE,
    ]
    steps += [Step("kill", 60), "trigger", Step("trim", amount=0.85), "trigger"]
    assert not fails(server, client, *steps, sink="once", **LENIENT)


def test_what_an_earlier_checkpoint_has_left_is_gone_with_the_group(server: Server, client: redis.Redis) -> None:
    """Only the pending list names these entries (documented)."""
    one_each = Step("restart", options=(("streams", "s:0"), ("maxEntriesPerTrigger", "1")))
    steps = ["trigger", "trigger", FIVE_MORE, Step("kill", 12), "trigger", one_each, "renew", "trigger"]
    assert not fails(server, client, *steps, Step("remake", how=0.5), sink="recorder")


def test_a_server_that_forgets_leases_lets_another_query_begin(server: Server, client: redis.Redis) -> None:
    """It is restored while the second one begins."""
    steps = ["backup", FIVE_MORE, "trigger", Step("restore", 5), "rival"]
    assert not fails(server, client, *steps, sink="recorder")


def test_a_mark_that_is_set_after_a_restore_does_not_hide_older_acknowledgements(
    server: Server, client: redis.Redis
) -> None:
    """The driver's thread has two jobs. Its connection breaks with the first one, and the server has forgotten the
    acknowledgement of an earlier batch."""
    steps = [FIVE_MORE, "trigger", "trigger", Step("backup", 5), Step("restore", 20), "trigger", "trigger", "trigger"]
    assert not fails(server, client, *steps, sink="recorder", ahead=1, maxEntriesPerTrigger="1")


def test_entries_that_are_added_below_the_start_of_a_bookmark_are_documented(
    server: Server, client: redis.Redis
) -> None:
    """The producers' clock was set back, and forward again. The query takes the lower entries for removed ones."""
    back, forward = Step("clock", how=0.0), Step("clock", how=0.99)
    five_elsewhere = Step("add", choice=0.9, amount=0.6)
    options = {"streams": "s:0,s:1", "startingOffsets": "1700000000001-0", "noAck": "true", "maxEntriesPerTrigger": "2"}
    steps: list[str | Step] = ["trigger", back, five_elsewhere, forward, forward, five_elsewhere, "trigger"]
    assert not fails(server, client, *steps, sink="recorder", **options)
