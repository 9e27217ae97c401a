"""From what the nodes of a cluster say to what is found: pure, a fault at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_streams.doctor.cluster import failover, members, slots
from spark_streams.doctor.cluster.examination import judge
from spark_streams.doctor.cluster.facts import ClusterFacts, Member, NodeTable
from spark_streams.doctor.cluster.merging import merge
from spark_streams.doctor.finding import Finding, Level, worst
from spark_streams.doctor.server_facts import Clock
from spark_streams.wire.server_url import Node
from spark_streams.wire.topology import SlotMap
from tests.doctor.test_findings import MB, WELL, check, facts

MASTERS: list[Node] = [("a", 1), ("b", 1), ("c", 1)]
REPLICAS: list[Node] = [("b", 2), ("c", 2), ("a", 2)]  # of a, b and c: each on another machine
SHARES = [[0, 5460], [5461, 10922], [10923, 16383]]


def seen(shares: list[list[int]] = SHARES, masters: list[Node] = MASTERS, replicas: Any = REPLICAS) -> SlotMap:
    """What CLUSTER SLOTS would say."""
    rows = []
    for (first, last), master, replica in zip(shares, masters, replicas, strict=True):
        rows.append([first, last, *[[host.encode(), port] for host, port in (master, replica) if port]])
    return SlotMap.read(("a", 1), rows, b"cluster_state:ok\r\n")


def node(at: Node, master: Node | None = None, config: dict[str, str] | None = None, **info: Any) -> Member:
    """A good one, with something changed."""
    role = {} if master is None else {"role": "slave", "connected_slaves": 0}
    told = facts({"cluster-node-timeout": "15000", **(config or {})}, **{"redis_mode": "cluster", **role, **info})
    return Member(at, master, replace(told, address="redis+cluster://a:1"), view=seen(), table=NodeTable())


def cluster(*changed: Member, known: SlotMap | None = None) -> ClusterFacts:
    """A good cluster, with some members changed."""
    good = [node(at) for at in MASTERS] + [node(at, of) for at, of in zip(REPLICAS, MASTERS, strict=True)]
    other = {one.node: one for one in changed}
    found = tuple(other.get(one.node, one) for one in good)
    return ClusterFacts("redis+cluster://a:1", known or seen(), found, (("a", 1),))


def test_a_good_cluster_is_ok_in_everything_and_says_it_once() -> None:
    found = judge(cluster())
    assert worst(found) is Level.OK, found
    assert [one.about for one in found] == [
        "slots", "clock", "failover", "version", "persistence", "memory", "limits", "clock", "replication",
    ]  # fmt: skip


def test_what_holds_for_several_nodes_is_said_once_with_their_names() -> None:
    odd = node(("b", 1), maxmemory_policy="allkeys-lru")
    full = node(("a", 2), ("c", 1), used_memory=90 * MB)
    found = [one for one in judge(cluster(odd, full)) if one.about == "memory"]
    assert [(one.level, one.nodes, one.said) for one in found] == [
        (Level.OK, ("a:1", "c:1", "b:2", "c:2", "a:2"), "10 to 90 MB of 100 MB in use, noeviction"),
        (Level.DANGER, ("b:1",), "drops any key when 100 MB are full (maxmemory-policy allkeys-lru)"),
        (Level.WARNING, ("a:2",), "90 MB of 100 MB in use"),
    ]


def test_a_replica_is_looked_at_as_what_may_become_a_master() -> None:
    found = judge(cluster(node(("b", 2), ("a", 1), {"save": "", "replica-read-only": "no"}, aof_enabled=0)))
    assert [(one.about, one.nodes) for one in found if one.level is Level.DANGER] == [("persistence", ("b:2",))]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (["1.9 MB in use", "900 KB in use", "1.95 MB in use"], ["900 KB to 1.95 MB in use"]),
        (["1,200 changes", "3 changes"], ["3 to 1,200 changes"]),
        (["Redis 7.0.15", "Redis 8.0.2"], ["Redis 7.0.15", "Redis 8.0.2"]),
        (["10.0.0.1:6379 (online, 40 s)", "10.0.0.2:6379 (online, 40 s)"],
         ["10.0.0.1:6379 (online, 40 s)", "10.0.0.2:6379 (online, 40 s)"]),
        (["10.0.0.1:6379 (online, 40 s)", "10.0.0.1:6379 (online, 12 s)"], ["10.0.0.1:6379 (online, 12 to 40 s)"]),
        (["about 5.", "about 6."], ["about 5 to 6."]),
    ],
)  # fmt: skip
def test_figures_alone_make_no_second_finding(said: list[str], told: list[str]) -> None:
    found = merge([(str(n), [Finding(Level.NOTE, "x", words, "e", "r")]) for n, words in enumerate(said)])
    assert [one.said for one in found] == told
    assert sum(len(one.nodes) for one in found) == len(said)


def test_the_same_words_of_another_level_are_another_finding() -> None:
    found = merge([("a", [Finding(Level.NOTE, "x", "5 s")]), ("b", [Finding(Level.WARNING, "x", "90 s")])])
    assert [(one.level, one.nodes) for one in found] == [(Level.NOTE, ("a",)), (Level.WARNING, ("b",))]


def test_slots_that_nobody_has() -> None:
    bare = seen([[0, 5460], [5500, 10922], [10924, 16383]])
    check(slots.look(cluster(known=bare)), Level.DANGER, "40 of 16,384 have no node: 5461-5499, 10923 .*no node serves")
    partial = node(("a", 1), config={"cluster-require-full-coverage": "no"})
    check(slots.look(cluster(partial, known=bare)), Level.DANGER, "streams in them are refused")


def test_nodes_that_see_another_cluster() -> None:
    other = seen([[0, 5459], [5460, 10922], [10923, 16383]])
    behind = replace(node(("c", 2), ("b", 1)), view=other)
    check(slots.look(cluster(behind)), Level.WARNING, "do not agree who has 1 of them: 5460 ")
    down = replace(node(("c", 2), ("b", 1)), view=replace(seen(), is_ok=False))
    found = slots.look(cluster(down))
    check(found, Level.DANGER, "cluster_state:fail")
    assert found[0].nodes == ("c:2",)


def test_slots_that_are_half_way() -> None:
    table = NodeTable.read(
        b"id1 a:1@2,name myself,master - 0 0 1 connected 0-5460 [93->-id2] [7000-<-id2]\n"
        b"id2 b:1@2 master - 0 0 2 connected 5461-10922 [1->-nobody]\n"
        b"id9 z:9@2 slave,fail id1 0 0 2 connected\n"
        b"id8 y:9@2 master,fail? - 0 0 2 connected\n"
    )
    assert table == NodeTable((93, 7000), ("z:9",))
    found = slots.look(cluster(replace(node(("a", 1)), table=table)))
    check(found, Level.WARNING, "to another: 93, 7000 .*redis-cli --cluster fix a:1")
    gone = members.look(cluster(replace(node(("a", 1)), table=table)))
    check(gone, Level.WARNING, "held for failed .*CLUSTER FORGET")
    assert [one.nodes for one in gone if one.level is Level.WARNING] == [("z:9",)]


def test_who_may_not_ask_for_the_nodes_is_told_what_is_not_known() -> None:
    found = slots.look(cluster(replace(node(("a", 1)), table=None)))
    check(found, Level.NOTE, "may not run CLUSTER NODES .*half way")
    assert [one.nodes for one in found] == [(), ("a:1",)]


def test_many_ranges_are_not_all_shown() -> None:
    assert slots.ranges([1, 2, 3, 5, 7, 8, 10, 12]) == "1-3, 5, 7-8, 10 …"


@pytest.mark.parametrize(
    ("at", "master", "level", "words"),
    [
        (("b", 1), None, Level.DANGER, "a master is not reached .*: connecting to it: refused .*Then"),
        (("c", 2), ("b", 1), Level.WARNING, "a replica is not reached .*where it takes its master's place, queries"),
    ],
)
def test_a_node_that_is_not_reached(at: Node, master: Node | None, level: Level, words: str) -> None:
    away = Member(at, master, why=f"connecting to {at[0]}:{at[1]}: refused")
    found = members.look(cluster(away))
    check(found, level, words.replace(".*Then", ".*cluster-announce-ip"))
    check(members.look(cluster(replace(away, is_shut_out=True))), level, "refuses this user .*ACL SETUSER on every one")
    assert worst(judge(cluster(away))) is level
    assert "tls-cluster" not in members.look(cluster(away))[0].remedy
    assert "tls-cluster" in members.look(replace(cluster(away), address="rediss+cluster://a:1"))[0].remedy


def test_names_that_are_each_machine_s_own() -> None:
    at = ("127.0.0.1", 1)
    local = replace(cluster(), members=(*cluster().members, node(at)))
    check(members.look(local), Level.DANGER, "each machine's own .*cluster-announce-ip")
    assert worst(members.look(replace(local, named=(at,)))) is Level.OK


def test_versions_that_differ() -> None:
    found = members.look(cluster(node(("b", 1), redis_version="8.0.2")))
    check(found, Level.WARNING, "Redis 7.4.1 (5), Redis 8.0.2 (1)")
    assert [one.nodes for one in found if one.level is Level.WARNING] == [("b:1",)]


@pytest.mark.parametrize(
    ("ahead", "uncertain", "level", "words"),
    [
        (900, 1, Level.OK, "within a second of each other"),
        (3_000, 2_100, Level.OK, "within a second of each other"),
        (-3_000, 1, Level.NOTE, "3 s apart, from b:1 to .*retention .*claimIdle"),
        (90_000, 1, Level.WARNING, "90 s apart, from .* to b:1 .*NTP"),
    ],
)
def test_clocks_of_nodes(ahead: float, uncertain: float, level: Level, words: str) -> None:
    one = node(("b", 1))
    assert one.facts is not None
    odd = replace(one, facts=replace(one.facts, clock=Clock(WELL.clock.ahead_ms + ahead, uncertain)))  # type: ignore[union-attr]
    check(members.look(cluster(odd)), level, words)


def test_a_master_and_its_replicas_on_one_machine() -> None:
    moved = cluster()
    two = tuple(replace(one, node=("a", 9)) if one.node == ("b", 2) else one for one in moved.members)
    found = members.look(replace(moved, members=two))
    check(found, Level.NOTE, "on one machine")
    assert [one.nodes for one in found if one.level is Level.NOTE] == [("a:1",)]


def test_a_master_without_a_replica() -> None:
    less = tuple(one for one in cluster(node(("a", 1), connected_slaves=0)).members if one.node != ("b", 2))
    alone = replace(cluster(), members=less)
    check(failover.look(alone), Level.WARNING, "without a replica .*the whole cluster stops")
    assert failover.look(alone)[0].nodes == ("a:1",)
    assert not [one for one in judge(alone) if "without replicas" in one.said]
    fresh = tuple(one for one in cluster().members if one.node != ("b", 2))
    assert worst(failover.look(replace(cluster(), members=fresh))) is Level.OK


@pytest.mark.parametrize(
    ("changed", "level", "words"),
    [
        ({"connected_slaves": 0}, Level.WARNING, "fewer replicas are connected .*masterauth"),
        ({"config": {"cluster-replica-no-failover": "yes"}}, Level.WARNING, "never takes a master's place"),
        ({"config": {"cluster-node-timeout": "60000"}}, Level.WARNING, "after 60 to 90 s .*15000"),
        ({"config": {"cluster-node-timeout": "500"}}, Level.NOTE, "silent for 0.5 s .*fork"),
        ({}, Level.OK, "after 15 to 22.5 s"),
    ],
)
def test_failover(changed: dict[str, Any], level: Level, words: str) -> None:
    found = failover.look(cluster(node(("a", 1), **changed)))
    check(found, level, words)
    assert found[0].nodes == (() if level is Level.OK else ("a:1",))


def test_too_few_masters_to_agree() -> None:
    two = seen(SHARES[:2], MASTERS[:2], REPLICAS[:2])
    some = tuple(one for one in cluster().members if ("c", 1) not in (one.node, one.master))
    found = failover.look(ClusterFacts("redis+cluster://a:1", two, some))
    check(found, Level.WARNING, "2 masters have all slots .*three masters")


def test_where_nobody_may_ask_for_the_slots_the_named_nodes_are_looked_at() -> None:
    blind = ClusterFacts("redis+cluster://a:1", None, (replace(node(("a", 1)), view=None, table=None),), (("a", 1),))
    assert {one.about for one in judge(blind)} == {
        "version", "persistence", "memory", "limits", "clock", "replication",
    }  # fmt: skip
