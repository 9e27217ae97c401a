"""retryDelay: what fails waits beside its stream, comes back when the server's clock says so, and dies in the end; each
once, whatever is killed."""

from __future__ import annotations

import contextlib
import datetime
import logging
import time
from dataclasses import replace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
import redis

from spark_streams.connector.deadletter.envelope import FIELDS, MARK, dead_letter_fields, open_envelope
from spark_streams.connector.deadletter.redrive import DeadLetterRedrive
from spark_streams.connector.deadletter.redrive_plan import RedriveOptions
from spark_streams.connector.deadletter.waiting_entries import waiting_of
from spark_streams.connector.errors import RStreamError
from spark_streams.connector.keys import read_retry_stream, retry_stream, returned_stream
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.source.trigger.acknowledge import Removing
from spark_streams.connector.spark.data_source import ReadMaxRows
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.connection import Connection
from tools.driving import (
    ALL,
    LOOK_EACH_TIME,
    SCHEMA,
    SMALL,
    add,
    another_reader,
    drain,
    forget_all,
    pending_count,
    reader,
    rows,
    stop_all,
)
from tools.machine_time import machine_seconds
from tools.sending import KilledError, before_sending, dying_at, killed, reply_lost
from tools.servers.server import Server, skip_without_xnack

LETTERS = {"mode": "DEADLETTER", "deadLetterStream": "dead"}
TWICE = {**LETTERS, "retryDelay": "30ms, 60ms"}
STRIDE = 8  # of the requests that a query sends: they repeat themselves
AT_ONCE = {**LETTERS, "retryDelay": "1ms, 2ms"}
FIRST, SECOND, BACK = retry_stream("s", "g", 1), retry_stream("s", "g", 2), returned_stream("s", "g")
TOLD = pa.schema(
    [
        ("n", pa.int64()),
        ("_stream", pa.string()),
        ("_id", pa.string()),
        ("_timestamp", pa.timestamp("us", tz="UTC")),
        ("_attempt", pa.int32()),
        ("_first_failed", pa.timestamp("us", tz="UTC")),
        ("_fields", pa.map_(pa.binary(), pa.binary())),
    ]
)
TEXTS = TOLD.set(0, pa.field("n", pa.string()))  # everything fits


def first_batch(one: StreamReader, limit: ReadMaxRows = ALL) -> dict[str, Any]:
    """Read and commit a query's first batch; where it ends."""
    start = one.initialOffset()
    end = one.latestOffset(start, limit)
    rows(one, start, end)
    one.commit(end)
    return end


def run(one: StreamReader, client: redis.Redis, at: dict[str, Any] | None = None) -> tuple[list[Any], dict[str, Any]]:
    """Batch after batch until nothing is new and nothing waits: the rows, and where it ends."""
    at = one.initialOffset() if at is None else at
    found: list[Any] = []
    deadline = machine_seconds() + 20
    while True:
        end = one.latestOffset(at, ALL)
        if end != at:
            found += rows(one, at, end)
            one.commit(end)
            at = end
        elif not waiting(client):
            return found, at
        assert machine_seconds() < deadline, "something waits for ever"


def waiting(client: redis.Redis) -> int:
    """Entries that have failed and are not dead, or processed."""
    return sum(client.xlen(name) for name in [*client.scan_iter("rstream:retry:*"), BACK])


def dead(client: redis.Redis) -> list[dict[str, str]]:
    return [fields for _, fields in client.xrange("dead")]


def add_good_and_bad(client: redis.Redis, bad: int = 3, good: int = 4) -> list[str]:
    ids = [str(client.xadd("s", {"n": f"bad {n}", "other": "x\r\ny"})) for n in range(bad)]
    add(client, good)
    return ids


