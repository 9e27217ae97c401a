"""What the nodes of a cluster say of themselves and of each other, as values. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from spark_streams.doctor.rights import Missing
from spark_streams.doctor.server_facts import ServerFacts
from spark_streams.numbers import whole
from spark_streams.wire.server_url import Node
from spark_streams.wire.topology import SlotMap


@dataclass(frozen=True)
class NodeTable:
    """What CLUSTER NODES says. half_moved: slots that the asked node is giving away or taking in; failed: the nodes
    that most masters hold for failed, as they are named."""

    half_moved: tuple[int, ...] = ()
    failed: tuple[str, ...] = ()

    @classmethod
    def read(cls, reply: bytes) -> NodeTable:
        """Lines of `id host:port@bus flags master … state slots`; `[93->-id]` is on its way from here, `[93-<-id]` to
        here."""
        half_moved: list[int] = []
        failed: list[str] = []
        for line in reply.decode("utf-8", "replace").splitlines():
            _, where, flags, *rest = line.split(" ")
            if "myself" in flags:
                half_moved += [whole(word[1:].split("-")[0]) or 0 for word in rest[5:] if word.startswith("[")]
            if "fail" in flags.split(","):
                failed.append(where.partition("@")[0])
        return cls(tuple(half_moved), tuple(failed))


@dataclass(frozen=True, eq=False)
class Member:
    """One node. master: of a replica, whose; facts: what it says of itself, None where it is not reached; why: why it
    is not, is_shut_out: that is the login; view: the slots as it sees them, table: the nodes, None where it may not be
    asked; lacks: the rights that each use lacks on it."""

    node: Node
    master: Node | None = None
    facts: ServerFacts | None = None
    why: str = ""
    is_shut_out: bool = False
    view: SlotMap | None = None
    table: NodeTable | None = None
    lacks: Mapping[str, Missing] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`host:port`."""
        return name_of(self.node)

    @property
    def role(self) -> str:
        """master or replica."""
        return "master" if self.master is None else "replica"


@dataclass(frozen=True)
class ClusterFacts:
    """address: without its login; map: the newest, None where nobody may be asked for it (then the members are the
    nodes that the url names); members: masters first; named: the nodes of the url."""

    address: str
    map: SlotMap | None
    members: tuple[Member, ...]
    named: tuple[Node, ...] = ()

    @property
    def masters(self) -> list[Member]:
        """Those that have slots."""
        return [one for one in self.members if one.master is None]

    @property
    def reached(self) -> dict[Member, ServerFacts]:
        """What each says that answers."""
        return {one: one.facts for one in self.members if one.facts is not None}

    @property
    def stops_as_a_whole(self) -> bool:
        """Whether no node serves anything where slots are not covered, as clusters do where nobody has changed it."""
        told = [facts.config.get("cluster-require-full-coverage") for facts in self.reached.values()]
        return "no" not in told


def name_of(node: Node) -> str:
    """`host:port`."""
    host, port = node
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def names(members: Iterable[Member]) -> tuple[str, ...]:
    """Theirs."""
    return tuple(one.name for one in members)
