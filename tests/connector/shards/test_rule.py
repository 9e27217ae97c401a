"""The shard of a key, and its name: as docs/reference/keys.md says, and as an independent implementation does."""

from __future__ import annotations

import zlib
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.connector.keys import slot_of
from spark_streams.connector.shards.names import MAX_NAME, MAX_SHARDS, Shard, may_be_in_shards, shards_of
from spark_streams.connector.sink.chunks import crc32, shards_of_keys
from tests.connector.shards import rule


def test_the_test_vector_of_the_docs() -> None:
    """By the product, and bit by bit by another implementation."""
    vector = rule.vector()
    assert {"", "42", "Ærøskøbing", "🦊", "a" * 1_000} <= {key for key, *_ in vector}
    keys = pa.array([key for key, *_ in vector])
    assert crc32(keys).tolist() == [crc for _, crc, _, _ in vector] == [rule.crc32(key.encode()) for key, *_ in vector]
    for count, shards in ((8, [row[2] for row in vector]), (3, [row[3] for row in vector])):
        assert [shards_of("orders", count)[number] for number in shards_of_keys(keys, count)] == shards
        assert [rule.shard_of("orders", key, count) for key, *_ in vector] == shards


@given(st.lists(st.one_of(st.none(), st.binary(max_size=80))), st.integers(0, 5))
def test_crc32_of_any_bytes_anywhere_in_a_column(keys: list[bytes | None], start: int) -> None:
    column = pa.array(keys, pa.binary()).slice(start)
    assert crc32(column).tolist() == [zlib.crc32(key or b"") for key in keys[start:]]
    assert crc32(column.cast(pa.large_binary())).tolist() == crc32(column).tolist()


@pytest.mark.parametrize("count", [1, 2, 3, 8, 12, 100, MAX_SHARDS])
def test_shards_are_spread_evenly_over_the_nodes_of_a_cluster(count: int) -> None:
    """Of as many or fewer nodes, each with as many slots as the next one; no two are in one slot."""
    slots = [slot_of(name.encode()) for name in shards_of("orders", count)]
    assert slots == [(2 * number + 1) * 8192 // count for number in range(count)]
    assert len(set(slots)) == count
    for nodes in {1, 2, 3, min(5, count), count}:
        of_node = Counter(slot * nodes // 16384 for slot in slots)
        assert max(of_node.values()) - min(of_node[node] for node in range(nodes)) <= 1


def test_keys_are_spread_over_the_shards() -> None:
    numbers = shards_of_keys(pa.array([f"customer-{n}" for n in range(80_000)]), 8)
    assert np.bincount(numbers, minlength=8).min() > 9_700


def test_a_name_says_which_shard_it_is_and_no_other_name_does() -> None:
    for shard in (Shard("orders", 3, 8), Shard("a:b/c d", 0, 1), Shard("é", MAX_SHARDS - 1, MAX_SHARDS)):
        assert Shard.parse(shard.name) == shard
    name = Shard("orders", 3, 8).name
    near = [name.replace("3/8", "4/8"), name.replace("3/8", "03/8"), name[:-1], f"{name} ", f"x{{{name}", "orders", ""]
    assert [Shard.parse(one) for one in near] == [None] * len(near)
    assert not may_be_in_shards("{a}")
    assert may_be_in_shards("a b/c:0")


@pytest.mark.parametrize(
    ("number", "count", "is_shard"),
    [(0, 0, False), (0, 1, True), (1, 1, False), (7, 8, True), (8, 8, False), (9, 8, False), (255, 256, True)],
)
def test_a_shard_has_a_number_below_the_number_of_shards(number: int, count: int, is_shard: bool) -> None:
    name = Shard("orders", number, count).name if is_shard else f"orders:{number}/{count}:{{1}}"
    assert Shard.parse(name) == (Shard("orders", number, count) if is_shard else None)
    assert Shard.parse(f"orders:0/{MAX_SHARDS + 1}:{{1}}") is None


@pytest.mark.parametrize("name", ["a" * MAX_NAME, "\u00e9" * (MAX_NAME // 2), "\U0001f98a" * (MAX_NAME // 4)], ids=len)
def test_the_longest_name_of_a_stream_in_shards_is_measured_in_bytes(name: str) -> None:
    assert may_be_in_shards(name)
    assert may_be_in_shards(name[1:])
    assert not may_be_in_shards(name + "a")
