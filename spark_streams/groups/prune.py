"""Pruning: groups that nobody has read from for a while are found, and deleted (groups.delete).

A group is abandoned only if all of this holds, so that no reader can be hidden behind it:

- no query holds a lease there;
- none of its consumers, of which it has at least one, has asked the server for anything for so long;
- it was not given an entry that is at least as old: a client that waits in XREADGROUP would have been given it.

The last one also keeps the group of a query that has read a quiet stream to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_streams.errors import GroupInUseError
from spark_streams.groups.delete import Deleted, delete_group, plan_delete_group
from spark_streams.groups.group_keys import Kept
from spark_streams.groups.group_snapshot import Standing, look
from spark_streams.model.ids import MAX_ID, StreamId
from spark_streams.model.pattern import matches
from spark_streams.monitor.lag_survey import age_ms
from spark_streams.monitor.terminal.units import duration
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.xinfo import groups_in

SHORTEST_MS = 60_000  # of the idle time: below that a consumer may be between two requests


@dataclass
class Pruned(Deleted):
    """A group that was, or would be, deleted. idle_ms: since its last active consumer asked the server for anything."""

    idle_ms: int = 0


@dataclass(frozen=True)
class KeptGroup:
    """A group that stays because nobody can tell how long it was idle, and why."""

    stream: str
    group: str
    why: str


@dataclass(frozen=True)
class Found:
    """All groups that were looked at. abandoned: to be deleted; kept: that stay although no reader is seen; in_use: how
    many others there are."""

    abandoned: Sequence[Standing]
    kept: Sequence[KeptGroup]
    in_use: int


def find_abandoned(server: Server, streams: Sequence[str], pattern: str, idle_ms: int, now_ms: int) -> Found:
    """Look at the groups of these streams whose names match a Redis pattern. Raises StreamStateError, ServerError."""
    abandoned, kept, in_use = [], [], 0
    for stream, group in _groups_of(server, streams):
        name = group.decode("utf-8", "backslashreplace")
        if not matches(pattern, name):
            continue
        if name.encode() != group:
            kept.append(KeptGroup(stream, name, "its name is not UTF-8"))
            continue
        standing = look(server, stream, name)
        if is_in_use(standing, idle_ms):
            in_use += 1
        elif why := why_unknown(server, standing, idle_ms, now_ms):
            kept.append(KeptGroup(stream, name, why))
        else:
            abandoned.append(standing)
    return Found(abandoned, kept, in_use)


def is_in_use(standing: Standing, idle_ms: int) -> bool:
    """Whether a query lives in the group, or one of its consumers was active within this time."""
    return bool(standing.holders) or any(one.idle < idle_ms for one in standing.consumers)


def why_unknown(server: Server, standing: Standing, idle_ms: int, now_ms: int) -> str:
    """Why a group without an active consumer may have a reader all the same; empty: it has none. Raises ServerError."""
    if not standing.consumers:
        return "it has no consumer, so the server cannot tell when it was last read from"
    above = b"+" if standing.position == MAX_ID else bytes(standing.position.next())
    ahead = server.execute("XRANGE", standing.stream, above, "+", "COUNT", 1)
    if not ahead:
        return "it was given every entry, so a client may be waiting for the next one"
    age = age_ms(StreamId.parse(ahead[0][0]), now_ms)
    if age is None:
        return "the stream's entry IDs are no times, so nobody can tell how long an entry waits for a reader"
    if age < idle_ms:
        return f"the oldest entry that it was not given is {duration(age)} old: it was read to its end before that"
    return ""


def plan_prune(standing: Standing, kept: Sequence[Kept]) -> Pruned:
    """What deleting the group would forget."""
    return _pruned(standing, plan_delete_group(standing, kept))


def prune_group(server: Server, standing: Standing, kept: Sequence[Kept], idle_ms: int) -> Pruned:
    """Delete the group, if it is still abandoned. Raises GroupInUseError, ServerError."""
    now = look(server, standing.stream, standing.group)
    if is_in_use(now, idle_ms) or now.position != standing.position:
        raise GroupInUseError(
            f"group {standing.group!r} of stream {standing.stream!r} is in use now: it stays; repeat the command for "
            "the others"
        )
    return _pruned(standing, delete_group(server, now, kept))


def _pruned(standing: Standing, deleted: Deleted) -> Pruned:
    return Pruned(**vars(deleted), idle_ms=min(one.idle for one in standing.consumers))


def _groups_of(server: Server, streams: Sequence[str]) -> list[tuple[str, bytes]]:
    replies = server.execute_all([("XINFO", "GROUPS", stream) for stream in streams])
    return [(stream, one.name) for stream, reply in zip(streams, replies, strict=True) for one in groups_in(reply)]
