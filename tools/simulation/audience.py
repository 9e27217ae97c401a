"""What a second group of the streams needs: the query may remove no entry that it has not acknowledged (onCommit)."""

from __future__ import annotations

import redis

from spark_streams.operations.verify.history import id_key
from tools.simulation.world import World

AUDIENCE = "audit"  # name of the group
# Events after which a missing entry, or the group, says nothing about the query.
_UNCLEAR = {"vanished", "flushed", "server set back"}


def check(world: World) -> None:
    """Check that the query has removed no entry that the group has not acknowledged."""
    for name, before in world.audited.items():
        try:
            groups = {str(group["name"]): group for group in world.client.xinfo_groups(name)}
        except redis.ResponseError:
            continue
        if AUDIENCE not in groups or _UNCLEAR & world.model.stream(name).ever:
            continue
        present, last = set(world.see(name).ids), id_key(str(groups[AUDIENCE]["last-delivered-id"]))
        pending = {str(found["message_id"]) for found in world.client.xpending_range(name, AUDIENCE, "-", "+", 1000)}
        early = [
            entry.n
            for entry in world.model.alive(name)
            if entry.id not in present and entry.n not in before and (entry.key > last or entry.id in pending)
        ]
        if early:
            world.fail(f"removed before another group | {world.query.mode}", f"entries {early} of {name}")
