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

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
    StreamSnapshot,
    change_groups,
    fetch_state,
)
from spark_streams.connector.source.group.streams import StreamSet
from spark_streams.connector.source.group_client import GroupClient
from spark_streams.connector.source.offset import Offset, StreamOffset
from spark_streams.connector.source.partitioning import by_stream
from spark_streams.connector.source.settled import Standing
from spark_streams.connector.source.trigger.acknowledge import Acknowledging, LoggedBatch
from spark_streams.connector.source.trigger.bookmark import destroy_scratch_groups
from spark_streams.connector.source.trigger.roles import GroupRole
from spark_streams.connector.source.trigger.run_state import QueryState, RunState, positions_of
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.xinfo import StreamState


def as_left(
    client: GroupClient, role: GroupRole, start: Offset, streams: Sequence[str], run: RunState
) -> QueryState | None:
    """Return the state if every group is as this run has left it and nothing is lost; None: look closer."""
    if any(stream not in start.at for stream in streams):
        return None
    if any(start.at[stream].read is None for stream in streams):
        return None  # others read from the group
    heads, groups = fetch_state(client, streams, run.heads, if_alone=True)
    reserved = {} if run.prefetched is None else by_stream(part.range for part in run.prefetched.parts)
    states: dict[str, GroupState] = {}
    for stream, group in groups.items():
        at, ahead = start.at[stream], reserved.get(stream, [])
        if ahead and ahead[-1].last <= at.position:  # the group was set back before it has delivered these
            return None
        position = ahead[-1].last if ahead else role.position(stream, start, run)
        unacknowledged = () if run.has_acknowledged(start) else start.pending(stream)
        pending = sum(part.count for part in (*unacknowledged, *ahead))
        if group is None or not _is_quiet(at, heads[stream], group, position, pending):
            return None
        above = sum(entries.count for entries in ahead)
        reached = position if above else at.position
        if lost_above(heads[stream], reached, (at.read or 0) + above):
            return None
        states[stream] = role.at_query(at, group)
    run = replace(run, positions=positions_of(groups))
    return QueryState(
        start, heads, states, run.has_acknowledged(start), above=reserved, left=start.left - states.keys(), run=run
    )


def _is_quiet(at: StreamOffset, head: StreamState, group: GroupState, position: StreamId, ours: int) -> bool:
    """Whether a group is where the run has left it, with as many pending entries, and its stream goes on."""
    if not group.is_alone or group.ours != ours or group.last_delivered != position or not head.exists:
        return False
    if head.added is None or head.added < at.added or head.last < at.position:
        return False
    # If the query begins there, some may be below.
    return at.number > 0 or head.added <= at.added


_ROUNDS = 40  # of one comparison: each finding needs up to three
Snapshots = Mapping[str, StreamSnapshot]


@dataclass(frozen=True)
class Observer:
    """Brings the query to where a trigger can begin."""

    role: GroupRole
    stream_set: StreamSet
    losses: DataLoss
    acknowledging: Acknowledging

    def state_at(self, client: GroupClient, opened: Opened, run: RunState) -> QueryState:
        """Return the query at a trigger that begins there. Raises StreamStateError, ServerError."""
        if run.is_known:
            state = as_left(client, self.role, opened.start, opened.streams, run)
            if state is not None:
                return state
        run = replace(run, prefetched=None)  # what was reserved ahead is found in the pending list
        return _Comparing(client, self, opened.checkpoint, opened.start, list(opened.streams), run).state()

    def with_new_snapshots(self, client: GroupClient, state: QueryState, streams: Sequence[str]) -> QueryState:
        """Return the state after entries of these streams were claimed. Everything up to `start` is acknowledged."""
        groups, times, above, old = dict(state.groups), dict(state.times), dict(state.above), dict(state.old)
        for stream, snapshot in self.role.snapshots(client, state.start, streams).items():
            for known in (groups, times, above, old):
                known.pop(stream, None)
            if snapshot.group is None:
                continue  # the next trigger finds it
            groups[stream], times[stream] = snapshot.group, snapshot.until
            if snapshot.reserved:
                above[stream] = snapshot.reserved
            old[stream] = snapshot.group.ours - snapshot.ours_above
        run = replace(state.run, prefetched=None)
        return replace(state, groups=groups, times=times, above=above, old=old, run=run)


