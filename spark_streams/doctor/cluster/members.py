"""The nodes beside each other: reached under the names that they give, of one version, with clocks that agree. Pure."""

from __future__ import annotations

from dataclasses import replace

from spark_streams.doctor.clock import NOTED, WARNED
from spark_streams.doctor.cluster.facts import ClusterFacts, Member, names
from spark_streams.doctor.finding import Finding, Level

_ABOUT = "nodes"
_HERE = ("localhost", "::1")


def look(facts: ClusterFacts) -> list[Finding]:
    """Names, versions, clocks, machines."""
    return [*_away(facts), *_loopback(facts), *_failed(facts), *_versions(facts), *_clocks(facts), *_machines(facts)]


def _away(facts: ClusterFacts) -> list[Finding]:
    """One for each role and reason."""
    found: dict[tuple[str, str, bool], list[Member]] = {}
    for one in facts.members:
        if one.facts is None:
            why = "" if one.is_shut_out else one.why.replace(one.name, "it")
            found.setdefault((one.role, why, one.is_shut_out), []).append(one)
    tls = facts.address.startswith("rediss")
    return [_not_reached(*what, some, tls) for what, some in found.items()]


def _not_reached(role: str, why: str, is_shut_out: bool, members: list[Member], tls: bool) -> Finding:
    plain = "; Redis 7.0 names its ports without TLS where tls-cluster is not yes" if tls else ""
    one = Finding(
        Level.DANGER, _ABOUT, f"a {role} is not reached from here under the name that the cluster gives: {why}",
        "queries whose streams are there wait for a minute, then they fail",
        "start it; or have nodes give names that driver and executors reach (cluster-announce-ip, or "
        f"cluster-announce-hostname with cluster-preferred-endpoint-type hostname){plain}",
        names(members),
    )  # fmt: skip
    if is_shut_out:
        remedy = "users are each node's own: ACL SETUSER on every one, replicas too, and ACL SAVE"
        one = replace(one, said=f"a {role} refuses this user or its password, which others take", remedy=remedy)
    if role == "replica":
        one = replace(one, level=Level.WARNING, effect=f"where it takes its master's place, {one.effect}")
    return one


def _loopback(facts: ClusterFacts) -> list[Finding]:
    """A name that is another machine everywhere."""
    local = [one for one in facts.members if _is_loopback(one.node[0])]
    if not local or any(_is_loopback(host) for host, _ in facts.named):
        return []
    return [
        Finding(
            Level.DANGER, _ABOUT, "these nodes name themselves by an address that is each machine's own",
            "a driver or an executor on another machine does not reach them, or reaches another server",
            "cluster-announce-ip with an address that all machines reach",
            names(local),
        )
    ]  # fmt: skip


def _is_loopback(host: str) -> bool:
    return host in _HERE or host.startswith("127.")


def _failed(facts: ClusterFacts) -> list[Finding]:
    """Those that are not among the members: CLUSTER SLOTS leaves out replicas that have failed."""
    known = set(names(facts.members))
    failed = [one for member in facts.members if member.table is not None for one in member.table.failed]
    gone = tuple(dict.fromkeys(one for one in failed if one not in known))
    if not gone:
        return []
    return [
        Finding(
            Level.WARNING, _ABOUT, "held for failed by the other nodes",
            "what they were replicas of has fewer that can take its place",
            "start them again; where they are gone for good: CLUSTER FORGET on every node, and new replicas",
            gone,
        )
    ]  # fmt: skip


def _versions(facts: ClusterFacts) -> list[Finding]:
    found: dict[str, list[Member]] = {}
    for one, said in facts.reached.items():
        if said.version:
            found.setdefault(f"{said.kind} {said.version}", []).append(one)
    if len(found) < 2:
        return []
    each = ", ".join(f"{version} ({len(some)})" for version, some in sorted(found.items()))
    fewest = min(found.values(), key=len)
    return [
        Finding(
            Level.WARNING, _ABOUT, f"of different versions: {each}",
            "what a query may ask for changes where a node takes another's place; an older replica cannot follow a "
            "newer master",
            "one version on all nodes: replicas first, then CLUSTER FAILOVER to them",
            names(fewest),
        )
    ]  # fmt: skip


def _clocks(facts: ClusterFacts) -> list[Finding]:
    told = {one: said.clock for one, said in facts.reached.items() if said.clock is not None}
    if len(told) < 2:
        return []
    first = min(told, key=lambda one: told[one].ahead_ms)
    last = max(told, key=lambda one: told[one].ahead_ms)
    apart = told[last].ahead_ms - told[first].ahead_ms
    surely = apart - told[last].uncertain_ms - told[first].uncertain_ms
    if surely < NOTED:
        return [Finding(Level.OK, "clock", "the nodes' clocks are within a second of each other")]
    return [
        Finding(
            Level.WARNING if surely >= WARNED else Level.NOTE, "clock",
            f"the nodes' clocks are {apart / 1000:,.0f} s apart, from {first.name} to {last.name}",
            "retention goes by the one that is behind most, and keeps that much more; rstream lag and top by one of "
            "them; after a failover to another clock claimIdle takes entries, and leases end, that much too early or "
            "too late",
            "NTP on every node",
            (first.name, last.name),
        )
    ]  # fmt: skip


def _machines(facts: ClusterFacts) -> list[Finding]:
    """Where a master and all of its replicas go together."""
    of: dict[Member, list[Member]] = {
        master: [one for one in facts.members if one.master == master.node] for master in facts.masters
    }
    together = [master for master, some in of.items() if some and all(one.node[0] == master.node[0] for one in some)]
    if not together:
        return []
    return [
        Finding(
            Level.NOTE, _ABOUT, "a master and all of its replicas are on one machine",
            "with the machine their streams go: queries wait for a minute, then they fail",
            "replicas on other machines than their masters, where this is more than a trial",
            names(together),
        )
    ]  # fmt: skip