def test_an_entry_that_never_fits_is_tried_after_each_delay_and_is_then_one_dead_letter(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    ids = add_good_and_bad(client)
    found, _ = run(reader(server, **TWICE), client)
    assert "and are retried before they become dead letters (mode DEADLETTER)" in caplog.text
    assert sorted(row["n"] for row in found) == [0, 1, 2, 3]
    letters = dead(client)
    assert [(one["dl.stream"], one["dl.id"], one["dl.deliveries"]) for one in letters] == [("s", i, "3") for i in ids]
    with Connection(Address.parse(server.url)) as connection:  # redis-py's replies have no name twice
        for _, words in connection.execute("XRANGE", "dead", "-", "+"):
            own, envelope = open_envelope(words)
            assert list(own[0::2]) == [b"n", b"other"]
            assert len(envelope) == 15
    for one in letters:
        first, last = (datetime.datetime.fromisoformat(one[f"dl.{which}-failed"]) for which in ("first", "last"))
        assert last - first >= datetime.timedelta(milliseconds=90)
    assert pending_count(client) == pending_count(client, BACK) == 0
    assert client.xlen(BACK) == client.xlen(FIRST) == client.xlen(SECOND) == 0


def test_a_returned_entry_is_the_same_row_and_has_the_number_of_its_attempt(
    server: Server, client: redis.Redis
) -> None:
    [bad] = add_good_and_bad(client, bad=1, good=1)
    before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=1)
    one = reader(server, TOLD, **TWICE)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    [good] = rows(one, start, end)
    assert (good["_attempt"], good["_first_failed"]) == (1, None)
    one.commit(end)
    assert (client.xlen(FIRST), pending_count(client)) == (1, 0)
    found, _ = run(reader(server, TEXTS, **TWICE), client, end)
    [row] = found
    assert (row["_stream"], row["_id"], row["_attempt"]) == ("s", bad, 2)
    assert row["_timestamp"].timestamp() == int(bad.split("-")[0]) / 1000
    assert before < row["_first_failed"] < datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=1)
    assert row["_fields"] == [(b"n", b"bad 0"), (b"other", b"x\r\ny")]
    assert client.xlen("dead") == client.xlen(BACK) == pending_count(client, BACK) == 0


def test_an_entry_returns_no_sooner_than_it_is_due_and_a_trigger_without_it_is_idle(
    server: Server, client: redis.Redis
) -> None:
    add_good_and_bad(client, bad=1, good=0)
    one = reader(server, TEXTS.set(0, SCHEMA.field("n")), **{**LETTERS, "retryDelay": "1h"})
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert rows(one, start, end) == []
    one.commit(end)
    for _ in range(3):
        assert one.latestOffset(end, ALL) == end
    told = one.reportLatestOffset()["waiting"]["s"]
    [(entry, _)] = client.xrange(FIRST)
    assert told == {"entries": 1, "due": int(str(entry).split("-")[0]) + 3_600_000}
    # Another delay takes effect for what waits.
    found, _ = run(reader(server, TEXTS, **{**LETTERS, "retryDelay": "1ms"}), client, end)
    assert [row["n"] for row in found] == ["bad 0"]


