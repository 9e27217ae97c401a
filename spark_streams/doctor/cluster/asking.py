"""Asks every node of a cluster what it is, and what it thinks of the others. Nothing on them changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from spark_streams.doctor.asking import ask
from spark_streams.doctor.cluster.facts import ClusterFacts, Member, NodeTable
from spark_streams.doctor.rights import ask_rights
from spark_streams.errors import LoginError, NotPermittedError, ServerReplyError, ServerUnreachableError
from spark_streams.wire.address import Address
from spark_streams.wire.connection import Connection, ReplyError
from spark_streams.wire.topology import SlotMap, connect_to_node, topology_of, why_not

_AT_ONCE = 16  # nodes that are connected to at the same time: one that does not answer takes seconds


def ask_all(address: Address, uses: Sequence[str], streams: Sequence[str], now: Callable[[], float]) -> ClusterFacts:
    """What they say. Where the user may not ask for the slots: what those say that the url names. Raises
    ServerUnreachableError where no node answers, LoginError, UnsupportedError where it is no cluster."""
    try:
        known = topology_of(address).look()
    except NotPermittedError:
        known = None
    members = _named(address) if known is None else _listed(known)
    connections: list[Connection] = []

    def asked(member: Member) -> Member:
        try:
            connection = connect_to_node(address, member.node)
        except (ServerUnreachableError, ServerReplyError) as error:
            return replace(member, why=why_not(address, error), is_shut_out=isinstance(error, LoginError))
        connections.append(connection)
        return _told(connection, member, uses, streams, now)

    try:
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            found = tuple(threads.map(asked, members))
    finally:
        for connection in connections:
            connection.close()
    return ClusterFacts(str(address), known, found, address.nodes)


def _told(
    server: Connection, member: Member, uses: Sequence[str], streams: Sequence[str], now: Callable[[], float]
) -> Member:
    slots, told, table = server.pipeline([("CLUSTER", "SLOTS"), ("CLUSTER", "INFO"), ("CLUSTER", "NODES")])
    return replace(
        member,
        facts=ask(server, now),
        view=None if isinstance(slots, ReplyError) else SlotMap.read(member.node, slots, told),
        table=NodeTable.read(table) if isinstance(table, bytes) else None,
        lacks=ask_rights(server, uses, streams, in_cluster=True),
    )


def _listed(known: SlotMap) -> list[Member]:
    replicas = [Member(node, master) for master in known.masters for node in known.followers[master]]
    return [*[Member(node) for node in known.masters], *replicas]


def _named(address: Address) -> list[Member]:
    return [Member(node) for node in address.nodes]
