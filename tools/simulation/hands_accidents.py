"""Powers of fate over the server and the checkpoint: what was there is gone, or is as it was before."""

from __future__ import annotations

from dataclasses import dataclass

from tools.chaos.history import id_key
from tools.key_copies import Command, copies, make_again
from tools.simulation.model import EARLY, GIVEN_UP, Entry
from tools.simulation.once import OUT
from tools.simulation.step import Step, part, pick
from tools.simulation.world import World, is_ours

_LOST = "lost with the server's last writes"


@dataclass(frozen=True)
class Backup:
    """The server at one moment: the commands that make its keys; the entries that streams held; last: the number of
    the last entry that had been added."""

    keys: list[Command]
    alive: frozenset[int]
    last: int


def vanish(world: World, step: Step) -> None:
    """DEL of a stream."""
    name = pick(world.names(), step.which)
    if world.client.delete(name):
        _take_all(world, name, "vanished")
        offsets = world.query.offsets
        if "streamsPattern" in world.query.options and not (offsets and name in offsets[-1]["streams"]):
            world.model.excuse(world.model.of(name), "vanished before a checkpoint knew its stream")
        world.model.stream(name).suffers("vanished")
        world.births.changed(name)


def flush(world: World, step: Step) -> None:
    """FLUSHALL: an empty server."""
    written = _in_sink(world)
    world.client.flushall()
    _lost_by_the_sink(world, written)
    for name in world.names():
        _take_all(world, name, "flushed")
        world.model.stream(name).suffers("flushed")
        world.births.changed(name)
    world.model.stream(OUT).suffers("flushed")


def backup(world: World, step: Step) -> None:
    """The server's state is kept."""
    keys = copies(world.raw, world.raw.scan_iter(count=1000))
    alive = frozenset(one.n for one in world.model.entries.values() if not one.gone)
    world.backup = Backup(keys, alive, len(world.model.entries))


def restore(world: World, step: Step) -> None:
    """The server is as it was at the last backup: its last writes are lost."""
    if world.backup is None:
        return
    written = _in_sink(world)
    world.model.excuse(_found_missing(world), "the server has lost what tasks noted of it")
    world.client.flushall()
    make_again(world.raw, world.backup.keys)
    _lost_by_the_sink(world, written)
    for one in world.model.entries.values():
        if one.n in world.backup.alive:
            one.gone = ""
        else:
            one.gone = one.gone or _LOST
            if one.n > world.backup.last and one.key > id_key(world.query.logged(one.stream)):
                one.excuses.add("lost by the server before anybody has logged it")
    for name in world.names():
        for entry, consumer in world.see(name).pending.items():
            if not is_ours(consumer):  # theirs again, if they had it then
                world.model.hand(world.model.of(name, [entry]), consumer)
        world.model.stream(name).suffers("server set back")
        world.births.changed(name)
    world.model.stream(OUT).suffers("server set back")


def _found_missing(world: World) -> list[Entry]:
    """Documented: entries of the last batch that were gone when its tasks read it, and are there again when the server
    has come back. Only the notes of the tasks told of them, unless the tasks failed (without noAck and strict)."""
    query = world.query
    if not (query.is_lenient or "noAck" in query.options):
        return []
    begin = query.begin_of(len(query.offsets) - 1)
    return [
        one
        for one in world.model.entries.values()
        if one.gone
        and one.n in world.backup.alive
        and id_key(begin.get(one.stream, "0-0")) < one.key <= id_key(query.logged(one.stream))
    ]


def rollback(world: World, step: Step) -> None:
    """An older copy of the whole checkpoint; the sink goes back with it."""
    query = world.query
    if len(query.offsets) < 2:
        return
    query.newest = (list(query.offsets), query.committed)
    if query.gives_up or query.options.get("delivery") == "at-most-once":
        # The last batch looks like one that a crash has kept from being read.
        for name in query.reads():
            unmarked = [one for one in world.model.of(name) if one.key > world.committed(name)]
            world.model.excuse(unmarked, GIVEN_UP)
    left = len(query.offsets) - part(len(query.offsets) - 1, step.much)
    positions, sunk = {name: query.logged(name) for name in world.names()}, set(world.model.sunk)
    query.set_back(left, left - 1 - (step.how < 0.3))
    # Documented: the commit mark does not show that batches of claimed entries alone are missing.
    for n in sunk - world.model.sunk:
        one = world.model.entries[n]
        if one.acknowledged and query.logged(one.stream) == positions[one.stream]:
            one.excuses.add("claimed by a batch that moved no position, and that the older checkpoint lacks")
    _suffers(world, "checkpoint set back")
    world.model.stream(OUT).suffers("checkpoint set back")


def lose_commits(world: World, step: Step) -> None:
    """The last files of the commit log are gone: Spark runs the last batch again."""
    query = world.query
    if query.committed >= 0:
        query.die()
        query.committed -= part(query.committed + 1, step.much)
        _suffers(world, "commits lost")


def _in_sink(world: World) -> set[int]:
    return {row.value[1] for row in world.sink.rows()}


def _lost_by_the_sink(world: World, before: set[int]) -> None:
    """Rows that went with the server, where the sink is on it."""
    for n in before - _in_sink(world):
        world.model.entries[n].excuses.add("its row was lost by the server")


def _take_all(world: World, name: str, cause: str) -> None:
    """A stream is gone with its group. Before there is a checkpoint nobody else knows that the query was there."""
    world.model.take(world.model.alive(name), cause)
    for one in world.model.of(name):
        if one.gone and not one.settled:
            one.gone = cause  # nobody can tell any more
    if not world.query.offsets:
        world.model.excuse(world.model.of(name), EARLY)


def _suffers(world: World, cause: str) -> None:
    for name in world.names():
        if name in world.model.streams:
            world.model.stream(name).suffers(cause)
