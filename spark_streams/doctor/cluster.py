"""What `rstream doctor` checks in a cluster: slots, replicas, epochs, versions, and each node as one server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from spark_streams.doctor import clock, durability, kind, limits, memory, replication, rights
from spark_streams.doctor.asking import ask
from spark_streams.doctor.finding import Finding, Level, sorted_by_level
from spark_streams.doctor.server_facts import ServerFacts
from spark_streams.errors import LoginError, NotPermittedError, ServerReplyError, ServerUnreachableError
from spark_streams.model.keys import SLOTS
from spark_streams.wire.address.address import Address
from spark_streams.wire.address.server_url import Node
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.topology.topology import SlotMap, connect_to_node, topology_of, why_not

_AT_ONCE = 16  # nodes that are connected to at the same time: a node that does not answer takes seconds
_SHOWN = 3  # values of one finding, if the nodes differ
_FAILS = "queries that use their streams wait for a minute, then fail"


@dataclass(frozen=True, eq=False)
class Member:
    """One node. master: of a replica; facts: None if the node is not reached; why: the reason for that; is_shut_out:
    the reason is the login; view: the slots as this node sees them; lacks: missing rights by use."""

    node: Node
    master: Node | None = None
    facts: ServerFacts | None = None
    why: str = ""
    is_shut_out: bool = False
    view: SlotMap | None = None
    lacks: Mapping[str, rights.Missing] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`host:port`."""
        return name_of(self.node)


@dataclass(frozen=True)
class ClusterFacts:
    """address: without its login; map: None if the user may not ask for the slots, and then the members are the nodes
    that the URL names; members: masters first."""

    address: str
    map: SlotMap | None
    members: tuple[Member, ...]

    @property
    def reached(self) -> dict[Member, ServerFacts]:
        """The nodes that answered."""
        return {one: one.facts for one in self.members if one.facts is not None}

    @property
    def covered(self) -> int | None:
        """Number of slots that have a node; None if the user may not ask for the slots."""
        return None if self.map is None else sum(owner is not None for owner in self.map.owners)


def name_of(node: Node) -> str:
    """`host:port`."""
    host, port = node
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def examine(
    address: Address,
    uses: Sequence[str] = rights.USES,
    streams: Sequence[str] = (),
    now: Callable[[], float] = time.time,
) -> tuple[ClusterFacts, list[Finding]]:
    """Return the nodes and the findings, the worst first. Raises ServerUnreachableError if no node answers, LoginError,
    UnsupportedError if the server is no cluster."""
    try:
        known = topology_of(address).refresh()
    except NotPermittedError:
        known = None

    def asked(member: Member) -> Member:
        try:
            server = connect_to_node(address, member.node)
        except (ServerUnreachableError, ServerReplyError) as error:
            return replace(member, why=why_not(address, error), is_shut_out=isinstance(error, LoginError))
        try:
            slots, told = server.pipeline([("CLUSTER", "SLOTS"), ("CLUSTER", "INFO")])
            view = None if isinstance(slots, ReplyError) else SlotMap.read(member.node, slots, told)
            lacks = rights.ask_rights(server, uses, streams, in_cluster=True)
            return replace(member, facts=ask(server, now), view=view, lacks=lacks)
        finally:
            server.close()

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        facts = ClusterFacts(str(address), known, tuple(threads.map(asked, _members(address, known))))
    lacks = [(one.name, rights.findings(said.user, one.lacks, streams)) for one, said in facts.reached.items()]
    return facts, sorted_by_level([*judge(facts), *merge(lacks)])


def _members(address: Address, known: SlotMap | None) -> list[Member]:
    if known is None:
        return [Member(node) for node in address.nodes]
    return [*map(Member, known.masters), *(Member(node, of) for of in known.masters for node in known.followers[of])]


def judge(facts: ClusterFacts) -> list[Finding]:
    """Return what follows from the answers of the nodes. Pure."""
    whole = [] if facts.map is None else [*_slots(facts), *_epochs(facts, facts.map), *_replicas(facts)]
    return [*whole, *_versions(facts), *merge((one.name, _of_one(one)) for one in facts.members)]


def merge(found: Iterable[tuple[str, Sequence[Finding]]]) -> list[Finding]:
    """Join the findings of several nodes, (node, findings) each, that have the same effect and remedy."""
    alike: dict[Finding, list[tuple[str, str]]] = {}
    for node, some in found:
        for one in some:
            alike.setdefault(replace(one, said=""), []).append((node, one.said))
    return [
        replace(one, said=_joined(said for _, said in same), nodes=tuple(dict.fromkeys(node for node, _ in same)))
        for one, same in alike.items()
    ]


