"""A page of entries that came back for another try is a page of the entries that they were."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from spark_streams.connector.deadletter.envelope import dead_letter_fields
from spark_streams.connector.source.task.read_partition import ReturnedPage
from spark_streams.connector.wire.entry_page import decode_replies

PAIRS = st.dictionaries(st.sampled_from([b"a", b"bb", b"dl.id"]), st.binary(max_size=4))


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def reply(entries: list[tuple[int, dict[bytes, bytes]]]) -> bytes:
    parts = [b"*%d\r\n" % len(entries)]
    for ms, own in entries:
        told = {"stream": "orders", "id": f"{ms}-7", "deliveries": "2", "first-failed": "2026-11-21T10:00:00.000000Z"}
        words = dead_letter_fields([word for pair in own.items() for word in pair], told)
        parts += [b"*2\r\n", bulk(b"1-1"), b"*%d\r\n" % len(words), *map(bulk, words)]
    return b"".join(parts)


@given(st.lists(st.lists(st.tuples(st.integers(0, 10**6), PAIRS), max_size=5), min_size=1, max_size=4))
def test_a_page_of_returned_entries_has_their_original_fields(
    parts: list[list[tuple[int, dict[bytes, bytes]]]],
) -> None:
    raw, counts = decode_replies(b"".join(map(reply, parts)), len(parts))
    page = ReturnedPage(raw, "rstream:returned:{orders}:g")
    entries = [one for part in parts for one in part]
    assert page.count == len(entries)
    assert page.rows_of(counts).tolist() == [len(part) for part in parts]
    assert page.ids().to_pylist() == [b"%d-7" % ms for ms, _ in entries]
    assert page.milliseconds().tolist() == [ms for ms, _ in entries]
    assert page.streams().to_pylist() == ["orders"] * len(entries)
    assert page.attempts().number.to_pylist() == [3] * len(entries)
    assert page.field(b"bb").to_pylist() == [own.get(b"bb") for _, own in entries]
    offsets, names, values = page.fields()
    pairs = list(zip(names.to_pylist(), values.to_pylist(), strict=True))
    assert [dict(pairs[a:b]) for a, b in itertools.pairwise(offsets.to_pylist())] == [own for _, own in entries]
