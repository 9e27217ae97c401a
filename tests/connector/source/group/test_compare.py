"""The comparison of the checkpoint with the server: one finding at most, and where a lenient query goes on. Pure."""

from __future__ import annotations

import pytest

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.connector.source.commit_mark import Mark, without_pending_list
from spark_streams.connector.source.group.compare import (
    NOTHING_ABOVE,
    at_end,
    compare,
    is_proved_below,
    lost_above,
    moved_since_checkpoint,
    repaired,
)
from spark_streams.connector.source.group.recovery import GroupUse, Kind
from spark_streams.connector.source.group.snapshot import GroupState, OtherConsumer, PendingAbove, StreamSnapshot
from spark_streams.connector.source.offset import StreamOffset
from spark_streams.connector.source.trigger.bookmark import snapshot_at_query
from spark_streams.connector.wire.xinfo import StreamState

BOB = (OtherConsumer("bob", 0),)
AT = StreamOffset(StreamId(10, 0), 4, "now", 10, 20)  # ten of twenty entries are read
MARK = AT.mark
MISSING = StreamState(MIN_ID, 0, 0, None, exists=False)


def entry(number: int) -> StreamId:
    return StreamId(number, 0)


def stream(first: int = 1, last: int = 20, added: int = 20, deleted: int = 0, length: int | None = None) -> StreamState:
    """A stream with the entries from first to last."""
    count = last - first + 1 if length is None else length
    begin = MIN_ID if count == 0 else entry(first)
    return StreamState(entry(last), count, added, begin, True, entry(last) if count else MIN_ID, entry(deleted))


def group(
    position: int = 10, read: int | None = None, others: tuple[OtherConsumer, ...] = (), has_consumer: bool = True
) -> GroupState:
    return GroupState(entry(position), position if read is None else read, None, 0, has_consumer, others)


HEALTHY = StreamSnapshot(stream(), group(), MARK)
OLDER = Mark(entry(12), 5, "later")


@pytest.mark.parametrize(
    ("snapshot", "kind", "lost"),
    [
        (HEALTHY, None, 0),
        (StreamSnapshot(MISSING, None, MARK), Kind.STREAM_MISSING, 10),
        (StreamSnapshot(stream(), None, MARK), Kind.GROUP_MISSING, 0),
        (StreamSnapshot(stream(last=5, added=5), None, MARK), Kind.STREAM_REPLACED, 10),
        (
            StreamSnapshot(stream(first=11, last=30, added=20), None, MARK),
            Kind.STREAM_REPLACED,
            10,
        ),  # ten were never there
        (StreamSnapshot(stream(), group(5), MARK), Kind.GROUP_BELOW, 0),
        (StreamSnapshot(stream(), group(12), MARK), Kind.GROUP_ABOVE, 0),
        (StreamSnapshot(stream(), group(12), OLDER), Kind.CHECKPOINT_OLDER, 0),
        (StreamSnapshot(stream(), group(), Mark(entry(10), 4, "another")), Kind.CHECKPOINT_OLDER, 0),
        (StreamSnapshot(stream(), group(), None), Kind.CHECKPOINT_OLDER, 0),
        (StreamSnapshot(stream(), group(has_consumer=False), None), None, 0),  # created again, by hand
        (StreamSnapshot(stream(last=8, added=8), group(8), None), Kind.SERVER_RESTORED, 12),
        (StreamSnapshot(stream(last=8, added=8), group(8), MARK), Kind.SERVER_RESTORED, 12),
        (StreamSnapshot(stream(first=11, last=29, added=20), group(), MARK), Kind.SERVER_RESTORED, 1),
        (StreamSnapshot(stream(first=15), group(), MARK), Kind.ENTRIES_LOST, 4),
        (StreamSnapshot(stream(length=0), group(), MARK), Kind.ENTRIES_LOST, 10),
        (StreamSnapshot(stream(deleted=15, length=19), group(), MARK), None, 0),  # known when the group has read on
    ],
)
def test_what_a_query_finds_that_is_alone(snapshot: StreamSnapshot, kind: Kind | None, lost: int) -> None:
    finding = compare("s", AT, snapshot, NOTHING_ABOVE)
    assert (None if finding is None else finding.kind) == kind
    if finding is not None:
        assert (finding.lost, finding.group_use) == (lost, GroupUse.ALONE)


