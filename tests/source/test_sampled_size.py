"""The sample that tells how large the next entries of a stream are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import redis

from spark_streams.errors import WrongKeyTypeError
from spark_streams.model.ids import MIN_ID, StreamId
from spark_streams.source.limits import LIMITS
from spark_streams.source.sampled_size import SampledSize, sampled_sizes
from spark_streams.wire.address.address import Address
from spark_streams.wire.connection.connection import Connection
from tools.servers.server import Server

FEW = replace(LIMITS, sampled_entries=10, sampled_at_once=40, sampled_bytes=1_000)


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    with Connection(Address.parse(server.url)) as opened:
        yield opened


def fill(client: redis.Redis, stream: str, sizes: Sequence[int]) -> None:
    """Entries 1-0, 2-0 … whose names and values have so many bytes."""
    for number, size in enumerate(sizes, 1):
        client.xadd(stream, {"a": "x" * (size - 3), "b": "y"}, id=f"{number}-0")


def test_the_average_is_of_names_and_values_behind_the_given_id(client: redis.Redis, connection: Connection) -> None:
    fill(client, "s", [500] * 3 + [10, 20, 30, 40])
    fill(client, "other", [7])
    found = sampled_sizes(connection, {"s": StreamId(3, 0), "other": MIN_ID}, FEW)
    assert found == {"s": SampledSize(25.0, 4), "other": SampledSize(7.0, 1)}


def test_a_sample_has_so_many_entries(client: redis.Redis, connection: Connection) -> None:
    fill(client, "s", [10] * 10 + [500] * 5)
    assert sampled_sizes(connection, {"s": MIN_ID}, FEW) == {"s": SampledSize(10.0, 10)}


def test_many_streams_share_a_sample_and_each_has_an_entry_of_it(client: redis.Redis, connection: Connection) -> None:
    streams = {f"s:{n}": MIN_ID for n in range(50)}
    for stream in streams:
        fill(client, stream, [10, 20, 30])
    assert set(sampled_sizes(connection, streams, FEW).values()) == {SampledSize(10.0, 1)}
    some = dict(list(streams.items())[:20])
    assert set(sampled_sizes(connection, some, FEW).values()) == {SampledSize(15.0, 2)}


def test_a_sample_of_large_entries_is_small(client: redis.Redis, connection: Connection) -> None:
    fill(client, "s", [400] * 10)
    fill(client, "huge", [1_000_000, 10])
    found = sampled_sizes(connection, {"s": MIN_ID, "huge": MIN_ID}, FEW)
    assert found == {"s": SampledSize(400.0, 2), "huge": SampledSize(1_000_000.0, 1)}


def test_a_sample_before_these_entries_tells_how_many_to_read(client: redis.Redis, connection: Connection) -> None:
    fill(client, "s", [400] * 10)
    fill(client, "other", [100] * 10)
    before = {"s": SampledSize(300.0, 2), "gone": SampledSize(10.0, 7)}
    assert sampled_sizes(connection, {"s": MIN_ID, "other": MIN_ID}, FEW, before) == {
        "s": SampledSize(400.0, 3),
        "other": SampledSize(100.0, 10),
    }
    huge = {"s": SampledSize(5_000.0, 1)}
    assert sampled_sizes(connection, {"s": MIN_ID}, FEW, huge) == {"s": SampledSize(400.0, 1)}


def test_a_stream_without_such_entries_has_the_least_average(client: redis.Redis, connection: Connection) -> None:
    fill(client, "s", [100])
    client.xadd("blank", {"": ""})
    found = sampled_sizes(connection, {"s": StreamId(1, 0), "nowhere": MIN_ID, "blank": MIN_ID}, FEW)
    assert found == dict.fromkeys(("s", "nowhere", "blank"), SampledSize(1.0, 1))


def test_a_key_of_another_type_is_a_named_error(client: redis.Redis, connection: Connection) -> None:
    client.set("s", "text")
    with pytest.raises(WrongKeyTypeError, match="'s'"):
        sampled_sizes(connection, {"s": MIN_ID}, FEW)


@pytest.mark.parametrize(("size", "entries"), [(0, 1), (1, 1), (10, 1), (11, 2), (100, 10), (10_000, 100)])
def test_as_many_entries_fit_as_come_up_to_the_size_one_at_least(size: int, entries: int) -> None:
    assert SampledSize(10.0, 5).fitting(size) == entries
