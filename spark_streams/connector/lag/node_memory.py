"""Memory of each server of an address (INFO memory)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spark_streams.base.numbers import parse_number
from spark_streams.connector.errors import RStreamError
from spark_streams.connector.wire.connection.connection import ReplyError
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.replies import info


@dataclass(frozen=True)
class NodeMemory:
    """A server's memory in bytes. node: `host:port`; limit: maxmemory, 0 if there is no limit; policy:
    maxmemory-policy."""

    node: str
    used: int
    limit: int
    policy: str = "noeviction"


def node_memories(server: Server, refused: Callable[[RStreamError], object]) -> list[NodeMemory]:
    """Return the memory of each server. refused: receives the error if the user may not ask."""
    memories = []
    for node in server.nodes():
        [reply] = node.pipeline([("INFO", "memory")])
        if isinstance(reply, ReplyError):
            refused(node.error_of(reply, ("INFO", "memory")))
            continue
        memory = info(reply)
        if "used_memory" not in memory:
            continue
        nodes = node.node_address.nodes
        name = f"{nodes[0][0]}:{nodes[0][1]}" if nodes else str(node.node_address)
        used, limit = parse_number(memory["used_memory"]) or 0, parse_number(memory.get("maxmemory", "")) or 0
        memories.append(NodeMemory(name, used, limit, memory.get("maxmemory_policy", "noeviction")))
    return memories