@pytest.mark.parametrize(
    ("snapshot", "kind", "lost"),
    [
        (StreamSnapshot(stream(), group(12, others=BOB), MARK), None, 0),  # bob has read them
        (StreamSnapshot(stream(), group(5, others=BOB), MARK), Kind.GROUP_BELOW, 0),
        (StreamSnapshot(stream(), group(12, others=BOB, has_consumer=False), MARK), Kind.GROUP_ABOVE, 1),
        (StreamSnapshot(stream(), group(12, others=BOB), OLDER), Kind.CHECKPOINT_OLDER, 1),
        (StreamSnapshot(stream(), group(12, others=BOB), None), Kind.CHECKPOINT_OLDER, 1),
        (StreamSnapshot(stream(first=15), group(12, others=BOB), MARK), Kind.ENTRIES_LOST, 2),
        (StreamSnapshot(stream(first=15), group(12, 9, others=BOB), MARK), Kind.ENTRIES_LOST, 5),
        (StreamSnapshot(stream(deleted=15, length=19), group(12, others=BOB), MARK), Kind.ENTRIES_LOST, 1),  # at least
    ],
)
def test_what_a_query_finds_in_a_shared_group(snapshot: StreamSnapshot, kind: Kind | None, lost: int) -> None:
    finding = compare("s", AT._replace(read=None), snapshot, NOTHING_ABOVE)
    assert (None if finding is None else finding.kind) == kind
    if finding is not None:
        assert (finding.lost, finding.group_use, finding.is_exact) == (lost, GroupUse.SHARED, False)


def test_entries_that_are_reserved_above_the_position_are_no_finding() -> None:
    snapshot = StreamSnapshot(stream(), group(12), MARK)
    assert compare("s", AT, snapshot, PendingAbove(2, entry(12))) is None
    taken = compare("s", AT, snapshot, PendingAbove(1, entry(11)))
    assert taken is not None
    assert taken.kind is Kind.GROUP_ABOVE


def test_a_released_entry_belongs_to_nobody() -> None:
    """A single fatal entry does not make the group shared."""
    released = group()._replace(released=1)
    trimmed = compare("s", AT, StreamSnapshot(stream(first=15), released, MARK), NOTHING_ABOVE)
    assert trimmed is not None
    assert (trimmed.lost, trimmed.group_use) == (4, GroupUse.ALONE)


def test_the_group_of_a_query_without_a_pending_list_only_shows_the_position() -> None:
    later = OLDER._replace(token=without_pending_list(OLDER.token))
    assert compare("s", AT, snapshot_at_query(AT, StreamSnapshot(stream(), group(5), later)), NOTHING_ABOVE) is None
    lost = compare("s", AT, snapshot_at_query(AT, StreamSnapshot(stream(first=15), group(5), MARK)), NOTHING_ABOVE)
    assert lost is not None
    assert lost.lost == 4


def test_without_a_pending_list_an_older_copy_goes_on_only_if_the_later_batch_had_none_either() -> None:
    """A batch with a pending list may have entries below the position, which the query would not read again."""
    found = compare("s", AT, snapshot_at_query(AT, StreamSnapshot(stream(), group(5), OLDER)), NOTHING_ABOVE)
    assert found is not None
    assert found.kind is Kind.CHECKPOINT_OLDER


def test_a_query_that_begins_above_all_entries_loses_none_below() -> None:
    begins = StreamOffset(entry(30), 0, "unknown", None, 20)
    for head in (stream(), stream(last=25, added=25), stream(first=22, last=25, added=25)):
        assert compare("s", begins, StreamSnapshot(head, group(30, 0), begins.mark), NOTHING_ABOVE) is None
        below = compare("s", begins, StreamSnapshot(head, group(5), begins.mark), NOTHING_ABOVE)
        assert below is not None
        assert below.kind is Kind.GROUP_BELOW
        assert is_proved_below(begins, head, has_entry=False)
        older = compare("s", begins, StreamSnapshot(head, group(30, 0), OLDER), NOTHING_ABOVE)
        assert older is not None
        assert older.kind is Kind.CHECKPOINT_OLDER


@pytest.mark.parametrize(
    ("position", "read", "head", "lost"),
    [
        (10, 10, stream(), 0),
        (10, 10, stream(first=13), 2),
        (20, 18, stream(), 2),
        (10, 12, stream(first=11), -2),
        (10, 10, stream(deleted=15, length=19), None),
        (10, None, stream(first=13), None),
    ],
)
def test_how_many_entries_above_a_position_have_left_the_stream(
    position: int, read: int | None, head: StreamState, lost: int | None
) -> None:
    assert lost_above(head, entry(position), read) == lost


def found(
    snapshot: StreamSnapshot, at: StreamOffset = AT, above: PendingAbove = NOTHING_ABOVE
) -> tuple[StreamOffset, str]:
    """Where a lenient query goes on, and the command for its group."""
    finding = compare("s", at, snapshot, above)
    assert finding is not None
    repair = repaired(finding, at, snapshot, at)
    return repair.at, repair.command


