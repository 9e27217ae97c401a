"""What a trigger begins with: the streams and groups as they are, once they agree with the checkpoint.

A trigger that follows another one of the same run knows where the groups are and what is pending: the batch up to the
checkpoint, and what was reserved ahead. One round trip without transactions shows whether every group is as this run
has left it (`as_left`). If a group shows anything else, if other consumers read from it, or if nothing is known (a
first trigger, a connection that broke), the observer reads each stream in one transaction, compares it with the
checkpoint (group.compare), and applies the rule. It takes another snapshot until nothing is found.

If the query is alone in a group, a finding counts only if a second snapshot confirms it: pending entries are listed
after the first one. In a shared group the first snapshot counts, because others may read past the gap meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.source.commit_mark import Mark
from spark_streams.connector.source.counting import count_lost_alone, count_read
from spark_streams.connector.source.group.begin import Opened
from spark_streams.connector.source.group.compare import (
    Repair,
    at_end,
    compare,
    first_account,
    first_account_without_group,
    has_forgotten,
    is_behind,
    is_older,
    is_proved_below,
    lost_above,
    moved_since_checkpoint,
    repaired,
    with_entries_below,
)
from spark_streams.connector.source.group.recovery import DataLoss, Finding, GroupUse, Kind, problem_of
from spark_streams.connector.source.group.snapshot import (
    GroupChange,
    GroupState,
    PendingAbove,
    Snapshots,
    StreamSnapshot,
    change_groups,
    fetch_marks,
    fetch_state,
)
from spark_streams.connector.source.group.streams import StreamSet
from spark_streams.connector.source.group_client import GroupClient
from spark_streams.connector.source.offset import Offset, Range, StreamOffset
from spark_streams.connector.source.partitioning import by_stream
from spark_streams.connector.source.trigger.acknowledge import Acknowledging, LoggedBatch, Marks
from spark_streams.connector.source.trigger.bookmark import destroy_scratch_groups
from spark_streams.connector.source.trigger.roles import GroupRole
from spark_streams.connector.source.trigger.run_state import QueryState, RunState, positions_of
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.xinfo import StreamState


def as_left(
    client: GroupClient, role: GroupRole, start: Offset, streams: Sequence[str], run: RunState
) -> QueryState | None:
    """Return the state if every group is as this run has left it and nothing is lost; None: look closer."""
    if any(stream not in start.at for stream in streams):
        return None
    if any(start.at[stream].read is None for stream in streams):
        return None  # others read from the group
    heads, groups = fetch_state(client, streams, run.heads, if_alone=True)
    above = {} if run.prefetched is None else by_stream(part.range for part in run.prefetched.parts)
    states: dict[str, GroupState] = {}
    for stream, group in groups.items():
        ahead = above.get(stream, [])
        if ahead and ahead[-1].last <= start[stream]:  # the group was set back before it has delivered these
            return None
        expected = _expected(role, stream, start, ahead, run)
        if group is None or not _is_quiet(start.at[stream], heads[stream], group, *expected):
            return None
        states[stream] = role.at_query(start.at[stream], group)
    run = replace(run, positions=positions_of(groups))
    return QueryState(
        start, heads, states, run.has_acknowledged(start), above=above, left=start.left - states.keys(), run=run
    )


def _expected(
    role: GroupRole, stream: str, start: Offset, above: Sequence[Range], run: RunState
) -> tuple[StreamId, int, int, int]:
    """Return where the group must be, how many entries are pending for us, how many of them are above the position,
    and how many entries of the stream were read up to there."""
    at, count = start.at[stream], sum(entries.count for entries in above)
    position = above[-1].last if above else role.position(stream, start, run)
    unacknowledged = 0 if run.has_acknowledged(start) else sum(part.count for part in start.pending(stream))
    return position, unacknowledged + count, count, at.read or 0


def _is_quiet(
    at: StreamOffset, head: StreamState, group: GroupState, position: StreamId, ours: int, above: int, read: int
) -> bool:
    """Whether a group is as the run has left it, and nothing of its stream is lost."""
    if not group.is_alone or group.ours != ours or group.last_delivered != position or not head.exists:
        return False
    if head.added is None or head.added < at.added or head.last < at.position:
        return False
    if at.number == 0 and head.added > at.added:  # some may be below the position at which the query begins
        return False
    reached = at.position if not above else position
    return (lost_above(head, reached, read + above) or 0) == 0


_ROUNDS = 40  # of one comparison: each finding needs up to three


class Observer:
    """Brings the query to where a trigger can begin."""

    def __init__(
        self,
        role: GroupRole,
        stream_set: StreamSet,
        losses: DataLoss,
        acknowledging: Acknowledging,
    ) -> None:
        self._role = role
        self._stream_set = stream_set
        self._losses = losses
        self._acknowledging = acknowledging

    def state_at(self, client: GroupClient, opened: Opened, run: RunState) -> QueryState:
        """Return the query at a trigger that begins there. Raises StreamStateError, ServerError."""
        if run.is_known:
            state = as_left(client, self._role, opened.start, opened.streams, run)
            if state is not None:
                return state
        comparing = _Comparing(client, self._role, self._stream_set, self._losses, self._acknowledging)
        return comparing.state_at(opened, run)

    def with_new_snapshots(self, client: GroupClient, state: QueryState, streams: Sequence[str]) -> QueryState:
        """Return the state after entries of these streams were claimed. Everything up to `start` is acknowledged."""
        seen = self._role.snapshots(client, state.start, streams)
        groups, times, above, old = dict(state.groups), dict(state.times), dict(state.above), dict(state.old)
        for stream, snapshot in seen.snapshots.items():
            for known in (groups, times, above, old):
                known.pop(stream, None)
            if snapshot.group is None:
                continue  # the next trigger finds it
            groups[stream], times[stream] = snapshot.group, snapshot.until
            if stream in seen.above:
                above[stream] = seen.above[stream]
            old[stream] = snapshot.group.ours - seen.ours_above(stream)
        run = replace(state.run, prefetched=None)
        return replace(state, groups=groups, times=times, above=above, old=old, run=run)


@dataclass(frozen=True)
class _Comparing:
    """One comparison of all streams with the checkpoint."""

    client: GroupClient
    role: GroupRole
    stream_set: StreamSet
    losses: DataLoss
    acknowledging: Acknowledging

    def state_at(self, opened: Opened, run: RunState) -> QueryState:
        """Take snapshots of all streams, compare them with the checkpoint, acknowledge what is committed, and repair
        what is wrong, until nothing is found. A strict query stops before it acknowledges or repairs anything: by then
        it has at most a consumer, with the mark of its begin, and has destroyed a scratch group."""
        run = replace(run, prefetched=None)  # what was reserved ahead is found in the pending list
        start, streams = opened.start, list(opened.streams)
        seen, start, run = self._begin_new_streams(start, streams, run)
        destroy_scratch_groups(self.client, [s for s, snapshot in seen.snapshots.items() if snapshot.has_scratch])
        if run.acknowledged is not None and any(
            _is_forgotten(start, s, snapshot.mark, run) for s, snapshot in seen.snapshots.items()
        ):
            run = run.unknown()
        marks = self._marks(start, seen, run)
        findings: Mapping[str, Finding] = {}
        for _ in range(_ROUNDS):
            moves = self._moves(start, seen)
            if not moves:
                start = self._with_counts_of_server(start, seen)
                findings, seen = self._confirmed_findings(start, seen, run)
                self.losses.refuse(self._reportable(findings))
            forgets_ranges = any(finding.kind is not Kind.ENTRIES_LOST for finding in findings.values())
            # A run that knows what it has read acknowledges while tasks run, unless the ranges are forgotten before.
            if not run.has_acknowledged(start) and (moves or forgets_ranges or not run.is_known):
                logged = LoggedBatch(start, run, marks, self._streams_to_acknowledge(start, seen))
                run, entries = self.acknowledging.at_once(self.client, logged)
                if entries:
                    seen = seen.with_later(self._snapshots(start, streams))
                    continue
            if moves:
                start, run = self._follow(start, moves, run)
            elif findings:
                start, run, streams = self._repair(opened.checkpoint, start, findings, seen, run, streams)
                seen = seen.of(streams)
            else:
                break
            seen = seen.with_later(self._snapshots(start, streams))
        else:
            raise self._still_changes(findings)
        return self._state(start, streams, seen, run)

    def _state(
        self,
        start: Offset,
        streams: Sequence[str],
        seen: Snapshots,
        run: RunState,
    ) -> QueryState:
        """Return the state. Nothing is wrong any more, and what is committed is acknowledged, unless it can wait until
        tasks run: then it is not known how many of the pending entries are old."""
        unacknowledged: Mapping[str, int] = {}
        is_acknowledged = run.has_acknowledged(start)
        if not is_acknowledged:
            unacknowledged = {s: sum(part.count for part in start.pending(s)) for s in start.taken_from}
        groups = {stream: group for stream in streams if (group := seen.snapshots[stream].group) is not None}
        consumers = {
            stream: GroupChange(consumer=not group.has_consumer, touch=group.has_consumer and not run.is_known)
            for stream, group in groups.items()
        }
        change_groups(self.client, consumers)
        run = replace(
            run,
            start=start,
            positions=positions_of(groups),
            reported_deletions=_of_streams(groups, run.reported_deletions),
        )
        states: dict[str, GroupState] = {}
        pending: dict[str, int] = {}
        for stream, group in groups.items():
            known = seen.ours_above(stream) + unacknowledged.get(stream, 0)
            if group.ours > known:
                pending[stream] = group.ours - known
            states[stream] = self.role.at_query(start.at[stream], group._replace(has_consumer=True))
        return QueryState(
            start,
            heads={stream: seen.snapshots[stream].head for stream in states},
            groups=states,
            is_acknowledged=is_acknowledged,
            times={stream: seen.snapshots[stream].until for stream in states},
            above={stream: ranges for stream, ranges in seen.above.items() if ranges},
            old=self.role.old_entries(self.client, start, pending),
            left=start.left - states.keys() if is_acknowledged else start.left,
            run=run,
        )

    def _marks(self, start: Offset, seen: Snapshots, run: RunState) -> Marks:
        """Return the commit marks of all streams of the checkpoint. Those of streams that the query does not read are
        as this run has left them, once it has acknowledged a batch."""
        unread = [stream for stream in start.at if stream not in seen.snapshots]
        others: Marks = {stream: start.at[stream].mark for stream in unread}
        if run.acknowledged is None:
            others = fetch_marks(self.client, unread)
        return {**others, **{stream: snapshot.mark for stream, snapshot in seen.snapshots.items()}}

    def _snapshots(self, start: Offset, streams: Sequence[str]) -> Snapshots:
        return self.role.snapshots(self.client, start, streams)

    def _begin_new_streams(
        self, start: Offset, streams: Sequence[str], run: RunState
    ) -> tuple[Snapshots, Offset, RunState]:
        """Take snapshots of all streams. Give those that no batch of this checkpoint has read the values with which the
        query begins, and create its consumer and mark in groups that it has not created."""
        seen = self._snapshots(start, streams)
        joined: dict[str, Mark] = {}
        begun: dict[str, StreamOffset] = {}
        for stream, snapshot in seen.snapshots.items():
            at = start.at.get(stream)
            if at is not None and at.token:
                continue
            if snapshot.group is None:
                if at is not None:  # its group is missing again: the account begins at its position all the same
                    begun[stream] = first_account_without_group(self.client.server, stream, at, snapshot)
                continue
            begun[stream], mark = first_account(self.client.server, stream, start, snapshot)
            if mark != snapshot.mark:
                joined[stream] = mark
        start = start.corrected(begun, begun)
        deletions = {stream: seen.snapshots[stream].head.deleted for stream in begun}  # deleted before the query began
        acknowledged = (
            None if run.acknowledged is None else replace(run.acknowledged, at={**begun, **run.acknowledged.at})
        )
        run = replace(run, acknowledged=acknowledged, reported_deletions={**deletions, **run.reported_deletions})
        if joined:
            # If a group lacks the consumer later, it was created again.
            joining = {stream: GroupChange(consumer=True, mark=mark) for stream, mark in joined.items()}
            change_groups(self.client, joining)
        if begun:
            seen = seen.with_later(self._snapshots(start, list(begun)))
        return seen, start, run

    def _moves(self, start: Offset, seen: Snapshots) -> dict[str, Repair]:
        """Return what to do on each stream whose group was moved since the checkpoint."""
        return {
            stream: Repair(_counted(self.client.server, stream, new, snapshot), creates_consumer=True)
            for stream, snapshot in seen.snapshots.items()
            if stream in start.at and (new := moved_since_checkpoint(start.at[stream], snapshot, bool(start.token)))
        }

    def _follow(self, start: Offset, moves: Mapping[str, Repair], run: RunState) -> tuple[Offset, RunState]:
        """Go on where these groups were moved."""
        carry_out(self.client, moves, {})
        start = start.corrected({stream: move.at for stream, move in moves.items()}, moves)
        return start, replace(run, start=start, is_corrected=True)

    def _with_counts_of_server(self, start: Offset, seen: Snapshots) -> Offset:
        """Return the start with numbers of entries that the server knows better."""
        known: dict[str, StreamOffset] = {}
        for stream, at in start.at.items():
            if stream in seen.snapshots:
                snapshot = seen.snapshots[stream]
                begun = with_entries_below(self.client.server, stream, at, snapshot)
                known[stream] = at_end(_recounted(self.client.server, stream, begun, snapshot), snapshot)
        return replace(start, at={**start.at, **known})

    def _confirmed_findings(
        self, start: Offset, seen: Snapshots, run: RunState
    ) -> tuple[dict[str, Finding], Snapshots]:
        """Return the finding of each stream that has one, and the snapshots that have shown it."""
        while True:
            found = self._findings(start, seen, list(seen.snapshots), run)
            alone = [stream for stream, finding in found.items() if finding.group_use is GroupUse.ALONE]
            if not alone:
                return found, seen
            seen = seen.with_later(self._snapshots(start, alone))
            again = self._findings(start, seen, alone, run)
            if again == {stream: found[stream] for stream in alone}:
                return found, seen
            if all(again.get(stream) in (None, found[stream]) for stream in alone):
                return {s: finding for s, finding in found.items() if s not in alone or s in again}, seen

    def _findings(self, start: Offset, seen: Snapshots, streams: Sequence[str], run: RunState) -> dict[str, Finding]:
        """Return the finding of each of these streams that has one, as these snapshots show it."""
        found: dict[str, Finding] = {}
        for stream in streams:
            snapshot, at = seen.snapshots[stream], start.at.get(stream, StreamOffset(MIN_ID))
            above = seen.above_of(stream)
            finding = compare(stream, at, snapshot, above, _closed(self.client.server, stream, at, snapshot, above))
            if finding is None:
                continue
            is_reported = run.reported_deletions.get(stream) == snapshot.head.deleted > MIN_ID
            if is_reported and finding.kind is Kind.ENTRIES_LOST and finding.group_use is GroupUse.SHARED:
                group = snapshot.group
                if group is not None and lost_above(snapshot.head, group.last_delivered, group.entries_read) is None:
                    continue
            is_left = finding.kind is Kind.STREAM_MISSING and self.stream_set.by_pattern
            found[stream] = replace(finding, is_left=True) if is_left else self._proved(finding, start, snapshot)
        return found

    def _proved(self, finding: Finding, start: Offset, snapshot: StreamSnapshot) -> Finding:
        """Return the finding; for a group below the checkpoint, ask whether the server has lost entries. If the last
        batch was read without a pending list, a kill may have left its group below."""
        if finding.kind is not Kind.GROUP_BELOW or finding.group_use is GroupUse.SHARED:
            return finding
        if not start.has_pending_list:
            return replace(finding, is_harmless=True)
        at = start.at.get(finding.stream, StreamOffset(MIN_ID))
        position = bytes(at.position)
        has_entry = bool(self.client.server.execute("XRANGE", finding.stream, position, position))
        proved = is_proved_below(at, snapshot.head, has_entry)
        if proved is None:
            return replace(finding, kind=Kind.SERVER_RESTORED, lost=1, is_exact=False)
        return replace(finding, is_harmless=proved)

    def _repair(
        self,
        checkpoint: Offset,
        start: Offset,
        findings: Mapping[str, Finding],
        seen: Snapshots,
        run: RunState,
        streams: list[str],
    ) -> tuple[Offset, RunState, list[str]]:
        """Report the findings, and apply the rule."""
        self.losses.report(*self._reportable(findings))
        repairs = {
            stream: repaired(
                finding,
                start.at.get(stream, StreamOffset(MIN_ID)),
                seen.snapshots[stream],
                checkpoint.at.get(stream, start.at.get(stream, StreamOffset(MIN_ID))),
            )
            for stream, finding in findings.items()
            if not finding.is_left
        }
        marks = {stream: seen.snapshots[stream].mark for stream in repairs}
        there = carry_out(self.client, repairs, marks)
        repairs = {stream: repair for stream, repair in repairs.items() if stream not in there}
        deletions = {s: repair.reported_deletion for s, repair in repairs.items() if repair.reported_deletion > MIN_ID}
        corrected, before = {stream: repair.at for stream, repair in repairs.items()}, start
        start = start.corrected(corrected, [s for s in repairs if findings[s].kind is not Kind.ENTRIES_LOST])
        gone = {stream for stream in findings if stream not in repairs and stream not in there}
        if gone:
            self.stream_set.leave(gone)
            start = start.without(gone)
        if gone or any(repair.at != before.at.get(stream) for stream, repair in repairs.items()):
            run = replace(run, is_corrected=True)
        run = replace(run, start=start, reported_deletions={**run.reported_deletions, **deletions})
        return start, run, [stream for stream in streams if stream not in gone]

    def _streams_to_acknowledge(self, start: Offset, seen: Snapshots) -> set[str]:
        """Return the streams of which the last batch may be acknowledged, also those that the query no longer reads:
        they have the group, and their mark knows no later batch. An older copy of the checkpoint leaves such a mark."""
        return {
            stream
            for stream, at in start.at.items()
            if (snapshot := seen.snapshots.get(stream)) is None
            or (snapshot.group is not None and not is_older(at, snapshot.mark))
        }

    def _reportable(self, findings: Mapping[str, Finding]) -> list[Finding]:
        """Return the findings without those of missing streams of the pattern of which nothing was read or to be
        read."""
        return [f for f in findings.values() if f.lost or not (f.is_left and f.above == MIN_ID)]

    def _still_changes(self, findings: Mapping[str, Finding]) -> StreamStateError:
        """Return the error of a comparison that does not end."""
        stream = min(findings) if findings else min(self.stream_set.names, default="")
        what = problem_of(findings[stream], self.losses.place) if findings else f"group {self.client.group!r} moves"
        return StreamStateError(
            f"{what}; and so at {_ROUNDS} looks, although the query repaired it each time: another program changes "
            f"stream {stream!r} or its group meanwhile. Find it (CLIENT LIST shows the connections) and stop it. Then "
            "start the query again"
        )


def _of_streams(streams: Collection[str], positions: Mapping[str, StreamId]) -> dict[str, StreamId]:
    """Return the positions of these streams alone: streams of a pattern come and go."""
    return {stream: position for stream, position in positions.items() if stream in streams}


def _counted(server: Server, stream: str, at: StreamOffset, snapshot: StreamSnapshot) -> StreamOffset:
    """Return where a query goes on after a move, with the number of entries below counted, if the query is alone and
    the group is elsewhere again. Without the number, the group would pass for a shared one."""
    if at.read is not None or snapshot.group is None or snapshot.group.others:
        return at
    return at._replace(read=count_read(server, stream, snapshot.head, at.position))


def _closed(server: Server, stream: str, at: StreamOffset, snapshot: StreamSnapshot, above: PendingAbove) -> int | None:
    """Return how many entries were lost while the query was alone in a group that others have joined since: from now on
    nobody can count them. None: the query was not alone, no entry was deleted, or the number is not known."""
    group, head = snapshot.group, snapshot.head
    if group is None or at.read is None or at.number == 0 or not group.others or head.deleted == MIN_ID:
        return None
    reached, read = max(at.position, above.last), at.read + above.count
    return count_lost_alone(server, stream, head, reached, read, group.last_delivered <= reached)


def _recounted(server: Server, stream: str, at: StreamOffset, snapshot: StreamSnapshot) -> StreamOffset:
    """Return the same, with the number of entries that a shared group has read counted in the stream, if the server has
    forgotten it. Losses of that moment are not noticed."""
    group = snapshot.group
    if group is None or group.entries_read is None or not has_forgotten(at, snapshot):
        return at
    read = count_read(server, stream, snapshot.head, group.last_delivered)
    return at if read is None else at._replace(missed=read - group.entries_read)


def _is_forgotten(start: Offset, stream: str, mark: Mark | None, run: RunState) -> bool:
    """Whether the server no longer knows the last batch that the run has acknowledged: it has returned to an older
    state."""
    if stream not in start.at:
        return False
    at = start.at[stream]
    is_open = start.is_of_this_batch(stream) and not run.has_acknowledged(start)
    return is_behind(mark, at._replace(number=at.number - is_open))


def carry_out(client: GroupClient, repairs: Mapping[str, Repair], marks: Mapping[str, Mark | None]) -> frozenset[str]:
    """Create and set groups, with their commit marks. Return the streams whose missing group was there again, as after
    a restore of the server: their groups and marks are as before. marks: the present ones.

    Raises DataLossError if a stream no longer exists."""
    there = change_groups(client, {stream: repair.change for stream, repair in repairs.items()})
    again = ((client.mark_key(stream), marks.get(stream)) for stream in there)
    client.server.execute_all([("DEL", key) if mark is None else ("SET", key, str(mark)) for key, mark in again])
    return there
