"""Actions of the producers of the streams: add, trim, delete."""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.operations.verify.history import id_key
from tools.simulation.step import Step, part, pick
from tools.simulation.world import World, is_ours


def add(world: World, step: Step) -> None:
    """Add one to eight entries."""
    world.add(pick(world.names(), step.choice), 1 + int(step.amount * 8))


def trim(world: World, step: Step) -> None:
    """XTRIM a part of a stream from its head, or all of it."""
    name = pick(world.names(), step.choice)
    seen = world.see(name)
    if not seen.ids:
        return
    count = part(len(seen.ids), step.amount)
    if step.how < 0.5 or count == len(seen.ids):
        world.client.xtrim(name, maxlen=len(seen.ids) - count, approximate=False)
    else:
        world.client.xtrim(name, minid=seen.ids[count], approximate=False)
    _take(world, name, seen.ids[:count], "trimmed")


def delete(world: World, step: Step) -> None:
    """XDEL a few adjacent entries: of all entries, or of the unread, pending or read ones."""
    name = pick(world.names(), step.choice)
    seen = world.see(name)
    ids = list(seen.ids)
    if seen.position is not None and step.how >= 0.25:
        position = id_key(seen.position)
        if step.how < 0.5:
            ids = [entry_id for entry_id in ids if id_key(entry_id) > position]
        elif step.how < 0.75:
            ids = [entry_id for entry_id in ids if entry_id in seen.pending]
        else:
            ids = [entry_id for entry_id in ids if id_key(entry_id) <= position and entry_id not in seen.pending]
    if not ids:
        return
    first = int(step.amount * len(ids))
    neighbours = ids[first : first + 1 + int(step.how * 40) % 4]
    if neighbours:
        world.client.xdel(name, *neighbours)
        _take(world, name, neighbours, "deleted")


def _take(world: World, name: str, ids: Sequence[str], cause: str) -> None:
    """Record a removal. Documented: from a shared group amid a trigger, the query may read past the entries before it
    looks again."""
    entries, seen = world.model.entries_of(name, ids), world.see(name)
    world.model.take(entries, cause)
    is_shared = any(not is_ours(consumer) for consumer in seen.consumers)
    if world.query.takes_a_batch and is_shared and seen.position is not None:
        unread = [entry for entry in entries if entry.key > id_key(seen.position)]
        world.model.excuse(unread, "removed from a shared group amid a trigger")
