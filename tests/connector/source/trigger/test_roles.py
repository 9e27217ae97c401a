"""The query's consumer is deleted between the snapshot and the question of what is pending."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import redis

from spark_streams.connector.errors import DataLossError
from spark_streams.connector.wire.connection import Connection
from tools.driving import ALL, NEVER_AHEAD, add, begin, drain, pending_count, positions, read, reader
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


def test_entries_that_are_delivered_after_the_consumer_was_deleted_amid_a_batch_are_read(
    server: Server, client: redis.Redis
) -> None:
    """The second command delivers as many entries as the deletion has taken: it seems to deliver none."""
    add(client, 12)
    one = reader(server, limits=replace(NEVER_AHEAD, reserve_step=6, reserve_round=6))
    start = begin(one)
    steps: list[int] = []

    def delete(*_: object) -> None:
        steps.append(1)
        if len(steps) == 2:
            client.xgroup_delconsumer("s", "g", "spark")

    with before_sending(b"XREADGROUP", act=delete):
        end = one.latestOffset(start, ALL)
    assert len(steps) >= 2
    assert read(one, start, end) == list(range(6))
    after = one.latestOffset(end, ALL)
    assert read(one, end, after) == list(range(6, 12))
    assert one.latestOffset(after, ALL) == after
    assert pending_count(client) == 0


def test_a_stream_that_vanishes_before_entries_are_claimed_is_a_loss_of_that_name(
    server: Server, client: redis.Redis
) -> None:
    add(client, 2)
    one = reader(server, claimIdle="1ms", limits=NEVER_AHEAD)
    end = one.latestOffset(start := begin(one), ALL)
    assert read(one, start, end) == [0, 1]
    add(client, 2, first=2)
    client.xreadgroup("g", "bob", {"s": ">"})
    time.sleep(0.01)
    with (
        before_sending(b"GET", b"rstream:committed:{s}:g:bob", act=lambda *_: client.delete("s"), times=1) as asked,
        pytest.raises(DataLossError, match="is missing"),
    ):
        one.latestOffset(end, ALL)
    assert asked
