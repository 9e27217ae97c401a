"""A master that became a replica with a dead link, behind an address that leads to the new master. Connections to it
live on, and it answers from old data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis

from spark_streams.connector.errors import ServerReplyError, ServerUnreachableError, UnsupportedError
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import RoleCheck, connect
from spark_streams.connector.wire.lease import LeaseTerms
from tests.lagging import FAST
from tests.proxy import Proxy
from tools.driving import ALL, SMALL, add, forget_all, pending_count, read, reader
from tools.machine_time import machine_seconds
from tools.servers.server import Server, running_redis
from tools.waiting import until

NEVER = 10_000.0
QUIET = LeaseTerms(ttl=3_600_000)  # its thread says nothing
IDLE = replace(SMALL, idle_check=0.2, idle_wait=0.02, role_check=NEVER, lease=QUIET)


def has_all(told: Any) -> bool:
    """Whether the replica of this master has all that was written. told: INFO replication of the master."""
    return bool(told["slave0"]["offset"] >= told["master_repl_offset"])


class Moved:
    """Two servers, and a proxy in front of the first one."""

    def __init__(self, old: Server, new: Server, proxy: Proxy) -> None:
        self.old, self._new, self._proxy = old, new, proxy
        self.server = Server("redis", proxy.url)

    def move(self, is_left: bool = True) -> redis.Redis:
        """The second server, with all data, becomes the master, and the connections of the first one live on. Return a
        client of the new master. is_left: the first one becomes a replica of nobody."""
        with self.old.client() as old:
            until(lambda: has_all(old.info("replication")), "the replica does not keep up")
        client = self._new.client()
        client.replicaof("NO", "ONE")  # type: ignore[no-untyped-call]
        until(lambda: client.role()[0] in (b"master", "master"), "the replica is not promoted")
        self._proxy.lead_new_ones_to(self._new.url)
        if is_left:
            with self.old.client() as old:
                old.replicaof("127.0.0.1", "1")  # type: ignore[no-untyped-call]
        return client


@pytest.fixture
def moved() -> Iterator[Moved]:
    with running_redis(*FAST) as old:
        port = old.url.rpartition("/")[0].rpartition(":")[2]
        with running_redis(*FAST, "--replicaof", "127.0.0.1", port) as new, Proxy(old.url) as proxy:
            with new.client() as client:
                until(lambda: client.info("replication")["master_link_status"] == "up", "the replica is not connected")
            yield Moved(old, new, proxy)
            forget_all()


def found(one: StreamReader, at: dict[str, Any], seconds: float = 15.0) -> dict[str, Any]:
    """Return the end of the next batch, asked for as Spark does."""
    deadline = machine_seconds() + seconds
    while machine_seconds() < deadline:
        end = one.latestOffset(at, ALL)
        if end != at:
            return end
    raise AssertionError(f"nothing was found within {seconds} s")


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(replace(IDLE, idle_check=0, lease=LeaseTerms(ttl=600)), id="its lease learns it"),
        pytest.param(replace(IDLE, idle_check=0, role_check=0.2), id="it asks for the role"),
        pytest.param(replace(IDLE, idle_check=600.0), id="its blocking read learns it"),
    ],
)
def test_an_idle_query_leaves_a_server_that_is_no_longer_the_master(moved: Moved, limits: Any) -> None:
    """Whatever its first connection is used for, it finds the entry at the new master, and no entry twice."""
    with moved.server.client() as client:
        add(client, 2)
    one = reader(moved.server, limits=limits)
    at = one.initialOffset()
    end = one.latestOffset(at, ALL)
    assert read(one, at, end) == [0, 1]
    one.commit(end)
    for _ in range(3):
        assert one.latestOffset(end, ALL) == end
    new = moved.move()
    add(new, 1, first=2)
    after = found(one, end)
    assert read(one, end, after) == [2]
    assert one.latestOffset(after, ALL) == after
    assert pending_count(new, "s") == 0


def test_a_lease_that_connects_again_takes_the_query_with_it(moved: Moved) -> None:
    """The first server is a master still, as after a restore of a backup elsewhere: nothing is refused there."""
    with moved.server.client() as client:
        add(client, 1)
    one = reader(moved.server, limits=replace(IDLE, idle_check=0, lease=LeaseTerms(ttl=600)))
    at = one.initialOffset()
    end = one.latestOffset(at, ALL)
    one.commit(end)
    assert one.latestOffset(end, ALL) == end
    with moved.old.client() as client:
        new = moved.move(is_left=False)
        add(new, 1, first=1)
        assert one.latestOffset(end, ALL) == end

        def renews() -> list[str]:
            return [told["id"] for told in client.client_list() if told["cmd"] in ("pexpire", "get")]

        until(lambda: bool(renews()), "the lease is not renewed")
        assert [client.client_kill_filter(_id=renewal) for renewal in renews()] == [1]
    assert read(one, end, found(one, end)) == [1]


def asked(client: redis.Redis) -> dict[str, int]:
    """How often ROLE and INFO were sent."""
    stats: dict[str, Any] = client.info("commandstats")
    return {name: stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("role", "info")}


def test_the_role_is_asked_once_in_an_interval(server: Server) -> None:
    """Also of a server that has no ROLE, or a user without the right to it: then INFO replication is asked."""
    now = [0.0]
    check = RoleCheck(lambda: now[0], 60.0)
    with connect(Address.parse(server.url)) as connection, server.client() as client:
        before = sum(asked(client).values())
        for _ in range(5):
            now[0] += 60.0
            assert check.is_due()
            check.require_master(connection)
            assert not check.is_due()
        # Each look here is an INFO, too. The engine refuses the first ROLE.
        assert 5 <= sum(asked(client).values()) - before - 1 <= 6


@pytest.mark.parametrize("rights", [("+role",), ("+info",), ()])
def test_a_replica_is_no_master_for_a_user_with_one_of_two_rights(moved: Moved, rights: tuple[str, ...]) -> None:
    """Without both rights nothing is known, and nothing more is asked."""
    with moved.server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "looker", "on", "nopass", "+echo", *rights)
        address = Address.parse(moved.server.url.replace("//", "//looker:any@"))
        with connect(address) as connection:
            moved.move()
            check = RoleCheck(lambda: NEVER, 0.0)
            raises = (
                pytest.raises(ServerReplyError, match="has become a replica") if rights else contextlib.nullcontext()
            )
            with raises as caught:
                check.require_master(connection)
            if caught is not None:
                assert caught.value.code == "READONLY"
            else:
                assert not check.is_due()


# -- The one way to a server, by the kind of its address ---------------------------------------------------------------


def test_one_server_is_connected_to(server: Server) -> None:
    with connect(Address.parse(server.url)) as connection:
        assert connection.execute("PING") == b"PONG"


def test_a_server_that_is_no_node_of_a_cluster_says_so(redis_server: Server) -> None:
    """Not only with its first command."""
    url = redis_server.url.replace("redis://", "redis+cluster://").removesuffix("/0")
    with pytest.raises(UnsupportedError, match="is not a node of a cluster: write redis:// in place of"):
        connect(Address.parse(url))


def test_where_no_node_answers_each_is_named_and_no_login_shown() -> None:
    with pytest.raises(ServerUnreachableError) as caught:
        connect(Address.parse("redis+cluster://u:secret@127.0.0.1:1,127.0.0.1:2"))
    told = str(caught.value)
    assert "127.0.0.1:1. Connection refused" in told
    assert "127.0.0.1:2. Connection refused" in told
    assert "secret" not in told
