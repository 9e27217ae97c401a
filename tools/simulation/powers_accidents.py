"""Accidents of the server and the checkpoint: data are deleted, or restored from an older state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from spark_streams.operations.verify.history import id_key
from tools.key_copies import Command, copies, make_again
from tools.simulation.model import EARLY, Entry
from tools.simulation.moments import is_sought
from tools.simulation.once import OUT
from tools.simulation.options import DEAD
from tools.simulation.powers_network import away
from tools.simulation.step import Step, part, pick
from tools.simulation.world import World, is_ours

_LOST = "lost with the server's last writes"
_WITH_ITS_STREAM = ("vanished", "flushed")


@dataclass(frozen=True)
class Backup:
    """The server at one moment. keys: commands that restore its keys; alive: entries in streams; last: newest entry."""

    keys: list[Command]
    alive: frozenset[int]
    last: int


def vanish(world: World, step: Step) -> None:
    """DEL of a stream."""
    name = pick(world.names(), step.choice)
    if world.client.delete(name):
        _take_all(world, name, "vanished")
        offsets = world.query.offsets
        if "streamsPattern" in world.query.options and not (offsets and name in offsets[-1]["streams"]):
            world.model.excuse(world.model.entries_of(name), "vanished before a checkpoint knew its stream")
        world.model.stream(name).suffers("vanished")
        world.births.changed(name)


def flush(world: World, step: Step) -> None:
    """FLUSHALL: an empty server."""
    written = _in_sink(world)
    world.client.flushall()
    world.letters.set_back()
    _lost_by_the_sink(world, written)
    for name in world.names():
        _take_all(world, name, "flushed")
        world.model.stream(name).suffers("flushed")
        world.births.changed(name)
    world.model.stream(OUT).suffers("flushed")


def backup(world: World, step: Step) -> None:
    """Save the state of the server."""
    world.backup = _state(world)


def fail_over(world: World, step: Step, becomes: str = "promote") -> None:
    """From now on a replica gets nothing. After some ticks it becomes the master: the writes since now are lost.
    becomes: the power that makes it so."""
    world.replica = _state(world)
    world.ticks.arm(Step(becomes, 1 + int(30 * step.amount), *(step.choice, step.amount, step.how)))


def promote(world: World, step: Step) -> None:
    """The replica becomes the master. All connections break; some attempts to connect fail before it answers."""
    if world.replica is not None:
        away(world, step)
        _set_back(world, world.replica)
        world.replica = None


def lag(world: World, step: Step) -> None:
    """From now on a replica gets nothing. It becomes the master amid the work of the driver's background thread, and
    answers at once."""
    world.replica = _state(world)
    world.ticks.arm(replace(step, kind="promote_beside", delay=1 + int(40 * step.amount)), beside=True)


def promote_beside(world: World, step: Step) -> None:
    """The replica becomes the master, and no attempt to connect fails."""
    if world.replica is not None:
        world.break_connections()
        _set_back(world, world.replica)
        world.replica = None


def _state(world: World) -> Backup:
    keys = copies(world.raw, world.raw.scan_iter(count=1000))
    alive = frozenset(entry.n for entry in world.model.entries.values() if not entry.removed_by)
    return Backup(keys, alive, len(world.model.entries))


def restore(world: World, step: Step) -> None:
    """Restore the server from the last backup: its last writes are lost. All connections break."""
    if world.backup is not None:
        world.break_connections()
        _set_back(world, world.backup)


def import_backup(world: World, step: Step) -> None:
    """Put one stream of the last backup, or it with all keys beside it and the dead letters, or all keys, into the
    running server: the connections stay."""
    if world.backup is None:
        return
    name = pick(world.names(), step.choice)
    if step.how < 0.25:
        _set_back(world, _with_keys_of(world, name, lambda key: key == name.encode()))
    elif step.how < 0.5:
        _set_back(world, _with_keys_of(world, name, lambda key: name.encode() in key or key == DEAD.encode()))
    else:
        _set_back(world, world.backup)


def _with_keys_of(world: World, name: str, is_put_back: Callable[[bytes], bool]) -> Backup:
    """Return the present state of the server, with these keys of one stream as they are in the last backup."""
    now, then = _state(world), world.backup
    assert then is not None
    own = {entry.n for entry in world.model.entries_of(name)}
    keys = [*(one for one in now.keys if not is_put_back(one[1])), *(one for one in then.keys if is_put_back(one[1]))]
    return Backup(keys, (now.alive - own) | (then.alive & own), then.last)


def _set_back(world: World, to: Backup) -> None:
    written = _in_sink(world)
    world.letters.settle_those_of_earlier_batches()
    world.model.excuse(_found_missing(world, to), "the server has lost the tasks' notes of it")
    world.client.flushall()
    make_again(world.raw, to.keys)
    world.letters.set_back()
    _lost_by_the_sink(world, written)
    for entry in world.model.entries.values():
        if entry.n in to.alive:
            if entry.removed_by in _WITH_ITS_STREAM:
                entry.repeat_reasons.add("its stream was deleted, and restored")
            entry.removed_by = ""
        else:
            entry.removed_by = entry.removed_by or _LOST
            if entry.n > to.last and entry.key > id_key(world.query.logged(entry.stream)):
                entry.excuses.add("lost by the server before anybody has logged it")
    for name in world.names():
        for entry_id, consumer in world.see(name).pending.items():
            if not is_ours(consumer):  # pending for others again
                again = world.model.entries_of(name, [entry_id])
                world.model.deliver_to_other(again, consumer)
                for entry in again:
                    entry.repeat_reasons.add("pending for another consumer of the restored server")
        world.model.stream(name).suffers("server set back")
        seen = world.see(name)
        ours = set(seen.ours())
        # Documented: a lone query whose account is unknown, or whose restored group was sought, goes on at the group.
        goes_to_group = world.query.is_account_unknown(name) or is_sought(world, [name])
        for entry in world.model.entries_of(name):
            if seen.position is None:
                entry.repeat_reasons.add("the server was restored to a state before its group")
            elif goes_to_group and (entry.key > id_key(seen.position) or entry.id in ours):
                entry.repeat_reasons.add("the query goes on where the restored group is")
            if entry.id not in ours:
                world.model.excuse_only_pending([entry])
        world.births.changed(name)
    world.model.stream(OUT).suffers("server set back")


def _found_missing(world: World, to: Backup) -> list[Entry]:
    """Return entries of the last batch that its tasks missed, and that the restored server has again (documented).

    Only the notes of the tasks report them, unless the tasks failed (without noAck and strict).
    """
    query = world.query
    if not (query.is_lenient or "noAck" in query.options):
        return []
    begin = query.begin_of(len(query.offsets) - 1)
    return [
        entry
        for entry in world.model.entries.values()
        if entry.removed_by
        and entry.n in to.alive
        and id_key(begin.get(entry.stream, "0-0")) < entry.key <= id_key(query.logged(entry.stream))
    ]


def rollback(world: World, step: Step) -> None:
    """Use an older copy of the checkpoint. The recorder sink is set back with it."""
    query = world.query
    if len(query.offsets) < 2 or is_sought(world, world.names()):  # it would pass over entries that it has not read
        return
    query.newest = (list(query.offsets), query.committed)
    remaining_batches = len(query.offsets) - part(len(query.offsets) - 1, step.amount)
    query.set_back(remaining_batches, remaining_batches - 1 - (step.how < 0.3))
    _suffers(world, "checkpoint set back")
    world.model.stream(OUT).suffers("checkpoint set back")


def lose_commits(world: World, step: Step) -> None:
    """Delete the last files of the commit log: Spark runs the last batch again."""
    query = world.query
    if query.committed >= 0:
        query.die()
        query.committed -= part(query.committed + 1, step.amount)
        _suffers(world, "commits lost")


def _in_sink(world: World) -> set[int]:
    return {row.value[1] for row in world.sink.rows()}


def _lost_by_the_sink(world: World, before: set[int]) -> None:
    """Excuse rows that were lost with the server, if the sink is on it."""
    for n in before - _in_sink(world):
        world.model.entries[n].excuses.add("its row was lost by the server")


def _take_all(world: World, name: str, cause: str) -> None:
    """Remove a stream with its group. Before the first checkpoint nothing else records that the query read it."""
    world.model.take(world.model.alive(name), cause)
    for entry in world.model.entries_of(name):
        if entry.removed_by and not entry.settled:
            entry.removed_by = cause  # the first cause is no longer recognizable
    if not world.query.offsets:
        world.model.excuse(world.model.entries_of(name), EARLY)


def _suffers(world: World, cause: str) -> None:
    for name in world.names():
        if name in world.model.streams:
            world.model.stream(name).suffers(cause)
