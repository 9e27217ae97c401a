"""Actions of an operator on the group: move and acknowledge entries; set, destroy and create the group."""

from __future__ import annotations

import time

from spark_streams.base.ids import StreamId
from spark_streams.connector.source.commit_mark import Mark, committed_key
from spark_streams.operations.verify.history import id_key
from tools.simulation.clocks import is_behind
from tools.simulation.moments import amid_a_trigger, is_sought
from tools.simulation.powers_others import NAMES
from tools.simulation.step import Step, part, pick
from tools.simulation.world import CONSUMER, GROUP, World, is_ours


def give(world: World, step: Step) -> None:
    """XCLAIM another consumer's entries for the query's consumer, at any position of the checkpoint."""
    name = pick(world.names(), step.choice)
    seen = world.see(name)
    theirs = [entry_id for entry_id, owner in seen.pending.items() if not is_ours(owner) and entry_id in seen.ids]
    if theirs:
        first = int(step.how * len(theirs))
        ids = theirs[first : first + part(len(theirs), step.amount)]
        time.sleep(0.001)  # of the plan's clock: no tasks read a batch in the millisecond in which it was made
        world.client.xclaim(name, GROUP, CONSUMER, 0, ids)
        entries = world.model.entries_of(name, ids)
        world.model.give_back(entries)
        # Documented: entries within the range of the batch in flight may be acknowledged with it. A batch that is
        # being taken ends at the group's position. If the clock was set back, a batch before it is acknowledged again.
        assert seen.position is not None
        mark, end = world.committed(name), seen.position if world.query.takes_a_batch else world.query.logged(name)
        world.model.excuse(
            [entry for entry in entries if (mark < entry.key or is_behind(world.server)) and entry.key <= id_key(end)],
            "handed within the batch in flight",
        )
        for entry in entries:
            entry.only_pending = True
        world.model.stream(name).suffers("entries given to us")


def grab(world: World, step: Step) -> None:
    """XCLAIM the query's entries for another consumer."""
    name, consumer = pick(world.names(), step.choice), pick(NAMES, step.how)
    seen = world.see(name)
    ours = [entry_id for entry_id in seen.ours() if entry_id in seen.ids]
    if ours:
        ids = ours[: part(len(ours), step.amount)]
        world.client.xclaim(name, GROUP, consumer, 0, ids)
        taken = world.model.entries_of(name, ids)
        world.model.deliver_to_other(taken, consumer)
        for entry in taken:
            entry.repeat_reasons.add("taken from the query, which may have read it")
        world.model.is_shared(name)
        world.model.stream(name).suffers("entries taken from us")


def settle(world: World, step: Step) -> None:
    """XACK the query's entries."""
    name = pick(world.names(), step.choice)
    ours = world.see(name).ours()
    if ours:
        first = int(step.how * len(ours))
        ids = ours[first : first + part(len(ours), step.amount)]
        world.client.xack(name, GROUP, *ids)
        world.model.excuse(world.model.entries_of(name, ids), "an operator has acknowledged it")
        world.model.stream(name).suffers("our entries acknowledged")


def setid(world: World, step: Step) -> None:
    """XGROUP SETID, back or forward."""
    name = pick(world.names(), step.choice)
    seen = world.see(name)
    if seen.position is None:
        return
    target = pick(["0-0", *seen.ids, "$"], step.how)
    was = seen.position
    world.client.xgroup_setid(name, GROUP, id=target)
    now = world.see(name).position
    assert now is not None
    if now != was:
        forward = id_key(now) > id_key(was)
        world.model.stream(name).suffers("group set forward" if forward else "group set back")
        _moved(world, name)
        _skipped(world, name, was, now)
        if forward and any(not is_ours(consumer) for consumer in seen.consumers):
            world.model.is_shared(name)
        world.births.changed(name, by_operator=True)


