"""`rstream doctor` says which managed service a server probably is: by its address, or by what it refuses."""

from __future__ import annotations

import re
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from spark_streams.operations.doctor.server_facts import ENGINE, Level, ServerFacts, fetch_facts
from spark_streams.operations.doctor.services import check_service, probable_service
from tests.operations.doctor.test_command import doctor_json
from tools.servers.managed.standin import NAMES, Service, running_standin
from tools.servers.server import Server, running_redis, skip_without_redis

PUBLIC = {  # hosts as the services' documentation prints them
    "etl-abc123.serverless.use1.cache.amazonaws.com": "ElastiCache Serverless",
    "master.etl.abc123.use1.cache.amazonaws.com": "ElastiCache",
    "clustercfg.etl.abc123.memorydb.us-east-1.amazonaws.com": "MemoryDB",
    "etl.redis.cache.windows.net": "Azure Cache for Redis",
    "etl.westeurope.redis.azure.net": "Azure Managed Redis",
    "etl.westeurope.redisenterprise.cache.azure.net": "Azure Managed Redis",
    "redis-12000.c1.eu-west-1-1.ec2.redns.redis-cloud.com": "Redis Cloud",
    "eu1-etl-12345.upstash.io": "Upstash",
    "etl-project.a.aivencloud.com": "Aiven",
    "cache.amazonaws.com.example.org": "",
    "10.0.0.7": "",
}


@pytest.mark.parametrize("host", PUBLIC)
@pytest.mark.parametrize("form", ["redis://{}:6379/0", "rediss://{}:6380/0", "redis+cluster://{}:6379", "rediss://{}"])
def test_the_host_of_the_url_names_the_service(host: str, form: str) -> None:
    name, reason = probable_service(ServerFacts(str(Address.parse(form.format(host)))))
    assert (name, bool(reason)) == (PUBLIC[host], bool(PUBLIC[host]))


# What these refuse does not tell them from a server without restrictions, or from a user with few rights.
ALIKE = {
    *("azure-managed-enterprise", "azure-managed-oss", "dragonfly", "elasticache-serverless", "garnet", "keydb"),
    *("kvrocks", "memorystore-redis", "redis-active-active", "redis-software", "tair-disk", "tencent", "upstash"),
}


def services(told: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in told["findings"] if one["about"] == "service"]


@pytest.mark.in_turn
@pytest.mark.parametrize("name", NAMES)
def test_a_standin_is_recognized_by_what_it_refuses(name: str) -> None:
    skip_without_redis()
    service = Service.named(name)
    with running_standin(service) as standin:
        told = doctor_json(standin.url)
    for one in services(told):
        said = re.sub(r"^probably (.*) \(it refuses .*\)$", r"\1", one["said"])
        assert service.title.split()[0].strip(",") in said
        assert "limits and flush intervals cannot be checked" in one["effect"]
    assert services(told) or name in ALIKE
    heard = [one for one in told["findings"] if "CLIENT REPLY" in one["said"] and one["about"] == "rights"]
    assert all("each entry is also sent to its driver" in one["effect"] for one in heard)


def test_limits_that_are_told_are_those_of_the_standins() -> None:
    told = {
        name: next(check_service(ServerFacts(f"redis://{host}:1/0"))).effect for host, name in PUBLIC.items() if name
    }
    long, idle = Service.named("elasticache-serverless").limits.arguments, Service.named("azure-cache").limits.idle
    assert f"more than {long:,} arguments" in told["ElastiCache Serverless"]
    assert (idle, "idle for ten minutes" in told["Azure Cache for Redis"]) == (600, True)
    assert told["MemoryDB"] == "its operator decides about limits, memory and persistence"


def test_a_serverless_address_says_what_becomes_of_long_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in, by a name that only this test resolves."""
    skip_without_redis()
    host, resolve = "etl-abc123.serverless.use1.cache.amazonaws.com", socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, *rest, **more: resolve(
        "127.0.0.1" if name == host else name, *rest, **more))  # fmt: skip
    with running_standin(Service.named("elasticache-serverless")) as standin:
        told = doctor_json(standin.url.replace("127.0.0.1", host))
        with standin.admin.client() as admin:
            assert admin.dbsize() == 0
    [one] = services(told)
    assert one["said"] == "probably ElastiCache Serverless (its address)"
    assert "no request of more than 3,999 arguments" in one["effect"]
    assert one["level"] == "note"


def test_a_user_of_few_rights_and_an_unrestricted_one_are_no_sign_of_a_service() -> None:
    skip_without_redis()
    with running_redis() as server, server.client() as admin:
        assert services(doctor_json(server.url)) == []
        admin.execute_command("ACL", "SETUSER", "few", "on", ">pw", "~*", "+@all", "-@admin", "+client|reply")
        few = Server("redis", server.url.replace("://", "://few:pw@"))
        told = doctor_json(few.url)
        assert services(told) == []
        assert [one["said"] for one in told["findings"] if one["about"] == "asking"] == ["few may not run CONFIG"]
        assert urlsplit(few.url).username == "few"


def test_the_bundled_engine_is_no_service(server: Server) -> None:
    with Connection(Address.parse(server.url)) as connection:
        facts = fetch_facts(connection)
    assert probable_service(facts) == ("", "")
    if server.kind == "engine":
        assert facts.kind == ENGINE
    assert [one.level for one in check_service(ServerFacts("redis://h", refused=("INFO", "CONFIG")))] == [Level.NOTE]
