"""The servers of a cluster as one: a connection to each node, and each command goes to the node of its key.

A key that is being moved to another node is requested there (ASK). If a slot has moved (MOVED), a caller that repeats
its steps (a Session) gets the error, because its knowledge may be wrong for the new node; for other callers the
redirection is followed. WATCH and the commands between MULTI and EXEC are for the keys of one slot; anything else is a
defect and is refused before it is sent. If the slot has moved between WATCH and EXEC, the transaction is answered as if
a watched key had changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from spark_streams.connector.errors import RStreamError, ServerUnreachableError, UnsupportedError
from spark_streams.connector.keys import slot_of
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Argument, Connection, Key, Known, Reply, ReplyError, Server, pack
from spark_streams.connector.wire.named_errors import Memory
from spark_streams.connector.wire.parts import in_parts, join
from spark_streams.connector.wire.server_url import Node
from spark_streams.connector.wire.topology import connect_to_node, topology_of

# -- the cluster -------------------------------------------------------------------------------------------------------

T = TypeVar("T")
Group = TypeVar("Group")
Command = Sequence[Argument]

_NEEDS_NO_KEY = frozenset({"TIME", "INFO", "CONFIG", "CLIENT", "ECHO", "PING", "ROLE", "ACL", "COMMAND"})
_OF_ALL_NODES = frozenset({"SCAN", "WAIT", "KEYS", "DBSIZE", "FLUSHDB", "FLUSHALL", "DISCARD", "MULTI", "EXEC"})
_KEYS_ONLY = frozenset({"DEL", "UNLINK", "EXISTS", "WATCH"})  # any number of keys, and no other argument
_WITH_SUBCOMMAND = frozenset({"XGROUP", "XINFO", "MEMORY"})
_NOT_SERVED = frozenset({"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"})
_AT_ONCE = 1_000  # commands that are sent to all nodes before a reply is read
_TOGETHER = 100  # commands of `execute_each` whose replies are stored at a time
_HOPS = 5


def slot(key: Key) -> int:
    return slot_of(key.encode() if isinstance(key, str) else key)


def _grouped(items: Sequence[T], group_of: Callable[[T], Group]) -> dict[Group, list[T]]:
    groups: dict[Group, list[T]] = {}
    for item in items:
        groups.setdefault(group_of(item), []).append(item)
    return groups


def keys_of(command: Command) -> Sequence[Key]:
    """Return the keys of a command, if it needs any. Raises UnsupportedError if the command is for all nodes."""
    name = str(command[0])
    if name in _NEEDS_NO_KEY:
        return ()
    if name in _OF_ALL_NODES:
        raise UnsupportedError(f"{name} is not for a cluster as a whole: send it to each of its nodes")
    words = [word if isinstance(word, str | bytes) else str(word) for word in command[1:]]
    if name in _KEYS_ONLY:
        return words
    if "STREAMS" in words:
        after = words[words.index("STREAMS") + 1 :]
        return after[: len(after) // 2]
    return words[1:2] if name in _WITH_SUBCOMMAND else words[:1]


@dataclass
class _Leg:
    """The commands for one node. places: index of each command's reply; parts of one command have the same index."""

    places: list[int] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)


