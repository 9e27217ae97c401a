"""The query's consumer is deleted between the snapshot and the question of what is pending."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from spark_streams.errors import DataLossError
from spark_streams.wire.connection.connection import Connection
from tools.driving import ALL, add, drain, positions, read, reader
from tools.sending import before_sending
from tools.servers.server import Server


@pytest.mark.parametrize("lenient", [False, True])
def test_a_deleted_consumer_is_noticed_before_the_batch_takes_newer_entries(
    server: Server, client: redis.Redis, lenient: bool
) -> None:
    """It is deleted between the trigger's look at the group and the batch's XPENDING for its entries."""
    options = {"failOnDataLoss": str(not lenient).lower()}
    add(client, 2)
    one = reader(server, **options)
    end = one.latestOffset(at := one.initialOffset(), ALL)
    assert read(one, at, end) == [0, 1]
    assert one.latestOffset(end, ALL) == end  # committed
    add(client, 1, first=2)
    one.latestOffset(end, ALL)  # dies before its offset is logged
    add(client, 3, first=3)
    deleted = []

    def delete(_: Connection, request: bytes) -> None:
        from_the_checkpoint = b"(" + positions(end)["s"].encode() in request
        if from_the_checkpoint and not deleted:
            deleted.append(client.xgroup_delconsumer("s", "g", "spark"))

    again = reader(server, **options)
    with before_sending(b"XPENDING", act=delete):
        if lenient:
            numbers = [n for batch in drain(again, None, end) for n in batch]
            lost: Any = again.reportLatestOffset().get("lost", {})
            assert (numbers, lost) in [([2, 3, 4, 5], {}), ([3, 4, 5], {"s": 1})]
        else:
            with pytest.raises(DataLossError, match="consumer 'spark'"):
                again.latestOffset(end, ALL)
    assert deleted == [1]
