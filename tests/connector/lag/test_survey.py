"""What a look at a server finds, beside what a plain client did to it; and that looking changes nothing."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from spark_streams.connector.errors import RStreamError, ServerReplyError, WrongKeyTypeError
from spark_streams.connector.lag.survey import GroupLag, survey, trimmed_line, view_streams
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.connection import Connection
from spark_streams.connector.wire.scan import list_streams
from tools.machine_time import machine_seconds
from tools.servers.server import Server, running_redis, skip_without_redis


def add(client: redis.Redis, stream: str, count: int, **first: Any) -> list[str]:
    """Entries n = 0, 1, …; their ids."""
    return [str(client.xadd(stream, {"n": n}, **(first if n == 0 else {}))) for n in range(count)]


def stand(connection: Connection, stream: str = "s", **options: Any) -> GroupLag:
    """The only group of a stream."""
    [group] = survey(connection, [stream], **options).groups
    return group


def test_lag_pending_and_consumers_are_what_a_client_did(client: redis.Redis, connection: Connection) -> None:
    add(client, "s", 10)
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "ann", {"s": ">"}, count=4)
    time.sleep(0.03)
    client.xreadgroup("g", "bob", {"s": ">"}, count=2)
    group = stand(connection)
    assert (group.lag, group.at_least, group.pending, group.delivered) == (4, False, 6, 6)
    assert [(c.consumer, c.pending) for c in group.consumers] == [("ann", 4), ("bob", 2)]
    ann, bob = (c.oldest_idle_ms for c in group.consumers)
    assert ann is not None
    assert bob is not None
    assert ann >= bob + 20
    assert group.oldest_idle_ms == ann


def test_a_group_that_has_acknowledged_everything_is_not_behind(client: redis.Redis, connection: Connection) -> None:
    ids = add(client, "s", 3)
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "ann", {"s": ">"})
    client.xack("s", "g", *ids)
    group = stand(connection)
    assert (group.lag, group.lag_ms, group.pending, group.oldest_idle_ms) == (0, 0, 0, None)


def test_lag_in_time_is_the_age_of_the_oldest_entry_not_acknowledged(
    client: redis.Redis, connection: Connection
) -> None:
    seconds, micros = client.time()
    now = seconds * 1000 + micros // 1000
    for age in (60_000, 30_000, 10_000):
        client.xadd("s", {"n": age}, id=f"{now - age}-0")
    client.xgroup_create("s", "g", id="0")
    assert stand(connection).lag_ms == pytest.approx(60_000, abs=5_000)
    [(_, [(first, _), (second, _)])] = client.xreadgroup("g", "ann", {"s": ">"}, count=2)
    assert stand(connection).lag_ms == pytest.approx(60_000, abs=5_000), "pending"
    client.xack("s", "g", first)
    assert stand(connection).lag_ms == pytest.approx(30_000, abs=5_000)
    client.xack("s", "g", second)
    assert stand(connection).lag_ms == pytest.approx(10_000, abs=5_000), "not yet given"


def test_ids_that_are_no_times_have_no_age(client: redis.Redis, connection: Connection) -> None:
    client.xadd("s", {"n": 1}, id="1-1")
    client.xgroup_create("s", "g", id="0")
    assert (stand(connection).lag, stand(connection).lag_ms) == (1, None)


def test_where_the_server_cannot_tell_the_lag_entries_are_counted_up_to_a_limit(
    client: redis.Redis, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = add(client, "s", 60)
    client.xdel("s", ids[40])
    client.xgroup_create("s", "g", id=ids[9])
    [told] = client.xinfo_groups("s")
    assert told.get("lag") is None
    assert (stand(connection, page=7).lag, stand(connection, page=7).at_least) == (49, False)
    assert (stand(connection, counted=20, page=7).lag, stand(connection, counted=20, page=7).at_least) == (20, True)


def test_what_was_trimmed_before_it_was_given_is_no_lag(client: redis.Redis, connection: Connection) -> None:
    add(client, "s", 30)
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "ann", {"s": ">"}, count=5)
    client.xtrim("s", maxlen=10, approximate=False)
    assert stand(connection).lag == 10
    client.xtrim("s", maxlen=0, approximate=False)
    assert stand(connection).lag == 0


def test_streams_that_are_not_there_and_groups_at_the_end_of_all_ids(
    client: redis.Redis, connection: Connection
) -> None:
    add(client, "s", 1)
    client.xgroup_create("s", "g", id="18446744073709551615-18446744073709551615")
    seen = survey(connection, ["s", "nowhere"])
    assert [one.stream for one in seen.streams] == ["s"]
    assert [one.lag for one in seen.groups] == [0]


def test_names_that_are_no_text(server: Server, connection: Connection) -> None:
    with server.client() as client:
        client.xadd(b"s\xff", {"n": 1})
        client.xgroup_create(b"s\xff", b"g\xfe", id="0")
        client.xreadgroup(b"g\xfe", b"c\xfd", {b"s\xff": ">"})
    [group] = survey(connection, list_streams(connection)).groups
    assert (group.stream, group.group, group.consumers[0].consumer) == ("s\\xff", "g\\xfe", "c\\xfd")
    assert group.consumers[0].oldest_idle_ms is not None


def test_a_thousand_streams_take_a_handful_of_round_trips(
    client: redis.Redis, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = client.pipeline(transaction=False)
    for at in range(1000):
        pipe.xadd(f"s{at:03d}", {"n": 1}).xadd(f"s{at:03d}", {"n": 2})
        pipe.xgroup_create(f"s{at:03d}", "g", id="0")
        pipe.xreadgroup("g", "c", {f"s{at:03d}": ">"}, count=1)
    pipe.execute()
    trips = []
    honest = Connection.pipeline
    monkeypatch.setattr(Connection, "pipeline", lambda self, c: trips.append(len(c)) or honest(self, c))
    names = list_streams(connection)
    began = machine_seconds()
    seen = survey(connection, names)
    assert machine_seconds() - began < 5
    assert len(seen.groups) == 1000
    assert {(one.lag, one.pending) for one in seen.groups} == {(1, 1)}
    assert len([count for count in trips if count]) <= 3  # a pipeline of no commands sends nothing


def test_a_server_before_redis_7_tells_less_and_the_lag_is_counted(
    client: redis.Redis, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis 6.2's XINFO has no lag, entries-read, entries-added."""
    add(client, "s", 30)
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "ann", {"s": ">"}, count=12)
    now = stand(connection)
    honest = Connection.pipeline

    def strip(reply: Any) -> Any:
        if not isinstance(reply, list):
            return reply
        if reply and isinstance(reply[0], list):
            return [strip(one) for one in reply]
        newer = (b"lag", b"entries-read", b"entries-added")
        kept = [pair for pair in zip(reply[0::2], reply[1::2], strict=False) if pair[0] not in newer]
        return [word for pair in kept for word in pair] if len(reply) % 2 == 0 else reply

    def older(self: Connection, commands: Any) -> Any:
        return [
            strip(reply) if command[0] == "XINFO" else reply
            for command, reply in zip(commands, honest(self, commands), strict=True)
        ]

    monkeypatch.setattr(Connection, "pipeline", older)
    then = survey(connection, ["s"])
    [group] = then.groups
    assert then.streams[0].added is None
    assert (group.delivered, group.lag, group.pending) == (None, now.lag, now.pending) == (None, 18, 12)
    assert group.last_delivered == now.last_delivered


