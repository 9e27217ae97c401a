"""Powers of those who write to the streams: they add, trim, delete."""

from __future__ import annotations

from tools.chaos.history import id_key
from tools.simulation.step import Step, part, pick
from tools.simulation.world import World


def add(world: World, step: Step) -> None:
    """Entries, one to eight."""
    world.add(pick(world.names(), step.which), 1 + int(step.much * 8))


def trim(world: World, step: Step) -> None:
    """XTRIM: a part of a stream from its head, or all of it."""
    name = pick(world.names(), step.which)
    seen = world.see(name)
    if not seen.ids:
        return
    count = part(len(seen.ids), step.much)
    if step.how < 0.5 or count == len(seen.ids):
        world.client.xtrim(name, maxlen=len(seen.ids) - count, approximate=False)
    else:
        world.client.xtrim(name, minid=seen.ids[count], approximate=False)
    world.model.take(world.model.of(name, seen.ids[:count]), "trimmed")


def delete(world: World, step: Step) -> None:
    """XDEL: a few neighbours of any kind, of those that are read, pending or unread."""
    name = pick(world.names(), step.which)
    seen = world.see(name)
    ids = list(seen.ids)
    if seen.position is not None and step.how >= 0.25:
        position = id_key(seen.position)
        if step.how < 0.5:
            ids = [one for one in ids if id_key(one) > position]
        elif step.how < 0.75:
            ids = [one for one in ids if one in seen.pending]
        else:
            ids = [one for one in ids if id_key(one) <= position and one not in seen.pending]
    if not ids:
        return
    first = int(step.much * len(ids))
    chosen = ids[first : first + 1 + int(step.how * 40) % 4]
    if chosen:
        world.client.xdel(name, *chosen)
        world.model.take(world.model.of(name, chosen), "deleted")
