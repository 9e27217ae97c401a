"""Fingerprints of rows: the same for the same row wherever it is, others for others; and multisets of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.connector.errors import LedgerError
from spark_streams.connector.sink.fingerprint import Multiset, row_hashes
from spark_streams.connector.sink.ledger import pack_mark, read_mark

values = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.binary(min_size=60, max_size=70),
    st.binary(min_size=250, max_size=260),
    st.sampled_from([b"", b"\0", b"\0" * 9]),
)
rows = st.lists(st.tuples(values, values), min_size=1, max_size=12)


def hashes(wanted: list[tuple[bytes | None, ...]]) -> list[int]:
    return row_hashes([pa.array(column, pa.binary()) for column in zip(*wanted, strict=True)]).tolist()


@pytest.mark.in_turn
@given(rows, st.data())
def test_a_row_has_the_same_fingerprint_in_every_batch(
    some: list[tuple[bytes | None, ...]], data: st.DataObject
) -> None:
    """Alone, in a slice, beside longer and shorter values: each of these goes another way through the code."""
    found = hashes(some)
    assert [hashes([row])[0] for row in some] == found
    start = data.draw(st.integers(0, len(some) - 1))
    columns = [pa.array(column, pa.binary()).slice(start) for column in zip(*some, strict=True)]
    assert row_hashes(columns).tolist() == found[start:]
    for lengthy in ([(b"x" * 5000, b"")], [(b"x" * 200, b"y" * 257)] * 20):
        assert hashes([*some, *lengthy])[: len(some)] == found


@given(rows)
def test_other_rows_have_other_fingerprints(some: list[tuple[bytes | None, ...]]) -> None:
    distinct = sorted(set(some), key=repr)
    assert len(set(hashes(distinct))) == len(distinct)


def test_null_empty_order_and_place_count() -> None:
    some = [(b"a", b"b"), (b"b", b"a"), (b"ab", b""), (b"", b"ab"), (b"ab", None), (None, b"ab"), (None, None)]
    some += [(b"12345678" * 2, b"x"), (b"12345678", b"12345678x"), (b"\0" * 8, b""), (b"\0" * 16, b"")]
    assert len(set(hashes(some))) == len(some)


def test_long_values_are_distinguished() -> None:
    """On both sides of the length from which on another way is taken."""
    for size in (255, 256, 257, 1000):
        assert len(set(hashes([(b"x" * (size - 1) + bytes([n]), b"y") for n in range(50)]))) == 50


small = st.lists(st.integers(0, 5), max_size=12)


@given(small, small, small)
def test_a_multiset_counts(first: list[int], second: list[int], asked: list[int]) -> None:
    """As collections.Counter does, for what is in it and what is taken out."""
    many, counted = Multiset(), Counter(first) + Counter(second)
    many.add(np.array(first, np.uint64))
    many.add(np.array(second, np.uint64))
    assert many.size == counted.total()
    found = many.matching(np.array(asked, np.uint64))
    left = Counter(counted)
    for value, hit in zip(asked, found.tolist(), strict=True):
        assert hit == (left[value] > 0)
        left[value] -= hit
    many.remove(np.array(asked, np.uint64))
    assert many.size == left.total()
    assert many.matching(np.arange(6, dtype=np.uint64)).tolist() == [left[value] > 0 for value in range(6)]


def test_a_mark_reads_back_and_a_spoilt_one_is_named() -> None:
    written, claimed = np.array([1, 2**64 - 1], np.uint64), np.array([7], np.uint64)
    mark = pack_mark(written, claimed)
    assert len(mark) == 8 + 3 * 8
    assert [part.tolist() for part in read_mark(mark)] == [written.tolist(), claimed.tolist()]
    for spoilt in (b"", mark[:-1], mark + b"x"):
        with pytest.raises(LedgerError, match="cannot be read"):
            read_mark(spoilt)
