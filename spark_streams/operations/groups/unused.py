"""Groups that nobody uses: abandoned ones, which are deleted, and ones that hold entries back, which are forgotten.

A group is abandoned only if all of these conditions hold, so that it cannot have a reader:

- no query holds a lease in it;
- it has at least one consumer, and none has sent a command to the server within this time;
- an entry at least this old is not delivered to it: a client that waits in XREADGROUP would have received it. Or an
  entry is pending for at least this time, which a client that still works would have acknowledged. (The latter only
  since Redis 7.2: before, a consumer that polls and finds nothing is idle, and may keep an entry that fails.)
- no query without a pending list has committed to it: such a query is not a consumer, and reads without a trace.

The third condition also keeps the group of a query that has read a quiet stream to its end.

What it means that a group is forgotten: connector/retention.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from spark_streams.base.ids import MAX_ID, StreamId, age_ms
from spark_streams.base.pattern import NamesAndPatterns
from spark_streams.base.printable import name_text
from spark_streams.base.units import duration
from spark_streams.connector.admin.groups import (
    GroupKey,
    GroupName,
    GroupSnapshot,
    Readers,
    fetch_group,
    find_read_without_trace,
    groups_of,
    record_forgotten,
)
from spark_streams.connector.errors import GroupInUseError
from spark_streams.connector.lag.survey import survey
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.xinfo import ConsumerInfo
from spark_streams.operations.groups.change_plan import Plan, made
from spark_streams.operations.groups.group_deletion import Deleted, delete_group, fetch_consumers
from spark_streams.operations.groups.pending_entries import READ_WITHOUT_TRACE
from spark_streams.operations.groups.trim_acknowledged import remove_below
from spark_streams.operations.monitor.held import Held, fetch_held

SHORTEST_MS = 60_000  # idle time; a consumer may pause for less between two commands


@dataclass
class Pruned(Deleted):
    """A group that was, or would be, deleted."""

    idle_ms: int = 0  # since the last command of its consumers


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
    without_trace = find_read_without_trace(server, [(group.stream, group.group) for group in abandoned])
    for snapshot in abandoned:
        if (snapshot.stream, snapshot.group) in without_trace:
            kept.append(KeptGroup(snapshot.stream, snapshot.group, READ_WITHOUT_TRACE))
    left = [group for group in abandoned if (group.stream, group.group) not in without_trace]
    return PruneSearch(left, kept, in_use)


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


def prune_group(server: Server, snapshot: GroupSnapshot, group_keys: Sequence[GroupKey], idle_ms: int) -> Plan[Pruned]:
    """Delete the group, if it is still abandoned. Raises GroupInUseError, ServerError."""
    now = snapshot
    if (yield made):
        now = fetch_group(server, snapshot.stream, snapshot.group)
        if is_in_use(now, idle_ms) or now.position != snapshot.position:
            raise _in_use(snapshot.stream, snapshot.group, "deleted")
    deleted = yield from delete_group(server, now, group_keys)
    return Pruned(**vars(deleted), idle_ms=min(consumer.idle for consumer in snapshot.consumers))


def _in_use(stream: str, group: str, done: str) -> GroupInUseError:
    return GroupInUseError(f"group {group!r} of stream {stream!r} is in use now, and is not {done}")


# -- groups that hold entries back -------------------------------------------------------------------------------------

_COUNTED = 1  # a lag that the server does not know is not counted: it stays unknown


def find_held(server: Server, streams: Sequence[str], groups: Sequence[str], exact: bool, idle_ms: int) -> list[Held]:
    """Return the groups that hold entries back and whose consumers are all idle for this time. A group behind which no
    entry is left holds none: to forget it would only stop its query. groups: names or patterns, empty for all; exact:
    all are names. Raises ServerError."""
    found = fetch_held(server, survey(server, streams, _COUNTED), idle_ms, measured=None)
    # A name that is not UTF-8 has another text, and cannot be named on a command line.
    idle = [held for held in found if held.entries != 0 and name_text(held.group) == held.group]
    wanted = NamesAndPatterns.divide(groups, {*groups} if exact else {held.group for held in idle})
    return [held for held in idle if not groups or wanted.selects(held.group)]


def find_undecided(server: Server, holders: Sequence[Held], idle_ms: int, now_ms: int) -> list[KeptGroup]:
    """Return those of the groups that may have a reader, because the server does not show attempts to read. Raises
    StreamStateError, ServerError."""
    snapshots = [fetch_group(server, held.stream, held.group) for held in holders]
    return [
        KeptGroup(snapshot.stream, snapshot.group, reason)
        for snapshot in snapshots
        if not snapshot.shows_attempts and (reason := possible_reader(server, snapshot, idle_ms, now_ms))
    ]


def is_idle(consumers: Sequence[ConsumerInfo], idle_ms: int) -> bool:
    """Whether a group has consumers, and all of them are idle for this time."""
    return bool(consumers) and all(consumer.idle >= idle_ms for consumer in consumers)


def forget_group(
    server: Server,
    held: Held,
    idle_ms: int,
    forgotten: set[GroupName],
    running: Collection[tuple[str, str]] = (),
) -> Plan[Held]:
    """Record that a group is forgotten, and remove the entries that only forgotten groups hold back. forgotten: those
    of this command, to which the group is added; running: groups with a query that runs. Raises GroupInUseError."""
    if (held.stream, held.group) in running:
        raise _in_use(held.stream, held.group, "forgotten")
    if (yield made) is None:
        return held
    group = (held.stream.encode(), held.group.encode())
    states = Readers().fetch(server, [group[0]])
    readers = states[group[0]].readers if group[0] in states else {}
    consumers = fetch_consumers(server, held.stream, held.group) if group[1] in readers else []
    if not is_idle(consumers, idle_ms) or record_forgotten(server, group, readers[group[1]].info, consumers) is None:
        raise _in_use(held.stream, held.group, "forgotten")
    forgotten.add(group)
    needed = {name: one.needed for name, one in readers.items() if (group[0], name) not in forgotten}
    if not needed:
        return replace(held, removed=0)
    besides = {name for stream, name in forgotten if stream == group[0]}
    least = min(needed.values())
    return replace(held, removed=remove_below(server, held.stream, [*needed], least, "=", forgotten=besides))
