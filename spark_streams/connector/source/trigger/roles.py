"""What the group is to its query: it delivers the entries of a batch, or it is a bookmark. One of two roles, chosen
once for a run (query/batch_stream.py):

                        Delivered                              Bookmarked (noAck)
the group is            where it has delivered up to           where the query has committed up to
above the position      entries are pending for the query      nothing is pending
at or below it          pending entries: old entries           pending entries: an error
a commit                XACK, then the commit mark             sets the group, with the commit mark
new entries             the group delivers them (reserve.py)   all of a range, whose end a scratch group finds

A bookmark shows the position that the query has committed, and delivers no entry. Its position is for other clients:
`lag`, `trim=acked` and `onCommit` of other groups use it. Each commit sets it, with the commit mark. After a crash a
group may be at the batch before, and another client may have moved it. The checkpoint decides, and the next commit sets
the group. No batch reads what is pending.

Its server delivers nothing, so the query decides where a batch ends. If it takes all entries of a stream, it ends at
the stream's last ID, and the account knows their number: one task reads them. If it takes only a part, or minPartitions
divides it, a scratch group finds the ends (reserve.py). That costs the server about as much as sending the entries, so
an unlimited batch is not divided without need.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from spark_streams.base.ids import MAX_ID, StreamId
from spark_streams.connector.errors import GroupMissingError, GroupSharedError, StreamStateError
from spark_streams.connector.operator_commands import acknowledge_command, delete_consumer_command
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.commit_mark import Mark, without_pending_list
from spark_streams.connector.source.group.compare import at_position, is_older
from spark_streams.connector.source.group.group_changes import GroupChange, change_groups
from spark_streams.connector.source.group.recovery import Start
from spark_streams.connector.source.group.snapshot import GroupState, Snapshots, StreamSnapshot, fetch_snapshots
from spark_streams.connector.source.group_client import GroupClient
from spark_streams.connector.source.offset import Offset, Range, StreamOffset
from spark_streams.connector.source.partitioning import ALL, Part, by_stream, entries_per_stream, task_size
from spark_streams.connector.source.pending.claim import released_above
from spark_streams.connector.source.pending_list import acknowledge, pending_ranges
from spark_streams.connector.source.quota import BatchQuota
from spark_streams.connector.source.trigger.admission import ENDLESS, Admission
from spark_streams.connector.source.trigger.reserve import exact_ranges, reserve
from spark_streams.connector.source.trigger.run_state import Reserved, RunState
from spark_streams.connector.wire.connection import pack
from spark_streams.connector.wire.xinfo import StreamState


@dataclass(frozen=True)
class Commit:
    """What acknowledges a batch that is in Spark's commit log, after the notes of its tasks were taken."""

    posted: int  # entries that are acknowledged, because they became dead letters or wait for a retry
    ranges: Sequence[Range]  # pending entries to acknowledge
    marks: Mapping[str, Mark]  # to set after that
    committed: Offset  # the checkpoint, in the streams whose groups may be set to it
    acknowledged: Offset | None  # the last offset for which this was done; None: unknown


