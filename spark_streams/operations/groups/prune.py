"""Find and delete abandoned groups, from which no client has read for some time.

A group is abandoned only if all of these conditions hold, so that it cannot have a reader:

- no query holds a lease in it;
- it has at least one consumer, and none has sent a command to the server within this time;
- an entry at least this old is not delivered to it: a client that waits in XREADGROUP would have received it. Or an
  entry is pending for at least this time, which a client that still works would have acknowledged. (The latter only
  since Redis 7.2: before, a consumer that polls and finds nothing is idle, and may keep an entry that fails.)
- no query with noAck has committed to it: such a query is not a consumer, and reads without a trace.

The third condition also keeps the group of a query that has read a quiet stream to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_streams.base.id_times import age_ms
from spark_streams.base.ids import MAX_ID, StreamId
from spark_streams.base.pattern import NamesAndPatterns
from spark_streams.base.printable import name_text
from spark_streams.base.units import duration
from spark_streams.connector.errors import GroupInUseError
from spark_streams.connector.keys import PREFIX, key_beside
from spark_streams.connector.source.commit_mark import Mark
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.scan import matching_strings
from spark_streams.operations.groups.delete import Deleted, delete_group, plan_delete_group
from spark_streams.operations.groups.group_keys import GroupKey
from spark_streams.operations.groups.group_snapshot import GroupSnapshot, fetch_group, groups_of

_WITHOUT_TRACE = (
    "a query with noAck has committed to it, and such a query leaves no other trace. If it is not used, delete it: "
    "rstream groups delete"
)
SHORTEST_MS = 60_000  # idle time; a consumer may pause for less between two commands


@dataclass
class Pruned(Deleted):
    """A group that was, or would be, deleted. idle_ms: since the last command of its consumers."""

    idle_ms: int = 0


@dataclass(frozen=True)
class KeptGroup:
    """A group that stays because its idle time is not known, and why."""

    stream: str
    group: str
    why: str


@dataclass(frozen=True)
class PruneSearch:
    """Groups that were examined. abandoned: to be deleted; kept: without a visible reader, but not deleted; in_use:
    number of other groups."""

    abandoned: Sequence[GroupSnapshot]
    kept: Sequence[KeptGroup]
    in_use: int


def find_abandoned(
    server: Server, streams: Sequence[str], groups: Sequence[str], exact: bool, idle_ms: int, now_ms: int
) -> PruneSearch:
    """Examine the groups of these streams. groups: names or patterns, empty for all; exact: all are names. Raises
    StreamStateError, ServerError."""
    abandoned, kept, in_use = [], [], 0
    group_names = [(stream, group, name_text(group)) for stream, group in groups_of(server, streams)]
    wanted = NamesAndPatterns.divide(groups, {*groups} if exact else {name for _, _, name in group_names})
    for stream, group, name in group_names:
        if groups and not wanted.selects(name):
            continue
        if name.encode() != group:
            kept.append(KeptGroup(stream, name, "its name is not UTF-8"))
            continue
        snapshot = fetch_group(server, stream, name)
        if is_in_use(snapshot, idle_ms):
            in_use += 1
        elif why := possible_reader(server, snapshot, idle_ms, now_ms):
            kept.append(KeptGroup(stream, name, why))
        else:
            abandoned.append(snapshot)
    without_trace = _read_without_trace(server, abandoned)
    kept += [KeptGroup(group.stream, group.group, _WITHOUT_TRACE) for group in without_trace]
    return PruneSearch([group for group in abandoned if group not in without_trace], kept, in_use)


def _read_without_trace(server: Server, snapshots: Sequence[GroupSnapshot]) -> list[GroupSnapshot]:
    """Return the groups to which a query with noAck has committed."""
    if not snapshots:
        return []
    keys = matching_strings(server, f"{PREFIX}committed:*")
    values = server.execute_all([("GET", key) for key in keys])
    marks = [(key, Mark.parse(value)) for key, value in zip(keys, values, strict=True)]
    bookmarks = [key for key, mark in marks if mark is not None and not mark.has_pending_list]
    of_group = [key_beside(snapshot.stream, "committed", snapshot.group) + b":" for snapshot in snapshots]
    return [
        snapshot
        for snapshot, beginning in zip(snapshots, of_group, strict=True)
        if any(key.startswith(beginning) for key in bookmarks)
    ]


def is_in_use(snapshot: GroupSnapshot, idle_ms: int) -> bool:
    """Whether a query of the group is running, or one of its consumers was active within this time."""
    return bool(snapshot.holders) or any(consumer.idle < idle_ms for consumer in snapshot.consumers)


def possible_reader(server: Server, snapshot: GroupSnapshot, idle_ms: int, now_ms: int) -> str:
    """Return why a group without an active consumer may still have a reader; empty if it has none. Raises
    ServerError."""
    if not snapshot.consumers:
        return "it has no consumer, so the server cannot tell when it was last read from"
    above = b"+" if snapshot.position == MAX_ID else bytes(snapshot.position.next())
    ahead = server.execute("XRANGE", snapshot.stream, above, "+", "COUNT", 1)
    is_old = ("XPENDING", snapshot.stream, snapshot.group, "IDLE", idle_ms, "-", "+", 1)
    if snapshot.shows_attempts and server.execute(*is_old):
        return ""
    if not ahead and not snapshot.shows_attempts:
        return "all entries were delivered to it, and the server (before Redis 7.2) does not tell whether it is polled"
    if not ahead:
        return "all entries were delivered to it, so a client may be waiting for the next one"
    age = age_ms(StreamId.parse(ahead[0][0]), now_ms)
    if age is None:
        return "the stream's entry IDs are not times, so it is not known how long an entry waits for a reader"
    if age < idle_ms:
        return f"its oldest undelivered entry is {duration(age)} old: a client had read all entries before that"
    return ""


def plan_prune(server: Server, snapshot: GroupSnapshot, group_keys: Sequence[GroupKey]) -> Pruned:
    """Return what deleting the group would delete. Raises ServerError."""
    return _pruned(snapshot, plan_delete_group(server, snapshot, group_keys))


def prune_group(server: Server, snapshot: GroupSnapshot, group_keys: Sequence[GroupKey], idle_ms: int) -> Pruned:
    """Delete the group, if it is still abandoned. Raises GroupInUseError, ServerError."""
    now = fetch_group(server, snapshot.stream, snapshot.group)
    if is_in_use(now, idle_ms) or now.position != snapshot.position:
        raise GroupInUseError(
            f"group {snapshot.group!r} of stream {snapshot.stream!r} is in use now, and is not deleted. Repeat the "
            "command for the other groups"
        )
    return _pruned(snapshot, delete_group(server, now, group_keys))


def _pruned(snapshot: GroupSnapshot, deleted: Deleted) -> Pruned:
    return Pruned(**vars(deleted), idle_ms=min(consumer.idle for consumer in snapshot.consumers))
