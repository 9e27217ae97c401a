"""The servers of a cluster as one: a connection to each node, and each command goes to the one that has its key.

A key that is on its way to another node is asked for there (ASK). A slot that has moved (MOVED) is told to whoever
repeats what it does (a Session), for what it knows may not be true of the new node, and else followed. WATCH, and what
is between MULTI and EXEC, are for keys of one slot: anything else is a defect, and refused before it is sent. Where the
slot has moved between WATCH and EXEC, the transaction is answered as one before which something has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeVar

from spark_streams.errors import ServerUnreachableError, UnsupportedError
from spark_streams.model.keys import slot_of
from spark_streams.wire.address.address import Address
from spark_streams.wire.address.server_url import Node
from spark_streams.wire.connection.connection import Argument, Commands, Connection, Reply, ReplyError, pack
from spark_streams.wire.topology.cluster_watch import watch
from spark_streams.wire.topology.topology import connect_to_node, topology_of

T = TypeVar("T")
Command = Sequence[Argument]

_NEEDS_NO_KEY = frozenset({"TIME", "INFO", "CONFIG", "CLIENT", "ECHO", "PING", "ROLE", "ACL", "COMMAND"})
_OF_ALL_NODES = frozenset({"SCAN", "WAIT", "KEYS", "DBSIZE", "FLUSHDB", "FLUSHALL", "DISCARD", "MULTI", "EXEC"})
_KEYS_ONLY = frozenset({"DEL", "UNLINK", "EXISTS", "WATCH"})  # any number of keys, and nothing else
_WITH_SUBCOMMAND = frozenset({"XGROUP", "XINFO", "MEMORY"})
_NOT_SERVED = frozenset({"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"})
_AT_ONCE = 1_000  # commands that go out to all nodes before a reply is read
_TOGETHER = 100  # commands of `each` whose replies are held at a time
_HOPS = 5


def slot(key: str | bytes) -> int:
    """The slot of a key."""
    return slot_of(key.encode() if isinstance(key, str) else key)


def keys_of(command: Command) -> Sequence[str | bytes]:
    """The keys of a command, if it needs any. Raises UnsupportedError where all nodes would have to be asked."""
    name = str(command[0])
    if name in _NEEDS_NO_KEY:
        return ()
    if name in _OF_ALL_NODES:
        raise UnsupportedError(f"{name} is not for a cluster as a whole: ask each of its nodes")
    words = [word if isinstance(word, str | bytes) else str(word) for word in command[1:]]
    if name in _KEYS_ONLY:
        return words
    if "STREAMS" in words:
        after = words[words.index("STREAMS") + 1 :]
        return after[: len(after) // 2]
    return words[1:2] if name in _WITH_SUBCOMMAND else words[:1]


@dataclass
class _Leg:
    """What goes to one node. places: whose replies they are; a reply of a part of a command has the whole's place."""

    places: list[int] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)


