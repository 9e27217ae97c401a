"""A stand-in: a redis-server whose user has the documented commands of a service, behind a proxy with its limits.

A service is a file of `services`: its title, the page that was read and when, the rules of the user (ACL SETUSER), the
most arguments of a request, whether it is a cluster: then one node that owns all slots.
"""

from __future__ import annotations

import contextlib
import datetime
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis

from tools.servers.managed.refusing import RefusingProxy
from tools.servers.server import Server, free_port, running_redis
from tools.waiting import until

SERVICES = Path(__file__).with_name("services")
_USER = "service:secret@"


@dataclass(frozen=True)
class Service:
    """What a service publishes."""

    title: str
    source: str  # the page
    read: datetime.date
    rules: str
    arguments: int = 1 << 30
    cluster: bool = False

    @classmethod
    def named(cls, name: str) -> Service:
        """Return the service of this file. Raises FileNotFoundError."""
        return cls(**tomllib.loads((SERVICES / f"{name}.toml").read_text("utf-8")))


NAMES = sorted(path.stem for path in SERVICES.glob("*.toml"))


@dataclass(frozen=True)
class StandIn(Server):
    """A running one. url: of the service's user; admin: of one with all rights, past the proxy."""

    admin: Server
    proxy: RefusingProxy


@contextlib.contextmanager
def running_standin(service: Service) -> Iterator[StandIn]:
    """Start a stand-in."""
    port = free_port()
    announced = ["--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", str(port)]
    announced += ["--cluster-port", str(free_port())]
    cluster = ["--cluster-enabled", "yes", *announced] if service.cluster else []
    with running_redis(*cluster) as admin, admin.client() as client:
        if service.cluster:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            until(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok", "no cluster")
        client.execute_command("ACL", "SETUSER", "service", "on", ">secret", "~*", "&*")
        for rule in service.rules.split():
            try:
                client.execute_command("ACL", "SETUSER", "service", rule)
            except redis.ResponseError as error:
                if "Unknown command" not in str(error):  # this server is older than the command
                    raise
        with RefusingProxy(admin.url, service.arguments, port) as proxy:
            scheme = "redis+cluster://" if service.cluster else "redis://"
            yield StandIn("redis", proxy.url.replace("redis://", f"{scheme}{_USER}"), admin, proxy)
