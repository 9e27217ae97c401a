"""A group that is forgotten is recorded before what it holds back is removed. When its query is back, it is told."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest
import redis

from spark_streams.base.ids import StreamId
from spark_streams.connector.counters import LOST
from spark_streams.connector.errors import GroupForgottenError, GroupInUseError, StreamStateError
from spark_streams.connector.keys import forgotten_key, key_beside
from spark_streams.connector.retention import ForgottenGroup
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.connection import Server as Wire
from spark_streams.connector.wire.xinfo import ConsumerInfo
from spark_streams.operations.groups.change_plan import apply
from spark_streams.operations.groups.unused import find_held, forget_group, is_idle
from tools.driving import ALL, add, another_reader, drain, read
from tools.sending import before_sending
from tools.servers.server import Server

IDLE = 100  # milliseconds
KEY = forgotten_key("s", "slow")


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with connect(Address.parse(server.url)) as connected:
        yield connected


@pytest.fixture
def ids(client: redis.Redis) -> list[str]:
    """Ten entries. Group `fast` has acknowledged all; `slow` was given three, and has acknowledged the first."""
    ids = add(client, 10)
    for group in ("fast", "slow"):
        client.xgroup_create("s", group, 0)
    client.xreadgroup("fast", "one", {"s": ">"}, noack=True)
    client.xreadgroup("slow", "spark", {"s": ">"}, count=3)
    client.xack("s", "slow", ids[0])
    return ids


@pytest.fixture
def ids_of_forgotten(wire: Wire, ids: list[str]) -> list[str]:
    """The ten entries, when `slow` has been forgotten: all are removed."""
    assert forget(wire) == {"slow": 10}
    return ids


def forget(wire: Wire) -> dict[str, int]:
    """Forget the groups that hold entries back, as `rstream groups prune --hold --yes`. Return how many entries the
    forgetting of each has removed."""
    time.sleep(2 * IDLE / 1000)
    forgotten: set[tuple[bytes, bytes]] = set()
    held = find_held(wire, ["s"], [], False, IDLE)
    return {one.group: apply(wire, forget_group(wire, one, IDLE, forgotten)).removed for one in held}


def left(client: redis.Redis) -> int:
    return int(client.xlen("s"))


def test_the_record_has_the_time_and_the_position_and_is_written_before_an_entry_is_removed(
    client: redis.Redis, wire: Wire, ids: list[str]
) -> None:
    recorded: list[int] = []
    with before_sending(b"XTRIM", act=lambda *_: recorded.append(client.exists(KEY)), times=1):
        forget(wire)
    assert (recorded, left(client)) == ([1], 0)
    record = ForgottenGroup.parse(client.get(KEY).encode())
    assert record is not None
    assert record.position == StreamId.parse(ids[2])
    assert abs(record.at - time.time() * 1000) < 5_000


@pytest.mark.parametrize("holds_by", ["undelivered", "pending"])
def test_either_way_of_holding_is_seen(client: redis.Redis, wire: Wire, ids: list[str], holds_by: str) -> None:
    client.xack("s", "slow", ids[1])
    if holds_by == "undelivered":
        client.xack("s", "slow", ids[2])
    else:
        client.xreadgroup("slow", "spark", {"s": ">"}, noack=True)
    forget(wire)
    assert left(client) == 0


def test_a_consumer_that_works_again_is_waited_for(
    client: redis.Redis, wire: Wire, ids_of_forgotten: list[str]
) -> None:
    """Until it is forgotten again."""
    add(client, 4, first=10)
    client.xreadgroup("fast", "one", {"s": ">"}, noack=True)
    time.sleep(2 * IDLE / 1000)
    client.xreadgroup("slow", "spark", {"s": ">"}, count=1)
    assert find_held(wire, ["s"], [], False, IDLE) == []
    assert forget(wire) == {"slow": 4}


@pytest.mark.parametrize(
    ("idle", "is_idle_for_1000"),
    [((), False), ((1_000,), True), ((999,), False), ((1_000, 5_000), True), ((5_000, 999), False)],
)
def test_a_group_is_idle_if_each_consumer_is_idle_for_that_time(idle: Sequence[int], is_idle_for_1000: bool) -> None:
    assert is_idle([ConsumerInfo(b"c", 0, one) for one in idle], 1_000) is is_idle_for_1000


def test_another_group_that_is_set_back_amid_the_change_is_named(
    client: redis.Redis, wire: Wire, ids: list[str]
) -> None:
    with (
        before_sending(b"XTRIM", act=lambda *_: client.xgroup_setid("s", "fast", ids[4]), times=1),
        pytest.raises(StreamStateError, match="group 'fast' of stream 's' was created, set back or given entries"),
    ):
        forget(wire)
    assert left(client) == 0


def test_a_group_of_which_one_consumer_works_is_waited_for(client: redis.Redis, wire: Wire, ids: list[str]) -> None:
    """It reads between the list and the change."""
    client.xgroup_createconsumer("s", "slow", "another")
    time.sleep(2 * IDLE / 1000)
    [held] = find_held(wire, ["s"], [], False, IDLE)
    client.xreadgroup("slow", "another", {"s": ">"}, count=1)
    with pytest.raises(GroupInUseError):
        apply(wire, forget_group(wire, held, IDLE, set()))
    assert (left(client), client.exists(KEY)) == (10, 0)


def test_a_group_behind_which_nothing_is_left_is_not_forgotten_again(
    client: redis.Redis, wire: Wire, ids_of_forgotten: list[str]
) -> None:
    """A command that runs each day neither lists it nor writes another record."""
    record = client.get(KEY)
    assert forget(wire) == {}
    assert client.get(KEY) == record


def test_a_group_without_consumers_is_never_forgotten(client: redis.Redis, wire: Wire, ids: list[str]) -> None:
    client.xgroup_create("s", "unused", ids[4])
    forget(wire)
    assert left(client) == 5


@pytest.mark.parametrize("consumer", ["spark", "another"])
def test_a_group_with_a_running_query_is_never_forgotten(
    server: Server, client: redis.Redis, wire: Wire, ids: list[str], consumer: str
) -> None:
    """Also one whose consumer the group does not have yet, as that of a query with noAck."""
    running = another_reader(server, group="slow", consumer=consumer)
    running.initialOffset()
    assert client.exists(key_beside("s", "lease", "slow", consumer))
    with pytest.raises(GroupInUseError):
        forget(wire)
    assert left(client) == 10
    assert not client.exists(KEY)
    running.stop()


def test_a_query_that_begins_meanwhile_wins(server: Server, client: redis.Redis, wire: Wire, ids: list[str]) -> None:
    """It takes its lease between the check and the record."""
    starting = another_reader(server, group="slow")
    with (
        pytest.raises(GroupInUseError),
        before_sending(b"MULTI", act=lambda *_: starting.initialOffset(), times=1),
    ):
        forget(wire)
    assert left(client) == 10
    assert not client.exists(KEY)
    starting.stop()


def test_a_query_of_a_forgotten_group_stops_with_an_error_and_may_accept_the_loss(
    server: Server, client: redis.Redis, wire: Wire, ids_of_forgotten: list[str]
) -> None:
    last = add(client, 2, first=10)
    client.xtrim("s", minid=last[1], approximate=False)
    for _ in range(2):  # each start says it
        back = another_reader(server, group="slow")
        with pytest.raises(GroupForgottenError) as raised:
            back.initialOffset()
        back.stop()
    assert f"after entry {ids_of_forgotten[2]}: " in str(raised.value)
    assert f"the oldest entry that is left is {last[1]}" in str(raised.value)
    assert "rstream groups prune --hold" in str(raised.value)
    back = another_reader(server, group="slow", failOnDataLoss="false")
    assert drain(back) == [[11]]
    assert not client.exists(KEY)
    back.stop()


def test_a_checkpoint_of_a_forgotten_group_stops_with_the_error(
    server: Server, client: redis.Redis, wire: Wire
) -> None:
    add(client, 10)
    one = another_reader(server, group="slow")
    begin = one.initialOffset()
    end = one.latestOffset(begin, ALL)
    read(one, begin, end)
    one.commit(end)
    one.latestOffset(end, ALL)
    one.stop()
    add(client, 5, first=10)
    client.xgroup_create("s", "fast", "$")
    forget(wire)
    assert left(client) == 0
    back = another_reader(server, group="slow")
    with pytest.raises(GroupForgottenError):
        back.latestOffset(end, ALL)
    back.stop()
    back = another_reader(server, group="slow", failOnDataLoss="false")
    assert drain(back, start=end) == [[]]  # empty, so that the offset passes what is lost
    assert dict(back.batches.counters.entries(LOST)) == {"s": 5}
    back.stop()


@pytest.mark.parametrize("change", ["seek", "create"])
def test_the_record_of_a_group_that_was_moved_or_created_again_counts_no_more(
    server: Server, client: redis.Redis, ids_of_forgotten: list[str], change: str
) -> None:
    if change == "seek":
        client.xgroup_setid("s", "slow", "$")
    else:
        client.xgroup_destroy("s", "slow")
    back = another_reader(server, group="slow", failOnDataLoss="false")
    drain(back)
    back.stop()


@pytest.mark.parametrize("text", [b"", b"x", b"1 2 3", b"-1 0-0", b"\xff 0-0"])
def test_what_others_write_to_the_key_is_no_record(
    server: Server, client: redis.Redis, ids: list[str], text: bytes
) -> None:
    client.set(KEY, text)
    another = another_reader(server, group="slow")
    another.initialOffset()
    another.stop()
