"""Some rows of a page are a page like any other."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.connector.wire.entries.entry_page import FilteredPage, decode_replies


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


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
