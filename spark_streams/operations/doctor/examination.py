"""All checks of one server, and of a cluster: slots, replicas, epochs, versions, and each node as a single server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from spark_streams.connector.admin.streams import Node, SlotMap, connect_to_node, topology_of, unreachable_reason
from spark_streams.connector.errors import LoginError, NotPermittedError, ServerReplyError, ServerUnreachableError
from spark_streams.connector.keys import SLOTS
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection, ReplyError
from spark_streams.operations.doctor.rights import USES, Missing, ask_rights, rights_findings
from spark_streams.operations.doctor.server_facts import (
    Findings,
    Level,
    ServerFacts,
    ServerFinding,
    fetch_facts,
    sorted_by_level,
)
from spark_streams.operations.doctor.server_findings import (
    check_clock,
    check_kind,
    check_limits,
    check_memory,
    check_persistence,
    check_replication,
)
from spark_streams.operations.doctor.services import check_service
from spark_streams.operations.doctor.stream_findings import ask_streams, check_stream_sizes


def examine_server(
    server: Connection, uses: Sequence[str] = USES, streams: Sequence[str] = ()
) -> tuple[ServerFacts, list[ServerFinding]]:
    """Return the facts of the server, and the findings, the worst first. uses, streams: for which rights are checked;
    the streams are examined, too. Raises ServerUnreachableError."""
    facts = fetch_facts(server)
    lacks = ask_rights(server, uses, streams)
    of_streams = ask_streams(server, streams)
    return facts, sorted_by_level([*judge_server(facts), *of_streams, *rights_findings(facts.user, lacks, streams)])


def judge_server(facts: ServerFacts) -> Findings:
    """Yield the findings that follow from the facts. Pure."""
    checks = (check_kind, check_service, check_persistence, check_memory, check_replication, check_clock, check_limits)
    for check in checks:
        yield from check(facts)
    yield from check_stream_sizes(facts)


_AT_ONCE = 16  # nodes that are connected to at the same time: a node that does not answer takes seconds
_SHOWN = 3  # values of one finding, if the nodes differ
_FAILS = "queries that use its streams wait for a minute, then fail"


@dataclass(frozen=True, eq=False)
class Member:
    """One node of a cluster."""

    node: Node
    master: Node | None = None  # of a replica
    facts: ServerFacts | None = None  # None: the node is not reached
    why: str = ""  # it is not reached
    is_shut_out: bool = False  # it refuses the login
    view: SlotMap | None = None  # the slots as this node sees them
    lacks: Mapping[str, Missing] = field(default_factory=dict)  # missing rights by use
    of_streams: tuple[ServerFinding, ...] = ()  # findings of the named streams that it holds

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
        return {member: member.facts for member in self.members if member.facts is not None}

    @property
    def used_memory(self) -> int:
        """Bytes in use on all masters that answered."""
        return sum(server.number("used_memory") for member, server in self.reached.items() if member.master is None)

    @property
    def covered(self) -> int | None:
        """Number of slots that have a node; None if the user may not ask for the slots."""
        return None if self.map is None else sum(owner is not None for owner in self.map.owners)


def name_of(node: Node) -> str:
    """`host:port`."""
    host, port = node
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def examine_cluster(
    address: Address, uses: Sequence[str] = USES, streams: Sequence[str] = ()
) -> tuple[ClusterFacts, list[ServerFinding]]:
    """Return the nodes and the findings, the worst first. Raises ServerUnreachableError if no node answers, LoginError,
    UnsupportedError if the server is not a cluster."""
    try:
        slot_map = topology_of(address).refresh()
    except NotPermittedError:
        slot_map = None

    def fetch_member(member: Member) -> Member:
        try:
            server = connect_to_node(address, member.node)
        except (ServerUnreachableError, ServerReplyError) as error:
            return replace(member, why=unreachable_reason(address, error), is_shut_out=isinstance(error, LoginError))
        try:
            slots, cluster_info = server.pipeline([("CLUSTER", "SLOTS"), ("CLUSTER", "INFO")])
            view = None if isinstance(slots, ReplyError) else SlotMap.read(member.node, slots, cluster_info)
            lacks = ask_rights(server, uses, streams, in_cluster=True)
            of_streams = tuple(ask_streams(server, streams))
            return replace(member, facts=fetch_facts(server), view=view, lacks=lacks, of_streams=of_streams)
        finally:
            server.close()

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        facts = ClusterFacts(str(address), slot_map, tuple(threads.map(fetch_member, _members(address, slot_map))))
    of_members = [
        (member.name, [*member.of_streams, *rights_findings(server.user, member.lacks, streams)])
        for member, server in facts.reached.items()
    ]
    return facts, sorted_by_level([*judge_cluster(facts), *merge(of_members)])


def _members(address: Address, slot_map: SlotMap | None) -> list[Member]:
    if slot_map is None:
        return [Member(node) for node in address.nodes]
    return [
        *map(Member, slot_map.masters),
        *(Member(node, master) for master in slot_map.masters for node in slot_map.followers[master]),
    ]


def judge_cluster(facts: ClusterFacts) -> Findings:
    """Yield what follows from the answers of the nodes. Pure."""
    if facts.map is not None:
        yield _slots(facts)
        yield from _epochs(facts, facts.map)
        yield from _replicas(facts)
    yield from _versions(facts)
    yield from merge((member.name, _of_one(member)) for member in facts.members)


def merge(node_findings: Iterable[tuple[str, Iterable[ServerFinding]]]) -> Findings:
    """Join the findings of several nodes, (node, findings) each, that have the same effect and remedy."""
    alike: dict[ServerFinding, list[tuple[str, str]]] = {}
    for node, findings in node_findings:
        for finding in findings:
            alike.setdefault(replace(finding, observation=""), []).append((node, finding.observation))
    for finding, observations in alike.items():
        texts = list(dict.fromkeys(text for _, text in observations))
        observation = "; ".join(texts[:_SHOWN]) + (f" … ({len(texts)} in all)" if len(texts) > _SHOWN else "")
        yield replace(finding, observation=observation, nodes=tuple(dict.fromkeys(node for node, _ in observations)))


def _slots(facts: ClusterFacts) -> ServerFinding:
    bare = SLOTS - (facts.covered or 0)
    if not bare:
        return ServerFinding(Level.OK, "slots", f"all {SLOTS:,} slots have a node")
    effect = (
        "all nodes refuse commands (CLUSTERDOWN), unless cluster-require-full-coverage is no: queries wait for a "
        "minute, then fail"
    )
    remedy = (
        "start the nodes that served these slots; only if they are lost permanently: redis-cli --cluster fix "
        f"{_answering(facts)}"
    )
    return ServerFinding(Level.DANGER, "slots", f"{bare:,} of {SLOTS:,} slots have no node", effect, remedy)


def _epochs(facts: ClusterFacts, slot_map: SlotMap) -> Findings:
    views = {member: member.view for member in facts.members if member.view is not None}
    newest = max((view.epoch for view in views.values()), default=0)
    odd = [
        member
        for member, view in views.items()
        if (view.epoch, view.owners, view.is_ok) != (newest, slot_map.owners, True)
    ]
    observation = "these nodes are at an older epoch, see other owners of slots, or report the cluster as down"
    effect = (
        "this is normal for seconds after a failover and while slots move; if it stays, queries wait for a minute, "
        "then fail"
    )
    remedy = (
        "run rstream doctor again; if the finding stays, start the nodes that are down, repair the network between the "
        "nodes, including the cluster bus (port + 10,000), then run "
        f"redis-cli --cluster check {_answering(facts)}"
    )
    if odd and facts.covered == SLOTS:
        nodes = tuple(member.name for member in odd)
        yield ServerFinding(Level.WARNING, "epochs", observation, effect, remedy, nodes)


def _replicas(facts: ClusterFacts) -> Findings:
    """Check that each master has a replica, also by its own INFO: CLUSTER SLOTS lists a new replica late."""
    replicated = {member.master for member in facts.members}
    replicated |= {member.node for member, server in facts.reached.items() if server.number("connected_slaves")}
    unreplicated = tuple(
        member.name for member in facts.members if member.master is None and member.node not in replicated
    )
    effect = f"if it goes down, no replica takes over, and entries that its disk loses are lost: {_FAILS}"
    remedy = "redis-cli --cluster add-node NEW:PORT ANY:PORT --cluster-slave --cluster-master-id MASTER-ID"
    if unreplicated:
        yield ServerFinding(Level.WARNING, "replicas", "a master without a replica", effect, remedy, unreplicated)


def _versions(facts: ClusterFacts) -> Findings:
    versions = sorted({f"{server.kind} {server.version}" for server in facts.reached.values() if server.version})
    observation = f"the nodes run different versions: {', '.join(versions)}"
    effect = "an older replica may not be able to follow a newer master, and features may be missing after a failover"
    remedy = "run the same version on all nodes: update the replicas first, then run CLUSTER FAILOVER on them"
    if len(versions) > 1:
        yield ServerFinding(Level.WARNING, "versions", observation, effect, remedy)


def _of_one(member: Member) -> Findings:
    """Check a node as a single server. A replica is checked too, because it may become the master."""
    if member.facts is None:
        yield _unreached(member)
        return
    for check in (check_kind, check_service, check_persistence, check_memory, check_limits, check_clock):
        yield from check(member.facts)
    if member.master is None:
        yield from check_replication(member.facts)


def _unreached(member: Member) -> ServerFinding:
    role, level = ("master", Level.DANGER) if member.master is None else ("replica", Level.WARNING)
    effect = _FAILS if member.master is None else f"if it becomes the master, {_FAILS}"
    if member.is_shut_out:
        observation = f"the {role} refuses this user or its password, which other nodes accept"
        remedy = "run ACL SETUSER on every node, replicas too, then ACL SAVE, or CONFIG REWRITE if there is no aclfile"
        return ServerFinding(level, "nodes", observation, effect, remedy)
    observation = f"the {role} is not reachable from here: {member.why.replace(member.name, 'it')}"
    remedy = (
        "start it, or let the nodes announce addresses that driver and executors reach (cluster-announce-ip, "
        "tls-cluster)"
    )
    return ServerFinding(level, "nodes", observation, effect, remedy)


def _answering(facts: ClusterFacts) -> str:
    return next((member.name for member in facts.reached), facts.members[0].name)