class Cluster(Server):
    """All nodes of the cluster at `address`. follows: redirections are followed.

    Raises what Topology raises.
    """

    def __init__(self, address: Address, follows: bool = True) -> None:
        self.address = address
        self._follows = follows
        self._topology = topology_of(address)
        self._connections: dict[Node, Connection] = {}
        self._watched: dict[int, Connection] = {}  # slot → connection on which its keys are watched
        # The known map is of any age: the watch ends with the last connection. Who repeats nothing needs that of now.
        read = self._topology.refresh if follows else self._topology.masters
        read()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    @property
    def is_open(self) -> bool:
        return all(connection.is_open for connection in self._connections.values())

    def renew_login(self) -> None:
        for connection in self._connections.values():
            connection.renew_login()

    # -- location of keys ------------------------------------------------------------------------------------------

    def connection_for(self, key: Key) -> Connection:
        return self._to(self._topology.node_of(slot(key)))

    def parts(self, items: Sequence[T], key: Callable[[T], Key]) -> list[tuple[Connection, list[T]]]:
        return list(_grouped(items, lambda item: self.connection_for(key(item))).items())

    def together(self, items: Sequence[T], key: Callable[[T], Key]) -> list[list[T]]:
        return list(_grouped(items, lambda item: slot(key(item))).values())

    def nodes(self) -> list[Connection]:
        return [self._to(node) for node in self._topology.masters()]

    def _to(self, node: Node) -> Connection:
        """Return the connection to a node. A lost one is not opened again: the caller opens the whole Cluster again."""
        connection = self._connections.get(node)
        if connection is not None and connection.is_open:
            return connection
        if connection is not None:
            raise ServerUnreachableError(f"node {node[0]}:{node[1]} of the cluster at {self.address} was lost")
        try:
            new_connection = connect_to_node(self.address, node)
        except ServerUnreachableError:
            self._topology.forget()
            raise
        self._connections[node] = new_connection
        self._topology.watch.add(node, new_connection)
        return new_connection

    def memory(self) -> Memory:
        try:
            return max((node.memory() for node in self.nodes()), key=lambda memory: memory.share)
        except RStreamError:
            return Memory()

    # -- commands --------------------------------------------------------------------------------------------------

    def execute(self, *arguments: Argument) -> Reply:
        return self.execute_all([arguments])[0]

    def execute_each(self, commands: Sequence[Command], *known: Known) -> Iterator[Reply]:
        for start in range(0, len(commands), _TOGETHER):
            yield from self.execute_all(commands[start : start + _TOGETHER], *known)

    def pipeline(self, commands: Sequence[Command]) -> list[Reply]:
        """Return the replies of all commands in order.

        Error replies stay values, except redirections and temporary errors.

        Raises ServerUnreachableError, ServerReplyError (MOVED, ASK, TRYAGAIN, CLUSTERDOWN), UnsupportedError.
        """
        replies: list[Reply] = [None] * len(commands)
        start = 0
        while start < len(commands):
            if commands[start][0] == "MULTI":
                stop = self._end_of_transaction(commands, start)
                replies[start:stop] = self._transaction(commands[start:stop])
            else:
                stop = next((n for n in range(start, len(commands)) if commands[n][0] == "MULTI"), len(commands))
                replies[start:stop] = self._outside(commands[start:stop])
            start = stop
        return replies

    # -- outside of transactions ------------------------------------------------------------------------------------

    def _outside(self, commands: Sequence[Command]) -> list[Reply]:
        legs: dict[Connection, _Leg] = {}
        anywhere: list[int] = []
        homes: dict[int, Connection] = {}  # by slot: its commands stay in order, though the map may change
        for place, command in enumerate(commands):
            if command[0] == "UNWATCH":
                for connection in set(self._watched.values()):
                    connection.execute("UNWATCH")
                self._watched.clear()
                continue
            split = self._split(command)
            if not split:
                anywhere.append(place)
            for key, part in split:
                to = homes.setdefault(slot(key), self.connection_for(key))
                if part[0] == "WATCH":
                    self._watched[slot(key)] = to
                leg = legs.setdefault(to, _Leg())
                leg.places.append(place)
                leg.commands.append(part)
        if anywhere:
            leg = legs.setdefault(next(iter(legs), None) or self.nodes()[0], _Leg())
            leg.places += anywhere
            leg.commands += [commands[place] for place in anywhere]
        replies: list[list[Reply]] = [[b"OK"] if command[0] == "UNWATCH" else [] for command in commands]
        for leg, of_leg in zip(legs.values(), self._all_of(legs), strict=True):
            for place, command, reply in zip(leg.places, leg.commands, of_leg, strict=True):
                replies[place].append(self._followed(command, reply))
        return [join(of_parts) for of_parts in replies]

    @staticmethod
    def _split(command: Command) -> list[tuple[Key, Command]]:
        """Return (a key, the command for its node) for each slot of a command, and for each part if it is long; an
        empty list if it has no key."""
        keys = keys_of(command)
        if len(keys) < 2 or len({slot(key) for key in keys}) == 1:
            return [(keys[0], part) for part in in_parts(command)] if keys else []
        if command[0] not in _KEYS_ONLY:
            raise UnsupportedError(f"{command[0]!r} of keys in several slots of a cluster")
        of_slots = _grouped(keys, slot).values()
        return [(of_slot[0], part) for of_slot in of_slots for part in in_parts((command[0], *of_slot))]

    def _all_of(self, legs: dict[Connection, _Leg]) -> list[list[Reply]]:
        """Return the replies of each leg. All nodes work at the same time, unless there are many commands."""
        try:
            if sum(len(leg.commands) for leg in legs.values()) > _AT_ONCE:
                return [connection.pipeline(leg.commands) for connection, leg in legs.items()]
            for connection, leg in legs.items():
                connection.send(b"".join([pack(*command) for command in leg.commands]))
            return [connection.replies(len(leg.commands)) for connection, leg in legs.items()]
        except BaseException:
            self.close()  # replies on the other connections are unread
            raise

    def _followed(self, command: Command, reply: Reply) -> Reply:
        """Return the reply of the node that a redirection names. Raises ServerReplyError if it is not followed."""
        for _ in range(_HOPS):
            if not isinstance(reply, ReplyError) or reply.code not in _NOT_SERVED:
                return reply
            to = _where(reply, self.address) if reply.code in ("MOVED", "ASK") else None
            if reply.code == "MOVED" and to is not None:
                self._topology.moved(slot(keys_of(command)[0]), to)
            if to is None or command[0] == "WATCH" or (reply.code == "MOVED" and not self._follows):
                break
            asking = [("ASKING",)] if reply.code == "ASK" else []
            reply = self._to(to).pipeline([*asking, command])[-1]
        if isinstance(reply, ReplyError) and reply.code in _NOT_SERVED:
            self._topology.forget()
            raise self.error_of(reply, command)
        return reply

    # -- transactions -----------------------------------------------------------------------------------------------

    @staticmethod
    def _end_of_transaction(commands: Sequence[Command], start: int) -> int:
        for place in range(start, len(commands)):
            if commands[place][0] == "EXEC":
                return place + 1
        raise UnsupportedError("MULTI without its EXEC is not for a cluster as a whole: use one of its nodes")

    def _transaction(self, commands: Sequence[Command]) -> list[Reply]:
        """Run MULTI … EXEC on the node that holds the keys.

        Raises ServerReplyError if that node does not serve them.
        """
        slots = {slot(key) for command in commands[1:-1] for key in keys_of(command)} | self._watched.keys()
        if len(slots) > 1:
            raise UnsupportedError(
                f"a transaction over {len(slots)} slots of a cluster, with {commands[1][0]!r}: it is for one"
            )
        watched = next(iter(self._watched.values()), None)
        to = self._to(self._topology.node_of(next(iter(slots)))) if slots else self.nodes()[0]
        self._watched.clear()
        if watched is not None and watched is not to:
            watched.execute("UNWATCH")
            return [b"OK", *[b"QUEUED"] * (len(commands) - 2), None]
        replies = to.pipeline(commands)
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, ReplyError) and reply.code in _NOT_SERVED:
                if reply.code == "MOVED":
                    self._topology.moved(next(iter(slots)), _where(reply, self.address))
                raise self.error_of(reply, command)
        return replies


def _where(reply: ReplyError, address: Address) -> Node:
    """Return the node of `MOVED slot host:port`; without a host, the first host of the address."""
    host, _, port = str(reply).split(" ")[2].rpartition(":")
    return (host or address.nodes[0][0], int(port))