@dataclass
class _Comparing:
    """One comparison of all streams with the checkpoint. Each step replaces what it has found."""

    client: GroupClient
    observer: Observer
    checkpoint: Offset  # Spark's
    start: Offset  # the checkpoint, corrected
    streams: list[str]
    run: RunState  # what the run knows
    seen: Snapshots = field(default_factory=dict)  # of these streams
    known: Collection[str] = ()  # of which the run had acknowledged batches, before it found that the server forgot

    def state(self) -> QueryState:
        """Compare all streams with the checkpoint, acknowledge what is committed, and repair what is wrong, until
        nothing is found. A strict query stops before it acknowledges or repairs anything: by then it has at most a
        consumer, with the mark of its begin, and has destroyed a scratch group."""
        self._begin_new_streams()
        destroy_scratch_groups(self.client, [s for s, snapshot in self.seen.items() if snapshot.has_scratch])
        known = {} if self.run.acknowledged is None else self.run.acknowledged.at
        if any(Standing(known[stream], self.seen[stream].mark).is_open for stream in known.keys() & self.seen):
            self.known, self.run = known, self.run.unknown()  # the server was restored
        losses, findings = self.observer.losses, dict[str, Finding]()
        for _ in range(_ROUNDS):
            moves = self._moves()
            findings = {} if moves else self._confirmed_findings()
            losses.refuse(_reportable(findings))
            has_acknowledged = self._acknowledge(moves, findings)
            if has_acknowledged:  # missing marks are written
                findings = {stream: found for stream, found in findings.items() if found.is_unmarked}
            losses.report(*_reportable(findings))
            if not has_acknowledged:  # else what was found may have changed
                if moves:
                    self._follow(moves)
                elif findings:
                    self._repair(findings)
                else:
                    return self._agreed()
            self.seen = self._snapshots(self.streams)
        raise self._still_changes(findings)

    def _acknowledge(self, moves: Mapping[str, Repair], findings: Mapping[str, Finding]) -> bool:
        """Acknowledge the last batch, and return whether it had entries. A run that knows what it has read does so
        while tasks run, unless a repair forgets the ranges before."""
        forgets_ranges = moves or any(finding.kind is not Kind.ENTRIES_LOST for finding in findings.values())
        if self.run.has_acknowledged(self.start) or (self.run.is_known and not forgets_ranges):
            return False
        logged = LoggedBatch.of_run(self.client, self.start, self.run, self.seen)
        self.run, entries = self.observer.acknowledging.at_once(self.client, logged)
        return entries > 0

    def _agreed(self) -> QueryState:
        """Return the state. Nothing is wrong any more, and what is committed is acknowledged, unless it can wait until
        tasks run: then it is not known how many of the pending entries are old."""
        start, seen, run = self.start, self.seen, self.run
        is_acknowledged = run.has_acknowledged(start)
        ours = () if is_acknowledged else start.taken_from
        unacknowledged = {stream: sum(part.count for part in start.pending(stream)) for stream in ours}
        groups = {stream: group for stream in self.streams if (group := seen[stream].group) is not None}
        consumers = {
            stream: GroupChange(consumer=not group.has_consumer, touch=group.has_consumer and not run.is_known)
            for stream, group in groups.items()
        }
        change_groups(self.client, consumers)
        reported = {stream: entry for stream, entry in run.reported_deletions.items() if stream in groups}
        run = replace(run, start=start, positions=positions_of(groups), reported_deletions=reported)
        states: dict[str, GroupState] = {}
        pending: dict[str, int] = {}
        for stream, group in groups.items():
            known = seen[stream].ours_above + unacknowledged.get(stream, 0)
            if group.ours > known:
                pending[stream] = group.ours - known
            states[stream] = self.observer.role.at_query(start.at[stream], group._replace(has_consumer=True))
        return QueryState(
            start,
            heads={stream: seen[stream].head for stream in states},
            groups=states,
            is_acknowledged=is_acknowledged,
            times={stream: seen[stream].until for stream in states},
            above={stream: snapshot.reserved for stream, snapshot in seen.items() if snapshot.reserved},
            old=self.observer.role.old_entries(self.client, start, pending),
            left=start.left - states.keys() if is_acknowledged else start.left,
            run=run,
        )

    def _snapshots(self, streams: Sequence[str]) -> Snapshots:
        return self.observer.role.snapshots(self.client, self.start, streams)

    def _look_again(self, streams: Sequence[str]) -> None:
        later = self._snapshots(streams)
        self.seen = {**{stream: known for stream, known in self.seen.items() if stream not in later}, **later}

    def _begin_new_streams(self) -> None:
        """Take snapshots of all streams. Give those that no batch of this checkpoint has read the values with which the
        query begins, and create its consumer and mark in groups that it has not created."""
        self.seen = self._snapshots(self.streams)
        joined: dict[str, Mark] = {}
        begun: dict[str, StreamOffset] = {}
        for stream, snapshot in self.seen.items():
            at = self.start.at.get(stream)
            if at is not None and at.token:
                continue
            if snapshot.group is None:
                if at is not None:  # its group is missing again: the account begins at its position all the same
                    begun[stream] = first_account_without_group(self.client.server, stream, at, snapshot)
                continue
            begun[stream], mark = first_account(self.client.server, stream, self.start, snapshot)
            if mark != snapshot.mark:
                joined[stream] = mark
        pending = [stream for stream in begun if (group := self.seen[stream].group) is not None and group.ours]
        self.start = self.start.corrected(begun, pending, pending)
        run = self.run
        deletions = {stream: self.seen[stream].head.deleted for stream in begun}  # deleted before the query began
        acknowledged = run.acknowledged and replace(run.acknowledged, at={**begun, **run.acknowledged.at})
        self.run = replace(run, acknowledged=acknowledged, reported_deletions={**deletions, **run.reported_deletions})
        if joined:
            # If a group lacks the consumer later, it was created again.
            joining = {stream: GroupChange(consumer=True, mark=mark) for stream, mark in joined.items()}
            change_groups(self.client, joining)
        if begun:
            self._look_again(list(begun))

    def _moves(self) -> dict[str, Repair]:
        """Return what to do on each stream whose group was moved since the checkpoint."""
        start = self.start
        return {
            stream: Repair(_counted(self.client.server, stream, new, snapshot), creates_consumer=True)
            for stream, snapshot in self.seen.items()
            if stream in start.at and (new := moved_since_checkpoint(start.at[stream], snapshot, bool(start.token)))
        }

    def _follow(self, moves: Mapping[str, Repair]) -> None:
        """Go on where these groups were moved."""
        carry_out(self.client, moves, {})
        self.start = self.start.corrected({stream: move.at for stream, move in moves.items()}, moves, moves)
        self.run = replace(self.run, start=self.start, is_corrected=True)

    def _take_counts_of_server(self) -> None:
        """Take numbers of entries that the server knows better."""
        known: dict[str, StreamOffset] = {}
        for stream, at in self.start.at.items():
            if stream in self.seen:
                snapshot = self.seen[stream]
                begun = with_entries_below(self.client.server, stream, at, snapshot)
                known[stream] = at_end(_recounted(self.client.server, stream, begun, snapshot), snapshot)
        self.start = replace(self.start, at={**self.start.at, **known})

    def _confirmed_findings(self) -> dict[str, Finding]:
        """Return the finding of each stream that has one. `seen` has shown it."""
        self._take_counts_of_server()
        while True:
            found = self._findings(self.seen)
            alone = [stream for stream, finding in found.items() if finding.group_use is GroupUse.ALONE]
            if not alone:
                return found
            self._look_again(alone)
            again = self._findings(alone)
            if again == {stream: found[stream] for stream in alone}:
                return found
            if all(again.get(stream) in (None, found[stream]) for stream in alone):
                return {s: finding for s, finding in found.items() if s not in alone or s in again}

    def _findings(self, streams: Iterable[str]) -> dict[str, Finding]:
        found: dict[str, Finding] = {}
        for stream in streams:
            snapshot, at = self.seen[stream], self.start.at.get(stream, StreamOffset(MIN_ID))
            if snapshot.mark is None and stream in self.known:
                snapshot = snapshot._replace(mark=at.mark)
            finding = compare(stream, at, snapshot, snapshot.above, _closed(self.client.server, stream, at, snapshot))
            if finding is None:
                continue
            is_reported = self.run.reported_deletions.get(stream) == snapshot.head.deleted > MIN_ID
            if is_reported and finding.kind is Kind.ENTRIES_LOST and finding.group_use is GroupUse.SHARED:
                group = snapshot.group
                if group is not None and lost_above(snapshot.head, group.last_delivered, group.entries_read) is None:
                    continue
            is_left = finding.kind is Kind.STREAM_MISSING and self.observer.stream_set.by_pattern
            found[stream] = replace(finding, is_left=True) if is_left else self._proved(finding, at, snapshot)
        return found

    def _proved(self, finding: Finding, at: StreamOffset, snapshot: StreamSnapshot) -> Finding:
        """Return the finding; for a group below the checkpoint, ask whether the server has lost entries. If the last
        batch was read without a pending list, a kill may have left its group below."""
        if finding.kind is not Kind.GROUP_BELOW or finding.group_use is GroupUse.SHARED:
            return finding
        if not self.start.has_pending_list:
            return replace(finding, is_harmless=True)
        position = bytes(at.position)
        has_entry = bool(self.client.server.execute("XRANGE", finding.stream, position, position))
        proved = is_proved_below(at, snapshot.head, has_entry)
        if proved is None:
            return replace(finding, kind=Kind.SERVER_RESTORED, lost=1, is_exact=False)
        return replace(finding, is_harmless=proved)

    def _repair(self, findings: Mapping[str, Finding]) -> None:
        """Apply the rule."""
        before, repairs = self.start, dict[str, Repair]()
        for stream, finding in findings.items():
            if not finding.is_left:
                at = before.at.get(stream, StreamOffset(MIN_ID))
                seen = self.seen[stream]
                repair = repaired(finding, at, seen, self.checkpoint.at.get(stream, at))
                if finding.kind is Kind.SERVER_RESTORED and finding.group_use is GroupUse.ALONE:
                    repair = replace(repair, at=_counted(self.client.server, stream, repair.at, seen))
                repairs[stream] = repair
        there = carry_out(self.client, repairs, {stream: self.seen[stream].mark for stream in repairs})
        repairs = {stream: repair for stream, repair in repairs.items() if stream not in there}
        deletions = {s: repair.reported_deletion for s, repair in repairs.items() if repair.reported_deletion > MIN_ID}
        corrected = {stream: repair.at for stream, repair in repairs.items()}
        moved = {s: self.seen[s].group for s in repairs if findings[s].kind is not Kind.ENTRIES_LOST}
        start = before.corrected(corrected, moved, [s for s, group in moved.items() if group and group.ours])
        gone = {stream for stream, finding in findings.items() if finding.is_left}
        if gone:
            self.observer.stream_set.leave(gone)
            self.client.server.execute_all([("DEL", self.client.mark_key(s)) for s in sorted(gone)])
            start = start.without(gone)
            self.streams = [stream for stream in self.streams if stream not in gone]
        is_corrected = bool(gone) or any(repair.at != before.at.get(stream) for stream, repair in repairs.items())
        self.start, reported = start, {**self.run.reported_deletions, **deletions}
        run = self.run.unknown() if there else self.run  # the server was restored
        is_corrected |= run.is_corrected
        self.run = replace(run, start=start, is_corrected=is_corrected, reported_deletions=reported)

    def _still_changes(self, findings: Mapping[str, Finding]) -> StreamStateError:
        place, names = self.observer.losses.place, self.observer.stream_set.names
        stream = min(findings) if findings else min(names, default="")
        what = problem_of(findings[stream], place) if findings else f"group {self.client.group!r} moves"
        return StreamStateError(
            f"{what}; and so at {_ROUNDS} looks, although the query repaired it each time: another program changes "
            f"stream {stream!r} or its group meanwhile. Find it (CLIENT LIST shows the connections) and stop it. Then "
            "start the query again"
        )


