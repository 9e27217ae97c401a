"""From what a server says to what is found: pure, a setting at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from spark_streams.operations.doctor.examination import judge_server
from spark_streams.operations.doctor.server_facts import (
    Clock,
    Level,
    ServerFacts,
    ServerFinding,
    numbers,
    sorted_by_level,
    worst,
)
from spark_streams.operations.doctor.server_findings import (
    check_clock,
    check_kind,
    check_limits,
    check_memory,
    check_persistence,
    check_replication,
)
from spark_streams.operations.doctor.stream_findings import check_stream_sizes

MB = 1 << 20
INFO = {
    "redis_version": "7.4.1", "redis_mode": "standalone", "role": "master", "connected_slaves": "1",
    "slave0": "ip=10.0.0.2,port=6379,state=online,offset=1,lag=1", "min_slaves_good_slaves": "1",
    "aof_enabled": "1", "used_memory": str(10 * MB), "maxmemory": str(100 * MB), "maxmemory_policy": "noeviction",
    "connected_clients": "5",
}  # fmt: skip
CONFIG = {
    "appendfsync": "always", "save": "", "min-replicas-to-write": "1", "maxclients": "10000", "timeout": "0",
    "proto-max-bulk-len": str(512 * MB), "client-query-buffer-limit": str(1024 * MB),
    "client-output-buffer-limit": "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60",
}  # fmt: skip
WELL = ServerFacts("redis://h:6379/0", info=INFO, config=CONFIG, clock=Clock(20, 1))


def facts(config: dict[str, str] | None = None, **info: Any) -> ServerFacts:
    """A good server, with something changed."""
    told = {**INFO, **{name: str(value) for name, value in info.items()}}
    return replace(WELL, info=told, config={**CONFIG, **(config or {})})


def level_and_words(found: Iterable[ServerFinding]) -> tuple[Level, str]:
    one = sorted_by_level(found)[0]
    return one.level, " | ".join((one.observation, one.effect, one.remedy))


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"appendfsync": "no", "min-replicas-to-write": "0"}, {"maxmemory_policy": "allkeys-lru"}),
        ({"appendfsync": "everysec"}, {"maxmemory_policy": "volatile-lru"}),
        ({"save": ""}, {"aof_enabled": 0}),
    ],
)
def test_a_remedy_outlives_a_restart_of_the_server(config: dict[str, str], told: dict[str, Any]) -> None:
    remedies = [one.remedy for one in judge_server(facts(config, **told)) if "CONFIG SET" in one.remedy]
    assert remedies
    assert [one for one in remedies if "redis.conf" not in one] == []


def test_a_good_server_is_ok_in_everything() -> None:
    found = [*judge_server(WELL)]
    assert worst(found) is Level.OK
    assert [one.about for one in found] == ["version", "persistence", "memory", "replication", "clock", "limits"]


def test_whatever_is_found_says_what_follows_and_what_to_do() -> None:
    bad = facts(
        {"save": "", "min-replicas-to-write": "0", "timeout": "60", "proto-max-bulk-len": str(MB)},
        aof_enabled=0, maxmemory_policy="allkeys-lru", redis_version="6.2.14", rdb_last_bgsave_status="err",
    )  # fmt: skip
    found = [*judge_server(replace(bad, clock=Clock(90_000, 1), refused=("CONFIG",)))]
    assert all(one.effect and one.remedy for one in found if one.level is not Level.OK)
    assert [one.level for one in sorted_by_level(found)][:4] == [Level.DANGER] * 4


@pytest.mark.parametrize(
    ("told", "level", "words"),
    [
        ({"redis_version": "7.0.0"}, Level.OK, "Redis 7.0.0"),
        ({"redis_version": "6.2.14"}, Level.DANGER, "(readStream) are refused, .* rstream work"),
        ({"redis_version": "5.0.1"}, Level.DANGER, "are not tested on it"),
        ({"redis_version": "7.2.4", "valkey_version": "8.1.1"}, Level.OK, "Valkey 8.1.1"),
        ({"redis_mode": "cluster"}, Level.DANGER, "one node of a cluster .*MOVED"),
    ],
)
def test_version_and_mode(told: dict[str, str], level: Level, words: str) -> None:
    check(check_kind(facts(**told)), level, words)


def check(found: Iterable[ServerFinding], level: Level, words: str) -> None:
    import re

    seen, said = level_and_words([*found])
    assert seen is level, said
    assert re.search(words.replace("(", "\\(").replace(")", "\\)"), said), said


@pytest.mark.parametrize(
    ("config", "told", "level", "words"),
    [
        ({"appendfsync": "always"}, {}, Level.OK, "flushed with every write"),
        ({"appendfsync": "everysec"}, {}, Level.NOTE, "once a second"),
        ({"appendfsync": "no"}, {}, Level.WARNING, "appendfsync everysec"),
        (
            {"save": "3600 1"},
            {"aof_enabled": 0, "rdb_changes_since_last_save": 12345},
            Level.WARNING,
            "lacks 12,345 changes",
        ),
        ({"save": ""}, {"aof_enabled": 0}, Level.DANGER, "neither .* appendonly yes"),
        ({}, {"aof_last_write_status": "err"}, Level.DANGER, "append-only file could not be written"),
        ({}, {"aof_enabled": 0, "rstream_version": "0.1"}, Level.WARNING, "embedded:///a/folder"),
    ],
)
def test_what_is_left_after_a_restart(config: dict[str, str], told: dict[str, Any], level: Level, words: str) -> None:
    check(check_persistence(facts(config, **told)), level, words)


@pytest.mark.parametrize(
    ("told", "level", "words"),
    [
        ({}, Level.OK, "10 MB of 100 MB"),
        (
            {"maxmemory_policy": "allkeys-lfu", "evicted_keys": 7},
            Level.DANGER,
            "7 keys .*exactly-once sinks, mode DEADLETTER and retryDelay are refused",
        ),
        ({"maxmemory_policy": "volatile-ttl"}, Level.NOTE, "Leases do"),
        ({"used_memory": 90 * MB}, Level.WARNING, "OOM"),
        ({"used_memory": 100 * MB}, Level.DANGER, "the memory is full .*rstream trim --acked"),
        (
            {"used_memory": 101 * MB, "maxmemory_policy": "volatile-ttl"},
            Level.DANGER,
            "101 MB of 100 MB in use: the memory is full",
        ),
        ({"used_memory": 101 * MB, "maxmemory_policy": "allkeys-lru"}, Level.DANGER, "evicts any key"),
        ({"maxmemory": 0}, Level.NOTE, "no limit"),
        ({"maxmemory": 0, "used_memory": 900 * MB, "total_system_memory": 1000 * MB}, Level.DANGER, "kills the server"),
    ],
)
def test_memory(told: dict[str, Any], level: Level, words: str) -> None:
    check(check_memory(facts(**told)), level, words)


@pytest.mark.parametrize(
    ("config", "told", "level", "words"),
    [
        ({}, {}, Level.OK, "1 replica, writes need 1"),
        ({"min-replicas-to-write": "0"}, {}, Level.WARNING, "without a connected replica .*waitReplicas"),
        ({}, {"connected_slaves": 0, "min_slaves_good_slaves": 0}, Level.DANGER, "NOREPLICAS"),
        ({"min-replicas-to-write": "0"}, {"connected_slaves": 0}, Level.NOTE, "without replicas"),
        ({}, {"slave0": "ip=a,port=1,state=online,offset=1,lag=40"}, Level.WARNING, "a:1 (online, 40 s)"),
        ({}, {"role": "slave", "master_host": "m", "master_port": 1}, Level.DANGER, "replica of m:1 .*READONLY.*: m:1"),
        ({"replica-read-only": "no"}, {"role": "slave"}, Level.DANGER, "accepts writes .*next full sync"),
        (
            {},
            {"role": "slave", "master_host": "m", "master_link_status": "down"},
            Level.DANGER,
            "is not connected to it",
        ),
    ],
)
def test_replication(config: dict[str, str], told: dict[str, Any], level: Level, words: str) -> None:
    check(check_replication(facts(config, **told)), level, words)


@pytest.mark.parametrize(
    ("ahead", "uncertain", "level", "words"),
    [
        (900, 0, Level.OK, "within a second"),
        (1_500, 800, Level.OK, "within a second"),
        (-3_000, 1, Level.NOTE, "3 s behind this machine's"),
        (90_000, 1, Level.WARNING, "90 s ahead of this machine's .*NTP"),
    ],
)
def test_clocks(ahead: float, uncertain: float, level: Level, words: str) -> None:
    check(check_clock(replace(WELL, clock=Clock(ahead, uncertain))), level, words)


@pytest.mark.parametrize(
    ("config", "told", "level", "words"),
    [
        ({}, {}, Level.OK, "as the server.s defaults"),
        ({"proto-max-bulk-len": str(MB)}, {}, Level.NOTE, "values of up to 1 MB"),
        ({"client-query-buffer-limit": str(8 * MB)}, {}, Level.NOTE, "smaller chunks"),
        ({"client-output-buffer-limit": f"normal 0 {MB} 10 slave 0 0 0"}, {}, Level.DANGER, "fails after a minute"),
        ({"client-output-buffer-limit": f"normal {40 * MB} 0 0"}, {}, Level.WARNING, "a query of large entries"),
        ({"client-output-buffer-limit": f"normal {400 * MB} 0 0"}, {}, Level.OK, "as the server.s defaults"),
        ({"timeout": "30"}, {}, Level.NOTE, "30 s"),
        ({"maxclients": "100"}, {"connected_clients": 95}, Level.WARNING, "95 of 100 clients"),
    ],
)
def test_limits(config: dict[str, str], told: dict[str, Any], level: Level, words: str) -> None:
    check(check_limits(facts(config, **told)), level, words)


@pytest.mark.parametrize(
    ("sizes", "database", "words"),
    [
        ("0=1,1=20,4=2,64K=1", "0", "24 in this database; the largest has 65,536 to 131,071 entries"),
        ("512=3", "", "3 in this database; the 3 largest have 512 to 1,023 entries"),
        ("1=1,2M=1", "0", "2,097,152 to 4,194,303"),
        ("0=1", "0", "1 in this database; the largest has no entries"),
        ("0=1,1=1", "0", "the largest has 1 entry"),
    ],
)
def test_streams(sizes: str, database: str, words: str) -> None:
    server = replace(facts(db0_distrib_streams_items=sizes, db3_distrib_streams_items="8=1"), client={"db": database})
    check(check_stream_sizes(server), Level.OK, words)


def test_a_server_that_does_not_count_streams_or_has_none_has_no_finding_of_them() -> None:
    assert not [*check_stream_sizes(WELL)]
    elsewhere = replace(facts(db0_distrib_streams_items="8=1", db0_distrib_lists_items="4=1"), client={"db": "3"})
    assert not [*check_stream_sizes(elsewhere)]


def test_missing_rights_are_reported_and_no_finding_is_invented() -> None:
    """A user without INFO and CONFIG: HELLO tells what the server is."""
    hello = {"server": "valkey", "version": "9.1.2", "mode": "standalone", "role": "replica"}
    found = [
        *judge_server(ServerFacts("redis://h", hello=hello, client={"user": "billing"}, refused=("INFO", "CONFIG")))
    ]
    assert [(one.level, one.about) for one in found] == [
        (Level.OK, "version"), (Level.NOTE, "asking"), (Level.DANGER, "replication"),
    ]  # fmt: skip
    assert (found[0].observation.split(";")[0], found[1].observation) == (
        "Valkey 9.1.2",
        "billing may not run INFO and CONFIG",
    )


def test_versions() -> None:
    assert (numbers("7.0.15"), numbers("8.2-rc1"), numbers("")) == ((7, 0, 15), (8,), ())