class Cluster(Commands):
    """All nodes of the cluster at `address` (wire.connection.server). follows: slots that have moved are followed.

    Raises what Topology raises.
    """

    def __init__(self, address: Address, follows: bool = True) -> None:
        self.address = address
        self._follows = follows
        self._topology = topology_of(address)
        self._connections: dict[Node, Connection] = {}
        self._watched: dict[int, Connection] = {}  # slot → where its keys are watched
        self._topology.masters()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; calling it twice is harmless."""
        for connection in self._connections.values():
            connection.close()

    @property
    def is_open(self) -> bool:
        """Whether none of them was closed."""
        return all(connection.is_open for connection in self._connections.values())

    def renew_login(self) -> None:
        """Log in again where there are other credentials by now, on each node. Raises ServerUnreachableError."""
        for connection in self._connections.values():
            connection.renew_login()

    # -- where keys are --------------------------------------------------------------------------------------------

    def of(self, key: str | bytes) -> Connection:
        """The connection to the node that has this key. Raises ServerUnreachableError, ServerReplyError and kin."""
        return self._to(self._topology.node_of(slot(key)))

    def parts(self, items: Sequence[T], key: Callable[[T], str | bytes]) -> list[tuple[Connection, list[T]]]:
        """The items by the nodes that have their keys."""
        found: dict[Connection, list[T]] = {}
        for item in items:
            found.setdefault(self.of(key(item)), []).append(item)
        return list(found.items())

    def together(self, items: Sequence[T], key: Callable[[T], str | bytes]) -> list[list[T]]:
        """The items by their slots."""
        found: dict[int, list[T]] = {}
        for item in items:
            found.setdefault(slot(key(item)), []).append(item)
        return list(found.values())

    def nodes(self) -> list[Connection]:
        """A connection to each master."""
        return [self._to(node) for node in self._topology.masters()]

    def _to(self, node: Node) -> Connection:
        """The connection to a node. One that was lost is not made again: whoever uses this makes all of it anew."""
        known = self._connections.get(node)
        if known is not None and known.is_open:
            return known
        if known is not None:
            raise ServerUnreachableError(f"node {node[0]}:{node[1]} of the cluster at {self.address} was lost")
        try:
            made = connect_to_node(self.address, node)
        except ServerUnreachableError:
            self._topology.forget()
            raise
        self._connections[node] = made
        watch(self._topology, node, made)
        return made

    # -- commands --------------------------------------------------------------------------------------------------

    def execute(self, *arguments: Argument) -> Reply:
        """One command, one reply. Raises ServerReplyError and kin for an error reply."""
        reply = self.pipeline([arguments])[0]
        if isinstance(reply, ReplyError):
            raise self.error_of(reply, arguments)
        return reply

    def each(self, commands: Sequence[Command]) -> Iterator[Reply]:
        """The replies in order, some of them held at a time."""
        for start in range(0, len(commands), _TOGETHER):
            yield from self.pipeline(commands[start : start + _TOGETHER])

    def pipeline(self, commands: Sequence[Command]) -> list[Reply]:
        """The replies of all commands in order; error replies stay values, but for those that say that a node does not
        serve a slot for the moment, which are raised.

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
        for place, command in enumerate(commands):
            if command[0] == "UNWATCH":
                self._unwatch()
                continue
            split = self._split(command)
            if not split:
                anywhere.append(place)
            for key, part in split:
                to = self.of(key)
                if part[0] == "WATCH":
                    self._watched[slot(key)] = to
                leg = legs.setdefault(to, _Leg())
                leg.places.append(place)
                leg.commands.append(part)
        if anywhere:
            leg = legs.setdefault(next(iter(legs), None) or self.nodes()[0], _Leg())
            leg.places += anywhere
            leg.commands += [commands[place] for place in anywhere]
        replies: list[Reply] = [b"OK" if command[0] == "UNWATCH" else None for command in commands]
        for leg, of_leg in zip(legs.values(), self._all_of(legs), strict=True):
            for place, command, reply in zip(leg.places, leg.commands, of_leg, strict=True):
                replies[place] = _summed(replies[place], self._followed(command, reply))
        return replies

    @staticmethod
    def _split(command: Command) -> list[tuple[str | bytes, Command]]:
        """(a key, what goes to its node) for each slot of a command that may be split; nothing where it has no key."""
        keys = keys_of(command)
        if len(keys) < 2 or len({slot(key) for key in keys}) == 1:
            return [(keys[0], command)] if keys else []
        if command[0] not in _KEYS_ONLY:
            raise UnsupportedError(f"{command[0]!r} of keys in several slots of a cluster")
        by_slot: dict[int, list[str | bytes]] = {}
        for key in keys:
            by_slot.setdefault(slot(key), []).append(key)
        return [(some[0], (command[0], *some)) for some in by_slot.values()]

    def _all_of(self, legs: dict[Connection, _Leg]) -> list[list[Reply]]:
        """The replies of each leg: all nodes work at the same time where that is not much."""
        try:
            if sum(len(leg.commands) for leg in legs.values()) > _AT_ONCE:
                return [connection.pipeline(leg.commands) for connection, leg in legs.items()]
            for connection, leg in legs.items():
                connection.send(b"".join([pack(*command) for command in leg.commands]))
            return [connection.replies(len(leg.commands)) for connection, leg in legs.items()]
        except BaseException:
            self.close()  # replies are left behind on the others
            raise

    def _followed(self, command: Command, reply: Reply) -> Reply:
        """The reply of the node that a redirection leads to. Raises ServerReplyError where it is not followed."""
        for _ in range(_HOPS):
            if not isinstance(reply, ReplyError) or reply.code not in _NOT_SERVED:
                return reply
            to = None
            if reply.code in ("MOVED", "ASK"):
                to = _where(reply, self.address)
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
        """MULTI … EXEC on the node that has the keys. Raises ServerReplyError where it does not serve them."""
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

    def _unwatch(self) -> None:
        for connection in set(self._watched.values()):
            connection.execute("UNWATCH")
        self._watched.clear()


def _where(reply: ReplyError, address: Address) -> Node:
    """The node of `MOVED slot host:port`; without a host it is one of the address'."""
    host, _, port = str(reply).split(" ")[2].rpartition(":")
    return (host or address.nodes[0][0], int(port))


def _summed(before: Reply, reply: Reply) -> Reply:
    """The reply of a command in parts: the first error of one, else their sum."""
    if before is None or isinstance(before, ReplyError):
        return reply if before is None else before
    if isinstance(before, int) and isinstance(reply, int):
        return before + reply
    return reply
