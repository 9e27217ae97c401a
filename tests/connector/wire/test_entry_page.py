"""Reply bytes to columns: the vectorised way and the exact one, against each other and against what was written."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import random
import re
import tracemalloc
from itertools import accumulate
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.base.ids import InvalidStreamId, StreamId
from spark_streams.connector.errors import ServerReplyError, UnsupportedError
from spark_streams.connector.wire import pending_page
from spark_streams.connector.wire.entry_page import (
    EntryPage,
    ExactPage,
    FilteredPage,
    VectorPage,
    decode_entries,
    decode_replies,
    parse_entries,
)
from spark_streams.connector.wire.lines import ShapeError
from spark_streams.connector.wire.pending_page import PendingPage, _exact, arguments_of, decode_pending, texts_of

Entry = tuple[bytes, list[bytes] | None]


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def resp(entries: list[Entry]) -> bytes:
    parts = [b"*%d\r\n" % len(entries)]
    for name, fields in entries:
        parts += [b"*2\r\n", bulk(name)]
        parts.append(b"*-1\r\n" if fields is None else b"*%d\r\n" % len(fields) + b"".join(map(bulk, fields)))
    return b"".join(parts)


# Text that looks like RESP, line ends, digits of lengths, and anything at all.
NASTY = [
    b"", b"*", b"*2", b"$", b"$3", b"*4", b"7", b"a\r\nb", b"\n", b"\r", b"\r\n", b"*2\r\n$1\r\n1\r\n*2\r\n",
    b"*-1", b"-", b"\xff\xfe",
    b"$04", b"*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\na\r\n$1\r\n1\r\n", b"*1\r\n", b"-ERR no\r\n",
]  # fmt: skip
nasty = st.sampled_from(NASTY)
long = st.sampled_from([8, 9, 10, 63, 64, 99, 100, 999, 1000, 9999, 10000, 123456]).map(lambda size: b"v" * size)
value = st.one_of(st.binary(max_size=12), nasty, st.binary(min_size=90, max_size=120), long)
name = st.one_of(st.sampled_from([b"a", b"b", b"year", b"a-longer-field-name", b"", b"n" * 150]), nasty)
pairs = st.lists(st.tuples(name, value), min_size=1, max_size=4)
fields = pairs.map(lambda pairs: [part for pair in pairs for part in pair])
shape = st.lists(st.one_of(name, st.sampled_from([b"abcdefgh", b"abcdefghi"])), min_size=1, max_size=4)
number = st.one_of(st.integers(0, 12), st.integers(0, 2**64 - 1), st.just(2**64 - 1), st.integers(10**12, 10**12 + 9))


@st.composite
def pages(draw: st.DrawFn) -> list[Entry]:
    """Entries that share a few shapes, or are all different; some deleted."""
    ids = sorted(draw(st.sets(st.tuples(number, number), min_size=1, max_size=12)))
    shapes = draw(st.lists(shape, min_size=1, max_size=3))
    plain = st.sampled_from(shapes).flatmap(
        lambda names: st.tuples(*[value for _ in names]).map(
            lambda values: [part for pair in zip(names, values, strict=True) for part in pair]
        )
    )
    kinds = draw(st.sampled_from([plain, st.one_of(plain, st.none()), st.one_of(plain, fields, st.none())]))
    return [(b"%d-%d" % one, draw(kinds)) for one in ids]


def contents(page: EntryPage, names: set[bytes]) -> object:
    """All that a page tells."""
    offsets, keys, values = page.fields()
    return (
        page.count,
        page.deleted,
        page.last_id,
        page.ids().to_pylist(),
        page.milliseconds().tolist(),
        {one: page.field(one).to_pylist() for one in names},
        offsets.to_pylist(),
        keys.to_pylist(),
        values.to_pylist(),
    )


def plain_contents(entries: list[Entry], names: set[bytes]) -> object:
    """The same from the entries themselves."""
    rows = [(one, fields) for one, fields in entries if fields is not None]
    return (
        len(rows),
        len(entries) - len(rows),
        StreamId.parse(entries[-1][0]),
        [one for one, _ in rows],
        [StreamId.parse(one).ms for one, _ in rows],
        {name: [dict(zip(f[0::2], f[1::2], strict=True)).get(name) for _, f in rows] for name in names},
        list(accumulate((len(f) // 2 for _, f in rows), initial=0)),
        [name for _, f in rows for name in f[0::2]],
        [value for _, f in rows for value in f[1::2]],
    )


def exact(reply: bytes) -> ExactPage:
    return ExactPage(parse_entries(reply, 1)[0])


def names_of(entries: list[Entry]) -> set[bytes]:
    return {b"a", b"nowhere"} | {part for _, f in entries if f for part in f[0::2]}


@pytest.mark.in_turn
@given(pages())
def test_both_ways_read_what_was_written(entries: list[Entry]) -> None:
    reply, names = resp(entries), names_of(entries)
    expected = plain_contents(entries, names)
    assert contents(exact(reply), names) == expected
    # The vectorised way may pass on a page where a part looks like an entry's start, that is tiny, or mere stars.
    like = any(b"*2\r\n$" in part + b"\r\n$" for _, f in entries if f for part in f)
    if not like and len(reply) >= 32 and 8 * reply.count(b"*") <= len(reply):
        assert contents(VectorPage(reply), names) == expected
    else:
        with contextlib.suppress(ShapeError):
            assert contents(VectorPage(reply), names) == expected


@pytest.mark.in_turn
@given(pages(), st.data())
def test_a_damaged_reply_is_never_read_as_columns_that_differ(entries: list[Entry], data: st.DataObject) -> None:
    """Whatever the vectorised way accepts, the exact way reads alike: flip a byte and see."""
    reply = bytearray(resp(entries))
    at = data.draw(st.integers(0, len(reply) - 1))
    reply[at] = data.draw(st.one_of(st.sampled_from(b"*$-019\r\n"), st.integers(0, 255)))
    try:
        page = VectorPage(bytes(reply))
    except (ShapeError, InvalidStreamId):
        return
    if all(re.fullmatch(rb"[0-9]{1,19}-[0-9]{1,19}", one) for one in page.ids().to_pylist()):
        assert contents(page, names_of(entries)) == contents(exact(bytes(reply)), names_of(entries))


@pytest.mark.in_turn
@given(pages(), st.data())
def test_a_reply_that_breaks_off_is_an_error(entries: list[Entry], data: st.DataObject) -> None:
    reply = resp(entries)
    with pytest.raises(ServerReplyError):
        decode_entries(reply[: data.draw(st.integers(0, len(reply) - 1))])


def test_a_reply_that_breaks_off_within_a_value_that_holds_entries_is_an_error() -> None:
    value = resp([(b"0-1", [b"a", b"b"])])[4:] * 4 + b"x" * 5_000
    reply = resp([(b"%d-0" % i, [b"a", value]) for i in (1, 2)])
    for length in range(150, len(reply), 37):
        with pytest.raises(ServerReplyError):
            decode_entries(reply[:length])


def test_large_pages_take_the_vectorised_way_and_small_ones_the_exact() -> None:
    reply = resp([(b"%d-0" % i, [b"year", b"2013", b"carrier", b"U" * (i % 130)]) for i in range(1, 500)])
    page = decode_entries(reply)
    assert isinstance(page, VectorPage)
    assert page.field(b"carrier").to_pylist() == [b"U" * (i % 130) for i in range(1, 500)]
    assert page.last_id == StreamId(499, 0)
    assert isinstance(decode_entries(resp([(b"1-0", [b"a", b"1"])])), ExactPage)


def test_entries_of_a_few_shapes_take_the_vectorised_way() -> None:
    shapes: list[list[bytes] | None] = [[b"a", b"1"], None, [b"b", b"2"], [b"a", b"1", b"b", b"2\r\n"]]
    page = decode_entries(resp([(b"%d-0" % i, shapes[i % 4]) for i in range(1, 2000)]))
    assert isinstance(page, VectorPage)
    values = {0: None, 2: b"2", 3: b"2\r\n"}
    assert page.field(b"b").to_pylist() == [values[i % 4] for i in range(1, 2000) if i % 4 != 1]
    assert page.deleted == 500


def test_entries_of_very_many_shapes_take_the_vectorised_way() -> None:
    """Optional fields: nearly every entry has a shape of its own; some are deleted, one field is there twice."""
    chance = random.Random(5)
    entries: list[Entry] = []
    for at in range(1, 600):
        names = [b"a", *(b"optional-%d" % i for i in range(9) if chance.random() < 0.5), b"b" * (at % 70), b"a"]
        fields = [part for name in names for part in (name, b"v" * chance.choice((0, 5, 50, 500, 5000)))]
        entries.append((b"%d-0" % at, fields if at % 50 else None))
    reply = resp(entries)
    page = decode_entries(reply)
    assert isinstance(page, VectorPage)
    assert contents(page, names_of(entries)) == plain_contents(entries, names_of(entries))


def test_an_entry_of_very_many_fields_is_read_in_good_time() -> None:
    wide: Entry = (b"7-0", [b"%d" % i for i in range(40_000)])
    narrow: list[Entry] = [(b"%d-0" % i, [b"a", b"1"] * (i % 7 + 1)) for i in range(8, 300)]
    for entries in ([wide], [wide, *narrow], [narrow[0], wide, *narrow]):
        page = decode_entries(resp(entries))
        assert isinstance(page, ExactPage)
        assert page.field(b"39998").to_pylist().count(b"39999") == 1


def test_a_value_that_looks_like_an_entry_takes_the_exact_way() -> None:
    value = resp([(b"1-0", [b"a", b"1"])])
    page = decode_entries(resp([(b"%d-0" % i, [b"a", value]) for i in range(1, 400)]))
    assert isinstance(page, ExactPage)
    assert page.field(b"a").to_pylist() == [value] * 399


def test_a_huge_value_is_copied_once() -> None:
    """64 MB: the reply itself, the column, and nothing of that size besides."""
    size = 64 << 20
    reply = memoryview(resp([(b"1-0", [b"a", b"x"]), (b"2-0", [b"a", b"v\n" * (size // 2)]), (b"3-0", [b"b", b"y"])]))
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    page = decode_entries(reply)
    column = page.field(b"a")
    assert pa.total_allocated_bytes() - before < 1.6 * size
    assert tracemalloc.get_traced_memory()[1] < size + (8 << 20)  # numpy's mask of the bytes
    tracemalloc.stop()
    assert len(column[1].as_buffer()) == size
    assert column.is_null().to_pylist() == [False, False, True]


def test_a_page_beyond_arrows_offsets_is_an_error() -> None:
    reply = memoryview(mmap.mmap(-1, 2**31))  # never touched
    with pytest.raises(UnsupportedError, match="entries that take 2,147,483,648 bytes together cannot be read as one"):
        decode_entries(reply)


def test_deleted_entries_are_counted_and_are_no_rows() -> None:
    reply = resp([(b"1-0", None), (b"2-0", [b"a", b"z"]), (b"3-0", None)])
    for page in (VectorPage(reply), exact(reply)):
        assert (page.count, page.deleted, page.last_id) == (1, 2, StreamId(3, 0))
    # XAUTOCLAIM before Redis 7 does not even name them.
    assert (exact(b"*2\r\n*-1\r\n" + reply[4:22]).deleted, VectorPage(resp([(b"1-0", None)] * 3)).count) == (2, 0)


def test_an_empty_reply_is_an_empty_page() -> None:
    page = decode_entries(b"*0\r\n")
    assert (page.count, page.last_id, page.fields()[0].to_pylist()) == (0, None, [0])


def test_an_error_reply_is_an_error() -> None:
    with pytest.raises(ServerReplyError, match="NOGROUP"):
        decode_entries(b"-NOGROUP No such key\r\n")


PENDING = st.lists(
    st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 9999), st.integers(0, 10**9), st.integers(0, 300)), max_size=8
)


@pytest.mark.in_turn
@given(
    st.lists(st.one_of(PENDING, st.just("NOGROUP No such key")), min_size=1),
    st.sampled_from([b"spark", b"c\r\nd", b""]),
)
def test_pending_is_read_alike_by_both_paths(
    parts: list[list[tuple[int, int, int, int]] | str], consumer: bytes
) -> None:
    replies = b"".join(
        b"-%b\r\n" % part.encode()
        if isinstance(part, str)
        else b"*%d\r\n" % len(part)
        + b"".join(
            b"*4\r\n" + bulk(b"%d-%d" % (ms, seq)) + bulk(consumer) + b":%d\r\n:%d\r\n" % (idle, times)
            for ms, seq, idle, times in part
        )
        for part in parts
    )
    with mock.patch.object(pending_page, "_SMALL", 0):
        found, exact = decode_pending(memoryview(replies), len(parts)), _exact(replies, len(parts))
    for part, page, same in zip(parts, found, exact, strict=True):
        if isinstance(part, str):
            assert str(page) == str(same) == part
            continue
        assert isinstance(page, PendingPage)
        assert isinstance(same, PendingPage)
        assert (page.count, page.last, page.ids) == (same.count, same.last, same.ids)
        assert page.deliveries.tolist() == [times for *_, times in part]
        assert page.ids == b"".join(bulk(b"%d-%d" % (ms, seq)) for ms, seq, _, _ in part)
        assert arguments_of(page.ids).to_pylist() == [bulk(b"%d-%d" % (ms, seq)) for ms, seq, _, _ in part]
        assert texts_of(page.ids).to_pylist() == [b"%d-%d" % (ms, seq) for ms, seq, _, _ in part]


@pytest.mark.parametrize(("count", "way"), [(100, "_exact"), (300, "_vectorised")])
def test_many_pending_entries_take_the_vectorised_way_and_few_the_exact(count: int, way: str) -> None:
    entry = b"*4\r\n" + bulk(b"1700000000000-0") + bulk(b"spark") + b":1\r\n:1\r\n"
    with mock.patch.object(pending_page, way, return_value=[]) as taken:
        assert decode_pending(b"*%d\r\n" % count + entry * count, 1) == []
    taken.assert_called_once()


def test_what_is_no_pending_entry_is_an_error() -> None:
    with pytest.raises(ServerReplyError, match="expected pending entries, the server answered with 5"):
        decode_pending(b":5\r\n", 1)


@pytest.mark.in_turn
@given(st.lists(st.one_of(pages(), st.just([])), max_size=6))
def test_several_replies_are_read_as_one_page(parts: list[list[Entry]]) -> None:
    together = [entry for part in parts for entry in part]
    back_to_back = b"".join(map(resp, parts))
    page, counts = decode_replies(back_to_back, len(parts))
    assert counts == [len(part) for part in parts]
    assert page.ids().to_pylist() == [one for one, fields in together if fields is not None]
    assert page.rows_of(counts).tolist() == [sum(fields is not None for _, fields in part) for part in parts]
    with contextlib.suppress(ShapeError):
        vector = VectorPage(back_to_back, len(parts))
        assert vector.counts == counts
        assert contents(vector, names_of(together)) == plain_contents(together, names_of(together))


def test_a_thousand_small_replies_take_the_vectorised_way() -> None:
    parts = [resp([(b"%d-%d" % (at, i), [b"n", b"%d" % i]) for i in range(at % 4)]) for at in range(1000)]
    page, counts = decode_replies(b"".join(parts), 1000)
    assert isinstance(page, VectorPage)
    assert counts == [at % 4 for at in range(1000)]
    assert page.field(b"n").to_pylist() == [b"%d" % i for at in range(1000) for i in range(at % 4)]


def test_an_error_among_several_replies_is_an_error() -> None:
    for wrong in (b"-WRONGTYPE no stream\r\n", b"$1\r\nx\r\n", b"*-1\r\n"):
        with pytest.raises(ServerReplyError, match="expected entries, the server answered with"):
            decode_replies(resp([(b"1-0", [b"a", b"1"])]) + wrong, 2)
    good = resp([(b"%d-0" % i, [b"a", b"1"]) for i in range(300)])
    with pytest.raises(ServerReplyError, match=r"expected entries, .* WRONGTYPE no stream \(reply 2 of 3\)"):
        decode_replies(good + b"-WRONGTYPE no stream\r\n" + good, 3)


# -- Some rows of a page are a page like any other ---------------------------------------------------------------------


def reply(entries: list[tuple[int, dict[bytes, bytes]]]) -> bytes:
    parts = [b"*%d\r\n" % len(entries)]
    for ms, fields in entries:
        parts += [b"*2\r\n", bulk(b"%d-0" % ms), b"*%d\r\n" % (2 * len(fields))]
        parts += [bulk(name) + bulk(value) for name, value in fields.items()]
    return b"".join(parts)


FIELDS = st.dictionaries(st.sampled_from([b"a", b"bb", b"c"]), st.binary(max_size=4), min_size=1)


@given(st.lists(st.lists(st.tuples(st.integers(0, 10**6), FIELDS, st.booleans()), max_size=6), min_size=1, max_size=4))
def test_a_page_of_picked_rows_is_these_rows(parts: list[list[tuple[int, dict[bytes, bytes], bool]]]) -> None:
    page, counts = decode_replies(b"".join(reply([one[:2] for one in part]) for part in parts), len(parts))
    together = [one for part in parts for one in part]
    picked = FilteredPage(page, np.flatnonzero([pick for *_, pick in together]))
    left = [one for one in together if one[2]]
    assert picked.count == len(left)
    assert picked.ids().to_pylist() == [b"%d-0" % ms for ms, *_ in left]
    assert picked.milliseconds().tolist() == [ms for ms, *_ in left]
    assert picked.field(b"bb").to_pylist() == [fields.get(b"bb") for _, fields, _ in left]
    offsets, names, values = picked.fields()
    bounds = offsets.to_pylist()
    assert [
        dict(zip(names[a:b].to_pylist(), values[a:b].to_pylist(), strict=True)) for a, b in itertools.pairwise(bounds)
    ] == [fields for _, fields, _ in left]
    assert picked.rows_of(counts).tolist() == [sum(pick for *_, pick in part) for part in parts]