class GroupRole(ABC):
    """What a trigger asks the group of one query, and does with it."""

    has_pending_list: ClassVar[bool]  # entries of a batch are pending until it is committed: as its offsets say

    @abstractmethod
    def snapshots(self, client: GroupClient, start: Offset, streams: Sequence[str]) -> Snapshots:
        """Take snapshots of streams: each in one transaction, with what is pending above the position. Raises
        StreamStateError, ServerError."""

    @abstractmethod
    def at_query(self, at: StreamOffset, group: GroupState) -> GroupState:
        """Return the group with the position from which the query reads on."""

    @abstractmethod
    def position(self, stream: str, start: Offset, run: RunState) -> StreamId:
        """Return where this run has left the group of a stream. start: where its last batch ends."""

    @abstractmethod
    def old_entries(self, client: GroupClient, start: Offset, pending: Mapping[str, int]) -> Mapping[str, int]:
        """Return how many entries the next batches read first. pending: how many entries are pending besides those
        that `snapshots` has listed, and those of the last batch. Raises StreamStateError, ServerError."""

    def new_entries(
        self,
        client: GroupClient,
        admission: Admission,
        heads: Mapping[str, StreamState],
        groups: Mapping[str, GroupState],
        backlog: Mapping[str, int],
        quota: BatchQuota,
        turn: int,
    ) -> Reserved:
        """Take what the quota admits of each stream's backlog. Raises as `take` does."""
        allowed = quota.divide(backlog, turn)
        between = [
            Range(stream, groups[stream].last_delivered, admission.end_of(stream, heads).last, count)
            for stream, count in allowed.items()
        ]
        wanted = [entries for entries in between if entries.count and not entries.is_empty]
        return self.take(client, admission, wanted, groups, backlog)

    @abstractmethod
    def take(
        self,
        client: GroupClient,
        admission: Admission,
        wanted: Sequence[Range],
        groups: Mapping[str, GroupState],
        backlog: Mapping[str, int],
    ) -> Reserved:
        """Take the first `count` entries of each range, which begins at its group. backlog: entries of each stream.
        Raises GroupMissingError, DataLossError, ServerError."""

    @abstractmethod
    def commit(self, client: GroupClient, commit: Commit) -> int:
        """Acknowledge the ranges. Then set the commit marks. Return how many entries were acknowledged. Raises
        GroupMissingError, DataLossError, ServerError."""

    @abstractmethod
    def token_of(self, batch: str) -> str:
        """Return the token that the streams of this batch have."""


class Delivered(GroupRole):
    """A query whose group delivers."""

    has_pending_list = True

    def snapshots(self, client: GroupClient, start: Offset, streams: Sequence[str]) -> Snapshots:
        """Take snapshots of streams, and list what is pending above the positions, up to the groups'."""
        limits = client.limits
        snapshots = fetch_snapshots(client, streams)
        pending = [
            Range(stream, start[stream], snapshot.group.last_delivered, until=snapshot.until)
            for stream, snapshot in snapshots.items()
            if snapshot.group is not None and snapshot.group.ours and snapshot.group.last_delivered > start[stream]
        ]
        try:
            listed = pending_ranges(client, pending, limits.reserve_step, asks_again=True)
        except GroupMissingError:  # destroyed since: again
            return self.snapshots(client, start, streams)
        released = {
            stream: released_above(
                client.server, client.member, stream, start[stream], snapshot.group.last_delivered, limits.claim_page
            )
            for stream, snapshot in snapshots.items()
            if snapshot.group is not None and snapshot.group.released and snapshot.group.last_delivered > start[stream]
        }
        return Snapshots(snapshots, by_stream(listed), released)

    def at_query(self, at: StreamOffset, group: GroupState) -> GroupState:
        """Return the group as it is: the query reads on where the group delivers."""
        return group

    def position(self, stream: str, start: Offset, run: RunState) -> StreamId:
        """Return up to where the group has delivered."""
        return run.positions.get(stream, start[stream])

    def old_entries(self, client: GroupClient, start: Offset, pending: Mapping[str, int]) -> Mapping[str, int]:
        """Return these entries: they were claimed or handed over, or an earlier checkpoint has left them."""
        return pending

    def take(
        self,
        client: GroupClient,
        admission: Admission,
        wanted: Sequence[Range],
        groups: Mapping[str, GroupState],
        backlog: Mapping[str, int],
    ) -> Reserved:
        """Have the group deliver them."""
        step = min(client.limits.reserve_step, admission.size([entries.count for entries in wanted]))
        return reserve(client, wanted, groups, step)

    def commit(self, client: GroupClient, commit: Commit) -> int:
        """Acknowledge the ranges, and set the commit marks after the last XACK."""
        marks = [(stream, pack("SET", client.mark_key(stream), str(mark))) for stream, mark in commit.marks.items()]
        return acknowledge(client, commit.ranges, marks)

    def token_of(self, batch: str) -> str:
        """Return that of the batch."""
        return batch


