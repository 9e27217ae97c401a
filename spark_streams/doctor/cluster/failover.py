"""Who takes the place of a master that dies, and when. Pure."""

from __future__ import annotations

from spark_streams.doctor.cluster.facts import ClusterFacts, Member, names
from spark_streams.doctor.finding import Finding, Level

_ABOUT = "failover"
WAITED = 60_000  # ms that a query waits (wire.patience)
HASTY = 1_000  # ms of silence that a fork, a slow disk or a pause of the machine may take, too
MAJORITY = 3  # masters, of which one may die and most are left


def look(facts: ClusterFacts) -> list[Finding]:
    """Replicas that there are, that follow, that may take over; and how long that takes."""
    if facts.map is None:
        return []
    found = [*_alone(facts), *_not_following(facts), *_never(facts), *_no_majority(facts)]
    return [*found, *_timeout(facts)]


def _alone(facts: ClusterFacts) -> list[Finding]:
    """By what the master says, too: a replica that has just come is not listed before the nodes have heard of it."""
    following = {one.node for one, said in facts.reached.items() if said.number("connected_slaves")}
    following |= {one.master for one in facts.members if one.master is not None}
    alone = [one for one in facts.masters if one.node not in following]
    if not alone:
        return []
    what = "the whole cluster stops" if facts.stops_as_a_whole else "its streams are refused"
    return [
        Finding(
            Level.WARNING, _ABOUT, "a master without a replica",
            f"while it is away {what} (CLUSTERDOWN): queries wait for a minute, then they fail; what its disk loses is "
            "lost",
            "redis-cli --cluster add-node NEW:PORT ANY:PORT --cluster-slave --cluster-master-id ITS-ID",
            names(alone),
        )
    ]  # fmt: skip


def _not_following(facts: ClusterFacts) -> list[Finding]:
    """By what the masters say of their connections."""
    lacking = []
    for master, said in facts.reached.items():
        listed = [one for one in facts.members if one.master == master.node]
        if "connected_slaves" in said.info and said.number("connected_slaves") < len(listed):
            lacking.append(master)
    if not lacking:
        return []
    return [
        Finding(
            Level.WARNING, _ABOUT, "a master that fewer replicas are connected to than the cluster lists",
            "what those lack is lost where one of them takes its place",
            "see the replicas' logs (a password of masterauth, the network, a full disk)",
            names(lacking),
        )
    ]  # fmt: skip


def _never(facts: ClusterFacts) -> list[Finding]:
    settings = {one: said.config for one, said in facts.reached.items()}
    never = [one for one, config in settings.items() if config.get("cluster-replica-no-failover") == "yes"]
    if not never:
        return []
    return [
        Finding(
            Level.WARNING, _ABOUT, "never takes a master's place by itself (cluster-replica-no-failover yes)",
            "where no other replica does, queries wait for a minute, then they fail",
            "CONFIG SET cluster-replica-no-failover no, but where it is meant so",
            names(never),
        )
    ]  # fmt: skip


def _no_majority(facts: ClusterFacts) -> list[Finding]:
    count = len(facts.masters)
    if count >= MAJORITY:
        return []
    return [
        Finding(
            Level.WARNING, _ABOUT, f"{count} {'master has' if count == 1 else 'masters have'} all slots",
            "a replica takes over where most masters agree, and where one of so few dies most are not left: queries "
            "wait for a minute, then they fail",
            "three masters or more",
        )
    ]  # fmt: skip


def _timeout(facts: ClusterFacts) -> list[Finding]:
    told = {one: said.setting("cluster-node-timeout") for one, said in facts.reached.items()}
    known = {one: ms for one, ms in told.items() if ms is not None}
    if not known:
        return []
    longest, shortest = max(known.values()), min(known.values())
    span = f"{_seconds(longest)} to {_seconds(longest * 3 // 2)} s"
    if longest * 3 // 2 >= WAITED:
        return [
            Finding(
                Level.WARNING, _ABOUT,
                f"a master that dies is replaced after {span} (cluster-node-timeout {longest:,})",
                "queries wait for a minute, then they fail, and are to be started again",
                "cluster-node-timeout 15000, as a server has it by itself, or less",
                _with(known, longest),
            )
        ]  # fmt: skip
    if shortest < HASTY:
        return [
            Finding(
                Level.NOTE, _ABOUT,
                f"a master that is silent for {_seconds(shortest)} s is replaced (cluster-node-timeout {shortest:,})",
                "a fork, a slow disk or a pause of the machine is enough, and what the replica lacks then is lost",
                "cluster-node-timeout 5000 to 15000",
                _with(known, shortest),
            )
        ]  # fmt: skip
    said = f"a master that dies is replaced after {span}; queries wait for a minute"
    return [Finding(Level.OK, _ABOUT, said)]


def _with(known: dict[Member, int], ms: int) -> tuple[str, ...]:
    return names(one for one, its in known.items() if its == ms)


def _seconds(ms: int) -> str:
    return f"{ms / 1000:g}"
