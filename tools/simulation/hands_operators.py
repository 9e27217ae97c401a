"""Powers of an operator at the group: entries moved, acknowledged, the group set, destroyed, made anew."""

from __future__ import annotations

from tools.chaos.history import id_key
from tools.simulation.hands_others import NAMES
from tools.simulation.step import Step, part, pick
from tools.simulation.world import CONSUMER, GROUP, World, is_ours


def give(world: World, step: Step) -> None:
    """XCLAIM of another consumer's entries to the query's, wherever the checkpoint stands."""
    name = pick(world.names(), step.which)
    seen = world.see(name)
    theirs = [one for one, owner in seen.pending.items() if not is_ours(owner) and one in seen.ids]
    if theirs:
        first = int(step.how * len(theirs))
        chosen = theirs[first : first + part(len(theirs), step.much)]
        world.client.xclaim(name, GROUP, CONSUMER, 0, chosen)
        given = world.model.of(name, chosen)
        world.model.give_back(given)
        # Documented: what lies within the range of the batch in flight may be acknowledged with it. A batch that is
        # being taken ends where the group is.
        assert seen.position is not None
        mark, end = world.committed(name), seen.position if world.query.takes_a_batch else world.query.logged(name)
        world.model.excuse([one for one in given if mark < one.key <= id_key(end)], "handed within the batch in flight")
        for one in given:
            one.handed = True
        world.model.stream(name).suffers("entries given to us")


def grab(world: World, step: Step) -> None:
    """XCLAIM of the query's entries to another consumer."""
    name, consumer = pick(world.names(), step.which), pick(NAMES, step.how)
    seen = world.see(name)
    ours = [one for one in seen.ours() if one in seen.ids]
    if ours:
        chosen = ours[: part(len(ours), step.much)]
        world.client.xclaim(name, GROUP, consumer, 0, chosen)
        world.model.hand(world.model.of(name, chosen), consumer)
        world.model.is_shared(name)
        world.model.stream(name).suffers("entries taken from us")


def settle(world: World, step: Step) -> None:
    """XACK of the query's entries."""
    name = pick(world.names(), step.which)
    ours = world.see(name).ours()
    if ours:
        first = int(step.how * len(ours))
        chosen = ours[first : first + part(len(ours), step.much)]
        world.client.xack(name, GROUP, *chosen)
        world.model.excuse(world.model.of(name, chosen), "an operator has acknowledged it")
        world.model.stream(name).suffers("our entries acknowledged")


def setid(world: World, step: Step) -> None:
    """XGROUP SETID, back or forward."""
    name = pick(world.names(), step.which)
    seen = world.see(name)
    if seen.position is None:
        return
    to = pick(["0-0", *seen.ids, "$"], step.how)
    was = seen.position
    world.client.xgroup_setid(name, GROUP, id=to)
    now = world.see(name).position
    assert now is not None
    if now != was:
        forward = id_key(now) > id_key(was)
        world.model.stream(name).suffers("group set forward" if forward else "group set back")
        if forward:
            passed = [one for one in world.model.alive(name) if id_key(was) < one.key <= id_key(now)]
            world.model.stream(name).skipped |= {one.n for one in passed}
            if any(not is_ours(one) for one in seen.consumers):
                world.model.is_shared(name)
        world.births.changed(name, by_hand=True)


def destroy(world: World, step: Step) -> None:
    """XGROUP DESTROY."""
    name = pick(world.names(), step.which)
    seen = world.see(name)
    if seen.position is not None:
        world.client.xgroup_destroy(name, GROUP)
        world.model.lose_handed(world.model.of(name, seen.of_consumer(CONSUMER)))
        world.model.stream(name).suffers("group destroyed")
        world.births.changed(name, by_hand=True)


def remake(world: World, step: Step) -> None:
    """XGROUP DESTROY, then CREATE at the end, at the beginning, or in between."""
    name = pick(world.names(), step.which)
    seen = world.see(name)
    if seen.position is None:
        return
    world.client.xgroup_destroy(name, GROUP)
    world.model.lose_handed(world.model.of(name, seen.of_consumer(CONSUMER)))
    to = "$" if step.how < 0.4 else "0" if step.how < 0.7 else pick(["0-0", *seen.ids], step.much)
    world.client.xgroup_create(name, GROUP, id=to)
    world.model.stream(name).suffers("group made anew")
    if world.query.takes_a_batch:
        world.model.stream(name).ever.add("group made anew amid a trigger")
    world.births.changed(name, by_hand=True)


def expel(world: World, step: Step) -> None:
    """XGROUP DELCONSUMER of one of the query's consumers."""
    name = pick(world.names(), step.which)
    seen = world.see(name)
    ours = sorted(one for one in seen.consumers if is_ours(one))
    if ours:
        deleted = pick(ours, step.how)
        pending = seen.of_consumer(deleted)
        world.client.xgroup_delconsumer(name, GROUP, deleted)
        world.model.stream(name).suffers("our consumer deleted")
        if deleted == CONSUMER:
            world.model.lose_handed(world.model.of(name, pending))
        # Documented: nobody can tell what others were given from what was given to us.
        if world.query.takes_a_batch and any(not is_ours(one) for one in seen.consumers):
            world.model.excuse(world.model.of(name, pending), "deleted with our consumer while the query takes a batch")
        if not any(name in offset["streams"] for offset in world.query.offsets):  # only the pending list knew of them
            world.model.excuse(world.model.of(name, pending), "deleted with our consumer before a checkpoint")
