"""The stream and its pending lists as plain values: no server, no clock."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.engine.server.event_loop import Tidying
from spark_streams.engine.store import entryid, node_limits
from spark_streams.engine.store.entry_bytes import entry_wire, fields_wire
from spark_streams.engine.store.group import StoredGroup
from spark_streams.engine.store.listpack_size import string_size
from spark_streams.engine.store.node_limits import NodeLimits
from spark_streams.engine.store.pel import Consumer
from spark_streams.engine.store.references import Policy, remove, trim
from spark_streams.engine.store.stream import StoredStream
from tests.seeds import TIMES

FIELDS = fields_wire([b"f", b"v"])


def make(count: int, entries: int = 10) -> StoredStream:
    """A stream of ids 1-0 … count-0 in nodes of so many entries."""
    stream = StoredStream(NodeLimits(entries, 4096))
    for number in range(1, count + 1):
        stream.append(number << 64, entry_wire(number << 64, FIELDS))
    return stream


def ids_of(stream: StoredStream, start: int = 0, end: int = entryid.HIGHEST, count: int | None = None) -> list[int]:
    """The milliseconds of the entries in a range."""
    slices, total = stream.slices(start, end, count)
    found = [one >> 64 for node, low, high in slices for one in node.id_list(low, high)]
    assert len(found) == total
    return found


def test_entries_are_stored_in_the_form_in_which_they_are_sent() -> None:
    """A read of a whole node is its blob, not a copy of it."""
    stream = make(25)
    slices, total = stream.slices(0, entryid.HIGHEST)
    assert total == 25
    assert [(piece.low, piece.high) for piece in slices] == [(0, 10), (0, 10), (0, 5)]
    assert slices[0].wire() is slices[0].wire()
    assert slices[2].wire().startswith(b"*2\r\n$4\r\n21-0\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n")


def test_a_range_cuts_at_most_two_nodes() -> None:
    """Reading from the middle to the middle."""
    stream = make(40)
    assert ids_of(stream, 5 << 64, 35 << 64) == list(range(5, 36))
    assert ids_of(stream, (5 << 64) + 1, 35 << 64, 3) == [6, 7, 8]
    assert len(stream.slices(5 << 64, 35 << 64)[0]) == 4


def test_deleted_entries_leave_tombstones_until_their_node_goes() -> None:
    """XDEL keeps slots, counters tell, and an empty node is dropped."""
    stream = make(30)
    for number in range(11, 21):
        assert stream.delete(number << 64)
        assert not stream.delete(number << 64)
    assert len(stream.nodes) == 2
    assert (stream.length, stream.entries_added, stream.max_deleted_id >> 64) == (20, 30, 20)
    stream.delete(1 << 64)
    assert stream.first_id >> 64 == 2
    assert stream.nodes[0].live == 9
    assert ids_of(stream) == [*range(2, 11), *range(21, 31)]


def test_approximate_trimming_drops_whole_nodes_only() -> None:
    """MAXLEN ~ stops before it would fall below the wanted length; LIMIT bounds the work."""
    stream = make(95)
    assert stream.trim(72, 0, True, 0) == 20
    assert stream.trim(0, 0, True, 15) == 10
    assert stream.trim(60, 0, False, 0) == 5
    assert stream.trim(None, 70 << 64, True, 0) == 25
    assert ids_of(stream)[0] == 61
    assert stream.trim(0, 0, False, 0) == 35
    assert (stream.length, stream.first_id, stream.last_id >> 64) == (0, 0, 95)


def test_the_newest_node_takes_entries_again_after_the_node_above_it_is_deleted() -> None:
    """Deleting all of the newest node opens the one before."""
    stream = make(15)
    for number in range(11, 16):
        stream.delete(number << 64)
    stream.append(16 << 64, entry_wire(16 << 64, FIELDS))
    assert ids_of(stream, 9 << 64) == [9, 10, 16]


def test_ids_in_text() -> None:
    """Unbroken ids are put together from a table, others are formatted."""
    stream = StoredStream(NodeLimits(4, 0))
    texts = [b"1526919030474-8", b"1526919030474-9", b"1526919030474-10", b"1526919030475-0"]
    texts += [b"1526919030476-%d" % number for number in range(5)]
    for text in texts:
        stream.append(entryid.parse(text), entry_wire(entryid.parse(text), FIELDS))
    assert [text for node in stream.nodes for text in node.id_texts(0, node.slots)] == texts


def test_sizes_of_listpack_elements() -> None:
    """Integers in their short forms, strings with header and back length."""
    sizes = {b"0": 2, b"127": 2, b"128": 3, b"-4096": 3, b"-4097": 4, b"40000": 5, b"8388608": 6, b"2147483648": 10,
             b"": 2, b"007": 5, b"+1": 4, b"x" * 63: 65, b"x" * 64: 67, b"x" * 126: 130, b"x" * 5000: 5007,
             b"9223372036854775807": 10, b"9223372036854775808": 21}  # fmt: skip
    assert {text: string_size(text) for text in sizes} == sizes


def test_a_read_of_a_thousand_is_one_run() -> None:
    """Delivering makes runs, not entries; a whole acknowledgement drops them, a part opens one."""
    stream, group = make(3000, 100), StoredGroup(0, None)
    consumer = Consumer(b"c", 0)
    for turn in range(3):
        slices, _ = stream.slices(group.last_id + 1, entryid.HIGHEST, 1000)
        group.deliver(slices, consumer, turn, stream)
    assert [run.count for run in group.pending.index.ranges] == [1000, 1000, 1000]
    texts = [b"%d-0" % number for number in range(1, 1501)]
    assert group.acknowledge(texts, stream) == 1500
    assert [run.count for run in group.pending.index.ranges] == [500, 1000]
    assert group.acknowledge([b"%d-0" % number for number in range(2001, 3001, 2)], stream) == 500
    assert [run.count for run in group.pending.index.ranges] == [500, 500]
    assert group.acknowledge(texts, stream) == 0
    assert (len(group.pending), consumer.pending.count) == (1000, 1000)


def test_pending_entries_survive_the_trimming_of_their_stream() -> None:
    """Before a node goes, its pending ids are written down."""
    stream, group = make(50), StoredGroup(0, None)
    stream.groups[b"g"] = group
    group.deliver(stream.slices(0, entryid.HIGHEST)[0], Consumer(b"c", 0), 0, stream)
    stream.trim(15, 0, False, 0)
    found = [one >> 64 for run in group.pending.index.ranges for one in run.id_list(stream)]
    assert found == list(range(1, 51))
    assert group.acknowledge([b"7-0", b"36-0", b"99-0"], stream) == 2


actions = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 12)),
    st.tuples(st.just("read"), st.integers(1, 9)),
    st.tuples(st.just("ack"), st.lists(st.integers(1, 60), min_size=1, max_size=25)),
    st.tuples(st.just("claim"), st.lists(st.integers(1, 60), min_size=1, max_size=5)),
    st.tuples(st.just("delete"), st.lists(st.integers(1, 60), min_size=1, max_size=12)),
    st.tuples(st.just("trim"), st.integers(0, 30)),
    st.tuples(st.just("back"), st.integers(0, 60)),
)


@settings(max_examples=150 * TIMES, deadline=None)
@given(st.lists(actions, max_size=40))
def test_runs_hold_what_a_plain_dictionary_would(program: list[tuple[str, object]]) -> None:
    """Delivery, acknowledgement, claims, deletion and trimming in any order, against one dictionary of entries."""
    stream, group = StoredStream(NodeLimits(5, 4096)), StoredGroup(0, None)
    stream.groups[b"g"] = group
    names = [Consumer(b"a", 0), Consumer(b"b", 0)]
    expected: dict[int, tuple[Consumer, int, int]] = {}
    alive: list[int] = []
    top = 0
    for clock, (action, value) in enumerate(program):
        if action == "add":
            assert isinstance(value, int)
            for _ in range(value):
                top += 1
                alive.append(top)
                stream.append(top << 64, entry_wire(top << 64, FIELDS))
        elif action == "read":
            assert isinstance(value, int)
            slices, total = stream.slices(group.last_id + 1, entryid.HIGHEST, value)
            if total:
                new = [one for one in alive if one > group.last_id >> 64][:value]
                group.deliver(slices, names[clock % 2], clock // 3, stream)
                expected.update(dict.fromkeys(new, (names[clock % 2], clock // 3, 1)))
        elif action == "back":
            assert isinstance(value, int)
            group.last_id = min(value, top) << 64
        elif action == "trim":
            assert isinstance(value, int)
            stream.trim(value, 0, clock % 2 == 0, 0)
            alive = alive[-stream.length :] if stream.length else []
        else:
            assert isinstance(value, list)
            if action == "ack":
                known = {one for one in value if one in expected}
                assert group.acknowledge([b"%d-0" % one for one in value], stream) == len(known)
                for one in known:
                    del expected[one]
            for one in value:
                if action == "claim" and one in expected:
                    group.pending.take(one << 64, stream)
                    group.pending.put(one << 64, names[clock % 2], 77, 5, stream)
                    expected[one] = (names[clock % 2], 77, 5)
                elif action == "delete":
                    assert stream.delete(one << 64) == (one in alive)
                    alive = [other for other in alive if other != one]
        found = {
            one >> 64: (run.consumer, run.time, run.deliveries)
            for run in group.pending.index.ranges
            for one in run.id_list(stream)
        }
        assert found == expected
        assert list(found) == sorted(found)
        assert len(group.pending) == len(expected)
        for consumer in names:
            assert consumer.pending.count == sum(owner is consumer for owner, _, _ in expected.values())
        assert ids_of(stream) == alive


def reading_in_thousands(count: int, groups: int = 2) -> tuple[StoredStream, list[StoredGroup]]:
    """A stream that every group has been given in thousands."""
    stream = make(count, 100)
    for number in range(groups):
        group = stream.groups[b"%d" % number] = StoredGroup(0, None)
        while group.last_id < stream.last_id:
            group.deliver(stream.slices(group.last_id + 1, entryid.HIGHEST, 1000)[0], Consumer(b"c", 0), 0, stream)
    return stream, list(stream.groups.values())


def test_references_are_dropped_by_the_run() -> None:
    """XDELEX and XTRIM with DELREF open a run at the two ends of what goes, not at each entry."""
    stream, groups = reading_in_thousands(10_000)
    gone = [number << 64 for number in range(2_501, 4_501)]
    assert remove(stream, gone, Policy.DELREF) == [1] * 2000
    assert [len(group.pending) for group in groups] == [8000, 8000]
    assert [len(group.pending.index.ranges) for group in groups] == [9, 9]
    assert trim(stream, 3_000, 0, 0, Policy.DELREF) == 5000
    assert [[run.count for run in group.pending.index.ranges] for group in groups] == [[1000] * 3] * 2
    assert (stream.length, stream.first_id >> 64, stream.max_deleted_id >> 64) == (3000, 7001, 4500)


def test_acked_keeps_what_any_group_refers_to() -> None:
    """XTRIM and XDELEX with ACKED let go of what all groups have acknowledged, around what is still pending."""
    stream, groups = reading_in_thousands(5_000)
    for group, kept in zip(groups, (range(1_200, 1_250), range(3_000, 3_001)), strict=True):
        texts = [b"%d-0" % number for number in range(1, 4_001) if number not in kept]
        group.acknowledge(texts, stream)
    assert trim(stream, 0, 0, 0, Policy.ACKED) == 4_000 - 51
    assert ids_of(stream)[:52] == [*range(1_200, 1_250), 3_000, 4_001]
    assert len(stream.nodes) == 13
    assert remove(stream, [1_249 << 64, 1_250 << 64, 4_500 << 64], Policy.ACKED) == [2, -1, 2]
    assert all(node.base == base for node, base in zip(stream.nodes, _bases(stream), strict=True))


def _bases(stream: StoredStream) -> list[int]:
    """Slots are counted without gaps."""
    bases = [stream.nodes[0].base]
    for node in stream.nodes[:-1]:
        bases.append(bases[-1] + node.slots)
    return bases


@settings(max_examples=100 * TIMES, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(list(Policy)), st.lists(st.integers(1, 60), min_size=1, max_size=25)), max_size=6
    ),
    st.lists(st.integers(1, 60), max_size=40),
    st.integers(0, 60),
    st.booleans(),
)
def test_removal_by_ranges_is_removal_one_by_one(
    program: list[tuple[Policy, list[int]]], acknowledged: list[int], delivered: int, ordered: bool
) -> None:
    """Many ids at once have the effect and the replies of each id alone."""
    outcomes = []
    for at_once in (True, False):
        stream = make(50, 7)
        group = stream.groups[b"g"] = StoredGroup(0, None)
        if delivered:
            group.deliver(stream.slices(0, delivered << 64)[0], Consumer(b"c", 0), 0, stream)
        group.acknowledge([b"%d-0" % number for number in acknowledged], stream)
        replies: list[int] = []
        for policy, numbers in program:
            ids = [number << 64 for number in (sorted(numbers) if ordered else numbers)]
            replies += remove(stream, ids, policy) if at_once else [remove(stream, [one], policy)[0] for one in ids]
        pending = [one >> 64 for run in group.pending.index.ranges for one in run.id_list(stream)]
        outcomes.append((replies, ids_of(stream), pending, stream.first_id, stream.max_deleted_id))
    assert outcomes[0] == outcomes[1]


def test_what_is_due_comes_by_age() -> None:
    """Released entries first, then by time of delivery, then in the order of delivery; what moves comes once."""
    stream, group = make(60), StoredGroup(0, None)
    consumer = Consumer(b"c", 0)
    for number, delivered in ((10, 5), (20, 3), (30, 5), (40, 9)):
        group.deliver(stream.slices(group.last_id + 1, number << 64)[0], consumer, delivered, stream)
    for first in (35, 5):
        for run in group.pending.between(first << 64, first << 64, stream):
            group.pending.move(run, group.released, 0, 0)
    seen = []
    for run in group.pending.due(5):
        seen.append(run.first >> 64)
        group.pending.move(run, consumer, 5, 2)
    assert seen == [35, 5, 11, 1, 6, 21]
    assert [run.first >> 64 for run in group.pending.due(5)] == seen
    assert [run.first >> 64 for run in group.pending.due(9)] == [*seen, 31, 36]


def test_cold_nodes_are_packed_and_read_as_before() -> None:
    """Packing changes what a stream takes in memory, and nothing else: not reading, deleting, trimming or unsealing."""
    stream, plain = make(1000, 100), make(1000, 100)
    before = stream.memory()
    stream.limits.shelf.pack(10)
    assert stream.memory() < before * 0.6
    assert not stream.limits.shelf
    for one in (stream, plain):
        for number in (1, 150, 151, 399):
            one.delete(number << 64)
        one.trim(850, 0, True, 0)
        for number in range(901, 1001):
            one.delete(number << 64)
        one.set_last_id(900 << 64)
        one.append(901 << 64, entry_wire(901 << 64, FIELDS))
    found = [b"".join(piece.wire() for piece in one.slices(250 << 64, 901 << 64)[0]) for one in (stream, plain)]
    assert found[0] == found[1]
    assert stream.entries_backwards(0, 905 << 64, 3) == plain.entries_backwards(0, 905 << 64, 3)
    assert stream.length == plain.length


@pytest.mark.parametrize("small_node", [100_000, 10])
def test_many_small_nodes_are_packed_between_requests(small_node: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step packs one node, until few bytes are left. A large node waits until the engine is idle."""
    monkeypatch.setattr(node_limits, "_MANY_HOT_BYTES", 10_000)
    monkeypatch.setattr(node_limits, "_SMALL_NODE", small_node)
    stream = make(1000, 100)
    shelf = stream.limits.shelf
    full = shelf.bytes
    tidying = Tidying(shelf)
    steps = 0
    tidying.put_off(time.monotonic())
    while tidying.unfinished:
        tidying.tidy(time.monotonic())
        steps += 1
    if small_node == 10:
        assert (steps, shelf.bytes) == (0, full)
    else:
        assert 0 < steps < 9
        assert 0 < shelf.bytes <= 10_000


def test_trimmed_nodes_do_not_stay_for_being_packed() -> None:
    """The shelf holds sealed nodes weakly."""
    stream = make(1000, 100)
    stream.trim(0, 0, True, 0)
    stream.limits.shelf.pack(10)
    assert (stream.limits.shelf.bytes, len(stream.nodes)) == (0, 0)
