"""What an error about a group advises is followed word for word: every entry is read, and none is dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from spark_streams.connector.errors import RStreamError
from spark_streams.connector.source.group.recovery import DataLoss, Finding, Kind, MessageContext
from spark_streams.connector.source.group_client import Membership
from tests.connector.source.trigger.test_observe import TEN, batches
from tests.remedies import carry_out
from tools.driving import ALL, NEVER_AHEAD, add, another_reader, drain, pending_count, read, reader, stop_all
from tools.servers.server import Server

Hand = Callable[[redis.Redis, list[str]], object]


def created_again(client: redis.Redis, ids: list[str]) -> None:
    client.xgroup_destroy("s", "g")
    client.xgroup_create("s", "g", ids[34])


def deleted_with_pending(client: redis.Redis, ids: list[str]) -> None:
    """An operator drops the query's consumer with ten entries that no batch had yet."""
    client.xreadgroup("g", "spark", {"s": ">"}, count=10)
    client.xgroup_delconsumer("s", "g", "spark")


# What an operator does to the group of a stopped query that has read 20 of 50 entries; and what the error says.
HANDS: dict[str, tuple[Hand, str]] = {
    "set forward": (
        lambda client, ids: client.xgroup_setid("s", "g", ids[29]),
        "above the checkpoint's .*set the group back",
    ),
    "destroyed": (lambda client, ids: client.xgroup_destroy("s", "g"), "Create the group at the checkpoint"),
    "made anew ahead": (created_again, "above the checkpoint's .*set the group back"),
    "consumer deleted": (deleted_with_pending, "above the checkpoint's .*set the group back"),
}


@pytest.mark.parametrize("hand", list(HANDS))
def test_a_group_is_mended_as_the_error_says(server: Server, client: redis.Redis, hand: str) -> None:
    ids = add(client, 50)
    at = batches(reader(server, limits=NEVER_AHEAD), 2)[-1]
    stop_all()
    lay, said = HANDS[hand]
    lay(client, ids)
    with pytest.raises(RStreamError, match=said) as raised:
        reader(server, limits=NEVER_AHEAD).latestOffset(at, TEN)
    stop_all()
    carry_out(server, str(raised.value))
    found = drain(reader(server, limits=NEVER_AHEAD), None, at)
    assert [n for batch in found for n in batch] == list(range(20, 50))
    assert pending_count(client) == 0


def test_a_shared_group_that_was_set_back_is_mended_as_the_error_says(server: Server, client: redis.Redis) -> None:
    """First the other consumer reads what it may not have finished; then the query goes on."""
    ids = add(client, 50)
    client.xgroup_create("s", "g", "0")
    client.xgroup_createconsumer("s", "g", "bob")
    at = batches(reader(server, limits=NEVER_AHEAD), 2)[-1]
    stop_all()
    client.xgroup_setid("s", "g", ids[9])
    with pytest.raises(RStreamError, match="Either start 'bob' and wait until it has reached") as raised:
        reader(server, limits=NEVER_AHEAD).latestOffset(at, TEN)
    stop_all()
    [(_, theirs)] = client.xreadgroup("g", "bob", {"s": ">"}, count=10)
    assert [entry for entry, _ in theirs] == ids[10:20]
    found = drain(reader(server, limits=NEVER_AHEAD), None, at)
    assert [n for batch in found for n in batch] == list(range(20, 50))
    # The other remedy of the message, if bob has finished all that it was given.
    stop_all()
    client.xack("s", "g", *ids[10:20])
    client.xgroup_setid("s", "g", ids[9])
    carry_out(server, str(raised.value), "--even-active")
    assert client.xinfo_groups("s")[0]["last-delivered-id"] == ids[19]


def test_a_consumer_beside_a_query_with_no_ack_keeps_its_entries_whatever_the_error_advises(
    server: Server, client: redis.Redis
) -> None:
    """The command is refused while entries are pending for the consumer, and carried out when it has finished them."""
    ids = add(client, 20)
    client.xgroup_create("s", "g", "0")
    client.xreadgroup("g", "bob", {"s": ">"}, count=5)
    one = reader(server, noAck="true")
    begin = one.initialOffset()
    with pytest.raises(RStreamError, match="'bob' .5 pending entries. is in group 'g'") as raised:
        one.latestOffset(begin, ALL)
    stop_all()
    with pytest.raises(AssertionError, match="5 entries of stream 's' are pending for consumer 'bob'"):
        carry_out(server, str(raised.value), "--even-active")
    assert pending_count(client) == 5
    client.xack("s", "g", *ids[:5])
    carry_out(server, str(raised.value), "--even-active")
    assert drain(another_reader(server, noAck="true")) == [list(range(5, 20))]


def test_a_query_that_finds_another_consumer_may_run_without_no_ack_as_the_error_says(
    server: Server, client: redis.Redis
) -> None:
    add(client, 20)
    one = reader(server, limits=NEVER_AHEAD, noAck="true")
    at: dict[str, Any] = batches(one, 1)[-1]
    stop_all()
    client.xgroup_createconsumer("s", "g", "bob")
    with pytest.raises(RStreamError, match="Set noAck=false, or delete the consumer"):
        reader(server, limits=NEVER_AHEAD, noAck="true").latestOffset(at, TEN)
    again = reader(server, limits=NEVER_AHEAD)
    end = again.latestOffset(at, ALL)
    assert read(again, at, end) == list(range(10, 20))


def test_reports_of_one_attempt_add_up_and_those_of_the_next_one_replace_them() -> None:
    """A step that is tried again finds the same losses again, and perhaps more."""
    losses = DataLoss(True, MessageContext(Membership("g", "spark"), "here"))

    def attempt(*lost: int) -> None:
        losses.attempt_began()
        for entries in lost:
            losses.report(Finding(Kind.ENTRIES_LOST, "s", lost=entries))

    attempt(3, 2)
    assert losses.counts["s"] == 5
    attempt(3)
    attempt(3, 3)
    assert losses.counts["s"] == 6
    losses.step_ended()
    attempt(1)
    assert losses.counts["s"] == 7