def test_entries_that_were_trimmed_before_a_group_has_read_them_are_counted(
    client: redis.Redis, connection: Connection
) -> None:
    """While the group is below the stream: above its first entry, others may have been deleted."""

    def told() -> tuple[int | None, str]:
        [view] = view_streams(connection, ["s"])
        assert trimmed_line(view.groups[0]) == trimmed_line(stand(connection))
        assert view.groups[0].trimmed == stand(connection).trimmed
        return stand(connection).trimmed, trimmed_line(stand(connection))

    ids = add(client, "s", 10)
    client.xgroup_create("s", "g", id="0")
    assert told() == (0, "")  # nothing has ever left the stream
    client.xreadgroup("g", "ann", {"s": ">"}, count=3)
    assert told() == (0, "")
    client.xdel("s", ids[4])  # the server may not know any more what the group has read
    assert told() == (0, "")
    client.xtrim("s", maxlen=4, approximate=False)
    assert stand(connection).lag == 4
    assert told() == (3, "3 entries of s were trimmed or deleted before group g read them, by the server's counts")
    client.xtrim("s", maxlen=0, approximate=False)
    assert told() == (7, "7 entries of s were trimmed or deleted before group g read them, by the server's counts")
    add(client, "s", 1)
    client.xreadgroup("g", "ann", {"s": ">"})
    assert told() == (0, "")
    add(client, "s", 2)
    client.xtrim("s", maxlen=1, approximate=False)
    assert told()[0] in (1, 8)  # Redis 7.0 adds those of before
    client.delete("s")
    add(client, "s", 3)
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "ann", {"s": ">"}, count=1)
    client.xtrim("s", maxlen=1, approximate=False)
    assert told() == (1, "1 entry of s was trimmed before group g read it, by the server's counts")
    client.xgroup_setid("s", "g", "0-1")
    assert told() == (None, "whether entries of s were trimmed before group g read them is not known")


@pytest.mark.parametrize("command", ["XPENDING", "XRANGE"])
def test_a_group_that_cannot_be_read_is_not_taken_for_a_deleted_one(command: str) -> None:
    """The operator has renamed a command, so its error is no missing right. The group is ten entries behind."""
    skip_without_redis()
    with running_redis("--rename-command", command, "") as server, server.client() as client:
        add(client, "s", 10)
        client.xgroup_create("s", "g", id="0")
        with connect(Address.parse(server.url)) as connection, pytest.raises(ServerReplyError, match=command):
            survey(connection, ["s"])
        with connect(Address.parse(server.url)) as connection, pytest.raises(ServerReplyError, match=command):
            survey(connection, ["s"], refused=lambda error: None)


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_group_whose_entries_cannot_be_counted_is_reported_unless_its_stream_is_gone(
    client: redis.Redis, connection: Connection, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    """Between two pages of a count its stream is deleted, or its key gets another type."""
    ids = add(client, "s", 60)
    client.xdel("s", ids[40])
    client.xgroup_create("s", "g", id=ids[9])
    pipeline = connection.pipeline

    def changed(commands: Any) -> Any:
        if [command[0] for command in commands] == ["XRANGE"]:
            client.delete("s") if is_deleted else client.set("s", "no stream")
        return pipeline(commands)

    monkeypatch.setattr(connection, "pipeline", changed)
    if is_deleted:
        assert stand(connection).lag == 0
    else:
        errors: list[RStreamError] = []
        assert survey(connection, ["s"], refused=errors.append).groups == ()
        assert [type(error) for error in errors] == [WrongKeyTypeError]