class Bookmarked(GroupRole):
    """A query whose group is a bookmark."""

    has_pending_list = False

    def __init__(self, ordered: bool) -> None:
        self._ordered = ordered  # one task reads all entries of a stream

    def snapshots(self, client: GroupClient, start: Offset, streams: Sequence[str]) -> Snapshots:
        """Take snapshots of streams. Raises GroupSharedError if others use a group."""
        snapshots = fetch_snapshots(client, streams)
        for stream, snapshot in snapshots.items():
            if snapshot.group is not None:
                _require_unused(client.group, stream, snapshot.group)
        return Snapshots(
            {stream: snapshot_at_query(start.at.get(stream), snapshot) for stream, snapshot in snapshots.items()},
            {},
            {},
        )

    def at_query(self, at: StreamOffset, group: GroupState) -> GroupState:
        """Return the group as if it had delivered up to the query's position."""
        return at_position(at, group)

    def position(self, stream: str, start: Offset, run: RunState) -> StreamId:
        """Return the position of the last commit."""
        return start[stream] if run.acknowledged is None else run.acknowledged[stream]

    def old_entries(self, client: GroupClient, start: Offset, pending: Mapping[str, int]) -> Mapping[str, int]:
        """Acknowledge what a run without noAck has reserved above the position: this run reads it from the stream.
        Raises StreamStateError if other entries are pending."""
        reserved = [Range(stream, start[stream], MAX_ID) for stream in pending]
        acknowledge(client, reserved)
        for stream in pending:
            _refuse_pending(client, stream)
        return {}

    def take(
        self,
        client: GroupClient,
        admission: Admission,
        wanted: Sequence[Range],
        groups: Mapping[str, GroupState],
        backlog: Mapping[str, int],
    ) -> Reserved:
        """Find the ends of the ranges. Return the groups as if they had delivered these entries."""
        whole = {entries.stream for entries in wanted if entries.count == backlog[entries.stream] < ENDLESS}
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

    def commit(self, client: GroupClient, commit: Commit) -> int:
        """Acknowledge the ranges, which a run without noAck has read. Set the groups, with the number of entries read
        up to there if that is known, except those that this run has set there before."""
        entries = acknowledge(client, commit.ranges)
        changes = {stream: GroupChange(mark=mark) for stream, mark in commit.marks.items()} | {
            # A mark shows that the query is active.
            stream: GroupChange(
                set_to=Start(at.position, at.read), mark=at.mark if at.number else None, touch=at.number > 0
            )
            for stream, at in commit.committed.at.items()
            if commit.acknowledged is None or commit.acknowledged[stream] != at.position
        }
        change_groups(client, changes)
        return entries

    def token_of(self, batch: str) -> str:
        """Return that of all batches of the checkpoint that have no pending list."""
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
    """Return a snapshot with the group at the query's position, unless an operator has moved it. If the checkpoint is
    an older copy, the query goes on from that position, once it has one, whatever was committed without a pending list
    since. Pure."""
    group, mark = snapshot.group, snapshot.mark
    if at is None or group is None:
        return snapshot
    if mark is None:
        return snapshot._replace(group=at_position(at, group))
    if mark.is_seek and mark.id != at.position:
        return snapshot
    is_passed_over = at.number > 0 and not mark.has_pending_list and is_older(at, mark)
    return snapshot._replace(group=at_position(at, group), mark=None if is_passed_over else mark)


def _delivered(group: GroupState, position: StreamId, count: int) -> GroupState:
    """Return the group as if it had delivered this number of entries, up to a position."""
    read = None if group.entries_read is None else group.entries_read + count
    return group._replace(last_delivered=position, entries_read=read)


def role_of(options: SourceOptions) -> GroupRole:
    """Return what the group is to a query with these options."""
    return Bookmarked(options.ordered) if options.no_ack else Delivered()