def test_as_long_as_nothing_fails_one_command_looks_for_all_retry_streams_of_a_stream(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of those that another query of the group makes later; then their lengths are asked for."""
    one = reader(server, **LETTERS, retryDelay="1h, 2h")
    at = one.initialOffset()
    assert one.latestOffset(at, ALL) == at
    asked: list[tuple[Any, ...]] = []
    honest = Connection.pipeline

    def recording(self: Connection, commands: Any) -> Any:
        asked.extend(command for command in commands if "rstream:retry" in str(command))
        return honest(self, commands)

    monkeypatch.setattr(Connection, "pipeline", recording)
    assert one.latestOffset(at, ALL) == at
    assert [command[0] for command in asked] == ["EXISTS"]
    client.xadd(retry_stream("s", "g", 7), {"n": 1})
    asked.clear()
    assert one.latestOffset(at, ALL) == at
    assert one.reportLatestOffset()["waiting"]["s"]["entries"] == 1
    asked.clear()
    assert one.latestOffset(at, ALL) == at
    assert [command[0] for command in asked] == ["EXISTS", "XLEN"]


def test_fewer_delays_strand_nothing(server: Server, client: redis.Redis) -> None:
    add_good_and_bad(client, bad=1, good=0)
    one = reader(server, **{**LETTERS, "retryDelay": "1ms,1h"})
    at = one.initialOffset()
    deadline = machine_seconds() + 20
    while not client.xlen(SECOND):
        end = one.latestOffset(at, ALL)
        if end != at:
            rows(one, at, end)
            one.commit(end)
            at = end
        assert machine_seconds() < deadline
    found, _ = run(reader(server, **{**LETTERS, "retryDelay": "1ms"}), client, at)
    assert (found, [one["dl.deliveries"] for one in dead(client)]) == ([], ["3"])


def test_without_the_option_waiting_entries_stay_and_are_reported_and_returned_entries_are_read(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    add_good_and_bad(client, bad=2, good=0)
    one = reader(server, **TWICE)
    end = first_batch(one)
    time.sleep(0.05)  # they are due
    batch = one.latestOffset(end, ALL)  # they are back, and reserved; the query dies
    assert batch != end
    client.xadd(FIRST, {"still": "waits"})
    caplog.set_level(logging.WARNING)
    again = reader(server, TEXTS, **LETTERS)
    after = again.latestOffset(end, ALL)
    assert [row["n"] for row in rows(again, end, after)] == ["bad 0", "bad 1"]
    assert "1 entries wait for a retry by group 'g'" in caplog.text
    assert client.xlen(FIRST) == 1


def test_a_second_query_of_the_group_without_the_option_does_not_hide_what_waits(
    server: Server, client: redis.Redis
) -> None:
    """Metrics of the first one, and `rstream dead list`, say by its delays what waits and until when."""
    add_good_and_bad(client, bad=1, good=0)
    first = reader(server, **LETTERS, retryDelay="1h")
    end = first_batch(first)
    assert first.latestOffset(end, ALL) == end
    assert drain(another_reader(server, consumer="b")) == []
    assert first.latestOffset(end, ALL) == end
    with connect(Address.parse(server.url)) as connection:
        [waits] = waiting_of(connection, [("s", "g")])
        assert waits.due is not None


def test_a_query_without_a_pending_list_says_what_it_leaves(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    add_good_and_bad(client, bad=2, good=0)
    one = reader(server, **TWICE)
    end = first_batch(one)
    time.sleep(0.05)
    assert one.latestOffset(end, ReadMaxRows(1)) != end  # both are back
    caplog.clear()
    again = reader(server, TEXTS, noAck="true")
    assert again.latestOffset(end, ALL) == end
    assert "2 entries wait for a retry" in caplog.text
    assert "(without noAck)" in caplog.text
    assert client.xlen(BACK) == 2


def test_two_queries_of_a_group_try_each_entry_once_a_time(server: Server, client: redis.Redis) -> None:
    add_good_and_bad(client, bad=20, good=20)
    both = [another_reader(server, consumer=name, **TWICE) for name in ("a", "b")]
    try:
        at = [one.initialOffset() for one in both]
        deadline = machine_seconds() + 30
        idle = 0
        while idle < 4:
            for place, one in enumerate(both):
                end = one.latestOffset(at[place], ALL)
                if end != at[place]:
                    rows(one, at[place], end)
                    one.commit(end)
                    at[place], idle = end, 0
                elif not waiting(client):
                    idle += 1
            assert machine_seconds() < deadline
        assert sorted(one["n"] for one in dead(client)) == sorted(f"bad {n}" for n in range(20))
        assert {one["dl.deliveries"] for one in dead(client)} == {"3"}
    finally:
        forget_all()


def test_other_groups_do_not_see_it_and_a_pattern_does_not_find_it(server: Server, client: redis.Redis) -> None:
    add_good_and_bad(client)
    run(reader(server, TEXTS, group="h"), client)
    one = reader(server, **TWICE)
    first_batch(one)
    assert client.xlen(FIRST) == 3
    other = reader(server, TEXTS, group="i", streamsPattern="*")
    begin = other.initialOffset()
    found = rows(other, begin, other.latestOffset(begin, ALL))
    assert {row["_stream"] for row in found} == {"s"}


def test_a_stream_in_place_of_a_key_of_the_product_is_not_read_under_a_pattern(
    server: Server, client: redis.Redis
) -> None:
    """The query replaces it: its entries are nobody's input."""
    add_good_and_bad(client)
    client.xadd("rstream:delays:{s}:g", {"n": "7"})
    one = reader(server, streamsPattern="*", **TWICE)
    begin = one.initialOffset()
    end = one.latestOffset(begin, ALL)
    found = rows(one, begin, end)
    one.commit(end)
    assert {row["_stream"] for row in found} == {"s"}
    assert waiting(client) == 3
    assert client.type("rstream:delays:{s}:g") == "string"
    one.latestOffset(end, ALL)


def test_a_pattern_tries_again_too(server: Server, client: redis.Redis) -> None:
    for stream in ("o:1", "o:2"):
        client.xadd(stream, {"n": f"bad of {stream}"})
        add(client, 3, stream)
    found, _ = run(reader(server, streamsPattern="o:*", **TWICE), client)
    assert len(found) == 6
    assert sorted((one["dl.stream"], one["n"]) for one in dead(client)) == [
        ("o:1", "bad of o:1"), ("o:2", "bad of o:2")
    ]  # fmt: skip


def test_waiting_entries_of_a_deleted_stream_return_all_the_same(server: Server, client: redis.Redis) -> None:
    """A pattern's streams come and go; what failed once has a place of its own."""
    client.xadd("o:1", {"n": "bad"})
    client.xadd("o:2", {"n": "1"})
    one = reader(server, streamsPattern="o:*", limits=LOOK_EACH_TIME, **TWICE)
    at = one.initialOffset()
    deadline = machine_seconds() + 20
    while not client.xlen(retry_stream("o:1", "g", 2)):
        end = one.latestOffset(at, ALL)
        if end != at:
            rows(one, at, end)
            one.commit(end)
            at = end
        assert machine_seconds() < deadline
    client.delete("o:1")
    again = reader(server, streamsPattern="o:*", limits=LOOK_EACH_TIME, failOnDataLoss="false", **TWICE)
    while not dead(client):
        end = again.latestOffset(at, ALL)
        if end != at:
            rows(again, at, end)
            again.commit(end)
            at = end
        assert machine_seconds() < deadline
    assert [(one["dl.stream"], one["dl.deliveries"]) for one in dead(client)] == [("o:1", "3")]


def test_an_available_now_run_takes_what_is_due_when_it_starts(server: Server, client: redis.Redis) -> None:
    add_good_and_bad(client, bad=1, good=1)

    def one_run(at: dict[str, Any] | None) -> tuple[list[Any], dict[str, Any]]:
        one = reader(server, TOLD, **TWICE)
        one.prepareForTriggerAvailableNow()
        at = one.initialOffset() if at is None else at
        found = []
        while (end := one.latestOffset(at, ALL)) != at:
            found += rows(one, at, end)
            one.commit(end)
            at = end
        return found, at

    found, at = one_run(None)
    assert ([row["n"] for row in found], client.xlen(FIRST)) == ([0], 1)
    time.sleep(0.05)
    found, at = one_run(at)
    assert (found, client.xlen(FIRST), client.xlen(SECOND)) == ([], 0, 1)
    time.sleep(0.1)
    one_run(at)
    assert len(dead(client)) == 1


def test_a_redriven_entry_starts_at_its_first_attempt_and_keeps_its_past(server: Server, client: redis.Redis) -> None:
    mark = b"2 2020-01-01T00:00:00.000000Z dead/5-5"
    client.xadd("s", {"n": "bad", MARK: mark})
    one = reader(server, TOLD, **TWICE)
    end = first_batch(one)
    found, _ = run(reader(server, TEXTS, **TWICE), client, end)
    assert (found[0]["_attempt"], found[0]["_fields"]) == (2, [(b"n", b"bad"), (MARK, mark)])
    client.flushall()
    client.xadd("s", {"n": "bad", MARK: mark})
    run(reader(server, **TWICE), client)
    [letter] = dead(client)
    told = [letter[f"dl.{name}"] for name in ("redrives", "first-failed", "previous", "deliveries")]
    assert told == ["2", "2020-01-01T00:00:00.000000Z", "dead/5-5", "3"]
    assert MARK.decode() not in letter


def test_a_dead_letter_after_its_last_retry_goes_back_to_its_stream(server: Server, client: redis.Redis) -> None:
    """The stream is recorded as an origin, although the last attempt has read the stream of returned entries."""
    add_good_and_bad(client, bad=1, good=0)
    run(reader(server, **TWICE), client)
    report = DeadLetterRedrive(Address.parse(server.url), RedriveOptions("dead")).run()
    assert (report.moved, report.refused) == (1, 0)


def test_an_entry_that_is_a_dead_letter_itself_is_retried_unchanged(server: Server, client: redis.Redis) -> None:
    add_good_and_bad(client, bad=1, good=0)
    run(reader(server, **LETTERS), client)
    [(_, letter)] = client.xrange("dead")
    given = {"streams": "dead", "mode": "DEADLETTER", "deadLetterStream": "dead2", "retryDelay": "1ms"}
    run(reader(server, TOLD, **given), client)
    [(_, again)] = client.xrange("dead2")
    assert again == {**letter, **{name: again[name] for name in again if name.startswith("dl.")}}
    one = reader(server, TEXTS, **{**given, "group": "h"})
    found, _ = run(one, client)
    assert dict(found[0]["_fields"]) == {name.encode(): value.encode() for name, value in letter.items()}


@pytest.mark.parametrize("where", [FIRST, BACK])
def test_an_entry_of_another_writer_among_returned_entries_is_read_unchanged(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """It ends no query, and is tried again as any other one; also if it stood there before the group did."""
    client.xadd("s", {"n": 1})
    client.xadd("s", {"n": "bad"})
    forged = {name.decode(): "9" * 5_000 for name in FIELDS}
    client.xadd(where, {"n": "2"})
    client.xadd(where, {"n": "3", **forged})
    client.xadd(where, {"n": "4", **forged, "dl.stream": "s", "dl.id": "7-0"})
    client.xadd(where, {"n": "worse"})
    time.sleep(0.05)
    found, _ = run(reader(server, TOLD, **TWICE), client)
    assert sorted((row["n"], row["_stream"], row["_attempt"]) for row in found) == [
        (1, "s", 1), (2, BACK, 1), (3, BACK, 1), (4, "s", 2)
    ]  # fmt: skip
    assert "entries that no query has written" in caplog.text
    assert sorted(one["n"] for one in dead(client)) == ["bad", "worse"]
    assert pending_count(client) == pending_count(client, BACK) == 0


def test_a_key_of_another_type_in_place_of_returned_entries_ends_no_query(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.xadd("s", {"n": 1})
    client.set(BACK, "x")
    assert drain(reader(server, **LETTERS)) == [[1]]
    assert f"key {BACK!r}" in caplog.text


def attempt(one: StreamReader, at: dict[str, Any], log: dict[str, Any]) -> None:
    """One trigger as Spark goes through it: log is its checkpoint."""
    end = log.get("logged", at)
    if end == log["committed"]:
        end = log["logged"] = one.latestOffset(log["committed"], ALL)
    if end != log["committed"]:
        log["rows"] = log["rows"] | {(row["_id"], row["_attempt"]) for row in rows(one, log["committed"], end)}
        log["committed"] = end
        one.commit(end)


@pytest.mark.parametrize("fault", [killed, reply_lost], ids=["killed", "reply_lost"])
@pytest.mark.parametrize("word", [b"WATCH", b"XDEL", b"XTRIM", b"XACK", b"HSET"])
def test_killed_before_or_after_any_command_each_entry_is_tried_once_a_time_and_dies_once(
    server: Server, client: redis.Redis, word: bytes, fault: Any
) -> None:
    """Every one of the first places is the one where it goes wrong, in a run of its own."""
    for place in range(4 if fault is killed else 2):
        client.flushall()
        add_good_and_bad(client, bad=2, good=2)
        # What fails at the first try only: the second run can read it.
        log: dict[str, Any] = {"rows": set()}
        one = reader(server, TOLD, **AT_ONCE)
        log["committed"] = log["logged"] = one.initialOffset()
        met = 0

        def at_place(connection: Any, request: bytes, place: int = place) -> None:
            nonlocal met
            met += 1
            if met == place + 1:
                fault(connection, request)

        deadline = machine_seconds() + 20
        with before_sending(word, act=at_place):
            while True:
                try:
                    attempt(one, log["committed"], log)
                except (KilledError, RStreamError):
                    with contextlib.suppress(KilledError, RStreamError):
                        stop_all()
                    one = reader(server, TOLD, **AT_ONCE)
                if log["logged"] == log["committed"] and len(dead(client)) >= 2 and not waiting(client):
                    with contextlib.suppress(KilledError, RStreamError):
                        if one.latestOffset(log["committed"], ALL) == log["committed"]:
                            break
                assert machine_seconds() < deadline, (word, place, log, client.xlen("dead"), waiting(client))
        assert sorted(one["n"] for one in dead(client)) == ["bad 0", "bad 1"], (word, place)
        assert {one["dl.deliveries"] for one in dead(client)} == {"3"}
        assert len(log["rows"]) == 2
        assert (pending_count(client), pending_count(client, BACK)) == (0, 0), (word, place)


def test_a_query_with_a_new_checkpoint_continues_with_waiting_and_returned_entries(
    server: Server, client: redis.Redis
) -> None:
    add_good_and_bad(client, bad=4, good=0)
    one = reader(server, **{**TWICE, "maxEntriesPerTrigger": "2"})
    end = first_batch(one, ReadMaxRows(2))
    time.sleep(0.05)
    assert (
        one.latestOffset(end, ReadMaxRows(3)) != end
    )  # two are back, and one of them is reserved; it is gone for good
    found, _ = run(reader(server, **TWICE), client)
    assert (found, len(dead(client)), {one["dl.deliveries"] for one in dead(client)}) == ([], 4, {"3"})
    assert pending_count(client) == pending_count(client, BACK) == 0


def test_missing_returned_entries_are_named(server: Server, client: redis.Redis) -> None:
    add_good_and_bad(client, bad=2, good=0)
    one = reader(server, **TWICE)
    end = first_batch(one)
    time.sleep(0.05)
    batch = one.latestOffset(end, ALL)
    rows(one, end, batch)
    client.delete(BACK)  # with the entries of this batch
    again = reader(server, **TWICE)
    with pytest.raises(RStreamError, match=r"rstream:returned:\{s\}:g.* is missing"):
        again.latestOffset(batch, ALL)


def test_an_entry_that_kills_at_its_second_try_is_a_dead_letter_at_once(server: Server, client: redis.Redis) -> None:
    [bad] = add_good_and_bad(client, bad=1, good=0)
    given = {**TWICE, "maxDeliveries": "1", "claimIdle": "1ms"}
    one = reader(server, **given)
    end = first_batch(one)
    client.xgroup_create(BACK, "g", id="0", mkstream=True)
    time.sleep(0.05)
    one.latestOffset(end, ALL)
    client.xclaim(BACK, "g", "bob", 0, [entry["message_id"] for entry in client.xpending_range(BACK, "g", "-", "+", 9)])
    time.sleep(0.01)
    one = reader(server, **given)
    assert one.latestOffset(end, ALL) == end
    [letter] = dead(client)
    told = {name: letter[f"dl.{name}"] for name in ("stream", "id", "stage", "reason")}
    assert told == {"stream": "s", "id": bad, "stage": "claim", "reason": "deliveries"}
    assert (letter["n"], len(letter), waiting(client)) == ("bad 0", 17, 0)


@pytest.mark.parametrize("part", range(3))
def test_killed_at_each_request_each_entry_is_tried_once_a_time(server: Server, client: redis.Redis, part: int) -> None:
    """Before it and behind it; then a new run of the query goes on."""
    log: dict[str, Any] = {}

    def begin() -> None:
        forget_all()
        client.flushall()
        add_good_and_bad(client, bad=2, good=1)
        log.clear()
        log["rows"] = set()

    def act() -> None:
        one = reader(server, TOLD, **AT_ONCE)
        if "committed" not in log:
            log["committed"] = log["logged"] = one.initialOffset()
        deadline = machine_seconds() + 20
        idle = 0
        while idle < 2:
            before = log["committed"]
            attempt(one, log["committed"], log)
            idle = idle + 1 if log["committed"] == before and not waiting(client) else 0
            assert machine_seconds() < deadline, (log, waiting(client))

    turn, died = 1 + part, True
    while died:
        died = False
        for heard in (False, True):
            begin()
            with mock.patch(
                "spark_streams.connector.wire.lease.Lease._take"
            ):  # this process, which lives on, would have it still
                try:
                    with dying_at(turn, heard):
                        act()
                except KilledError:
                    died = True
                    act()
            letters = sorted(one["n"] for one in dead(client))
            assert letters == ["bad 0", "bad 1"], (turn, heard)
            assert {one["dl.deliveries"] for one in dead(client)} == {"3"}
            assert len(log["rows"]) == 1
            assert (pending_count(client), waiting(client)) == (0, 0)
        turn += 3 * STRIDE
    assert turn > 40


def test_killed_while_good_at_the_second_try_each_is_read_in_one_batch(server: Server, client: redis.Redis) -> None:
    ids = add_good_and_bad(client, bad=3, good=0)
    one = reader(server, TOLD, **TWICE)
    end = first_batch(one)
    time.sleep(0.05)
    one = reader(server, TEXTS, **TWICE)
    batch = one.latestOffset(end, ALL)
    assert batch != end
    one = reader(server, TEXTS, **TWICE)  # it died with this batch in its log
    found = rows(one, end, batch)
    assert [row["_id"] for row in found] == ids
    assert one.latestOffset(batch, ALL) == batch
    assert (client.xlen(BACK), client.xlen("dead")) == (0, 0)


@pytest.mark.parametrize("stream", ["orders", "a{b}c", "{x}", "or}ders", "a:b", "r{}s"])
def test_names_say_what_they_hold(stream: str) -> None:
    for group in ("g", "a:b", "9", "ü"):
        told = read_retry_stream(retry_stream(stream, group, 12))
        assert told is not None
        assert (told.group, told.attempts) == (group, 12)
        back = read_retry_stream(returned_stream(stream, group))
        assert back is not None
        assert (back.group, back.attempts) == (group, None)
        assert told.stream == back.stream == stream
    assert read_retry_stream("rstream:retry:{s}") is None
    assert read_retry_stream("orders") is None


def test_an_envelope_that_waits_can_be_read_by_versions_that_know_no_tries(server: Server, client: redis.Redis) -> None:
    add_good_and_bad(client, bad=1, good=0)
    one = reader(server, **TWICE)
    start = one.initialOffset()
    rows(one, start, end := one.latestOffset(start, ALL))
    one.commit(end)
    with server.client() as raw:
        [(_, words)] = raw.execute_command("XRANGE", FIRST, "-", "+")
    flat = [word for pair in dict(words).items() for word in pair] if isinstance(words, dict) else list(words)
    own, envelope = open_envelope(flat)
    assert list(own) == [b"n", b"bad 0", b"other", b"x\r\ny"]
    assert len(envelope) == 15


def test_many_due_entries_return_over_several_triggers(server: Server, client: redis.Redis) -> None:
    add_good_and_bad(client, bad=90, good=0)
    found, _ = run(
        reader(server, **{**LETTERS, "retryDelay": "1ms"}, limits=replace(SMALL, returned_entries=10)), client
    )
    assert (found, len(dead(client)), {one["dl.deliveries"] for one in dead(client)}) == ([], 90, {"2"})


def test_limits_by_stream_hold_for_returned_entries(server: Server, client: redis.Redis) -> None:
    add_good_and_bad(client, bad=5, good=0)
    one = reader(server, **TWICE)
    end = first_batch(one)
    time.sleep(0.05)
    one = reader(server, TEXTS, **TWICE, maxEntriesPerTrigger='{"s": 2}')
    batch = one.latestOffset(end, ALL)
    assert len(rows(one, end, batch)) == 2


def test_what_waits_does_so_while_committed_entries_are_removed(server: Server, client: redis.Redis) -> None:
    """onCommit=delete takes the entry itself, which is acknowledged: what waits is a copy."""
    ids = add_good_and_bad(client, bad=2, good=3)
    found, _ = run(reader(server, onCommit="delete", **TWICE), client)
    assert sorted(row["n"] for row in found) == [0, 1, 2]
    assert [one["dl.id"] for one in dead(client)] == ids
    assert client.xlen("s") == client.xlen(BACK) == 0


def test_entries_with_more_delays_of_another_query_return_in_a_query_with_fewer_delays(
    server: Server, client: redis.Redis
) -> None:
    """Also in levels that came to hold something after the query had looked for the first time."""
    add_good_and_bad(client, bad=0, good=1)
    one = another_reader(server, TEXTS, **{**LETTERS, "retryDelay": "1ms"})
    at = first_batch(one)
    told = {"stream": "s", "id": "5-5", "deliveries": "3", "first-failed": "2020-01-01T00:00:00.000000Z"}
    words = dead_letter_fields([b"n", b"late"], told)
    client.execute_command("XADD", retry_stream("s", "g", 3), "1-0", *words)
    found, _ = run(one, client, at)
    assert [row["n"] for row in found] == ["late"]
    assert waiting(client) == 0


def handed_on(server: Server, client: redis.Redis, how: str) -> None:
    """Query a has died with an entry that had come back; query b is to read it by a claim."""
    add_good_and_bad(client, bad=1, good=0)
    one = reader(server, consumer="a", **TWICE)
    end = first_batch(one)
    time.sleep(0.05)
    assert one.latestOffset(end, ALL) != end
    stop_all()
    [(entry, _)] = client.xrange(BACK)
    if how == "released":
        skip_without_xnack(client)
        client.execute_command("XNACK", BACK, "g", "FAIL", "IDS", 1, entry)
    elif how == "handed over":
        client.xclaim(BACK, "g", "b", 0, [entry])
    time.sleep(0.01)


@pytest.mark.parametrize("how", ["left", "released", "handed over"])
@pytest.mark.parametrize("crash", ["none", "before the sweep", "before the sweep, with the next batch logged"])
def test_returned_entries_that_are_read_by_a_claim_are_removed_with_their_batch(
    server: Server, client: redis.Redis, how: str, crash: str
) -> None:
    """Also if the query has read nothing else of the returned stream: then no offset has a position there."""
    handed_on(server, client, how)
    given = {**TWICE, "consumer": "b", "claimIdle": "1ms" if how == "left" else "1h"}
    one = reader(server, TEXTS, limits=replace(SMALL, idle_check=5.0, idle_wait=0.05), **given)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert [row["n"] for row in rows(one, start, end)] == ["bad 0"]
    if crash == "none":
        assert one.latestOffset(end, ALL) == end  # acknowledged before it goes idle
        assert (pending_count(client, BACK), client.xlen(BACK)) == (0, 0)
        return
    with mock.patch.object(Removing, "sweep"):
        assert one.latestOffset(end, ALL) == end
        if crash.endswith("logged"):
            add(client, 1)
            later = one.latestOffset(end, ALL)
            stop_all()
            one = reader(server, TEXTS, **given)
            assert [row["n"] for row in rows(one, end, later)] == ["0"]
            end = later
    assert (pending_count(client, BACK), client.xlen(BACK)) == (0, 1)
    again = reader(server, TEXTS, **given)
    assert again.latestOffset(end, ALL) == end
    assert client.xlen(BACK) == 0


def test_what_earlier_runs_have_left_in_a_returned_stream_is_removed_when_a_query_starts(
    server: Server, client: redis.Redis
) -> None:
    """Also if the query has no checkpoint, and reads nothing."""
    client.xgroup_create("s", "g", "0", mkstream=True)
    client.xgroup_create(BACK, "g", "0", mkstream=True)
    ids = add(client, 3, BACK)
    client.xreadgroup("g", "bob", {BACK: ">"}, count=2)
    client.xack(BACK, "g", ids[0])
    one = reader(server, TEXTS, **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert [row["n"] for row in rows(one, start, end)] == ["2"]
    assert one.latestOffset(end, ALL) == end
    assert [entry for entry, _ in client.xrange(BACK)][:1] == [ids[1]]
    client.xack(BACK, "g", ids[1])
    again = reader(server, TEXTS, group="g", consumer="other", **LETTERS)
    at = again.initialOffset()
    assert again.latestOffset(at, ALL) == at
    assert client.xlen(BACK) == 0


def test_what_another_consumer_of_the_group_acknowledges_later_is_removed_by_an_idle_query(
    server: Server, client: redis.Redis
) -> None:
    """The query has read an entry of the returned stream through a claim, and an older one is still pending."""
    client.xgroup_create("s", "g", "0", mkstream=True)
    client.xgroup_create(BACK, "g", "0", mkstream=True)
    ids = add(client, 2, BACK)
    client.xreadgroup("g", "bob", {BACK: ">"})
    client.xclaim(BACK, "g", "bob", 0, [ids[1]], idle=7_200_000)
    one = reader(server, TEXTS, limits=replace(SMALL, lag_check=0.0), claimIdle="1h", **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert [row["n"] for row in rows(one, start, end)] == ["1"]
    assert one.latestOffset(end, ALL) == end
    assert (pending_count(client, BACK), client.xlen(BACK) > 0) == (1, True)
    client.xack(BACK, "g", ids[0])
    assert one.latestOffset(end, ALL) == end
    assert client.xlen(BACK) == 0
