"""Copies at their limits: so many entries, the entry at a position, and groups with one thing that keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import redis

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import CopyFileError, StreamStateError
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.xinfo import GroupInfo
from spark_streams.operations.groups.position import GroupTarget
from spark_streams.operations.transfer.copied_groups import (
    LEFT,
    MOVED,
    NEW,
    SAME,
    copy_groups,
    decide,
    fetch_groups,
    fetch_groups_state,
)
from spark_streams.operations.transfer.entry_files import read_file
from spark_streams.operations.transfer.passing import Passed, TargetState, find_range, transfer
from spark_streams.operations.transfer.transferred import TransferEntry, TransferRules
from tools.servers.server import Server

SOURCE = GroupInfo(b"g", 3, 9, StreamId(16, 1), 16, 4)  # its own consumers and pending entries do not matter
UNUSED = GroupInfo(b"g", 0, 0, StreamId(7, 1), 7, 13)
RECORD = (StreamId(5, 1), StreamId(7, 1))


@pytest.mark.parametrize(
    ("existing", "record", "state", "reason"),
    [
        (None, (), NEW, ""),
        (UNUSED, RECORD, MOVED, ""),
        (UNUSED._replace(last_delivered=StreamId(5, 1)), RECORD, MOVED, ""),  # a copy was killed before it moved it
        (UNUSED._replace(last_delivered=StreamId(6, 1)), RECORD, LEFT, "no copy has set it"),
        (UNUSED, (), LEFT, "no copy has set it"),
        (UNUSED._replace(consumers=1), RECORD, LEFT, "it has consumers"),
        (UNUSED._replace(pending=1), RECORD, LEFT, "it has pending entries"),  # they were released (XNACK)
        (UNUSED._replace(last_delivered=StreamId(16, 2)), (StreamId(16, 2),), LEFT, "forward only"),
        (UNUSED._replace(last_delivered=StreamId(16, 0)), (StreamId(16, 0),), MOVED, ""),
        (UNUSED._replace(last_delivered=StreamId(16, 1), consumers=2, pending=2), (), SAME, ""),
    ],
)
def test_one_thing_is_enough_to_leave_a_group(
    existing: GroupInfo | None, record: Sequence[StreamId], state: str, reason: str
) -> None:
    copied = decide(SOURCE, existing, record)
    assert (copied.state, copied.position, copied.pending) == (state, "16-1", 9)
    assert reason in copied.reason
    assert copied.target_position == ("16-1" if existing is None or state != LEFT else str(existing.last_delivered))
    assert (copied.note("t") is None) is (state != LEFT)


def test_a_group_that_an_operator_has_set_back_to_an_earlier_copy_is_left(client: redis.Redis, server: Server) -> None:
    """Two copies have moved it. Where the first one had set it, an operator may want to begin."""
    for number in range(1, 10):
        client.xadd("s", {"n": number}, id=f"{number}-0")
        client.xadd("t", {"n": number}, id=f"{number}-0")
    client.xgroup_create("s", "g", "2-0")
    with connect(Address.parse(server.url)) as one:
        for position, state in (("2-0", NEW), ("4-0", MOVED), ("6-0", LEFT)):
            client.xgroup_setid("s", "g", position)
            [copied] = copy_groups(one, "t", fetch_groups(one, "s"))
            assert copied.state == state
            if state == MOVED:
                client.xgroup_setid("t", "g", "2-0")
        assert client.xinfo_groups("t")[0]["last-delivered-id"] == b"2-0"


@pytest.mark.parametrize("most", [2, 3, 4])
def test_exactly_the_most_pending_entries_are_exported(client: redis.Redis, server: Server, most: int) -> None:
    for number in range(1, 6):
        client.xadd("s", {"n": number}, id=f"{number}-0")
    for group, count in (("a", 1), ("b", 4)):
        client.xgroup_create("s", group, "0")
        client.xreadgroup(group, "c", {"s": ">"}, count=count)
    with connect(Address.parse(server.url)) as one:
        if most < 3:
            with pytest.raises(StreamStateError, match="group 'b' of .* has more than 2 pending entries from 2-0 on"):
                fetch_groups_state(one, "s", StreamId(2, 0), most)
            return
        found = fetch_groups_state(one, "s", StreamId(2, 0), most)
    assert (found.groups, found.pending, found.left_out, found.last) == (2, 3, 2, StreamId(5, 0))


def entry(number: int, **fields: str) -> TransferEntry:
    return TransferEntry(
        StreamId(number, 0), [word.encode() for pair in fields.items() for word in pair] or [b"n", b"1"]
    )


def passed(pages: Sequence[Sequence[int]], limit: int | None, position: int = 0) -> tuple[Passed, list[int]]:
    sent = list[int]()
    rules = TransferRules(limit=limit)
    done = transfer(
        [[entry(number) for number in page] for page in pages],
        rules,
        StreamId(position, 0),
        lambda entries: sent.extend(one.id.ms for one in entries),
        lambda *_: None,
    )
    return done, sent


@pytest.mark.parametrize(
    ("limit", "position", "already", "sent"),
    [
        (None, 0, 0, [1, 2, 3, 4, 5, 6]),
        (1, 0, 0, [1]),
        (2, 0, 0, [1, 2]),  # within a page
        (3, 0, 0, [1, 2, 3]),  # exactly a page
        (4, 0, 0, [1, 2, 3, 4]),
        (6, 0, 0, [1, 2, 3, 4, 5, 6]),
        (7, 0, 0, [1, 2, 3, 4, 5, 6]),
        (2, 2, 2, [3, 4]),
        (None, 3, 3, [4, 5, 6]),  # the entry at the position is there
        (None, 6, 6, []),
    ],
)
def test_so_many_entries_above_the_position_are_sent(
    limit: int | None, position: int, already: int, sent: Sequence[int]
) -> None:
    done, found = passed(((1, 2, 3), (), (4, 5, 6)), limit, position)
    assert (found, done.sent, done.already) == (sent, len(sent), already)
    assert done.digest.count == already + len(sent)


LAST = entry(7, n="1", m="2")


@pytest.mark.parametrize(
    ("state", "holds", "holds_other_fields"),
    [
        (TargetState(StreamId(7, 0), 5, True, LAST), True, True),
        (TargetState(StreamId(7, 0), 5, True, entry(7, n="1")), False, True),
        (TargetState(StreamId(8, 0), 5, True, LAST), False, False),  # an entry above it was deleted
        (TargetState(StreamId(7, 0), 5, True, entry(6, n="1", m="2")), False, False),  # it was deleted itself
        (TargetState(StreamId(7, 0), 0, True, None), False, False),
    ],
)
def test_a_target_ends_with_the_last_entry_that_was_copied(
    state: TargetState, holds: bool, holds_other_fields: bool
) -> None:
    assert state.holds(LAST, same_fields=True) is holds
    assert state.holds(LAST, same_fields=False) is holds_other_fields


@pytest.mark.parametrize(
    ("begin", "end", "newest", "expected"),
    [
        (None, None, None, (0, 6)),
        ("3-0", "5-0", None, (3, 5)),
        ("3-0", "99-0", None, (3, 6)),
        ("1970-01-01T00:00:00.003", "1970-01-01T00:00:00.005", None, (3, 4)),
        (None, None, 2, (5, 6)),
        (None, None, 6, (1, 6)),
        (None, None, 7, (0, 6)),
        (None, "4-0", 2, (3, 4)),
        ("5-0", None, 4, (5, 6)),
        ("2-0", None, 2, (5, 6)),
    ],
)
def test_a_range_begins_and_ends_with_these_entries(
    client: redis.Redis,
    server: Server,
    begin: str | None,
    end: str | None,
    newest: int | None,
    expected: tuple[int, int],
) -> None:
    for number in range(1, 7):
        client.xadd("s", {"n": number}, id=f"{number}-0")
    since, until = (None if text is None else GroupTarget.parse(text) for text in (begin, end))
    with connect(Address.parse(server.url)) as one:
        first, last = find_range(one, "s", since, until, newest, now_ms=10)
    selected = [int(entry_id.partition(b"-")[0]) for entry_id, _ in client.xrange("s", bytes(first), bytes(last))]
    assert selected == list(range(max(expected[0], 1), expected[1] + 1))


@pytest.mark.parametrize(
    ("fields", "is_selected"),
    [
        ((), True),
        ((("a", "1"),), True),
        ((("a", "1"), ("b", "2")), True),
        ((("a", "1"), ("b", "3")), False),
        ((("b", "1"),), False),
    ],
)
def test_an_entry_is_selected_by_all_fields(fields: Sequence[tuple[str, str]], is_selected: bool) -> None:
    rules = TransferRules(tuple((name.encode(), value.encode()) for name, value in fields))
    assert rules.select(entry(1, a="1", b="2", c="3")) is is_selected


@pytest.mark.parametrize(("second", "is_read"), [("1-6", True), ("1-5", False), ("1-4", False)])
def test_ids_in_a_file_ascend(tmp_path: Path, second: str, is_read: bool) -> None:
    file = tmp_path / "s.jsonl"
    lines = [f'{{"id":"{one}","fields":{{"n":"1"}}}}' for one in ("1-5", second, "9-9")]
    file.write_text("\n".join(lines))
    if is_read:
        assert [one.id for page in read_file(str(file)) for one in page][1] == StreamId(1, 6)
        return
    with pytest.raises(CopyFileError, match=rf"line 2 of .* its ID {second} is not above 1-5"):
        list(read_file(str(file)))


def test_a_time_selects_no_entry_of_the_millisecond_before_it(client: redis.Redis, server: Server) -> None:
    for entry_id in ("2-0", "2-18446744073709551615", "3-0", "4-18446744073709551615", "5-0"):
        client.xadd("s", {"n": 1}, id=entry_id)
    begin, end = (GroupTarget.parse(f"1970-01-01T00:00:00.00{ms}") for ms in (3, 5))
    with connect(Address.parse(server.url)) as one:
        first, last = find_range(one, "s", begin, end, None, now_ms=10)
    assert [found for found, _ in client.xrange("s", bytes(first), bytes(last))] == [b"3-0", b"4-18446744073709551615"]
