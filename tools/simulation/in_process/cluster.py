"""A cluster of two cores in this process. Each serves its slots: for a key of another one it answers MOVED, for keys of
several slots CROSSSLOT, as a node of Redis does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import redis

from spark_streams.connector.keys import SLOTS, slot_of
from spark_streams.connector.wire import topology
from spark_streams.engine.client import Client
from spark_streams.engine.command_table import Command, find, find_by_name, keys_of
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.wire_replies import Array, CommandError, Reply, bulk, integer
from tools.key_copies import copies, make_again
from tools.simulation.in_process.core import Core
from tools.simulation.in_process.server import CoreClient, ProcessServer

_HOST = "process"
_OF_ALL = ("FLUSHALL", "DBSIZE")
# First slots of the parts. Even ones begin on the first node: `s:1`, `s:3` and `dead`; `s:0`, `s:2` and `out` do not.
_PARTS = (0, 5_000, 10_000, 15_000, SLOTS)
_LATER = 1_000_000  # numbers of the second node's connections


@dataclass
class Slots:
    """Which node has each part of the slots. epoch: number of moves."""

    cores: tuple[Core, ...]
    nodes: list[int] = field(default_factory=lambda: [part % 2 for part in range(len(_PARTS) - 1)])
    epoch: int = 1

    def __post_init__(self) -> None:
        for node, core in enumerate(self.cores):
            core.engine._command_cache.clear()  # each command is looked up
            core.engine.__dict__ |= {"look_up": partial(self._look_up, node), "cluster": self}

    def node_of(self, key: bytes) -> int:
        """Return the node that has a key."""
        return self.nodes[self.part_of(key)]

    def part_of(self, key: bytes) -> int:
        """Return the part of the slots that a key is in."""
        slot = slot_of(key)
        return next(part for part, end in enumerate(_PARTS[1:]) if slot < end)

    def _look_up(self, node: int, args: list[bytes]) -> Command:
        spec, keys = find(args), keys_in(args)
        slots = {slot_of(key) for key in keys}
        if len(slots) > 1:
            raise CommandError("CROSSSLOT Keys in request don't hash to the same slot")
        if keys and (owner := self.node_of(keys[0])) != node:
            raise CommandError(f"MOVED {slots.pop()} {_HOST}:{1 + owner}")
        return spec

    def answer(self, args: list[bytes]) -> Reply:
        """Answer CLUSTER SLOTS and CLUSTER INFO."""
        if args[1].upper() == b"INFO":
            return bulk(b"cluster_state:ok\r\ncluster_size:2\r\ncluster_current_epoch:%d\r\n" % self.epoch)
        ports = [Array([bulk(_HOST.encode()), integer(1 + node), bulk(b"%040d" % node)]) for node in self.nodes]
        ends = zip(_PARTS, _PARTS[1:], ports, strict=False)
        return Array([Array([integer(first), integer(end - 1), port]) for first, end, port in ends])


def keys_in(args: list[bytes]) -> list[bytes]:
    """Return the keys of a command."""
    spec = find_by_name(args)
    if spec is not None and spec.name in ("xread", "xreadgroup"):
        names = args[[word.upper() for word in args].index(b"STREAMS") + 1 :]
        return names[: len(names) // 2]
    return [] if spec is None else keys_of(spec, args)


def cluster_command(engine: Engine, _client: Client, args: list[bytes]) -> Reply:
    """In place of the engine's command CLUSTER."""
    slots: Slots | None = engine.__dict__.get("cluster")
    if slots is None:
        raise CommandError("ERR This instance has cluster support disabled")
    return slots.answer(args)


@dataclass(frozen=True)
class ClusterServer(ProcessServer):
    """Two cores. The first one has the plan's clock."""

    url: str = f"redis+cluster://{_HOST}:1"
    slots: Slots = field(default_factory=lambda: Slots(()))

    @classmethod
    def of(cls, core: Core) -> ClusterServer:
        """Begin a second node beside this core, whose plan has just begun."""
        second = core.another(f"redis://{_HOST}:2")
        second.engine.next_client = _LATER
        topology._topologies.clear()
        return cls(core=core, slots=Slots((core, second)))

    def client(self, **options: Any) -> redis.Redis:
        """A client that sends each command to the node of its key."""
        return _ClusterClient(self, **options)

    def move(self, key: str) -> None:
        """Move the slots around a key to the other node, with the keys in them."""
        part = self.slots.part_of(key.encode())
        source, target = self.slots.nodes[part], 1 - self.slots.nodes[part]
        clients = [CoreClient(core) for core in self.slots.cores]
        keys = sorted(one for one in clients[source].scan_iter(count=1000) if self.slots.part_of(one) == part)
        kept = copies(clients[source], keys)
        for one in keys:
            clients[source].delete(one)
        self.slots.nodes[part] = target
        self.slots.epoch += 1
        make_again(clients[target], kept)


class _ClusterClient(CoreClient):
    """The test's own client of both."""

    def __init__(self, server: ClusterServer, decode_responses: bool = False) -> None:
        super().__init__(server.core, decode_responses)
        self._slots = server.slots
        self._nodes = [CoreClient(core, decode_responses) for core in server.slots.cores]

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a command on the node of its key, or on both."""
        if args[0] in _OF_ALL:
            first, _ = (node.execute_command(*args, **options) for node in self._nodes)
            return first
        rest = (one if isinstance(one, bytes) else str(one).encode() for one in args[1:])
        keys = keys_in([*str(args[0]).encode().split(), *rest])
        node = self._nodes[self._slots.node_of(keys[0]) if keys else 0]
        return node.execute_command(*args, **options)

    def scan_iter(self, *args: Any, **options: Any) -> Iterator[Any]:
        """The keys of both."""
        for node in self._nodes:
            yield from node.scan_iter(*args, **options)

    def mget(self, keys: Any, *more: Any) -> Any:
        """One GET for each key."""
        return [self.get(key) for key in [*keys, *more]]
