"""A batch of an earlier run has the entries that its offset names: none fewer, none more, or an error says so."""

from __future__ import annotations

import pytest
import redis

from spark_streams.connector.errors import DataLossError
from tools.driving import ALL, add, others_read_first, positions, read, reader
from tools.servers.server import Server


@pytest.mark.parametrize("what", ["acknowledged", "consumer deleted", "group destroyed"])
def test_a_replay_is_the_whole_batch_whatever_became_of_the_pending_list(
    server: Server, client: redis.Redis, what: str
) -> None:
    """The offset says what the batch held: where the range was all ours, the stream still has it."""
    ids = add(client, 30)
    one = reader(server, startingOffsets="latest")
    client.xgroup_create("s", "g", id="0")
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    if what == "acknowledged":
        client.xack("s", "g", *ids[3:5])
    elif what == "consumer deleted":
        client.xgroup_delconsumer("s", "g", "spark")
    else:
        client.xgroup_destroy("s", "g")
    again = reader(server, startingOffsets="latest")
    if what == "group destroyed":
        assert positions(again.initialOffset())["s"] == ids[-1]
    assert read(again, start, end) == list(range(30))


def test_a_replay_reads_no_other_entries_of_a_server_in_another_state(server: Server, client: redis.Redis) -> None:
    """The stream was created again: its entries have IDs within the range of the batch."""
    add(client, 10)
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    client.delete("s")
    for n in range(10):
        client.xadd("s", {"n": 100 + n}, id=f"1-{n + 1}")
    client.xgroup_create("s", "g", id="0")
    with pytest.raises(DataLossError, match="the server has lost at least 1 entry that it had"):
        read(reader(server), start, end)


def test_a_replay_has_no_entry_that_another_consumer_has_claimed_meanwhile(server: Server, client: redis.Redis) -> None:
    """The query was alone when it made the batch. That proves nothing about who has joined since."""
    ids = add(client, 30)
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    client.xclaim("s", "g", "bob", 0, ids[:7])
    client.xack("s", "g", *ids[:2])
    with pytest.raises(DataLossError, match="7 entries of a batch of 30 .* or another client has .* claimed them"):
        read(reader(server), start, end)
    lenient = reader(server, failOnDataLoss="false")
    assert read(lenient, start, end) == list(range(7, 30))
    assert lenient.reportLatestOffset()["lost"] == {"s": 7}


def test_a_replay_has_no_entry_that_was_acknowledged_before_its_batch_was_made(
    server: Server, client: redis.Redis
) -> None:
    """A run has reserved the entries and died, and an operator has acknowledged one. The stream still has it."""
    ids = add(client, 5)
    one = reader(server)
    start = one.initialOffset()
    one.latestOffset(start, ALL)  # and dies
    client.xack("s", "g", ids[2])
    another = reader(server, failOnDataLoss="false")
    end = another.latestOffset(start, ALL)
    assert read(another, start, end) == [0, 1, 3, 4]
    assert read(reader(server, failOnDataLoss="false"), start, end) == [0, 1, 3, 4]


@pytest.mark.parametrize("what", ["acknowledged", "claimed", "consumer deleted"])
def test_a_shared_batch_that_lost_pending_entries_is_an_error_not_a_smaller_batch(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    ids = add(client, 15)[2:]
    one = reader(server, entriesPerPartition="30")
    start = one.initialOffset()
    with others_read_first(monkeypatch, client, 2):
        end = one.latestOffset(start, ALL)
    assert end["streams"]["s"].split(" ")[2] == "-"  # how many entries were read is unknown
    if what == "acknowledged":
        client.xack("s", "g", *ids[3:5])
    elif what == "claimed":
        client.xclaim("s", "g", "bob", 0, ids[3:5])
    else:
        client.xgroup_delconsumer("s", "g", "spark")
    with pytest.raises(DataLossError, match="of a batch of 13 were .* another client has acknowledged"):
        reader(server).partitions(start, end)
    assert len(read(reader(server, failOnDataLoss="false"), start, end)) == (0 if "deleted" in what else 11)


def test_a_replay_that_is_planned_twice_counts_its_losses_once(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark plans a batch again for each action on it."""
    ids = add(client, 15)[2:]
    one = reader(server)
    start = one.initialOffset()
    with others_read_first(monkeypatch, client, 2):
        end = one.latestOffset(start, ALL)
    client.xack("s", "g", *ids[3:5])
    again = reader(server, failOnDataLoss="false")
    assert again.partitions(start, end)[0].task == again.partitions(start, end)[0].task
    assert again.reportLatestOffset()["lost"] == {"s": 2}
