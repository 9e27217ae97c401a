"""Reply bytes to columns: the vectorised pass against the exact path, and the cases that only the latter can read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.errors import ServerReplyError
from spark_streams.ids import StreamId
from spark_streams.wire.decode import (
    EntryPage,
    ExactPage,
    VectorPage,
    _parse,
    decode_entries,
    entries_of_read,
    join_replies,
)
from spark_streams.wire.lines import ShapeError
from spark_streams.wire.pending import _exact, decode_pending

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
nasty = st.sampled_from(
    [b"", b"*2", b"$3", b"*4", b"a\r\nb", b"\n", b"\r", b"*2\r\n$1\r\n1\r\n*2\r\n", b"-", b"\xff\xfe", b"$04"]
)
value = st.one_of(st.binary(max_size=12), nasty, st.binary(min_size=90, max_size=120))
name = st.one_of(st.sampled_from([b"a", b"b", b"year", b"a-longer-field-name", b""]), nasty)
pairs = st.lists(st.tuples(name, value), min_size=1, max_size=4)
fields = pairs.map(lambda pairs: [part for pair in pairs for part in pair])
shape = st.lists(st.sampled_from([b"a", b"b", b"year", b"abcdefgh", b"abcdefghi"]), min_size=1, max_size=4)


@st.composite
def pages(draw: st.DrawFn) -> list[Entry]:
    ids = sorted(draw(st.sets(st.tuples(st.integers(0, 2**63), st.integers(0, 10**9)), min_size=1, max_size=12)))
    shapes = draw(st.lists(shape, min_size=1, max_size=3))
    plain = st.sampled_from(shapes).flatmap(
        lambda names: st.tuples(*[st.binary(max_size=8).filter(lambda v: b"\n" not in v) for _ in names]).map(
            lambda values: [part for pair in zip(names, values, strict=True) for part in pair]
        )
    )
    wild = draw(st.booleans())
    return [(b"%d-%d" % one, draw(st.one_of(st.none(), fields, plain) if wild else plain)) for one in ids]


def contents(page: EntryPage, names: set[bytes]) -> object:
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


@given(pages())
def test_both_paths_read_the_same(entries: list[Entry]) -> None:
    reply = resp(entries)
    names = {b"a", b"nowhere"} | {part for _, f in entries if f for part in f[0::2]}
    exact = ExactPage(_parse(reply))
    assert contents(decode_entries(memoryview(reply)), names) == contents(exact, names)
    assert exact.ids().to_pylist() == [i for i, f in entries if f is not None]


@given(pages(), st.data())
def test_a_damaged_reply_is_never_read_as_columns_that_differ(entries: list[Entry], data: st.DataObject) -> None:
    """Whatever the vectorised pass accepts, the exact path reads alike: flip a byte and see."""
    reply = bytearray(resp(entries))
    at = data.draw(st.integers(0, len(reply) - 1))
    reply[at] = data.draw(st.integers(0, 255))
    try:
        page = VectorPage(bytes(reply))
    except ShapeError:
        return
    exact = ExactPage(_parse(bytes(reply)))
    assert contents(page, {b"a", b"b", b"year"}) == contents(exact, {b"a", b"b", b"year"})


def test_entries_of_one_shape_take_the_vectorised_pass() -> None:
    reply = resp([(b"%d-0" % i, [b"year", b"2013", b"carrier", b"U" * (i % 130)]) for i in range(1, 500)])
    page = decode_entries(reply)
    assert isinstance(page, VectorPage)
    assert page.field(b"carrier").to_pylist() == [b"U" * (i % 130) for i in range(1, 500)]
    assert page.last_id == StreamId(499, 0)


def test_entries_of_a_few_shapes_take_the_vectorised_pass() -> None:
    shapes = [[b"a", b"1"], [b"b", b"2"], [b"a", b"1", b"b", b"2"]]
    page = decode_entries(resp([(b"%d-0" % i, shapes[i % 3]) for i in range(1, 100)]))
    assert isinstance(page, VectorPage)
    assert page.field(b"b").to_pylist() == [None if i % 3 == 0 else b"2" for i in range(1, 100)]


def test_a_value_with_a_line_end_takes_the_exact_path() -> None:
    page = decode_entries(resp([(b"1-0", [b"a", b"x\r\ny"]), (b"2-0", [b"a", b"z"])]))
    assert isinstance(page, ExactPage)
    assert page.field(b"a").to_pylist() == [b"x\r\ny", b"z"]


def test_a_field_given_twice_counts_as_its_last_value_on_both_paths() -> None:
    reply = resp([(b"1-0", [b"a", b"1", b"a", b"2"])])
    assert VectorPage(reply).field(b"a").to_pylist() == ExactPage(_parse(reply)).field(b"a").to_pylist() == [b"2"]


def test_deleted_entries_are_counted_and_are_no_rows() -> None:
    page = decode_entries(resp([(b"1-0", None), (b"2-0", [b"a", b"z"]), (b"3-0", None)]))
    assert (page.count, page.deleted, page.last_id) == (1, 2, StreamId(3, 0))


def test_an_empty_reply_is_an_empty_page() -> None:
    page = decode_entries(b"*0\r\n")
    assert (page.count, page.last_id, page.fields()[0].to_pylist()) == (0, None, [0])


def test_an_error_reply_is_an_error() -> None:
    with pytest.raises(ServerReplyError, match="NOGROUP"):
        decode_entries(b"-NOGROUP No such key\r\n")
    with pytest.raises(ServerReplyError, match="NOGROUP"):
        entries_of_read(memoryview(b"-NOGROUP No such key\r\n"), b"s")


@pytest.mark.parametrize("last", [0, 1, 5, 9, 10, 50])
def test_counting_up_to_an_id(last: int) -> None:
    page = decode_entries(resp([(b"%d-0" % i, [b"a", b"1"]) for i in range(1, 10)]))
    assert page.count_up_to(StreamId(last, 0)) == min(last, 9)


@given(
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 9999), st.integers(0, 10**9), st.integers(0, 300))),
    st.sampled_from([b"spark", b"c\r\nd", b""]),
)
def test_pending_is_read_alike_by_both_paths(entries: list[tuple[int, int, int, int]], consumer: bytes) -> None:
    reply = b"*%d\r\n" % len(entries) + b"".join(
        b"*4\r\n" + bulk(b"%d-%d" % (ms, seq)) + bulk(consumer) + b":%d\r\n:%d\r\n" % (idle, times)
        for ms, seq, idle, times in entries
    )
    page, exact = decode_pending(memoryview(reply)), _exact(reply)
    assert (page.count, page.last, page.ids) == (exact.count, exact.last, exact.ids)
    assert page.deliveries.tolist() == [times for *_, times in entries]
    assert page.ids == b"".join(bulk(b"%d-%d" % (ms, seq)) for ms, seq, _, _ in entries)


@given(st.lists(st.one_of(pages(), st.just([])), max_size=6))
def test_several_replies_are_read_as_one_page(parts: list[list[Entry]]) -> None:
    joined, counts = join_replies([memoryview(resp(part)) for part in parts])
    together = [entry for part in parts for entry in part]
    assert bytes(joined) == resp(together)
    assert counts == [len(part) for part in parts]
    page = decode_entries(joined)
    assert page.ids().to_pylist() == [one for one, fields in together if fields is not None]
    assert page.rows_of(counts).tolist() == [sum(fields is not None for _, fields in part) for part in parts]


def test_an_error_among_several_replies_is_an_error() -> None:
    for wrong in (b"-WRONGTYPE no stream\r\n", b"$1\r\nx\r\n", b"*-1\r\n"):
        with pytest.raises(ServerReplyError, match="expected entries, the server answered with"):
            join_replies([memoryview(resp([(b"1-0", [b"a", b"1"])])), memoryview(wrong)])
