"""`rstream doctor` on a cluster: every node is asked, each finding is said once, one node's url says what to use."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spark_streams.cli import main
from spark_streams.connector.lag.survey import survey
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect, invalidate_topology
from spark_streams.connector.wire.scan import list_streams
from spark_streams.operations.doctor.rights import LOOKING, READING, REDRIVE, WRITING, names_of
from tests.connector.deadletter.making import DEAD, fill, redrive
from tests.connector.source.limited_user import read_in_all_ways
from tests.legs.redis_cluster.piping import Piping
from tests.legs.redis_cluster.test_rights import IN_A_CLUSTER, RIGHTS, Limited, allow
from tools.servers.cluster import RedisCluster
from tools.waiting import until

pytestmark = pytest.mark.in_turn

WHO = "+client|info"  # for the user's name in what is found


def doctor(url: str, *words: str) -> Result:
    """On a terminal of 80 columns."""
    ran = CliRunner().invoke(main, ["doctor", url, *words], env={"COLUMNS": "80"})
    assert "secret" not in ran.output
    return ran


def doctor_json(url: str, *words: str) -> dict[str, Any]:
    ran = doctor(url, "--json", *words)
    assert ran.exit_code in (0, 3), ran.output
    told: dict[str, Any] = json.loads(ran.output)
    return told


@pytest.fixture(autouse=True)
def listed(cluster: RedisCluster) -> None:
    """Nodes list a replica once they have heard how far it has come."""
    slots = [cluster.ports[0], "CLUSTER", "SLOTS"]
    until(lambda: all(len(one) == 4 for one in cluster.command(*slots)), "a replica is not listed")


def of_level(told: dict[str, Any], level: str) -> list[tuple[str, int]]:
    """(what it is about, on how many nodes)."""
    return [(one["about"], len(one["nodes"])) for one in told["findings"] if one["level"] == level]


def test_a_cluster_is_looked_at_as_a_whole(cluster: RedisCluster) -> None:
    """As the tests start it: nothing is kept, and a master that is cut off goes on."""
    told = doctor_json(cluster.url)
    assert (of_level(told, "danger"), of_level(told, "warning")) == ([("persistence", 6)], [("replication", 3)])
    assert told["cluster"]["slots_covered"] == 16384
    nodes = {one["address"]: one for one in told["cluster"]["nodes"]}
    assert sorted(nodes) == sorted(f"127.0.0.1:{port}" for port in cluster.ports)
    assert all(one["reached"] and one["version"] for one in nodes.values())
    masters = {f"127.0.0.1:{port}" for port in cluster.masters()}
    assert {one for one in nodes if nodes[one]["role"] == "master"} == masters
    assert {nodes[one]["replica_of"] for one in nodes if one not in masters} == masters
    assert sum(nodes[one]["slots"] for one in masters) == 16384
    ran = doctor(cluster.url)
    assert ran.exit_code == 3
    assert max(map(len, ran.output.splitlines())) <= 80
    for said in ("3 masters, 3 replicas, all 16,384 slots", "On: all 6 nodes", "1 danger, 1 warning"):
        assert said in ran.output
    assert ran.output.count("neither an append-only file") == 1


def test_a_dead_replica_and_a_node_that_drops_keys(cluster: RedisCluster) -> None:
    bad, other = cluster.masters()[:2]
    [replica] = [port for port, (_, _, of) in cluster.nodes(other).items() if of == cluster.id_of(other)]
    try:
        cluster.command(bad, "CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")
        cluster.kill(replica)
        until(lambda: len(replicas_of(cluster, other)) == 0, "the dead replica is listed")
        told = doctor_json(cluster.url)
    finally:
        cluster.command(bad, "CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction")
    by = {(one["level"], one["about"]): one["nodes"] for one in told["findings"]}
    assert by["danger", "memory"] == [f"127.0.0.1:{bad}"]
    assert by["warning", "replicas"] == [f"127.0.0.1:{other}"]


def replicas_of(cluster: RedisCluster, master: int) -> list[int]:
    """The ports that CLUSTER SLOTS of some node lists for it: the doctor may ask any."""
    nodes = cluster.answering(cluster.ports)
    rows = [row for port in nodes for row in cluster.command(port, "CLUSTER", "SLOTS")]
    return [one[1] for row in rows if row[2][1] == master for one in row[3:]]


def test_the_url_of_one_node_says_which_one_to_use(cluster: RedisCluster) -> None:
    told = doctor_json(cluster.url.split(",", maxsplit=1)[0].replace("+cluster", ""))
    [mode] = [one for one in told["findings"] if one["about"] == "mode"]
    assert (mode["level"], "one node of a cluster" in mode["said"]) == ("danger", True)
    assert mode["remedy"].endswith(f": redis+cluster://127.0.0.1:{cluster.ports[0]}")


def test_a_named_stream_is_examined_on_its_node(cluster: RedisCluster) -> None:
    cluster.command(cluster.owner("text"), "SET", "text", "x")
    cluster.command(cluster.owner("s0"), "XADD", "s0", "*", "a", 1)
    told = doctor_json(cluster.url, "--stream", "text", "--stream", "s0")
    [finding] = [finding for finding in told["findings"] if finding["about"] == "streams"]
    assert (finding["said"], finding["nodes"]) == (
        "key 'text' is not a stream",
        [f"127.0.0.1:{cluster.owner('text')}"],
    )


@pytest.fixture
def limited(cluster: RedisCluster) -> Any:
    allow(cluster, f"{RIGHTS} {IN_A_CLUSTER} {WHO}")
    yield Limited(cluster)
    for port in cluster.ports:
        cluster.command(port, "ACL", "DELUSER", "app")


def test_rights_are_each_node_s_own(cluster: RedisCluster, limited: Limited) -> None:
    odd, away = cluster.ports[0], cluster.ports[-1]
    assert of_level(doctor_json(limited.url, "--stream", "s0"), "warning") == []
    cluster.command(odd, "ACL", "SETUSER", "app", "-xclaim")
    cluster.command(away, "ACL", "DELUSER", "app")
    told = doctor_json(limited.url, "--stream", "s0")
    lacking = [one for one in told["findings"] if one["level"] in ("warning", "danger")]
    [shut_out] = [one for one in lacking if one["about"] == "nodes"]
    assert (shut_out["nodes"], "refuses this user" in shut_out["said"]) == ([f"127.0.0.1:{away}"], True)
    [rights] = [one for one in lacking if one["about"] == "rights"]
    assert (rights["said"], rights["nodes"]) == ("user app lacks rights for reading: +xclaim", [f"127.0.0.1:{odd}"])
    assert not doctor(limited.url, "--for", "writing").output.count("+xclaim")


def test_a_missing_right_to_read_the_slots_is_reported_and_no_error(cluster: RedisCluster, limited: Limited) -> None:
    allow(cluster, f"{RIGHTS} {WHO}")
    told = doctor_json(limited.url, "--for", "looking", "--stream", "s0")
    assert told["cluster"]["slots_covered"] is None
    [rights] = [one for one in told["findings"] if one["about"] == "rights"]
    assert rights["said"] == "user app lacks rights for looking: +cluster|info +cluster|slots"
    assert len(rights["nodes"]) == 3  # which the url names


def exactly(*uses: str) -> str:
    """The commands that the doctor asks for, and no other."""
    keys = ["~s*", "~o:*", "~out-*", "~other", f"~{DEAD}*", "~rstream:*"]
    return " ".join(keys) + " " + " ".join(f"+{name}" for use in uses for name in names_of(use, in_cluster=True))


def test_the_rights_that_are_asked_for_are_enough(cluster: RedisCluster, limited: Limited) -> None:
    allow(cluster, exactly(READING, WRITING))
    invalidate_topology(Address.parse(limited.url))
    piping = Piping(limited)
    piping.at_least(100)
    piping.end()
    assert piping.nothing_is_lost_or_doubled() >= 100
    allow(cluster, exactly(READING))
    read_in_all_ways(limited.server, cluster.server)
    fill(cluster.server, 20, stream="other")
    allow(cluster, exactly(REDRIVE))
    assert redrive(limited.server).moved == 21  # one that could not be read
    allow(cluster, exactly(LOOKING))
    with connect(Address.parse(limited.url)) as server:
        assert {b"s0", b"other"} <= set(list_streams(server))
        assert [one.lag for one in survey(server, ["s0"]).groups] == [0]
