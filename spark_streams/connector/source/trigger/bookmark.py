"""A query without a pending list (noAck): its group is a bookmark, and delivers no entry.

Its position is for other clients: `lag`, `trim=acked` and `onCommit` of other groups use it. Each commit sets it, with
the commit mark. After a crash a group may be at the batch before: the checkpoint decides.

The query decides where a batch ends. If it takes all entries of a stream, it ends at the stream's last ID, and the
account knows their number: one task reads them. If it takes only a part, or minPartitions divides it, a second group
finds the ends, which costs the server about as much as sending the entries.

The scratch group `rstream-probe:<group>:<consumer>` begins at the query's position and walks ahead of it as a group
that delivers does (roles.py), but reads with NOACK. So the driver learns the ID of each n-th entry and receives none.
Nothing is pending, and the server's memory does not grow. A step has n entries, unless the stream ended within it. It
did not end if the group has moved on since, to an entry that existed when the trigger looked (`last`). So one more
entry proves all steps before it. Entries of a step without proof are counted with XRANGE.

A step that has not moved the scratch group is the end of the stream, or the server has refused it: nobody reads its
reply. So one more entry is then asked for, with its reply.

The scratch group is destroyed before the trigger ends. If the run is killed in between, the next run finds it with its
first snapshot. Until then it is at or above the query's own group, so it holds no entry that the query has read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_streams.base.ids import MAX_ID, StreamId
from spark_streams.connector.errors import GroupSharedError, ServerReplyError, StreamStateError
from spark_streams.connector.keys import probe_group
from spark_streams.connector.operator_commands import acknowledge_command, delete_consumer_command
from spark_streams.connector.source.commit_mark import without_pending_list
from spark_streams.connector.source.counting import count_between
from spark_streams.connector.source.group.compare import at_position
from spark_streams.connector.source.group.recovery import Start
from spark_streams.connector.source.group.snapshot import (
    GroupChange,
    GroupState,
    StreamSnapshot,
    change_groups,
    fetch_snapshots,
    missing,
)
from spark_streams.connector.source.group_client import GroupClient, Membership
from spark_streams.connector.source.offset import Offset, Range, StreamOffset
from spark_streams.connector.source.partitioning import ALL, Part, entries_per_stream, task_size
from spark_streams.connector.source.pending_list import acknowledge
from spark_streams.connector.source.settled import Settled, Standing
from spark_streams.connector.source.trigger import roles
from spark_streams.connector.source.trigger.run_state import ENDLESS, Backlog, Reserved, RunState
from spark_streams.connector.wire.connection import Connection, Server
from spark_streams.connector.wire.replies import is_key_required, is_no_such_key
from spark_streams.connector.wire.xinfo import GroupInfo, group_named

_NOACK = "NOACK"


class Bookmarked(roles.GroupRole):
    """A query whose group is a bookmark."""

    has_pending_list = False

    def __init__(self, ordered: bool) -> None:
        self._ordered = ordered  # one task reads all entries of a stream

    def snapshots(self, client: GroupClient, start: Offset, streams: Sequence[str]) -> dict[str, StreamSnapshot]:
        """Raises GroupSharedError if others use a group."""
        snapshots = fetch_snapshots(client, streams)
        for stream, snapshot in snapshots.items():
            if snapshot.group is not None:
                _require_unused(client.group, stream, snapshot.group)
        return {stream: snapshot_at_query(start.at.get(stream), snapshot) for stream, snapshot in snapshots.items()}

    def at_query(self, at: StreamOffset, group: GroupState) -> GroupState:
        return at_position(at, group)

    def position(self, stream: str, start: Offset, run: RunState) -> StreamId:
        return start[stream] if run.acknowledged is None else run.acknowledged[stream]

    def old_entries(self, client: GroupClient, start: Offset, pending: Mapping[str, int]) -> Mapping[str, int]:
        """Acknowledge what a run with a pending list has reserved above the position: this run reads it from the
        stream. Raises StreamStateError if other entries are pending."""
        reserved = [Range(stream, start[stream], MAX_ID) for stream in pending]
        acknowledge(client, reserved)
        for stream in pending:
            _refuse_pending(client, stream)
        return {}

    def take(self, client: GroupClient, backlog: Backlog, wanted: Sequence[Range]) -> Reserved:
        """Find the ends of the ranges. Return the groups as if they had delivered these entries."""
        admission, groups = backlog.admission, backlog.groups
        whole = {entries.stream for entries in wanted if entries.count == backlog.entries[entries.stream] < ENDLESS}
        counts = [entries.count for entries in wanted]
        size = task_size(sum(counts), admission.size(counts), client.limits)
        is_divided = not self._ordered and admission.min_partitions is not None
        found = {
            entries.stream: [entries]
            for entries in wanted
            if entries.stream in whole and not (is_divided and entries.count > size)
        }
        others = [entries for entries in wanted if entries.stream not in found]
        found |= exact_ranges(client, others, whole, min(client.limits.reserve_step, size))
        parts = [Part(entries, ALL) for of in wanted for entries in found[of.stream] if entries.count]
        ends = {of.stream: found[of.stream][-1].last if found[of.stream] else of.last for of in wanted}
        taken = entries_per_stream(parts)
        return Reserved(parts, {s: _delivered(groups[s], end, taken[s]) for s, end in ends.items()}, {})

    def commit(self, client: GroupClient, settled: Settled, is_read: bool) -> int:
        """Acknowledge what a run with a pending list has read. Set the groups, with the number of entries read up to
        there if it is known, except those that this run has set there before."""
        entries = acknowledge(client, settled.open_ranges(is_read))
        changes = {stream: GroupChange(mark=mark) for stream, mark in settled.marks_to_set().items()} | {
            # A mark shows that the query is active.
            stream: GroupChange(
                set_to=Start(at.position, at.read), mark=at.mark if at.number else None, touch=at.number > 0
            )
            for stream, at in settled.in_place().at.items()
            if settled.is_first or (mark := settled.marks[stream]) is None or mark[:2] != (at.position, at.number)
        }
        change_groups(client, changes)
        return entries

    def token_of(self, batch: str) -> str:
        return without_pending_list(batch)


def _require_unused(name: str, stream: str, group: GroupState) -> None:
    """Raise GroupSharedError if the group has other consumers, or released entries. name: of the group."""
    if group.others:
        other, pending = group.others[0]
        raise GroupSharedError(
            f"stream {stream!r}: noAck=true needs a group without other consumers, and {other!r} ({pending} "
            f"pending entries) is in group {name!r}. Set noAck=false, or delete the consumer: that is refused "
            f"while entries are pending for it ({delete_consumer_command(stream, name, other)})"
        )
    if group.released:
        raise GroupSharedError(
            f"stream {stream!r}: {group.released} entries of group {name!r} were released (XNACK) and are "
            "pending for no consumer. A query with noAck does not read pending entries. Run it once without "
            "noAck, and with options deadLetterStream and maxDeliveries=100: it reads them, and fatal ones "
            "(XNACK FATAL) become dead letters. Without deadLetterStream, fatal ones stay pending"
        )


def _refuse_pending(client: GroupClient, stream: str) -> None:
    """Raise StreamStateError if entries are pending: no batch would read them."""
    group, consumer = client.group, client.consumer
    count, first, last, _ = client.server.execute("XPENDING", stream, group)
    if not count:
        return
    raise StreamStateError(
        f"stream {stream!r}: {count} entries from {first.decode()} to {last.decode()} are pending for consumer "
        f"{consumer!r} of group {group!r}, and no batch has read them: another client handed them over (XCLAIM, "
        "rstream groups claim), or a run without noAck left them. A query with noAck cannot read them. Run it "
        "once without noAck: it reads them with its first batch. If they need not be read, stop it and acknowledge "
        f"them ({acknowledge_command(stream, group, consumer)})"
    )


def snapshot_at_query(at: StreamOffset | None, snapshot: StreamSnapshot) -> StreamSnapshot:
    """Return a snapshot with the group at the query's position, unless an operator has moved it. From an older copy of
    the checkpoint the query goes on, whatever was committed without a pending list since. Pure."""
    group, mark = snapshot.group, snapshot.mark
    if at is None or group is None:
        return snapshot
    if mark is None:
        return snapshot._replace(group=at_position(at, group))
    if mark.is_seek and mark.id != at.position:
        return snapshot
    if at.number > 0 and not mark.has_pending_list and Standing(at, mark).is_older:
        mark = at.mark if at.mark.has_pending_list else None  # it says nothing of the batch of this copy
    return snapshot._replace(group=at_position(at, group), mark=mark)


def _delivered(group: GroupState, position: StreamId, count: int) -> GroupState:
    read = None if group.entries_read is None else group.entries_read + count
    return group._replace(last_delivered=position, entries_read=read)


@dataclass
class ScratchSteps(roles.GroupSteps):
    """The steps of the scratch group through one stream, also over one entry above the limit, as proof."""

    is_whole: bool  # the range has exactly as many entries as are wanted
    # each step that moved it: the number of entries asked for, and the position after it
    reached: list[tuple[int, StreamId]] = field(default_factory=list)
    is_at_the_end: bool = False  # the last step has not moved it
    was_refused: bool = False  # one has not moved it although there were entries
    is_missing: bool = False  # there is no scratch group

    def __post_init__(self) -> None:
        super().__post_init__()
        self.remaining += not self.is_whole

    def next_step(self, size: int) -> int:
        """Return the same. The entry above the limit is a step of its own."""
        within_limit = self.remaining - (not self.is_whole)
        return super().next_step(min(size, within_limit) if within_limit else 1)

    def moved(self, count: int, group: GroupInfo | None) -> None:
        """Take the group as it is after a step. group: None: it does not exist."""
        if group is None:
            self.is_missing = self.is_finished = True
        elif self.moved_to(group.last_delivered):
            self.goes_on_at(group.last_delivered)
            self.reached.append((count, group.last_delivered))
        else:
            self.is_at_the_end = True

    def goes_on_at(self, position: StreamId) -> None:
        """Take the position of an entry that was read since the last step. It did not end there, if it was there."""
        self.was_refused |= self.is_at_the_end and position <= self.wanted.last

    def ranges(self) -> tuple[list[Range], Range | None]:
        """Return the ranges whose number of entries is proven, and the range behind them (None: there is none)."""
        wanted, ranges = self.wanted, list[Range]()
        after = wanted.after
        inside = [step for step in self.reached if step[1] <= wanted.last]
        for count, position in inside[:-1]:
            ranges.append(Range(self.stream, after, position, count))
            after = position
        # The group may have got to its position with the entry above the limit.
        above = self.position if sum(count for count, _ in self.reached) > wanted.count else None
        within_limit = [position for _, position in self.reached if position != above]
        end = wanted.last if self.is_at_the_end or not within_limit else min(within_limit[-1], wanted.last)
        return ranges, Range(self.stream, after, end) if after < end else None


def exact_ranges(
    client: GroupClient, wanted: Sequence[Range], whole: Collection[str], step: int
) -> dict[str, list[Range]]:
    """Return the first `count` entries of each range as touching ranges, each with its exact number of entries. whole:
    streams whose range has exactly as many. Raises GroupMissingError, StreamStateError, ServerError."""
    if not wanted:
        return {}
    scratch = replace(client, member=Membership(probe_group(client.group, client.consumer), client.consumer))
    begins = {entries.stream: Start(entries.after) for entries in wanted}
    # There is none yet: the first snapshot of a run has destroyed that of a run that was killed.
    change_groups(scratch, {stream: GroupChange(create=start) for stream, start in begins.items()})
    walks = [ScratchSteps(entries, entries.stream in whole) for entries in wanted]
    _walk(scratch, walks, step)
    ranges = {walk.stream: _counted(client.server, walk) for walk in walks}
    destroy_scratch_groups(client, list(begins))
    return ranges


def destroy_scratch_groups(client: GroupClient, streams: Collection[str]) -> None:
    """Destroy the query's scratch groups on these streams, if they exist. Raises ServerError."""
    group = probe_group(client.group, client.consumer)
    commands = [("XGROUP", "DESTROY", stream, group) for stream in streams]
    client.server.execute_all(commands, is_key_required)  # a stream may be deleted meanwhile


