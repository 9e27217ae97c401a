"""The sample from which the average size of a stream's next entries is estimated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import redis

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.connector.errors import WrongKeyTypeError
from spark_streams.connector.source.limits import LIMITS
from spark_streams.connector.source.quota import average_sizes
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
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


def test_the_average_is_of_names_and_values_above_the_given_id(client: redis.Redis, connection: Connection) -> None:
    fill(client, "s", [500] * 3 + [10, 20, 30, 40])
    fill(client, "other", [7])
    assert average_sizes(connection, {"s": StreamId(3, 0), "other": MIN_ID}, FEW) == {"s": 25.0, "other": 7.0}


def test_a_sample_has_at_most_this_many_entries(client: redis.Redis, connection: Connection) -> None:
    fill(client, "s", [10] * 10 + [500] * 5)
    assert average_sizes(connection, {"s": MIN_ID}, FEW) == {"s": 10.0}


def test_many_streams_share_a_sample_and_each_has_an_entry_of_it(client: redis.Redis, connection: Connection) -> None:
    streams = {f"s:{n}": MIN_ID for n in range(50)}
    for stream in streams:
        fill(client, stream, [10, 20, 30])
    assert set(average_sizes(connection, streams, FEW).values()) == {10.0}
    some = dict(list(streams.items())[:20])
    assert set(average_sizes(connection, some, FEW).values()) == {15.0}


def test_a_sample_of_large_entries_is_small(client: redis.Redis, connection: Connection) -> None:
    fill(client, "s", [400] * 2 + [4_000] * 8)
    fill(client, "huge", [1_000_000, 10])
    assert average_sizes(connection, {"s": MIN_ID, "huge": MIN_ID}, FEW) == {"s": 400.0, "huge": 1_000_000.0}


def test_a_stream_without_such_entries_has_the_size_of_its_last_one(
    client: redis.Redis, connection: Connection
) -> None:
    fill(client, "s", [100, 300])
    client.xadd("blank", {"": ""})
    sizes = average_sizes(connection, {"s": StreamId(2, 0), "nowhere": MIN_ID, "blank": MIN_ID}, FEW)
    assert sizes == {"s": 300.0, "nowhere": 1.0, "blank": 1.0}


def test_a_key_of_another_type_is_a_named_error(client: redis.Redis, connection: Connection) -> None:
    client.set("s", "text")
    with pytest.raises(WrongKeyTypeError, match="'s'"):
        average_sizes(connection, {"s": MIN_ID}, FEW)
