"""A query whose group another client moves."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from spark_streams.connector.errors import DataLossError
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.spark.data_source import ReadMaxRows
from tests.remedies import carry_out
from tools.driving import ALL, NEVER_AHEAD, add, begin, read, reader, stop_all
from tools.servers.server import Server


def read_two_of_ten(
    server: Server, client: redis.Redis, **options: str
) -> tuple[StreamReader, dict[str, Any], list[str]]:
    """Return a query that has read two of ten entries, its checkpoint, and the IDs of the entries."""
    ids = add(client, 10)
    one = reader(server, limits=NEVER_AHEAD, **options)
    end = one.latestOffset(start := begin(one), ReadMaxRows(2))
    assert read(one, start, end) == [0, 1]
    return one, end, ids


def stopped_by_a_moved_group(server: Server, client: redis.Redis, **options: str) -> tuple[dict[str, Any], list[str]]:
    """Return the checkpoint of a query that has read two of ten entries, and the IDs of these. Its group was sought to
    the fifth entry and then set to the seventh, so the query stops."""
    _, end, ids = read_two_of_ten(server, client, **options)
    stop_all()
    carry_out(server, f"(rstream groups seek s --group g --to {ids[4]} --even-active --yes)")
    client.xgroup_setid("s", "g", ids[6])
    with pytest.raises(DataLossError, match="above the checkpoint's"):
        reader(server, **options).latestOffset(end, ALL)
    return end, ids