def _walk(scratch: GroupClient, walks: Sequence[ScratchSteps], step: int) -> None:
    def commands(connection: Connection, walk: ScratchSteps, count: int) -> bytes:
        return roles.silent_step(connection, scratch.member, walk.stream, count, _NOACK)

    for of_round, sent in roles.in_rounds(scratch, walks, step, commands):
        for walk, count, connection in sent:
            groups = connection.next_answer(("XINFO", "GROUPS", walk.stream), is_no_such_key)
            walk.moved(count, group_named(scratch.group, groups))
        for walk in of_round:
            if walk.is_missing:
                raise missing(scratch, walk.stream, not scratch.server.execute("EXISTS", walk.stream))
            if walk.is_at_the_end and walk.position < walk.wanted.last:
                for _, entries in (
                    scratch.server.execute(*roles.xreadgroup(scratch.member, walk.stream, 1, _NOACK)) or ()
                ):
                    walk.goes_on_at(StreamId.parse(entries[0][0]))
            if walk.was_refused:
                raise ServerReplyError(
                    f"the server at {scratch.server.address} has refused XREADGROUP of stream {walk.stream!r}",
                    "TRYAGAIN",
                )


def _counted(server: Server, walk: ScratchSteps) -> list[Range]:
    ranges, rest = walk.ranges()
    if rest is None:
        return ranges
    remaining = walk.wanted.count - sum(entries.count for entries in ranges)
    is_known = walk.is_whole and not walk.is_at_the_end and remaining > 0
    count = remaining if is_known else count_between(server, walk.stream, rest.after, rest.last)
    return [*ranges, replace(rest, count=count)]
