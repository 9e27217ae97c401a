"""forgetGroups: a group that nobody uses is recorded and holds nothing back. When its query is back, it is told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis

from spark_streams.errors import GroupForgottenError, InvalidOptionError
from spark_streams.model.counters import LOST
from spark_streams.model.ids import StreamId
from spark_streams.model.keys import forgotten_key, key_beside
from spark_streams.options import values
from spark_streams.options.sink_options import SinkOptions
from spark_streams.options.source_options import SourceOptions
from spark_streams.retention.forgotten import CHECK_INTERVAL, ForgottenGroup
from spark_streams.retention.sweep import Sweeper
from spark_streams.sink.trim.trim import AckedTrimmer, Trimming
from spark_streams.source.stream_reader import StreamReader
from spark_streams.wire.address.address import Address
from spark_streams.wire.connect import connect
from spark_streams.wire.connection.server import Server as Wire
from tools.driving import ALL, SMALL, add, another_reader, drain, read, stop_all
from tools.sending import before_sending
from tools.servers.server import Server

IDLE = 300  # milliseconds
HURRY = replace(SMALL, lag_check=0.0)
KEY = forgotten_key("s", "slow")


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def next_check(self) -> None:
        self.time += CHECK_INTERVAL


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with connect(Address.parse(server.url)) as connected:
        yield connected


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sweeper(clock: Clock) -> Sweeper:
    return Sweeper(True, clock.now, IDLE)


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
def ids_of_forgotten(wire: Wire, sweeper: Sweeper, ids: list[str]) -> list[str]:
    """The ten entries, when `slow` has been forgotten: all are removed."""
    sweep_when_idle(wire, sweeper)
    return ids


def wait() -> None:
    """Until a consumer is idle for long enough."""
    time.sleep((IDLE + 100) / 1000)


def sweep_when_idle(wire: Wire, sweeper: Sweeper) -> None:
    wait()
    sweeper.sweep(wire, ["s"])


def four_more(client: redis.Redis) -> None:
    """Entries that `fast` has acknowledged at once."""
    add(client, 4, first=10)
    client.xreadgroup("fast", "one", {"s": ">"}, noack=True)


def left(client: redis.Redis) -> int:
    return int(client.xlen("s"))


def test_an_idle_group_is_recorded_and_holds_nothing_back(
    client: redis.Redis, wire: Wire, sweeper: Sweeper, clock: Clock, ids: list[str]
) -> None:
    sweeper.sweep(wire, ["s"])
    assert left(client) == 9
    assert not client.exists(KEY)
    sweep_when_idle(wire, sweeper)
    assert left(client) == 9, "it is checked once a minute"
    clock.next_check()
    before = int(time.time() * 1000)
    states = sweeper.sweep(wire, ["s"])
    assert (left(client), states[b"s"].forgotten) == (0, 1)
    record = ForgottenGroup.parse(client.get(KEY).encode())
    assert record is not None
    assert record.position == StreamId.parse(ids[2])
    assert abs(record.at - before) < 5_000


def test_the_record_is_written_before_an_entry_is_removed(
    client: redis.Redis, wire: Wire, sweeper: Sweeper, ids: list[str]
) -> None:
    wait()
    recorded: list[int] = []
    with before_sending(b"XTRIM", act=lambda *_: recorded.append(client.exists(KEY)), times=1):
        sweeper.sweep(wire, ["s"])
    assert recorded == [1]
    assert left(client) == 0


def test_a_consumer_that_works_again_is_waited_for(
    client: redis.Redis, wire: Wire, sweeper: Sweeper, clock: Clock, ids_of_forgotten: list[str]
) -> None:
    four_more(client)
    client.xreadgroup("slow", "spark", {"s": ">"}, count=1)  # its position is another one: at once
    sweeper.sweep(wire, ["s"])
    assert left(client) == 4
    wait()
    clock.next_check()
    sweeper.sweep(wire, ["s"])
    assert left(client) == 0, "forgotten again"


def test_a_consumer_that_only_asks_is_noticed_at_the_next_check(
    client: redis.Redis, wire: Wire, sweeper: Sweeper, clock: Clock, ids_of_forgotten: list[str]
) -> None:
    four_more(client)
    client.xreadgroup("slow", "spark", {"s": "0"})
    clock.next_check()
    sweeper.sweep(wire, ["s"])
    assert left(client) == 4


@pytest.mark.parametrize("holds_by", ["undelivered", "pending"])
def test_either_way_of_holding_is_seen(
    client: redis.Redis, wire: Wire, sweeper: Sweeper, ids: list[str], holds_by: str
) -> None:
    client.xack("s", "slow", ids[1])
    if holds_by == "undelivered":
        client.xack("s", "slow", ids[2])
    else:
        client.xreadgroup("slow", "spark", {"s": ">"}, noack=True)
    sweep_when_idle(wire, sweeper)
    assert left(client) == 0


def test_a_group_without_consumers_is_never_forgotten(
    client: redis.Redis, wire: Wire, sweeper: Sweeper, ids: list[str]
) -> None:
    client.xgroup_create("s", "unused", ids[4])
    sweep_when_idle(wire, sweeper)
    assert left(client) == 5


def test_a_stream_whose_groups_are_all_forgotten_is_not_trimmed(
    client: redis.Redis, wire: Wire, sweeper: Sweeper, clock: Clock, ids_of_forgotten: list[str]
) -> None:
    add(client, 4, first=10)
    client.xgroup_destroy("s", "fast")
    clock.next_check()
    sweeper.sweep(wire, ["s"])
    assert left(client) == 4


@pytest.mark.parametrize("consumer", ["spark", "another"])
def test_a_group_with_a_running_query_is_never_forgotten(
    server: Server, client: redis.Redis, wire: Wire, sweeper: Sweeper, ids: list[str], consumer: str
) -> None:
    """Also one whose consumer the group does not have yet, as that of a query with noAck."""
    running = another_reader(server, group="slow", consumer=consumer)
    running.initialOffset()
    assert client.exists(key_beside("s", "lease", "slow", consumer))
    sweep_when_idle(wire, sweeper)
    assert left(client) == 9
    assert not client.exists(KEY)
    running.stop()


def test_a_query_that_begins_meanwhile_wins(
    server: Server, client: redis.Redis, wire: Wire, sweeper: Sweeper, ids: list[str]
) -> None:
    """It takes its lease between the check and the record."""
    wait()
    starting = another_reader(server, group="slow")
    with before_sending(b"MULTI", act=lambda *_: starting.initialOffset(), times=1):
        sweeper.sweep(wire, ["s"])
    assert left(client) == 9
    assert not client.exists(KEY)
    starting.stop()


def test_a_query_of_a_forgotten_group_stops_with_an_error_and_may_accept_the_loss(
    server: Server, client: redis.Redis, wire: Wire, sweeper: Sweeper, clock: Clock, ids_of_forgotten: list[str]
) -> None:
    last = add(client, 2, first=10)
    client.xreadgroup("fast", "one", {"s": ">"}, count=1, noack=True)
    sweeper.sweep(wire, ["s"])
    assert left(client) == 1
    for _ in range(2):  # each start says it
        back = another_reader(server, group="slow")
        with pytest.raises(GroupForgottenError) as raised:
            back.initialOffset()
        back.stop()
    assert f"after entry {ids_of_forgotten[2]}: " in str(raised.value)
    assert f"the oldest entry that is left is {last[1]}" in str(raised.value)
    assert "forgetGroups" in str(raised.value)
    back = another_reader(server, group="slow", failOnDataLoss="false")
    assert drain(back) == [[11]]
    assert not client.exists(KEY)
    back.stop()


def test_a_checkpoint_of_a_forgotten_group_stops_with_the_error(
    server: Server, client: redis.Redis, wire: Wire, sweeper: Sweeper
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
    sweep_when_idle(wire, sweeper)
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
    server: Server, client: redis.Redis, wire: Wire, sweeper: Sweeper, ids_of_forgotten: list[str], change: str
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
    server: Server, client: redis.Redis, wire: Wire, sweeper: Sweeper, ids: list[str], text: bytes
) -> None:
    client.set(KEY, text)
    another = another_reader(server, group="slow")
    another.initialOffset()
    another.stop()
    sweeper.sweep(wire, ["s"])
    assert left(client) == 9


def test_a_query_and_a_sink_take_the_option(
    server: Server, client: redis.Redis, wire: Wire, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "SHORTEST_IDLE", 0)
    wait()
    query: StreamReader = another_reader(
        server, group="fast", limits=HURRY, onCommit="delete", forgetGroups=f"{IDLE}ms"
    )
    begin = query.initialOffset()
    query.latestOffset(begin, ALL)
    add(client, 1, first=10)
    end = query.latestOffset(begin, ALL)
    read(query, begin, end)
    query.commit(end)
    query.latestOffset(end, ALL)
    stop_all()
    assert left(client) == 0
    add(client, 5, first=11)
    client.xgroup_create("s", "later", "$")
    options = {"url": server.url, "stream": "s", "trim": "acked", "approximate": "false"}
    trimmer = AckedTrimmer(wire, Trimming.from_options(SinkOptions.parse(options)))
    client.xreadgroup("fast", "spark", {"s": ">"}, noack=True)
    trimmer.trim([b"s"], 0)
    assert left(client) == 5
    options["forgetGroups"] = f"{IDLE}ms"
    AckedTrimmer(wire, Trimming.from_options(SinkOptions.parse(options))).trim([b"s"], 0)
    assert left(client) == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"forgetGroups": "7d"}, "needs option onCommit"),
        ({"forgetGroups": "7d", "onCommit": "keep"}, "nothing is removed"),
        ({"forgetGroups": "30s", "onCommit": "trim"}, "at least 1m"),
        ({"forgetGroups": "week", "onCommit": "trim"}, "duration"),
    ],
)
def test_the_option_is_checked(options: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidOptionError, match=says):
        SourceOptions.parse({"streams": "s", "group": "g", **options})
    assert SourceOptions.parse({"streams": "s", "group": "g"}).forget_groups is None


@pytest.mark.parametrize("trim", [{}, {"trim": "maxlen", "maxlen": "5"}, {"trim": "minid", "retention": "1h"}])
def test_a_sink_that_does_not_wait_for_groups_refuses_the_option(trim: dict[str, str]) -> None:
    with pytest.raises(InvalidOptionError, match="forgetGroups"):
        SinkOptions.parse({"stream": "s", "forgetGroups": "7d", **trim})
    assert SinkOptions.parse({"stream": "s", "forgetGroups": "7d", "trim": "acked"}).forget_groups == 7 * 86_400_000
