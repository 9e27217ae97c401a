"""A page of dead letters as columns says what `opened` says of each; kinds are counted as a loop would count them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.connector.deadletter.envelope import FIELDS, MARK, NAMES, dead_letter_fields, open_envelope, raw
from spark_streams.connector.deadletter.letter_page import DeadLetterPage
from spark_streams.connector.deadletter.listing import KindCounts
from spark_streams.connector.wire.connection import pack
from spark_streams.connector.wire.entry_page import decode_entries

_names = st.one_of(st.sampled_from([*FIELDS, MARK, b"n", b""]), st.binary(max_size=4))
_entry = st.lists(st.tuples(_names, st.binary(max_size=6)), min_size=1, max_size=20).map(
    lambda pairs: [word for pair in pairs for word in pair]
)
_letter = _entry.map(lambda words: dead_letter_fields(words, {"stream": "s", "id": "1-0", "reason": "r"}))


def page_of(entries: list[list[bytes]]) -> DeadLetterPage:
    """As an XRANGE reply brings them."""
    rows = [
        b"*2\r\n$%d\r\n%b\r\n" % (len(b"%d-0" % n), b"%d-0" % n) + pack(*words) for n, words in enumerate(entries, 1)
    ]
    return DeadLetterPage(decode_entries(b"*%d\r\n" % len(rows) + b"".join(rows)))


@pytest.mark.in_turn
@given(st.lists(st.one_of(_entry, _letter), max_size=12), st.integers(0, 400))
def test_columns_and_single_dead_letters_agree(entries: list[list[bytes]], more: int) -> None:
    entries = entries + [dead_letter_fields([b"n", b"%d" % n], {"stream": "t", "id": "2-0"}) for n in range(more)]
    page = page_of(entries)
    assert page.count == len(entries)
    rows = np.arange(page.count)[:: 1 + more % 3]
    expected = [open_envelope(entries[row]) for row in rows]
    fields = [[word for pair in found for word in pair] for found in page.originals(rows).to_pylist()]
    assert fields == [list(original) for original, _ in expected]
    whole = [[word for pair in found for word in pair] for found in page.all_fields(rows).to_pylist()]
    assert whole == [entries[row] for row in rows]
    for name in NAMES:
        told = page.envelope_column(name).to_pylist()
        assert [told[row] for row in rows] == [
            raw(envelope[name]) if name in envelope else None for _, envelope in expected
        ]
    assert page.are_dead_letters()[rows].tolist() == [{"stream", "id"} <= envelope.keys() for _, envelope in expected]
    for name in (b"n", b"dl.id"):
        values = page.field(name).to_pylist()
        originals = [open_envelope(words)[0] for words in entries]
        own = [dict(zip(words[0::2], words[1::2], strict=True)).get(name) for words in originals]
        assert values == own


_text = st.sampled_from([b"a", b"b", b"", b"\xff", None])


@given(st.lists(st.tuples(_text, _text, _text, st.booleans()), max_size=40), st.integers(1, 9))
def test_kinds_are_counted_as_a_loop_counts_them(rows: list[tuple[bytes | None, ...]], cut: int) -> None:
    counts = KindCounts()
    expected: dict[tuple[str, ...], list[int]] = {}
    for start in range(0, len(rows), cut):
        some = rows[start : start + cut]
        ids = pa.array([b"%d-0" % (start + at) for at in range(len(some))], pa.binary())
        one, two, three = (pa.array([row[at] for row in some], pa.binary()) for at in range(3))
        kept = np.flatnonzero([row[3] for row in some])
        counts.add(ids, [one, "always", two, three], kept)
        for at in kept.tolist():
            first, second, third = ((value or b"").decode("utf-8", "surrogateescape") for value in some[at][:3])  # type: ignore[union-attr]
            expected.setdefault((first, "always", second, third), []).append(start + at)
    assert {kind: (count.letters, count.first, count.last) for kind, count in counts} == {
        kind: (len(places), f"{places[0]}-0", f"{places[-1]}-0") for kind, places in expected.items()
    }
    assert counts.letters == sum(map(len, expected.values()))


def test_counts_of_very_many_kinds_stay_small() -> None:
    counts = KindCounts(max_kinds=10)
    for start in range(0, 100, 5):
        values = pa.array([b"%d" % n for n in range(start, start + 5)], pa.binary())
        counts.add(values, [values, "x"], np.arange(5))
    assert len(counts.counts) == 11
    assert counts.counts["(others)", "(others)"].letters == 90
    assert counts.letters == 100
