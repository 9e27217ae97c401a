"""What a trigger begins with: the streams and groups as they are, once they agree with the checkpoint.

A trigger that follows another one of the same run knows where the groups are and what is pending: the batch up to the
checkpoint, and what was reserved ahead. If a group shows anything else, if other consumers read from it, or if nothing
is known (a first trigger, a connection that broke), the observer looks at each stream in one transaction, compares it
with the checkpoint (group.compare), and applies the rule. It looks again until nothing is found.

If the query is alone in a group, a finding counts only if a second look confirms it: pending entries are listed after
the first one. In a shared group the first look counts, because others may read past the gap meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from spark_streams.model.commit_mark import Mark
from spark_streams.model.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.group.account import count_lost_alone, count_read
from spark_streams.source.group.admin import carry_out, create_consumers, join_groups, touch_consumers
from spark_streams.source.group.compare import (
    Above,
    Repair,
    at_end,
    compare,
    has_forgotten,
    is_checkpoint_older,
    is_proved_below,
    lost_above,
    moved_since_checkpoint,
    repaired,
)
from spark_streams.source.group.findings import Finding, GroupUse, Kind
from spark_streams.source.group.first_account import (
    first_account,
    first_account_without_group,
    with_entries_below,
)
from spark_streams.source.group.remedies import DataLoss
from spark_streams.source.group.state import (
    GroupState,
    Look,
)
from spark_streams.source.group.subscription import Subscription
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset, StreamOffset
from spark_streams.source.pending_list import PendingRange, acknowledge
from spark_streams.source.trigger.acknowledge import Acknowledging
from spark_streams.source.trigger.as_left import as_left
from spark_streams.source.trigger.bookmark import bookmarks_of, destroy_scratch_groups
from spark_streams.source.trigger.looks import Looks, look_at
from spark_streams.source.trigger.query_state import QueryState, as_bookmark, positions_of
from spark_streams.source.trigger.run_state import RunState
from spark_streams.wire.connection.server import Server

_MOST_REPAIRS = 20  # of one trigger


class Observer:
    """Brings the query to where a trigger can begin."""

    def __init__(
        self,
        options: SourceOptions,
        subscription: Subscription,
        losses: DataLoss,
        acknowledging: Acknowledging,
        limits: Limits,
    ) -> None:
        self._no_ack = options.no_ack
        self._subscription = subscription
        self._losses = losses
        self._acknowledging = acknowledging
        self._limits = limits

    @property
    def _member(self) -> Membership:
        return self._subscription.member

    def state_at(self, server: Server, checkpoint: Offset, run: RunState) -> QueryState:
        """Return the query at a trigger that begins with this checkpoint. Raises StreamStateError, ServerError."""
        subscription = self._subscription
        find_new = run.admission.until is None
        streams = subscription.streams_to_read(server, checkpoint, find_new, at_once=not run.is_known)
        if not run.is_known and checkpoint.token:
            subscription.confirm_checkpoint(server, checkpoint)
        checkpoint = subscription.without_dropped(server, checkpoint, not run.is_known)
        start = subscription.without_unused_returned(run.start_of(checkpoint))
        forgotten = start.at.keys() - {*streams} - checkpoint.at.keys()  # of a pattern, and missing: Spark logged none
        start = start.without(forgotten) if forgotten else start
        if run.is_known:
            state = as_left(server, self._member, checkpoint, start, streams, run, self._no_ack)
            if state is not None:
                return state
        return self._compared(server, checkpoint, start, streams, run)

    def _compared(
        self, server: Server, checkpoint: Offset, start: Offset, streams: Sequence[str], run: RunState
    ) -> QueryState:
        """Look at all streams, compare them with the checkpoint, repair what is wrong and acknowledge what is
        committed, until nothing is found."""
        run = replace(run, prefetched=None)  # what was reserved ahead is found in the pending list
        if not run.is_known and (self._no_ack or start.no_ack):
            destroy_scratch_groups(server, self._member, list(streams))
        streams = list(streams)
        seen, start, run = self._met(server, start, streams, run)
        seen.marks = {stream: look.mark for stream, look in seen.looks.items()}
        if run.settled is not None and any(_is_forgotten(start, s, mark, run) for s, mark in seen.marks.items()):
            run = replace(run, settled=None)
        for _ in range(_MOST_REPAIRS):
            start, run = self._updated(server, start, seen, run)
            findings = self._confirmed(server, start, seen, run)
            if findings:
                start, run, streams = self._repair(server, checkpoint, start, findings, seen, run, streams)
                for stream in findings.keys() - {*streams}:
                    seen.looks.pop(stream, None)
            elif run.has_settled(start) or run.is_known:  # a run that knows it waits until tasks run
                break
            else:
                run, entries = self._acknowledging.acknowledge(
                    server, start, run, seen.marks, self._unsettled(start, seen)
                )
                if not entries:
                    break
            seen.update(self._look(server, start, streams))  # compared again: a group may have been moved meanwhile
        else:
            raise AssertionError("no end of repairs")
        state = self._state(server, checkpoint, start, streams, seen, run)
        self._losses.compared()
        return state

    def _state(
        self,
        server: Server,
        checkpoint: Offset,
        start: Offset,
        streams: Sequence[str],
        seen: Looks,
        run: RunState,
    ) -> QueryState:
        """Return the state. Nothing is wrong any more, and what is committed is acknowledged, unless it can wait until
        tasks run."""
        unsettled: Mapping[str, int] = {}
        if not run.has_settled(start):
            unsettled = {s: sum(part.count for part in start.ranges(s)) for s in start.taken_from}
        groups = {stream: group for stream in streams if (group := seen.looks[stream].group) is not None}
        create_consumers(server, self._member, [s for s, group in groups.items() if not group.has_consumer])
        if not run.is_known:
            touch_consumers(server, self._member, [s for s, group in groups.items() if group.has_consumer])
        run = replace(run, start=start, told=_of_streams(groups, run.told))
        states: dict[str, GroupState] = {}
        second: dict[str, int] = {}
        for stream, group in groups.items():
            known = seen.ours_above(stream) + unsettled.get(stream, 0)
            if group.ours > known and not self._no_ack:
                second[stream] = group.ours - known
            known_group = group._replace(has_consumer=True)
            states[stream] = as_bookmark(start.at[stream], known_group) if self._no_ack else known_group
        if self._no_ack:
            self._release_pending(server, start, groups)
            run = replace(run, bookmarks={**bookmarks_of(states), **_of_streams(groups, run.bookmarks or {})})
        return QueryState(
            checkpoint,
            start,
            {stream: seen.looks[stream].head for stream in states},
            states,
            positions_of(groups),
            {stream: seen.looks[stream].time for stream in states},
            {} if self._no_ack else {stream: ranges for stream, ranges in seen.above.items() if ranges},
            second,
            run,
        )

    def looked_again(self, server: Server, state: QueryState, streams: Sequence[str]) -> QueryState:
        """Return the state after entries of these streams were claimed. Everything up to `start` is acknowledged."""
        seen = self._look(server, state.start, streams)
        groups, times, above, second = dict(state.groups), dict(state.times), dict(state.above), dict(state.second)
        for stream, look in seen.looks.items():
            for known in (groups, times, above, second):
                known.pop(stream, None)
            if look.group is None:
                continue  # the next trigger finds it
            groups[stream], times[stream] = look.group, look.time
            if stream in seen.above:
                above[stream] = seen.above[stream]
            second[stream] = look.group.ours - seen.ours_above(stream)
        run = replace(state.run, prefetched=None)
        return replace(state, groups=groups, times=times, above=above, second=second, run=run)

    def _look(self, server: Server, start: Offset, streams: Sequence[str]) -> Looks:
        return look_at(server, self._member, start, streams, self._no_ack, self._limits)

    def _met(
        self, server: Server, start: Offset, streams: Sequence[str], run: RunState
    ) -> tuple[Looks, Offset, RunState]:
        """Look at all streams. Give those that no batch of this checkpoint has read the values with which the query
        begins, and create its consumer and mark in groups that it has not created."""
        seen = self._look(server, start, streams)
        joined: dict[str, Mark] = {}
        begun: dict[str, StreamOffset] = {}
        for stream, look in seen.looks.items():
            at = start.at.get(stream)
            if at is not None and at.token:
                continue
            if look.group is None:
                if at is not None:  # its group is missing again: the account begins at its position all the same
                    begun[stream] = first_account_without_group(server, stream, at, look)
                continue
            begun[stream], mark = first_account(server, stream, start, look)
            if mark != look.mark:
                joined[stream] = mark
        start = replace(start, at={**start.at, **begun})
        told = {stream: seen.looks[stream].head.deleted for stream in begun}  # deleted before the query began
        run = replace(run, told={**told, **run.told})
        if joined:
            join_groups(server, self._member, joined)
        if begun:
            seen.update(self._look(server, start, list(begun)))
        return seen, start, run

    def _updated(self, server: Server, start: Offset, seen: Looks, run: RunState) -> tuple[Offset, RunState]:
        """Return the start with what the server knows better, and with groups that were moved."""
        moved = {
            stream: Repair(_counted(server, stream, new, look), creates_consumer=True)
            for stream, look in seen.looks.items()
            if stream in start.at and (new := moved_since_checkpoint(start.at[stream], look, bool(start.token)))
        }
        if moved:
            if not run.has_settled(start):  # by its ranges, before they are forgotten
                run, _ = self._acknowledging.acknowledge(server, start, run, seen.marks, self._unsettled(start, seen))
            carry_out(server, self._member, moved, {})
            corrected = {stream: repair.at for stream, repair in moved.items()}
            start = _without_ranges(replace(start, at={**start.at, **corrected}), list(moved))
            run = replace(run, start=start, is_corrected=True)
            seen.update(self._look(server, start, list(seen.looks)))
        if self._no_ack:
            return start, run
        known: dict[str, StreamOffset] = {}
        for stream, at in start.at.items():
            if stream in seen.looks:
                look = seen.looks[stream]
                begun = with_entries_below(server, stream, at, look)
                known[stream] = at_end(_recounted(server, stream, begun, look), look)
        return replace(start, at={**start.at, **known}), run

    def _confirmed(self, server: Server, start: Offset, seen: Looks, run: RunState) -> dict[str, Finding]:
        """Return the finding of each stream that has one."""
        found = self._found(server, start, seen, list(seen.looks), run)
        alone = [stream for stream, finding in found.items() if finding.group_use is GroupUse.ALONE]
        if alone:
            seen.update(self._look(server, start, alone))
            again = self._found(server, start, seen, alone, run)
            for stream in alone:
                if again.get(stream) != found[stream]:
                    found.pop(stream)
                    if stream in again:  # something else: the next round looks at it
                        return self._confirmed(server, start, seen, run)
        return found

    def _found(
        self, server: Server, start: Offset, seen: Looks, streams: Sequence[str], run: RunState
    ) -> dict[str, Finding]:
        found: dict[str, Finding] = {}
        for stream in streams:
            look, at = seen.looks[stream], start.at.get(stream, StreamOffset(MIN_ID))
            above = seen.above_of(stream)
            finding = compare(stream, at, look, above, self._no_ack, _closed(server, stream, at, look, above))
            if finding is None:
                continue
            is_told = finding.kind is Kind.ENTRIES_LOST and finding.group_use is GroupUse.SHARED
            if is_told and run.told.get(stream) == look.head.deleted and look.head.deleted > MIN_ID:
                group = look.group
                if group is not None and lost_above(look.head, group.last_delivered, group.entries_read) is None:
                    continue
            is_left = finding.kind is Kind.STREAM_MISSING and self._subscription.by_pattern
            found[stream] = (
                replace(finding, is_left=True) if is_left else self._proved(server, finding, at, look, start.no_ack)
            )
        return found

    def _proved(self, server: Server, finding: Finding, at: StreamOffset, look: Look, was_no_ack: bool) -> Finding:
        """Return the finding; for a group below the checkpoint, ask whether the server has lost entries. was_no_ack:
        the last batch was read without a pending list, and a kill may have left its group below."""
        if finding.kind is not Kind.GROUP_BELOW or finding.group_use is GroupUse.SHARED:
            return finding
        if was_no_ack:
            return replace(finding, is_harmless=True)
        position = bytes(at.position)
        has_entry = bool(server.execute("XRANGE", finding.stream, position, position))
        proved = is_proved_below(at, look.head, has_entry)
        if proved is None:
            return replace(finding, kind=Kind.SERVER_RESTORED, lost=1, is_exact=False)
        return replace(finding, is_harmless=proved)

    def _repair(
        self,
        server: Server,
        checkpoint: Offset,
        start: Offset,
        findings: Mapping[str, Finding],
        seen: Looks,
        run: RunState,
        streams: list[str],
    ) -> tuple[Offset, RunState, list[str]]:
        """Report the findings, acknowledge what is committed, and apply the rule. Raises the error of a strict
        query."""
        left = {stream for stream, finding in findings.items() if self._leaves(finding)}
        self._losses.report_compared([finding for stream, finding in findings.items() if stream not in left])
        if any(finding.kind is not Kind.ENTRIES_LOST for finding in findings.values()) and not run.has_settled(start):
            run, _ = self._acknowledging.acknowledge(server, start, run, seen.marks, self._unsettled(start, seen))
        repairs = {
            stream: repaired(
                finding,
                start.at.get(stream, StreamOffset(MIN_ID)),
                seen.looks[stream],
                checkpoint.at.get(stream, start.at.get(stream, StreamOffset(MIN_ID))),
                self._no_ack,
            )
            for stream, finding in findings.items()
            if not finding.is_left
        }
        marks = {stream: seen.looks[stream].mark for stream in repairs}
        there = carry_out(server, self._member, repairs, marks)
        repairs = {stream: repair for stream, repair in repairs.items() if stream not in there}
        told = {stream: repair.told for stream, repair in repairs.items() if repair.told > MIN_ID}
        corrected, before = {stream: repair.at for stream, repair in repairs.items()}, start
        moved = [stream for stream in repairs if findings[stream].kind is not Kind.ENTRIES_LOST]
        start = _without_ranges(replace(start, at={**start.at, **corrected}), moved)
        gone = {stream for stream in findings if stream not in repairs and stream not in there}
        if gone:
            self._subscription.leave(gone)
            start = start.without(gone)
        if gone or any(repair.at != before.at.get(stream) for stream, repair in repairs.items()):
            run = replace(run, is_corrected=True)
        run = replace(run, start=start, told={**run.told, **told})
        return start, run, [stream for stream in streams if stream not in gone]

    def _unsettled(self, start: Offset, seen: Looks) -> set[str]:
        """Return the streams of which the last batch may be acknowledged, also those that the query no longer reads:
        they have the group, and their mark knows no later batch. An older copy of the checkpoint leaves such a mark."""
        return {
            stream
            for stream, at in start.at.items()
            if (look := seen.looks.get(stream)) is None
            or (look.group is not None and not is_checkpoint_older(at, look, self._no_ack))
        }

    @staticmethod
    def _leaves(finding: Finding) -> bool:
        """Whether a stream of the pattern is missing of which nothing was read or to be read."""
        return finding.is_left and finding.above == MIN_ID and not finding.lost

    def _release_pending(self, server: Server, start: Offset, groups: Mapping[str, GroupState]) -> None:
        """Acknowledge what a run without noAck has reserved above the position: this run reads it from the stream.

        Raises StreamStateError if other entries are pending: no batch would read them."""
        pending = [stream for stream, group in groups.items() if group.ours]
        reserved = [PendingRange(stream, MAX_ID, start[stream]) for stream in pending]
        acknowledge(server, self._member, reserved, self._limits)
        for stream in pending:
            self._acknowledging.refuse_pending(server, stream)


def _of_streams(streams: Collection[str], positions: Mapping[str, StreamId]) -> dict[str, StreamId]:
    """Return the positions of these streams alone: streams of a pattern come and go."""
    return {stream: position for stream, position in positions.items() if stream in streams}


def _counted(server: Server, stream: str, at: StreamOffset, look: Look) -> StreamOffset:
    """Return where a query goes on after a move, with the number of entries below counted, if the query is alone and
    the group is elsewhere again. Without the number, the group would pass for a shared one."""
    if at.read is not None or look.group is None or look.group.others:
        return at
    return at._replace(read=count_read(server, stream, look.head, at.position))


def _closed(server: Server, stream: str, at: StreamOffset, look: Look, above: Above) -> int | None:
    """Return how many entries were lost while the query was alone in a group that others have joined since: from now on
    nobody can count them. None: the query was not alone, no entry was deleted, or the number is not known."""
    group, head = look.group, look.head
    if group is None or at.read is None or at.number == 0 or not group.others or head.deleted == MIN_ID:
        return None
    reached, read = max(at.position, above.last), at.read + above.count
    return count_lost_alone(server, stream, head, reached, read, group.last_delivered <= reached)


def _recounted(server: Server, stream: str, at: StreamOffset, look: Look) -> StreamOffset:
    """Return the same, with the number of entries that a shared group has read counted in the stream, if the server has
    forgotten it. Losses of that moment are not noticed."""
    group = look.group
    if group is None or group.entries_read is None or not has_forgotten(at, look):
        return at
    read = count_read(server, stream, look.head, group.last_delivered)
    return at if read is None else at._replace(missed=read - group.entries_read)


def _is_forgotten(start: Offset, stream: str, mark: Mark | None, run: RunState) -> bool:
    """Whether the server no longer knows the last batch that the run has acknowledged: it has returned to an older
    state."""
    if stream not in start.at or start.no_ack or not start.is_of_this_batch(stream):
        return False
    known = start.at[stream].number - (not run.has_settled(start))
    return known > 0 and (mark is None or mark.number < known)


def _without_ranges(offset: Offset, streams: Sequence[str]) -> Offset:
    """Return the offset without entries of these streams in its batch."""
    if not streams:
        return offset
    bare = offset.without(streams)
    return replace(bare, at=offset.at)
