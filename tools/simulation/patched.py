"""The library, patched for the simulation: every send is a tick, every process may be killed, nothing sleeps."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from unittest import mock

import pytest

from spark_streams.connector.errors import ServerUnreachableError
from spark_streams.connector.shards import names
from spark_streams.connector.source.query import batch_stream as micro_batch_stream
from spark_streams.connector.spark import worker as task_context
from spark_streams.connector.wire import parts
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from spark_streams.connector.wire.topology import SlotMap, Topology
from tools.sending import acknowledged_in, claimed_in, commands_in
from tools.servers.managed.newer_watch import newer_watch
from tools.servers.server import Server
from tools.simulation.actor import Actor
from tools.simulation.in_process.patches import on_core
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.met import LENIENT, finding_of, pair
from tools.simulation.threads import SimulatedWorker, TaskPlace, world_of
from tools.simulation.world import World

_USUAL = parts.MOST_ARGUMENTS


@contextlib.contextmanager
def product(server: Server | None = None) -> Iterator[None]:
    """Patch the library for any number of consecutive worlds. server: needed if it is of kind `process`."""
    core = on_core(server.core) if isinstance(server, ProcessServer) else contextlib.nullcontext()
    with core, pytest.MonkeyPatch.context() as patch:
        _ticks(patch)
        patch.setattr(micro_batch_stream, "BackgroundWorker", SimulatedWorker)
        patch.setattr(task_context, "TaskContext", TaskPlace)
        # No stream of a plan is in shards: the search by 32,896 names for lost shards would take a third of a run.
        patch.setattr(names, "_endings", lambda: ())
        log = logging.getLogger("spark_streams")
        listener = _Losses()
        log.addHandler(listener)
        propagates, log.propagate = log.propagate, False
        try:
            yield
        finally:
            log.removeHandler(listener)
            log.propagate = propagates


@contextlib.contextmanager
def in_world(world: World) -> Iterator[None]:
    """Run the library in this world."""
    world_of["now"] = world
    server = world.server
    clock = server.core.clock.in_charge() if isinstance(server, ProcessServer) else contextlib.nullcontext()
    try:
        rule = newer_watch() if world.setup.newer_watch else contextlib.nullcontext()
        with clock, rule, mock.patch.object(parts, "MOST_ARGUMENTS", world.setup.arguments):
            yield
    finally:
        del world_of["now"]


def _ticks(patch: pytest.MonkeyPatch) -> None:
    original_init, original_send, original_refresh = Connection.__init__, Connection.send, Topology.refresh

    def init(self: Connection, address: Address, node_address: Address | None = None) -> None:
        world = world_of["now"]
        _require_life()
        if world.network.refuses():
            raise ServerUnreachableError(f"no stream server answers at {address}: simulated outage")
        original_init(self, address, node_address)
        world.connections.append((self, Actor.current()))

    def send(self: Connection, data: bytes | memoryview) -> None:
        world = world_of["now"]
        _require_life()
        world.tick(self, data)
        request = bytes(data)
        if parts.MOST_ARGUMENTS < _USUAL:
            for words in commands_in(request):
                if len(words) > parts.MOST_ARGUMENTS and words[0] != b"XADD":  # an entry is one request
                    world.fail("A request has too many arguments", f"{len(words)}: {words[:4]}")
        if b"XACK" in request:
            for stream, group, ids in acknowledged_in(request):
                world.acknowledged(stream, group, ids)
        claimed = claimed_in(request) if world.elsewhere.living and b"XCLAIM" in request else []
        for stream, ids in claimed:
            world.elsewhere.claims(stream, ids)
        if b"XREADGROUP" in request:  # before the group leaves the position at which it was created
            world.births.update()
        if not world.network.loses_request(self):
            original_send(self, request)
            for stream, ids in claimed:
                world.elsewhere.has_claimed(stream, ids)
            world.network.reply(self)
        world.tick(self)

    def refresh(self: Topology) -> SlotMap:
        """The map of slots has a lock, and several simulated processes share this one: nothing happens meanwhile."""
        world = world_of["now"]
        before, world.looks_on = world.looks_on, True
        try:
            return original_refresh(self)
        finally:
            world.looks_on = before

    patch.setattr(Connection, "__init__", init)
    patch.setattr(Connection, "send", send)
    patch.setattr(Topology, "refresh", refresh)


def _require_life() -> None:
    """Raise an error if the process of this thread was killed."""
    actor = Actor.current()
    if world_of["now"].dying or (actor is not None and actor.is_dead):
        raise ServerUnreachableError("this process was killed")


class _Losses(logging.Handler):
    """Reads from the log which entries the library counts as lost, and which rows it does not write."""

    def emit(self, record: logging.LogRecord) -> None:
        world = world_of.get("now")
        if world is None:
            return
        world.tell(f"      log: {record.getMessage()}")
        if "keeping the %d rows that batch" in str(record.msg):
            world.sink.keeps_rows()
        if finding := finding_of(record.getMessage()):
            world.met[pair(finding, LENIENT)] += 1
        if "Lost entries of stream" in str(record.msg) and isinstance(record.args, tuple):
            world.lost(str(record.args[1]), int(str(record.args[3])))
            world.has_no_proof(str(record.args[1]), record.getMessage())
