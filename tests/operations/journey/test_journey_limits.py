"""Journeys at their limits: several groups, queries and batches of which one is different, and IDs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from pyarrow import fs

from spark_streams.base.ids import StreamId
from spark_streams.connector.admin.checkpoint import Batch, Checkpoint, Offset, QueryRecord
from spark_streams.connector.admin.dead_letters import fetch_origins
from spark_streams.connector.deadletter.envelope import dead_letter_fields
from spark_streams.connector.deadletter.post import DEAD_LETTER_LIMITS
from spark_streams.connector.keys import delays_key, origin_field, origins_key, retry_stream, returned_stream
from spark_streams.connector.source.commit_mark import Mark
from spark_streams.connector.source.offset import Range, StreamOffset
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from spark_streams.connector.wire.session import Session
from spark_streams.connector.wire.xinfo import GroupInfo, StreamState
from spark_streams.operations.journey import copies
from spark_streams.operations.journey.batches import (
    BatchTable,
    TableFile,
    WrittenBatch,
    batch_lines,
    ledger_lines,
    table_lines,
)
from spark_streams.operations.journey.copies import Found, find_copies, of_dead_letter, of_entry, sent_back_lines
from spark_streams.operations.journey.entry_facts import EntryFacts, GroupFacts, Pending, fetch_facts
from spark_streams.operations.journey.entry_lines import group_line, is_never_added, presence_lines
from spark_streams.operations.journey.journey import Journey, journeys
from tests.operations.journey.test_batch_tables import parquet
from tools.servers.server import Server


def at(number: int, seq: int = 0) -> StreamId:
    return StreamId(number, seq)


# -- the stream --------------------------------------------------------------------------------------------------------

STATE = StreamState(last=at(9), length=4, added=9, first=at(5), top=at(8), deleted=at(6))
PENDING = GroupFacts(GroupInfo(b"g", 1, 1, at(9), 9, 0), Pending(b"c", 5, 1))


def gone(entry: StreamId, pending: bool = False, **state: Any) -> EntryFacts:
    """An entry that the stream does not have."""
    now = STATE._replace(**state)
    idle = GroupFacts(GroupInfo(b"a", 0, 0, at(9), 9, 0))
    return EntryFacts("s", entry, 1_000, now, now, None, (idle, PENDING, idle) if pending else (idle,))


@pytest.mark.parametrize(
    ("facts", "possible"),
    [
        (gone(at(6), True), ["deleted"]),
        (gone(at(5, 9), True), ["deleted"]),  # above the first one, so no trimming has removed it
        (gone(at(5), True, first=at(5)), ["deleted"]),
        (gone(at(7), True), ["trimmed", "deleted"]),  # neither can be
        (gone(at(4), True), ["trimmed", "deleted"]),
        (gone(at(4, 9), True, deleted=at(4, 8)), ["trimmed"]),
        (gone(at(4, 8), True, deleted=at(4, 8)), ["deleted"]),
        (gone(at(4, 7), True, deleted=at(4, 8)), ["trimmed", "deleted"]),
        (gone(at(6, 2), True, deleted=at(6, 1)), ["trimmed", "deleted"]),
        (gone(at(6)), ["deleted"]),
        (gone(at(6, 1)), ["trimmed", "never added"]),
        (gone(at(5, 9)), ["trimmed", "deleted", "never added"]),
        (gone(at(9), deleted=at(9)), ["deleted"]),  # the last one
        (gone(at(9)), ["trimmed", "never added"]),
        (gone(at(9, 1)), ["never added"]),
        (gone(at(6), added=4), ["never added"]),
    ],
)
def test_what_may_have_become_of_an_entry_that_the_stream_does_not_have(
    facts: EntryFacts, possible: Sequence[str]
) -> None:
    line = presence_lines(facts, is_proved=False)[-1]
    assert (line.texts("possible") or [line.event]) == possible
    assert is_never_added(facts) is (possible == ["never added"])


def test_it_is_pending_if_one_of_several_groups_has_it() -> None:
    assert gone(at(6), pending=True).is_pending
    assert not gone(at(6)).is_pending


BEGINS = {id_: Mark(at(id_), 0, "") for id_ in (6, 7)}
READS = Mark(at(8), 3, "c-3")


@pytest.mark.parametrize(
    ("marks", "event"),
    [
        ({"a": BEGINS[6]}, "never"),  # the entry is 6-0, and the query begins above it
        ({"a": BEGINS[6], "b": BEGINS[7]}, "never"),
        ({"a": BEGINS[6], "b": READS}, "acknowledged or passed"),
        ({"a": READS, "b": BEGINS[6]}, "acknowledged or passed"),
        ({"a": Mark(at(5, 9), 0, "")}, "acknowledged or passed"),
        ({}, "acknowledged or passed"),
    ],
)
def test_a_group_has_never_read_what_all_its_queries_began_above(marks: Mapping[str, Mark], event: str) -> None:
    group = GroupFacts(GroupInfo(b"g", 1, 0, at(9), 9, 0), marks=tuple(marks.items()))
    facts = EntryFacts("s", at(6), 1_000, STATE, STATE, (b"n", b"1"), (group,))
    assert group_line(facts, group).event == event


# -- its groups, on a server -------------------------------------------------------------------------------------------


@pytest.fixture
def numbers(client: redis.Redis) -> None:
    """Entries 1-0 … 9-0. Group a stands at 3-0, group b at 9-0 with 5-0 pending, group z at the beginning."""
    for number in range(1, 10):
        client.xadd("s", {"n": number}, id=f"{number}-0")
    client.xgroup_create("s", "a", "3-0")
    client.xgroup_create("s", "b", "4-0")
    client.xgroup_create("s", "z", "0")
    client.xreadgroup("b", "c", {"s": ">"}, count=1)
    client.xreadgroup("b", "c", {"s": ">"}, noack=True)


@pytest.mark.parametrize(
    ("number", "limit", "before"),
    [
        (3, 10, {"a": (None, False), "z": (2, False)}),
        (4, 10, {"a": (0, False), "z": (3, False)}),
        (9, 10, {"a": (5, False), "z": (8, False)}),
        (9, 9, {"a": (5, False), "z": (8, False)}),
        (9, 8, {"a": (5, False), "z": (8, True)}),  # as many as are counted: there may be more
        (9, 7, {"a": (5, False), "z": (7, True)}),
        (9, 5, {"a": (5, True), "z": (5, True)}),
        (9, 4, {"a": (4, True), "z": (4, True)}),
    ],
)
def test_so_many_undelivered_entries_are_before_it(
    numbers: None, connection: Connection, number: int, limit: int, before: Mapping[str, tuple[int | None, bool]]
) -> None:
    facts = fetch_facts(connection, "s", at(number), limit)
    found = {group.info.name.decode(): (group.before, group.at_least) for group in facts.groups}
    assert found == {"b": (None, False), **before}


def told(server: Server, stream: str, entry: str, limit: int = 100) -> list[Journey]:
    with Session(Address.parse(server.url)) as session:
        return journeys(session, stream, StreamId.parse(entry), limit)


@pytest.mark.parametrize(("entry", "was_delivered"), [("3-0", True), ("5-0", False), ("6-0", True), ("9-0", True)])
def test_dead_letters_are_spoken_of_if_any_group_was_given_the_entry(
    server: Server, client: redis.Redis, numbers: None, entry: str, was_delivered: bool
) -> None:
    """3-0: group a stands there, and z before it. 5-0: pending in b, and not delivered to the others."""
    client.xgroup_destroy("s", "b" if entry == "3-0" else "x")
    [journey] = told(server, "s", entry)
    assert ("no dead letter" in [line.event for line in journey.lines]) is was_delivered


# -- copies ------------------------------------------------------------------------------------------------------------


def letter(client: redis.Redis, to: str, entry_id: str = "*", **envelope: str) -> str:
    fields = dead_letter_fields([b"n", b"1", b"m", b"2"], {"stream": "s", "id": "6-0", "group": "b", **envelope})
    found: str = client.execute_command("XADD", to, entry_id, *fields)
    return found


def test_a_copy_is_of_the_entrys_stream_and_id_and_its_group_is_recorded(
    server: Server, client: redis.Redis, numbers: None
) -> None:
    """A query of group a has written there for stream s, and one of group b for stream t."""
    client.hset(origins_key("dead"), origin_field("s", "a"), "")
    client.hset(origins_key("dead"), origin_field("t", "b"), "")
    for number, (stream, entry, group) in enumerate(
        [("s", "6-0", "a"), ("s", "6-0", "b"), ("t", "6-0", "b"), ("s", "6-1", "a")], start=1
    ):
        letter(client, "dead", f"{number}-0", stream=stream, id=entry, group=group)
    lines = [line for line in told(server, "s", "6-0")[0].lines if line.event == "dead"]
    assert [(line.facts["id"], line.is_exact) for line in lines] == [("1-0", True), ("2-0", False)]


def test_origins_that_the_user_may_not_read_prove_nothing(
    server: Server, client: redis.Redis, numbers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.hset(origins_key("dead"), origin_field("s", "a"), "")
    letter(client, "dead", group="a")
    module = "spark_streams.operations.journey.journey.fetch_origins"
    monkeypatch.setattr(module, lambda server, streams: dict.fromkeys(fetch_origins(server, streams)))
    [line] = [line for line in told(server, "s", "6-0")[0].lines if line.event == "dead"]
    assert "may not read" in line.why_unknown


@pytest.mark.parametrize(
    ("changed", "event_text"),
    [
        ([b"n", b"1", b"m", b"2"], "byte for byte"),
        ([b"n", b"1"], "with other fields"),
        ([b"n", b"1", b"m", b"2", b"o", b"3"], "with other fields"),
        ([b"m", b"2", b"n", b"1"], "with other fields"),
    ],
)
def test_a_copy_has_the_same_fields_in_their_order(
    server: Server, client: redis.Redis, changed: Sequence[bytes], event_text: str
) -> None:
    client.execute_command("XADD", "s", "6-0", *changed)
    client.xgroup_create("s", "b", "9-0")
    client.hset(origins_key("dead"), origin_field("s", "b"), "")
    letter(client, "dead")
    [line] = [line for line in told(server, "s", "6-0")[0].lines if line.event == "dead"]
    assert event_text in line.text


@pytest.mark.parametrize(("limit", "is_cut"), [(2, True), (3, True), (4, False), (5, False)])
def test_a_stream_of_exactly_the_limit_was_read_to_its_end(
    server: Server, client: redis.Redis, limit: int, is_cut: bool
) -> None:
    for stream in ("first", "second"):
        for number in range(1, 5):
            letter(client, stream, f"{number}-0")
    with Session(Address.parse(server.url)) as session, pytest.MonkeyPatch.context() as patch:
        _one_by_one(patch)
        found = find_copies(session, [b"first", b"second"], of_entry(b"s", at(6)), limit)
    assert ("first, second" in found.unread) is is_cut
    assert (found.unread == "") is not is_cut


def _one_by_one(patch: pytest.MonkeyPatch) -> None:
    """Pages of one dead letter each."""
    limits = replace(DEAD_LETTER_LIMITS, first_page=1, largest_page=1)
    patch.setattr(copies, "dead_letter_pages", partial(copies.dead_letter_pages, limits=limits))


@pytest.mark.parametrize(("moving", "event"), [("", "not sent back"), ("a redrive writes", "sent back")])
def test_while_a_redrive_moves_dead_letters_it_is_not_known_where_one_is(moving: str, event: str) -> None:
    [line] = sent_back_lines(PRESENT, Found(), moving)
    assert (line.event, line.why_unknown) == (event, moving)


def test_a_dead_letter_is_not_taken_for_one_whose_name_ends_alike(server: Server, client: redis.Redis) -> None:
    """A mark has the name of the dead letter at its end, and names may have blanks."""
    for number, previous in enumerate(["dead/7-0", "x dead/7-0", "dead/17-0", "dead/7-0 dead/7-0"], start=1):
        client.xadd("s", {"n": 1, "dl.redriven": f"1 2026-01-01T00:00:00.000000Z {previous}"}, id=f"{number}-0")
    with Session(Address.parse(server.url)) as session:
        found = find_copies(session, [b"s"], of_dead_letter(b"dead", at(7)), 100)
    assert [str(copy.id) for copy in found.copies] == ["1-0"]


def test_a_waiting_entry_has_the_delay_of_its_attempt_and_a_returned_one_its_group(
    server: Server, client: redis.Redis, numbers: None
) -> None:
    client.set(delays_key("s", "b"), "1000 20000 300000")
    letter(client, retry_stream("s", "b", 2), "50-0", deliveries="2")
    letter(client, returned_stream("s", "b"), "60-0", deliveries="2")
    for group in ("b", "c"):
        client.xgroup_create(returned_stream("s", "b"), group, "0")
    lines = {line.event: line for line in told(server, "s", "6-0")[0].lines if line.group == "b"}
    assert lines["waiting"].facts["due_ms"] == 50 + 20_000
    assert lines["waiting"].facts["attempt"] == 3
    waits = [line.group for line in told(server, "s", "6-0")[0].lines if line.event == "not delivered"]
    assert sorted(waits) == ["a", "b", "z"]  # b has not read the returned one, which is no entry for group c


# -- batches and tables ------------------------------------------------------------------------------------------------

PRESENT = EntryFacts("s", at(6), 1_000, STATE, STATE, (b"n", b"1"))


def batch(number: int, ranges: Mapping[str, tuple[int, int]], pending: tuple[int, int] | None = None) -> Batch:
    """A batch of new entries, and of pending ones of stream s. A range: above the first ID, up to the last."""
    ends = {stream: StreamOffset(at(last), number + 1, "c", 9, last) for stream, (_, last) in ranges.items()}
    new = {stream: Range(stream, at(after), at(last), last - after) for stream, (after, last) in ranges.items()}
    old = {} if pending is None else {"s": (Range("s", at(pending[0]), at(pending[1]), 1),)}
    return Batch(number, 5, (Offset("g", "c", ends, new, old=old, token="c"),), is_committed=True)


def known(*batches: Batch, entry: int = 6) -> tuple[str, bool, str]:
    line, *_ = batch_lines(PRESENT, "s", at(entry), Checkpoint("q", batches))
    return line.event, line.is_exact, line.why_unknown


@pytest.mark.parametrize(
    ("batches", "event", "why"),
    [
        ([batch(0, {"s": (0, 5)}), batch(1, {"s": (5, 6)})], "batch", ""),
        ([batch(0, {"s": (0, 5)}), batch(1, {"s": (6, 9)})], "no batch", ""),
        ([batch(0, {"s": (0, 6)}), batch(1, {"s": (5, 9)})], "batch", "several batches"),
        ([batch(0, {"s": (6, 9)}, pending=(5, 6))], "batch", "pending or handed over"),
        ([batch(3, {"s": (6, 9)})], "no batch", "begins with batch 3"),
        ([batch(3, {"s": (4, 5)})], "no batch", ""),  # it has read up to 5-0, so an earlier batch has not read 6-0
        ([batch(3, {"t": (0, 1), "s": (6, 9)})], "no batch", "begins with batch 3"),
        ([batch(0, {"t": (0, 1)})], "no batch", "does not read this stream"),
        ([replace(batch(0, {"s": (0, 2)}), offsets=None), batch(1, {"s": (6, 9)})], "no batch", "cannot be read"),
        ([batch(0, {"s": (0, 2)}), replace(batch(1, {"s": (6, 9)}), offsets=None)], "no batch", "cannot be read"),
        ([], "no batch", "has no batch"),
    ],
)
def test_the_batch_of_an_entry_is_the_only_one_whose_new_entries_have_it(
    batches: Sequence[Batch], event: str, why: str
) -> None:
    found, is_exact, said = known(*batches)
    assert (found, is_exact) == (event, not why)
    assert why in said


def test_a_log_that_begins_later_says_nothing_of_the_entry_at_its_end() -> None:
    """The batch that ends at 6-0 has no new entries: an earlier one has read 6-0."""
    assert known(batch(3, {"s": (6, 6)}))[1:] == (False, "the log begins with batch 3")
    two = batch(3, {"s": (4, 5)})
    second = Offset("h", "c", {"s": StreamOffset(at(9), 1, "c", 9, 9)}, {}, token="c")
    assert known(replace(two, offsets=(*(two.offsets or ()), second)))[1:] == (False, "the log begins with batch 3")


@pytest.mark.parametrize(
    ("number", "is_closed", "streams"), [(6, True, []), (7, True, ["a"]), (8, False, ["b"]), (9, False, [])]
)
def test_the_ledger_has_closed_its_last_batch_and_names_the_streams_of_each(
    number: int, is_closed: bool, streams: Sequence[str]
) -> None:
    lines = batch_lines(PRESENT, "s", at(6), Checkpoint("q", [batch(number, {"s": (5, 6)})]))
    [line] = ledger_lines(lines, QueryRecord(7, {b"a": 7, b"b": 8, b"c": 3}))
    assert (line.facts["closed"], line.facts["streams"]) == (is_closed, streams)
    assert ("has not closed" in line.text) is not is_closed


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_table_has_the_rows_of_this_query_and_this_stream(tmp_path: Path, is_committed: bool) -> None:
    """Of queries with batches of the same number, and of streams with entries of the same ID."""
    files = {
        "mine": parquet(tmp_path / "mine.parquet", "5-0", "6-0"),
        "other": parquet(tmp_path / "other.parquet", "7-0"),
    }
    written = [
        WrittenBatch(query, 4, name, None, partial(list, [TableFile(fs.LocalFileSystem(), str(files[name]))]))
        for query, name in (("q-other", "other"), ("q-mine", "mine"))
    ]
    read = replace(batch(4, {"s": (5, 6)}), is_committed=is_committed)
    lines = batch_lines(PRESENT, "s", at(6), Checkpoint("q-mine-and-more", [read]))
    for is_final in (True, False):
        table = BatchTable("t", "folders", written, is_final=is_final)
        rows, row = table_lines(table, lines, "orders", at(6))
        assert (rows.facts["place"], rows.why_unknown == "") == ("mine", is_final or is_committed)
        assert row.facts["files"] == [str(files["mine"])]
        assert table_lines(table, lines, "other", at(6))[1].facts["files"] == []
