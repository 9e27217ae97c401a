"""From what the nodes of a cluster say to what is found: pure, a fault at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_streams.connector.wire.server_url import Node
from spark_streams.connector.wire.topology import SlotMap
from spark_streams.operations.doctor.examination import ClusterFacts, Member, judge_cluster, merge
from spark_streams.operations.doctor.server_facts import Level, ServerFinding, sorted_by_level, worst
from tests.operations.doctor.test_server_findings import MB, check, facts

MASTERS: list[Node] = [("a", 1), ("b", 1), ("c", 1)]
REPLICAS: list[Node] = [("b", 2), ("c", 2), ("a", 2)]  # of a, b and c
SHARES = [[0, 5460], [5461, 10922], [10923, 16383]]


def seen(shares: list[list[int]] = SHARES, state: str = "ok", epoch: int = 3) -> SlotMap:
    """What CLUSTER SLOTS and CLUSTER INFO would say."""
    rows = []
    for (first, last), master, replica in zip(shares, MASTERS, REPLICAS, strict=True):
        rows.append([first, last, *[[host.encode(), port] for host, port in (master, replica)]])
    return SlotMap.read(("a", 1), rows, f"cluster_state:{state}\r\ncluster_current_epoch:{epoch}\r\n".encode())


def node(at: Node, master: Node | None = None, view: SlotMap | None = None, **info: Any) -> Member:
    """A good one, with something changed."""
    role = {} if master is None else {"role": "slave", "connected_slaves": 0}
    told = facts(info.pop("config", {}), **{"redis_mode": "cluster", **role, **info})
    return Member(at, master, replace(told, address="redis+cluster://a:1"), view=view or seen())


def cluster(*changed: Member, known: SlotMap | None = None) -> ClusterFacts:
    """A good cluster, with some members changed."""
    good = [node(at) for at in MASTERS] + [node(at, of) for at, of in zip(REPLICAS, MASTERS, strict=True)]
    other = {one.node: one for one in changed}
    found = tuple(other.get(one.node, one) for one in good)
    return ClusterFacts("redis+cluster://a:1", known or seen(), found)


def about(what: str, cluster: ClusterFacts) -> list[ServerFinding]:
    return sorted_by_level(one for one in judge_cluster(cluster) if one.about == what)


def test_a_good_cluster_is_ok_in_everything_and_says_it_once() -> None:
    found = [*judge_cluster(cluster())]
    assert worst(found) is Level.OK, found
    assert [one.about for one in found] == [
        "slots", "version", "persistence", "memory", "limits", "clock", "replication",
    ]  # fmt: skip


def test_memory_is_checked_on_every_node_and_reported_once_with_their_names() -> None:
    odd = node(("b", 1), maxmemory_policy="allkeys-lru")
    full = node(("a", 2), ("c", 1), used_memory=20 * MB)
    found = [one for one in judge_cluster(cluster(odd, full)) if one.about == "memory"]
    assert [(one.level, one.nodes, one.observation) for one in found] == [
        (Level.OK, ("a:1", "c:1", "b:2", "c:2", "a:2"),
         "10 MB of 100 MB in use, noeviction; 20 MB of 100 MB in use, noeviction"),
        (Level.DANGER, ("b:1",), "evicts any key when 100 MB are full (maxmemory-policy allkeys-lru)"),
    ]  # fmt: skip


def test_a_replica_is_checked_as_a_node_that_may_become_a_master() -> None:
    bad = {"save": "", "replica-read-only": "no"}
    found = [*judge_cluster(cluster(node(("b", 2), ("a", 1), config=bad, aof_enabled=0)))]
    assert [(one.about, one.nodes) for one in found if one.level is Level.DANGER] == [("persistence", ("b:2",))]


def test_findings_with_another_effect_level_or_remedy_stay_apart() -> None:
    one = ServerFinding(Level.NOTE, "x", "5 s", "e", "r")
    others = [replace(one, effect="f"), replace(one, level=Level.WARNING), replace(one, remedy="s")]
    assert [*merge([("a", [one, *others]), ("b", [one])])] == [
        replace(one, nodes=("a", "b")), *(replace(other, nodes=("a",)) for other in others)
    ]  # fmt: skip


def test_of_many_values_the_first_are_shown() -> None:
    [found] = merge([(str(n), [ServerFinding(Level.NOTE, "x", f"{n} s")]) for n in range(9)])
    assert (found.observation, len(found.nodes)) == ("0 s; 1 s; 2 s … (9 in all)", 9)


def test_slots_that_no_node_has() -> None:
    bare = seen([[0, 5460], [5500, 10922], [10924, 16383]])
    found = cluster(known=bare)
    check(about("slots", found), Level.DANGER, "40 of 16,384 slots have no node .*CLUSTERDOWN.*--cluster fix a:1")
    assert not about("epochs", found)  # every node says `fail` then


@pytest.mark.parametrize(
    "view",
    [seen(epoch=2), seen([[0, 5459], [5460, 10922], [10923, 16383]]), seen(state="fail")],
    ids=["an older epoch", "other owners", "down"],
)
def test_nodes_that_see_another_cluster(view: SlotMap) -> None:
    [found] = about("epochs", cluster(node(("c", 2), ("b", 1), view)))
    check([found], Level.WARNING, "older epoch, see other owners .*cluster bus .*--cluster check a:1")
    assert found.nodes == ("c:2",)


def test_a_master_without_a_replica() -> None:
    less = tuple(one for one in cluster(node(("a", 1), connected_slaves=0)).members if one.node != ("b", 2))
    alone = replace(cluster(), members=less)
    [found] = about("replicas", alone)
    check([found], Level.WARNING, "without a replica .*--cluster-slave")
    assert found.nodes == ("a:1",)
    assert not [one for one in judge_cluster(alone) if "without replicas" in one.observation]
    fresh = tuple(one for one in cluster().members if one.node != ("b", 2))  # the master itself knows of one
    assert not about("replicas", replace(cluster(), members=fresh))


@pytest.mark.parametrize(
    ("at", "master", "level", "words"),
    [
        (("b", 1), None, Level.DANGER, "the master is not reachable .*: connecting to it: refused .*"),
        (("c", 2), ("b", 1), Level.WARNING, "the replica is not reachable .*if it becomes the master, queries.*"),
    ],
)
def test_a_node_that_is_not_reached(at: Node, master: Node | None, level: Level, words: str) -> None:
    away = Member(at, master, why=f"connecting to {at[0]}:{at[1]}: refused")
    [found] = about("nodes", cluster(away))
    check([found], level, words + "cluster-announce-ip")
    assert found.nodes == (f"{at[0]}:{at[1]}",)
    check(
        about("nodes", cluster(replace(away, is_shut_out=True))),
        level,
        "refuses this user .*ACL SETUSER .*CONFIG REWRITE",
    )
    assert worst(judge_cluster(cluster(away))) is level


def test_versions_that_differ() -> None:
    found = about("versions", cluster(node(("b", 1), redis_version="8.0.2")))
    check(found, Level.WARNING, "Redis 7.4.1, Redis 8.0.2 .*replicas first")


def test_if_the_user_may_not_ask_for_the_slots_the_named_nodes_are_checked() -> None:
    blind = ClusterFacts("redis+cluster://a:1", None, (replace(node(("a", 1)), view=None),))
    assert {one.about for one in judge_cluster(blind)} == {
        "version", "persistence", "memory", "limits", "clock", "replication",
    }  # fmt: skip