def test_alone_the_checkpoint_decides() -> None:
    assert found(StreamSnapshot(stream(), None, MARK)) == (AT, "CREATE")
    assert found(StreamSnapshot(stream(), group(5), MARK)) == (AT, "SETID")
    assert found(StreamSnapshot(stream(), group(12), MARK)) == (AT, "SETID")
    assert found(StreamSnapshot(stream(), group(12), OLDER)) == (AT._replace(number=5), "SETID")  # numbers go on
    assert found(StreamSnapshot(stream(), group(12))) == (AT, "SETID")
    assert found(StreamSnapshot(stream(first=15), group(), MARK)) == (AT._replace(read=14), "")
    assert found(StreamSnapshot(MISSING, None, MARK)) == (AT._replace(position=MIN_ID, read=0, added=0), "CREATE")
    restored = found(StreamSnapshot(stream(last=8, added=8), group(8), MARK))
    assert restored == (AT._replace(position=entry(8), read=8, added=8), "SETID")


def test_shared_the_group_decides() -> None:
    shared = AT._replace(read=None)
    for position in (5, 12):
        snapshot = StreamSnapshot(stream(), group(position, others=BOB, has_consumer=position == 5), MARK)
        assert found(snapshot, shared) == (shared._replace(position=entry(position)), "")
    older = found(StreamSnapshot(stream(), group(12, others=BOB), OLDER), shared)
    assert older == (StreamOffset(entry(12), 5, "later", None, 20), "")
    lost = found(StreamSnapshot(stream(first=15), group(12, others=BOB), MARK), shared)
    assert lost == (shared._replace(missed=2, group_read=14), "")


def test_an_operator_has_set_the_group() -> None:
    """The commit mark says so, also if the last batch was not acknowledged yet."""
    assert moved_since_checkpoint(AT, HEALTHY) is None
    sought = StreamSnapshot(stream(), group(5), Mark(entry(5), 0, "seek"))
    assert moved_since_checkpoint(AT, sought) == AT._replace(position=entry(5), read=5)
    set_again = StreamSnapshot(
        stream(), group(5), AT._replace(position=entry(5)).mark
    )  # the query has replaced that mark
    assert moved_since_checkpoint(AT, set_again) == AT._replace(position=entry(5), read=5)
    raw = StreamSnapshot(stream(), group(5), MARK)  # XGROUP SETID
    assert moved_since_checkpoint(AT, raw) is None


@pytest.mark.parametrize(
    ("head", "has_entry", "is_proved"),
    [
        (stream(), True, True),
        (stream(first=15), False, True),  # trimmed, in their order
        (stream(length=0), False, True),
        (stream(deleted=12, length=18), False, False),  # deleted, perhaps
        (stream(length=19), False, None),  # the server has lost it
    ],
)
def test_whether_all_entries_up_to_the_checkpoint_are_there(
    head: StreamState, has_entry: bool, is_proved: bool | None
) -> None:
    assert is_proved_below(AT, head, has_entry) == is_proved


def test_at_the_end_of_the_stream_the_number_of_entries_read_is_known() -> None:
    unknown = AT._replace(read=None, position=entry(20))
    assert at_end(unknown, StreamSnapshot(stream(), group(20))).read == 20
    assert at_end(unknown, StreamSnapshot(stream(), group(20, others=BOB))).read is None
    assert at_end(AT._replace(read=None), StreamSnapshot(stream(), group(10))).read is None


def test_what_left_the_stream_before_others_left_the_group_is_lost() -> None:
    """The server still counts what the group has read."""
    known = at_end(AT._replace(read=None), StreamSnapshot(stream(length=0), group(10)))
    assert known.read == 10
    finding = compare("s", known, StreamSnapshot(stream(length=0), group(10), MARK), NOTHING_ABOVE)
    assert finding is not None
    assert finding.lost == 10


@pytest.mark.parametrize("at", [AT._replace(read=None, group_read=10), StreamOffset(entry(10), 0, "10", None, 20)])
def test_a_shared_group_that_was_set_without_entriesread_counts_by_the_checkpoint(at: StreamOffset) -> None:
    uncounted = group(10, others=BOB)._replace(entries_read=None)
    snapshot = StreamSnapshot(stream(first=15), uncounted, at.mark)
    finding = compare("s", at, snapshot, NOTHING_ABOVE)
    assert finding is not None
    assert (finding.kind, finding.lost) == (Kind.ENTRIES_LOST, 4)
    after = repaired(finding, at, snapshot, at).at
    assert compare("s", after, snapshot, NOTHING_ABOVE) is None
    elsewhere = StreamSnapshot(stream(first=15), uncounted._replace(last_delivered=entry(12)), at.mark)
    assert compare("s", at, elsewhere, NOTHING_ABOVE) is None


def test_a_stream_with_fewer_entries_than_where_the_query_began_is_another_one() -> None:
    begin = StreamOffset(entry(20), 0, "20", 20, 20)
    for added, kind in ((2, Kind.STREAM_REPLACED), (20, Kind.GROUP_MISSING)):
        finding = compare("s", begin, StreamSnapshot(stream(last=2, added=added, length=2), None), NOTHING_ABOVE)
        assert finding is not None
        assert finding.kind is kind
