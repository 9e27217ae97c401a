"""A stand-in: a server whose user has the documented commands of a service, behind a proxy with its limits.

A service is a file of `services`. Its server has the version that the service documents, if `scripts/servers` has
fetched it, else the nearest.
"""

from __future__ import annotations

import contextlib
import datetime
import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import redis

from tools.servers.managed.refusing import Limits, RefusingProxy
from tools.servers.server import Server, free_port, redis_server_path, running_redis
from tools.waiting import until

SERVICES = Path(__file__).with_name("services")
FETCHED = Path(__file__).parents[3] / ".servers"
_USER, _SECRET = "service", "secret"
_LIMITS = {one.name for one in fields(Limits)}


@dataclass(frozen=True)
class Service:
    """What a service publishes."""

    title: str
    source: str  # the page
    date: datetime.date  # of the page; if it has none, the day when a stored copy of it was read
    version: str  # `Redis 7.2`, `Valkey 8.0`; empty: the page names none
    exact: bool  # whether the page lists all that is permitted; else all but the named exceptions is
    rules: str  # of the user, for ACL SETUSER
    limits: Limits = field(default_factory=Limits)
    cluster: bool = False  # one node that owns all slots
    silent: str = ""  # rules of commands that the page names neither here nor there: given, or all refused

    @classmethod
    def named(cls, name: str) -> Service:
        """Return the service of this file. Raises FileNotFoundError."""
        given = tomllib.loads((SERVICES / f"{name}.toml").read_text("utf-8"))
        limits = Limits(**{key: given.pop(key) for key in _LIMITS & given.keys()})
        return cls(**given, limits=limits)

    def refusing_the_silent(self) -> Service:
        """Return the service as it is if it refuses what its page does not name."""
        names = [rule.removeprefix("+").upper() for rule in self.silent.split()]
        return replace(self, silent="", title=f"{self.title}, if it refuses {', '.join(names)}")


NAMES = sorted(path.stem for path in SERVICES.glob("*.toml"))


@dataclass(frozen=True)
class StandIn(Server):
    """A running one. url: of the service's user; admin: of one with all rights, past the proxy; program: the server."""

    admin: Server
    proxy: RefusingProxy
    service: Service
    program: str  # `Redis 7.0.15`


@contextlib.contextmanager
def running_standin(service: Service) -> Iterator[StandIn]:
    """Start a stand-in."""
    port = free_port()
    announced = ["--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", str(port)]
    announced += ["--cluster-port", str(free_port())]
    cluster = ["--cluster-enabled", "yes", *announced] if service.cluster else []
    program, path = _nearest(service.version)
    with running_redis(*cluster, program=path) as admin, admin.client() as client:
        if service.cluster:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            until(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok", "no cluster")
        client.execute_command("ACL", "SETUSER", _USER, "on", f">{_SECRET}", "~*", "&*")
        for rule in f"{service.rules} {service.silent}".split():
            try:
                client.execute_command("ACL", "SETUSER", _USER, rule)
            except redis.ResponseError as error:
                if "Unknown command" not in str(error):  # this server is older than the command
                    raise
        with RefusingProxy(admin.url, service.limits, port, _SECRET) as proxy:
            scheme = "redis+cluster://" if service.cluster and not service.limits.across else "redis://"
            login = "" if service.limits.token else f"{_USER}:{_SECRET}@"  # a token's comes from a credential provider
            yield StandIn("redis", proxy.url.replace("redis://", scheme + login), admin, proxy, service, program)


def _nearest(version: str) -> tuple[str, str]:
    """Return name and path of the server that is nearest to a version: of its kind first, then by number."""
    paths = [*map(str, FETCHED.glob("*/bin/redis-server")), *filter(None, [redis_server_path()])]
    assert paths, "no redis-server"
    kind, number = _number(version)
    programs = {_name_of(path): path for path in paths}

    def distance(name: str) -> tuple[bool, int]:
        its_kind, its_number = _number(name)
        return its_kind != kind, abs(its_number - number)

    name = min(programs, key=distance) if version else _name_of(paths[-1])
    return name, programs[name]


def _name_of(path: str) -> str:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.match(r"(Redis|Valkey) server v=(\S+)", said)
    assert found, said
    return f"{found[1]} {found[2]}"


def _number(version: str) -> tuple[str, int]:
    kind, _, number = version.partition(" ")
    major, _, minor = number.partition(".")
    return kind, 100 * int(major or 0) + int(minor.partition(".")[0] or 0)