def _reportable(findings: Mapping[str, Finding]) -> list[Finding]:
    """Return the findings without those of missing streams of the pattern of which nothing was read or to be read."""
    return [f for f in findings.values() if f.lost or not (f.is_left and f.above == MIN_ID)]


def _counted(server: Server, stream: str, at: StreamOffset, snapshot: StreamSnapshot) -> StreamOffset:
    """Return where a query goes on after a move or on a restored server, with the entries below counted if it is alone:
    without the number, the group would pass for a shared one."""
    if at.read is not None or snapshot.group is None or snapshot.group.others:
        return at
    return at._replace(read=count_read(server, stream, snapshot.head, at.position))


def _closed(server: Server, stream: str, at: StreamOffset, snapshot: StreamSnapshot) -> int | None:
    """Return how many entries were lost while the query was alone in a group that others have joined since: from now on
    nobody can count them. None: none, or the number is not known."""
    group, head, above = snapshot.group, snapshot.head, snapshot.above
    if group is None or at.read is None or at.number == 0 or not group.others or head.deleted == MIN_ID:
        return None
    reached, read = max(at.position, above.last), at.read + above.count
    return count_lost_alone(server, stream, head, reached, read, group.last_delivered <= reached)


def _recounted(server: Server, stream: str, at: StreamOffset, snapshot: StreamSnapshot) -> StreamOffset:
    """Return the same, with what a shared group has read counted in the stream, if the server has forgotten it, or was
    restored. A group at the checkpoint has read no more than it had by then: what else has left below is lost."""
    group = snapshot.group
    if group is None or group.entries_read is None or not has_forgotten(at, snapshot):
        return at
    read = count_read(server, stream, snapshot.head, group.last_delivered)
    if read is not None and group.last_delivered == at.position:
        read = min(read, at.known_read)
    return at if read is None else at._replace(missed=read - group.entries_read)


def carry_out(client: GroupClient, repairs: Mapping[str, Repair], marks: Mapping[str, Mark | None]) -> set[str]:
    """Create and set groups, with their marks. Return the streams whose missing group was there again (the server was
    restored): group and mark are as before. marks: the present ones. Raises DataLossError if a stream is gone."""
    there = change_groups(client, {stream: repair.change for stream, repair in repairs.items()})
    again = ((client.mark_key(stream), marks.get(stream)) for stream in there)
    client.server.execute_all([("DEL", key) if mark is None else ("SET", key, str(mark)) for key, mark in again])
    return there
