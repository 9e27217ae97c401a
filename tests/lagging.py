"""A master whose replica is cut off, and then promoted: what the master took meanwhile is lost. One server with a
replica, behind an address that leads to the master; a cluster has its own (tests/legs/redis_cluster/lagging.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import redis

from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.session import Session
from tests.proxy import Proxy
from tools.servers.server import Server, running_redis
from tools.waiting import until

FAST = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]


class Lagging(Protocol):
    """server: what a user's url names, before and after."""

    server: Server

    def cut_off(self, *keys: str) -> None:
        """From here on the replicas of the masters that have these keys get nothing."""

    def promote(self) -> None:
        """The masters that were cut off are killed, and their replicas take their places."""

    def has_both(self, key: str, other: str) -> bool:
        """Whether one master has these keys."""


def ask(lagging: Lagging, *commands: Sequence[Any]) -> list[Any]:
    """The replies of commands to whoever is the master by now."""
    with Session(Address.parse(lagging.server.url), is_known=True) as session:
        return session.run(lambda server: server.execute_all(commands))


def cut_off(master: redis.Redis, replica: redis.Redis) -> None:
    """The replica has all that there is, and is given nothing more: it logs in as somebody whom the master does not
    know. (A replica that may log in, and not read, waits for seconds in one call.)"""

    def has_all() -> bool:
        told = master.info("replication")
        return told["connected_slaves"] == 1 and told["slave0"]["offset"] >= told["master_repl_offset"]

    until(has_all, "the replica does not keep up")
    replica.config_set("masteruser", "nobody")  # one at a time: Redis before 7.0 takes no more
    replica.config_set("masterauth", "secret")
    assert master.execute_command("CLIENT", "KILL", "TYPE", "replica") == 1  # type: ignore[no-untyped-call]


def join_again(replica: redis.Redis) -> None:
    """Whoever was cut off may follow a master again."""
    replica.config_set("masteruser", "")
    replica.config_set("masterauth", "")


class OneServer:
    """A master and its replica."""

    def __init__(self, master: Server, replica: Server, proxy: Proxy) -> None:
        self._master, self._replica, self._proxy = master, replica, proxy
        self.server = Server("redis", proxy.url)

    def cut_off(self, *keys: str) -> None:
        with self._master.client() as master, self._replica.client() as replica:
            cut_off(master, replica)

    def promote(self) -> None:
        with self._master.client() as master, self._replica.client() as replica:
            with contextlib.suppress(redis.ConnectionError):
                with contextlib.suppress(
                    redis.ResponseError
                ):  # Redis 6.2 waits for no replica, and has no such setting
                    master.config_set("shutdown-timeout", 0)
                master.shutdown(nosave=True)
            replica.config_set("min-replicas-to-write", 0)
            replica.replicaof("NO", "ONE")  # type: ignore[no-untyped-call]
            until(lambda: replica.role()[0] in (b"master", "master"), "the replica is not promoted")
        self._proxy.lead_to(self._replica.url)

    def has_both(self, key: str, other: str) -> bool:
        return True


@contextlib.contextmanager
def one_server(*options: str) -> Iterator[OneServer]:
    """options: of both processes."""
    with running_redis(*FAST, *options) as master:
        of_master = master.url.rpartition("/")[0].rpartition(":")[2]
        with (
            running_redis(*FAST, *options, "--replicaof", "127.0.0.1", of_master) as replica,
            Proxy(master.url) as proxy,
            replica.client() as client,
        ):
            until(lambda: client.info("replication")["master_link_status"] == "up", "the replica does not connect")
            yield OneServer(master, replica, proxy)