def _joined(said: Iterable[str]) -> str:
    different = list(dict.fromkeys(said))
    return "; ".join(different[:_SHOWN]) + (f" … ({len(different)} in all)" if len(different) > _SHOWN else "")


def _slots(facts: ClusterFacts) -> list[Finding]:
    bare = SLOTS - (facts.covered or 0)
    if not bare:
        return [Finding(Level.OK, "slots", f"all {SLOTS:,} have a node")]
    effect = f"unless cluster-require-full-coverage is no, no node serves anything (CLUSTERDOWN): {_FAILS}"
    remedy = f"start the nodes that had them; if those are gone for good: redis-cli --cluster fix {_answering(facts)}"
    return [Finding(Level.DANGER, "slots", f"{bare:,} of {SLOTS:,} have no node", effect, remedy)]


def _epochs(facts: ClusterFacts, known: SlotMap) -> list[Finding]:
    views = {one: one.view for one in facts.members if one.view is not None}
    newest = max((view.epoch for view in views.values()), default=0)
    odd = [one for one, view in views.items() if (view.epoch, view.owners, view.is_ok) != (newest, known.owners, True)]
    if not odd or facts.covered != SLOTS:
        return []
    said = "these nodes are at an older epoch, see other owners of slots, or hold the cluster for down"
    effect = f"for seconds after a failover or while slots move, this is normal; if it stays, {_FAILS}"
    remedy = (
        "run this again; if it stays: start the nodes that are down, repair the network between the nodes, also to the "
        f"cluster bus (port + 10,000), then redis-cli --cluster check {_answering(facts)}"
    )
    return [Finding(Level.WARNING, "epochs", said, effect, remedy, tuple(one.name for one in odd))]


def _replicas(facts: ClusterFacts) -> list[Finding]:
    """Also by what the master itself says: CLUSTER SLOTS lists a new replica late."""
    replicated = {one.master for one in facts.members}
    replicated |= {one.node for one, said in facts.reached.items() if said.number("connected_slaves")}
    alone = tuple(one.name for one in facts.members if one.master is None and one.node not in replicated)
    effect = f"if it goes down, nothing takes its place, and what its disk loses is lost: {_FAILS}"
    remedy = "redis-cli --cluster add-node NEW:PORT ANY:PORT --cluster-slave --cluster-master-id ITS-ID"
    return [Finding(Level.WARNING, "replicas", "a master without a replica", effect, remedy, alone)] if alone else []


def _versions(facts: ClusterFacts) -> list[Finding]:
    versions = sorted({f"{said.kind} {said.version}" for said in facts.reached.values() if said.version})
    said = f"the nodes run different versions: {', '.join(versions)}"
    effect = "an older replica cannot follow a newer master, and what queries may use changes after a failover"
    remedy = "one version on all nodes: update the replicas first, then CLUSTER FAILOVER to them"
    return [Finding(Level.WARNING, "versions", said, effect, remedy)] if len(versions) > 1 else []


def _of_one(member: Member) -> list[Finding]:
    """As for one server: memory and the rest. A replica is checked too, because it may become the master."""
    if member.facts is None:
        return [_unreached(member)]
    looks = [kind.look, durability.look, memory.look, limits.look, clock.look]
    looks += [replication.look] if member.master is None else []
    return [found for look in looks for found in look(member.facts)]


def _unreached(member: Member) -> Finding:
    role, level = ("master", Level.DANGER) if member.master is None else ("replica", Level.WARNING)
    effect = _FAILS if member.master is None else f"if it becomes the master, {_FAILS}"
    if member.is_shut_out:
        said = f"the {role} refuses this user or its password, which other nodes accept"
        return Finding(level, "nodes", said, effect, "ACL SETUSER and ACL SAVE on every node, also on each replica")
    said = f"the {role} is not reached from here: {member.why.replace(member.name, 'it')}"
    remedy = "start it, or let the nodes give names that driver and executors reach (cluster-announce-ip, tls-cluster)"
    return Finding(level, "nodes", said, effect, remedy)


def _answering(facts: ClusterFacts) -> str:
    return next((one.name for one in facts.reached), facts.members[0].name)
