"""What a run does on the server beside its streams: facts, its keys, its connections, failovers."""

from __future__ import annotations

from spark_streams.connector.admin.checkpoint import keys_of_query
from spark_streams.connector.admin.streams import connect_to_node, master, sentinel_fail_over, topology_of
from spark_streams.connector.errors import UnsupportedError
from spark_streams.connector.keys import PREFIX, slot_of
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Server
from spark_streams.operations.doctor.server_facts import fetch_facts

_SETTINGS = ("appendonly", "appendfsync", "save", "min-replicas-to-write")
_OF_INFO = ("maxmemory_policy", "connected_slaves")


def about(server: Server) -> dict[str, str]:
    """Return versions, and settings that decide what a failure can lose. Different values of nodes are joined."""
    found = [fetch_facts(node) for node in server.nodes()]
    settings = [{**{name: one.config.get(name, "?") or "none" for name in _SETTINGS},
                 **{name: one.info.get(name, "?") for name in _OF_INFO}} for one in found]  # fmt: skip
    values = {name: " or ".join(sorted({one[name] for one in settings})) for name in settings[0]}
    kinds = " and ".join(sorted({f"{one.kind} {one.version}, {one.mode} {one.role}" for one in found}))
    where = f"{kinds}, at {server.address}" + (f", {len(found)} nodes" if len(found) > 1 else "")
    return {"server": where, "its settings": " · ".join(f"{k} {v}" for k, v in values.items() if v != "?")}


def own_keys(server: Server, prefix: str) -> list[bytes]:
    """Return the keys that begin with the prefix, and the product's keys for streams and groups that begin with it."""
    keys = set[bytes]()
    for node in server.nodes():
        cursor = None
        while cursor != b"0":
            cursor, page = node.execute("SCAN", cursor or b"0", "MATCH", f"*{prefix}*", "COUNT", 10_000)
            keys.update(key for key in page if key.startswith((prefix.encode(), PREFIX.encode())))
    return sorted(keys)


def delete_own_keys(server: Server, prefix: str, query_id: str | None) -> int:
    """Delete these keys, and those that only have Spark's ID of the query in their name. Return how many existed."""
    of_query = [] if query_id is None else keys_of_query(query_id)
    return sum(server.execute_all([("DEL", key) for key in [*own_keys(server, prefix), *of_query]]))


def kill_connections(server: Server, name: str) -> int:
    """Close the connections of this name (CLIENT SETNAME), and no others. Raises NotPermittedError."""
    killed = 0
    for node in server.nodes():
        lines = [line.split(b" ") for line in node.execute("CLIENT", "LIST").splitlines()]
        ids = [words[0].removeprefix(b"id=") for words in lines if b"name=" + name.encode() in words]
        killed += sum(node.execute("CLIENT", "KILL", "ID", client_id) for client_id in ids)
    return killed


def master_of(address: Address, key: str) -> str:
    """Return the node that has a key. Raises UnsupportedError for one server, ServerReplyError during a failover."""
    if not (address.is_cluster or address.asks_sentinels):
        raise UnsupportedError("this is one server: nothing can take over")
    owners = topology_of(address).refresh().owners if address.is_cluster else ()
    node = owners[slot_of(key.encode())] if owners else master(address).node
    return "none" if node is None else f"{node[0]}:{node[1]}"


def fail_over(address: Address, key: str) -> None:
    """Ask for another master of a key. Raises UnsupportedError, ServerReplyError."""
    if address.asks_sentinels:
        sentinel_fail_over(address)
        return
    view = topology_of(address).refresh()
    master = view.owners[slot_of(key.encode())]
    replicas = () if master is None else view.followers[master]
    if not replicas:
        raise UnsupportedError("the master of the run's streams has no replica")
    with connect_to_node(address, replicas[0]) as replica:
        replica.execute("CLUSTER", "FAILOVER")