def seek(world: World, step: Step) -> None:
    """rstream groups seek: what it passes over need not be read, and what is above is read again."""
    name = pick(world.names(), step.choice)
    seen = world.see(name)
    if seen.position is None:
        return
    target = pick(["0-0", *seen.ids], step.how)
    world.client.xgroup_setid(name, GROUP, id=target)
    key = committed_key(name, GROUP, CONSUMER)
    before = Mark.parse((world.client.get(key) or "").encode())
    world.client.set(key, str(Mark.of_seek(StreamId.parse(target), before)))
    ours = {*seen.ours()}
    for entry in world.model.entries_of(name):
        if entry.key > id_key(target):
            entry.repeat_reasons.add("an operator has set the group back")
        elif entry.id not in ours:
            world.model.excuse([entry], "an operator has passed it over")
    world.model.stream(name).ever.add("group sought")  # and no cause of an error


def destroy(world: World, step: Step) -> None:
    """XGROUP DESTROY."""
    name = pick(world.names(), step.choice)
    seen = world.see(name)
    if seen.position is not None:
        world.client.xgroup_destroy(name, GROUP)
        world.model.excuse_only_pending(world.model.entries_of(name, seen.pending))
        world.model.stream(name).suffers("group destroyed")
        _moved(world, name)
        world.births.changed(name, by_operator=True)


def remake(world: World, step: Step) -> None:
    """XGROUP DESTROY, then CREATE at the end, at the start, or in between."""
    name = pick(world.names(), step.choice)
    seen = world.see(name)
    if seen.position is None:
        return
    world.client.xgroup_destroy(name, GROUP)
    world.model.excuse_only_pending(world.model.entries_of(name, seen.pending))
    target = "$" if step.how < 0.4 else "0" if step.how < 0.7 else pick(["0-0", *seen.ids], step.amount)
    world.client.xgroup_create(name, GROUP, id=target)
    world.model.stream(name).suffers("group created again")
    _moved(world, name)
    _skipped(world, name, seen.position, world.see(name).position)
    # Documented: created again amid a trigger, or after a seek that no run has followed yet. The checkpoint may still
    # know that others have read from it.
    was_shared = world.model.stream(name).ever & {"others read", "entries taken from us"}
    if was_shared and (amid_a_trigger(world) or is_sought(world, [name])):
        world.model.is_shared(name)
    world.births.changed(name, by_operator=True)


def _skipped(world: World, name: str, was: str, now: str | None) -> None:
    """Record which entries the group will not deliver, after it was moved."""
    assert now is not None
    passed = [entry for entry in world.model.alive(name) if id_key(was) < entry.key <= id_key(now)]
    world.model.stream(name).skipped |= {entry.n for entry in passed}


def _moved(world: World, name: str) -> None:
    """Record that the group was moved. Documented: if its query takes a batch, or reserves one ahead, entries are
    delivered again."""
    if not amid_a_trigger(world):
        return
    position = world.see(name).position
    for entry in world.model.entries_of(name):
        if position is None or entry.key > id_key(position):
            entry.repeat_reasons.add("its group was moved amid a trigger")


def expel(world: World, step: Step) -> None:
    """XGROUP DELCONSUMER one of the query's consumers."""
    name = pick(world.names(), step.choice)
    seen = world.see(name)
    ours = sorted(consumer for consumer in seen.consumers if is_ours(consumer))
    if ours:
        deleted = pick(ours, step.how)
        pending = seen.of_consumer(deleted)
        world.client.xgroup_delconsumer(name, GROUP, deleted)
        world.model.stream(name).suffers("our consumer deleted")
        if deleted == CONSUMER:
            world.model.excuse_only_pending(world.model.entries_of(name, pending))
        # Documented: deliveries to others cannot be distinguished from deliveries to us.
        if world.query.takes_a_batch and any(not is_ours(consumer) for consumer in seen.consumers):
            world.model.excuse(
                world.model.entries_of(name, pending), "deleted with our consumer while the query takes a batch"
            )
        if not any(name in offset["streams"] for offset in world.query.offsets):  # only the pending list held them
            world.model.excuse(world.model.entries_of(name, pending), "deleted with our consumer before a checkpoint")
