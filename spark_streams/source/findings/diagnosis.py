"""Compare a snapshot of the streams and groups with the checkpoint. Pure: it returns questions for the server.

    1. diagnose(snapshot, checkpoint, run)             ─▶ findings, and questions if the snapshot does not decide
    2. the reconciler asks the server                  ─▶ evidence
    3. diagnose(snapshot, checkpoint, run, evidence)   ─▶ findings

The reconciler calls `diagnose` at each trigger that finds something changed, and `explain` when a run begins, before it
acknowledges anything. The table `remedies.REMEDIES` has what the query does about a finding. A healthy query has no
finding and no question.

Two facts decide most cases:

- The commit mark. It is written after the entries up to it were delivered and acknowledged. So no replica and no backup
  holds a mark above its group: if the mark is above the group, a client has moved the group.
- The entry at the checkpoint's position. Streams grow at the end only. So if the entry is there, the server has lost no
  entry up to it, except those that were trimmed or deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from spark_streams.model.commit_mark import Mark
from spark_streams.model.ids import MIN_ID, StreamId
from spark_streams.source.findings.balance import held_above
from spark_streams.source.findings.finding import Finding, GroupUse, Kind, Start
from spark_streams.source.findings.group_state import GroupState
from spark_streams.source.findings.snapshot import Ask, Evidence, Question, Run, Snapshot
from spark_streams.source.offset import Count, Offset
from spark_streams.wire.replies.xinfo import StreamState


@dataclass(frozen=True)
class Diagnosis:
    """findings: at most one per stream, and REREAD_ASKED beside it; questions: for streams that are not decided yet."""

    findings: tuple[Finding, ...] = ()
    questions: tuple[Question, ...] = ()


def diagnose(
    snapshot: Snapshot, checkpoint: Offset, run: Run, evidence: Mapping[str, Evidence] | None = None
) -> Diagnosis:
    """Return what is wrong with the streams and groups of the snapshot. evidence: answers to questions, per stream."""
    examined = [stream for stream in snapshot.groups if not _is_at_checkpoint(stream, snapshot, checkpoint, run)]
    return _diagnosis(examined, snapshot, checkpoint, run, evidence, lambda stream: stream.findings())


def explain(
    snapshot: Snapshot, checkpoint: Offset, run: Run, evidence: Mapping[str, Evidence] | None = None
) -> Diagnosis:
    """Return why groups stand above the checkpoint, if nothing that this run has reserved explains it.

    The entries in between may be pending for us; or read by a consumer that has left since; or delivered to no consumer
    (the group was set forward); or the checkpoint is an older copy whose commit mark is missing. Call this before
    anything up to the checkpoint is acknowledged: that writes a new mark in place of a missing one. If the mark is
    there, it is not above the checkpoint, so the checkpoint is no older copy.
    """
    return _diagnosis(snapshot.groups, snapshot, checkpoint, run, evidence, lambda stream: stream.explained())


def _is_at_checkpoint(stream: str, snapshot: Snapshot, checkpoint: Offset, run: Run) -> bool:
    """Whether the group is at the checkpoint and has the query's consumer, and the mark is not above. Then
    `_Stream.findings` has none. Nearly all streams of nearly all triggers are so."""
    state, logged, mark = snapshot.groups[stream], checkpoint[stream], snapshot.marks.get(stream)
    return (
        state is not None
        and state.has_consumer
        and state.last_delivered == logged
        and run.bookmarks is None
        and snapshot.heads[stream].exists
        and (mark is None or mark.reached <= logged)
    )


def _diagnosis(
    examined: Iterable[str],
    snapshot: Snapshot,
    checkpoint: Offset,
    run: Run,
    evidence: Mapping[str, Evidence] | None,
    examine: Callable[[_Stream], list[Finding | Question]],
) -> Diagnosis:
    evidence_by_stream = evidence or {}
    outcomes: list[Finding | Question] = []
    for stream in examined:
        state, head, mark = snapshot.groups[stream], snapshot.heads[stream], snapshot.marks.get(stream)
        outcomes += examine(_Stream(stream, head, state, mark, checkpoint, run, evidence_by_stream.get(stream)))
    return Diagnosis(
        tuple(outcome for outcome in outcomes if isinstance(outcome, Finding)),
        tuple(outcome for outcome in outcomes if isinstance(outcome, Question)),
    )


def is_another(head: StreamState, position: StreamId, run_count: Count | None, logged: Count | None) -> bool:
    """Whether a stream whose group is missing, or lacks the query's consumer, is not the one that the query has read:
    it does not exist, is empty, or was created again. position: of the query in the stream; run_count: what this run
    knows of the stream; logged: what the checkpoint knows at that position."""
    if not head.exists or head.added is None:
        return True
    if run_count is None or (head.length and head.first is not None and head.first <= position <= head.last):
        return False
    if head.added < run_count.added:
        return True
    if head.last < position:
        return not run_count.ahead  # otherwise the query was above all entries before, too
    if logged is not None and head.added - head.length < logged.read:
        return True  # fewer entries were ever removed than the query has read, and the stream has none of those
    return (
        run_count.read > 0 and head.added == head.length
    )  # none was ever removed, but those that were read are missing


@dataclass(frozen=True)
class _Stream:
    """One stream. state: of its group, None: the group does not exist."""

    stream: str
    head: StreamState
    state: GroupState | None
    mark: Mark | None
    checkpoint: Offset
    run: Run
    evidence: Evidence | None

    # -- what is known of it -------------------------------------------------------------------------------------

    @property
    def logged(self) -> StreamId:
        """The checkpoint's position."""
        return self.checkpoint[self.stream]

    @property
    def checkpoint_count(self) -> Count | None:
        """The checkpoint's count at its position."""
        return self.checkpoint.counts.get(self.stream)

    @property
    def run_count(self) -> Count | None:
        """The run's count at the group's position."""
        return self.run.counts.get(self.stream)

    def _may_be_another(self, up_to: int | None) -> bool:
        """Whether another stream under this name may have the same numbers. up_to: how many entries the stream has had
        up to the checkpoint. The query had read all entries, the stream has none of them, and as many have left it:
        those, or others."""
        head, count = self.head, self.checkpoint_count
        if count is None or count.read == 0 or count.read < count.added or up_to != count.read:
            return False
        return head.last != self.logged and (head.first is None or head.first > self.logged)

    @property
    def unread(self) -> int:
        """Number of entries that the stream had and the group had not read, when both were last seen."""
        return 0 if self.run_count is None else max(0, self.run_count.added - self.run_count.read)

    @property
    def group_use(self) -> GroupUse:
        """How the query uses the group. Before the checkpoint names the stream, the group is no bookmark yet."""
        if self.run.bookmarks is not None and self.stream in self.checkpoint.positions:
            return GroupUse.BOOKMARK
        is_shared = self.state is not None and self.state.is_shared(self.run.member)
        return GroupUse.SHARED if is_shared else GroupUse.EXCLUSIVE

    @property
    def at_checkpoint(self) -> Start:
        """The checkpoint's position, for the group."""
        return Start(self.logged, None if self.checkpoint_count is None else self.checkpoint_count.read)

    @property
    def was_set_back_for_this_checkpoint(self) -> bool:
        """Whether an operator has set the group to an older copy of the checkpoint: its mark is above both."""
        if not self.checkpoint.token or self.state is None or self.mark is None:
            return False
        return self.mark.reached > self.state.last_delivered == self.logged

    def finding(
        self,
        kind: Kind,
        to: Start | None = None,
        lost: int | None = 0,
        committed: int | None = 0,
    ) -> Finding:
        """Return a finding of this stream. to: the checkpoint's position, if it is not given."""
        others = () if self.state is None else self.state.others
        return Finding(
            kind,
            self.stream,
            self.group_use,
            self.logged,
            None if self.state is None else self.state.last_delivered,
            None if self.mark is None else self.mark.reached,
            to or self.at_checkpoint,
            lost,
            committed,
            next((other.name for other in others if not self.run.member.owns(other.name)), ""),
        )

    # -- what is wrong with it -----------------------------------------------------------------------------------

    def findings(self) -> list[Finding | Question]:
        """Return what is wrong, or a question if only the server knows it."""
        outcomes: list[Finding | Question] = []
        if self.was_set_back_for_this_checkpoint:
            outcomes.append(self.finding(Kind.REREAD_ASKED))
        problem = self._problem()
        return outcomes if problem is None else [*outcomes, problem]

    def _problem(self) -> Finding | Question | None:
        if self.run.by_pattern and not self.head.exists:
            had_some = self.logged > MIN_ID or self.unread > 0
            return self.finding(Kind.PATTERN_STREAM_GONE if had_some else Kind.STREAM_LEFT, lost=self.unread)
        if self.state is None:
            return self._without_group()
        replaced = self._replaced(self.state)
        if replaced is not None:
            return replaced
        if self.group_use is GroupUse.BOOKMARK:
            return self._set_back(self.state)
        if self.state.last_delivered < self.logged:
            return self._below(self.state)
        return self._above(self.state) if self.state.last_delivered > self.logged else None

    def explained(self) -> list[Finding | Question]:
        """Return why the group is above the checkpoint, if entries are skipped or others have read them."""
        state, count = self.state, self.checkpoint_count
        is_ours = bool(self.checkpoint.token) and count is not None and not count.shared
        if state is None or count is None or not is_ours or self.group_use is not GroupUse.EXCLUSIVE:
            return []
        if state.last_delivered <= self.logged:
            return []
        if self.stream not in self.checkpoint.positions and state.counted and state.entries_read == count.read:
            return []  # no batch has read the stream yet, and the group is where the query begins
        if self.evidence is None:
            return [Question(self.stream, Ask.PENDING, self.logged)]
        reached = max(self.logged, self.evidence.last_pending)
        is_short = reached < state.last_delivered
        if is_short and not (state.has_consumer and self.evidence.has_consumer):  # since the diagnosis
            return [self.finding(Kind.CONSUMER_GONE, lost=None)]
        if self.mark is not None and state.counted:
            # The checkpoint is no older copy, and XGROUP SETID by hand drops the server's count (unless it is given
            # one): another consumer has read what is not pending.
            return [self.finding(Kind.OTHERS_LEFT)] if is_short else []
        unknown = state.entries_read - count.read if state.counted and state.entries_read is not None else 0
        if is_short and not state.counted and self.head.added is not None:
            # The client that set the group has dropped the server's count of entries read.
            if self.evidence.up_to is None:
                return [Question(self.stream, Ask.ENTRIES_UP_TO, state.last_delivered)]
            if self.evidence.up_to == count.read:
                return []  # it was set before the query began: the checkpoint's count has what lies in between
        if unknown > self.evidence.pending:
            # The group has read more entries than the checkpoint has and are pending.
            lost, kind = unknown - self.evidence.pending, Kind.CHECKPOINT_OLDER_UNMARKED
        elif is_short:
            lost, kind = 0, Kind.GROUP_AHEAD
        else:
            return []
        finding = self.finding(kind, Start(state.last_delivered), lost)
        return [replace(finding, above=reached if is_short else self.logged)]

    def _without_group(self) -> Finding | Question:
        if not is_another(self.head, self.logged, self.run_count, self.checkpoint_count):
            up_to = self._entries_up_to_checkpoint()
            if isinstance(up_to, Question):
                return up_to
            lost = None if self._may_be_another(up_to) else 0
            return self._restored(up_to) or self.finding(Kind.GROUP_GONE, lost=lost)
        return self.finding(
            Kind.STREAM_REPLACED if self.head.exists else Kind.STREAM_GONE, self._start_in_new_stream, self.unread
        )

    @property
    def _start_in_new_stream(self) -> Start:
        """Start of the query in a stream that was created again, of which it has read no entry."""
        is_above = self.head.exists and self.head.last >= self.logged
        return Start(self.logged if is_above else MIN_ID, 0)

    def _replaced(self, state: GroupState) -> Finding | None:
        """Return the finding if the stream and its group were created again."""
        if state.has_consumer or not is_another(self.head, self.logged, self.run_count, self.checkpoint_count):
            return None
        to = Start(state.last_delivered) if self.group_use is GroupUse.SHARED else self._start_in_new_stream
        return self.finding(Kind.STREAM_REPLACED, to, self.unread)

    def _set_back(self, state: GroupState) -> Finding | Question | None:
        """Return the finding if the server has returned to an older state, for a bookmark. The bookmark's position does
        not show it: a run may have set it afterwards. So the stream's numbers decide. They are compared at each trigger
        if the snapshot has them. The server is asked for them if this run has not set the bookmark's position."""
        bookmark = (self.run.bookmarks or {}).get(self.stream)
        up_to = self._entries_up_to_checkpoint()
        if isinstance(up_to, Question):
            is_expected = state.last_delivered in (self.logged, bookmark) and not self._was_longer
            return None if is_expected else up_to
        return self._restored(up_to)

    @property
    def _was_longer(self) -> bool:
        """Whether the stream of a bookmark had more entries ever added when the checkpoint was written."""
        logged, added = self.checkpoint_count, self.head.added
        if self.group_use is not GroupUse.BOOKMARK or logged is None or added is None:
            return False
        return added < logged.added

    def _below(self, state: GroupState) -> Finding | Question:
        """Return the finding of a group that was created again or set back, or of a server in an older state."""
        if self.group_use is GroupUse.SHARED:  # one remedy, whichever it is
            return self.finding(Kind.GROUP_BEHIND)
        up_to = self._entries_up_to_checkpoint()
        if isinstance(up_to, Question):
            return up_to
        restored = self._restored(up_to)
        if restored is not None:
            return restored
        is_known = self.checkpoint_count is not None and up_to is not None
        return self.finding(Kind.DELIVERIES_LOST if is_known and self._may_have_been_here(state) else Kind.GROUP_BEHIND)

    def _entries_up_to_checkpoint(self) -> int | Question | None:
        """Return how many entries the stream has ever had up to the checkpoint's position, by the server's numbers:
        fewer than the query has read if the server has lost some. None: unknown."""
        count, head = self.checkpoint_count, self.head
        if count is None or head.added is None:
            return None
        if head.last < self.logged:
            # Unless the query was ahead of the stream, the entry that it read last is missing.
            return head.added if count.ahead else min(head.added, max(0, count.read - 1))
        held = held_above(head, self.logged)
        if held is not None:
            return head.added - held
        if self.evidence is None:
            return Question(self.stream, Ask.ENTRIES_UP_TO, self.logged)
        return count.read if self.evidence.has_entry else self.evidence.up_to

    def _restored(self, up_to: int | None) -> Finding | None:
        """Return the finding if the server has lost its last entries, also entries that the query has read. Others may
        have been added since. up_to: how many entries the stream has had up to the checkpoint's position."""
        logged = self.checkpoint_count
        if logged is None or up_to is None or (up_to >= logged.read and not self._was_longer):
            return None
        to = Start(self.head.last, self.head.added) if self.head.last < self.logged else Start(self.logged, up_to)
        if up_to >= logged.read:  # some of the entries up to there are newer ones
            return self.finding(Kind.SERVER_RESTORED, to, None, None)
        added = max((self.run_count or logged).added, logged.added)
        return self.finding(Kind.SERVER_RESTORED, to, added - up_to, logged.read - up_to)

    def _may_have_been_here(self, state: GroupState) -> bool:
        """Whether the group may have had this position before. A mark is written after its entries are delivered and
        acknowledged. So on no replica and in no file it is above the group, unless a client has moved the group."""
        is_known = state.has_consumer or (self.mark is not None and self.mark.begun)
        return self.mark is None or (is_known and self.mark.reached <= state.last_delivered)

    def _above(self, state: GroupState) -> Finding | Question | None:
        mark, is_shared = self.mark, self.group_use is GroupUse.SHARED
        if mark is not None and mark.begun and self.stream not in self.checkpoint.positions:
            mark = None  # the query named the stream before its first batch, and then no longer
        if mark is not None and self.checkpoint.token and mark.reached > self.logged:
            if is_shared:  # the query has read some of it, under the newer checkpoint; which part is unknown
                return self.finding(Kind.CHECKPOINT_OLDER, Start(mark.reached), lost=None)
            up_to = self._entries_up_to_checkpoint()  # the newer checkpoint may have read a stream created again
            if isinstance(up_to, Question):
                return up_to
            return self._restored(up_to) or self.finding(Kind.CHECKPOINT_OLDER)
        if not state.has_consumer and self._must_have_consumer(not is_shared):
            return self.finding(Kind.CONSUMER_GONE, lost=None)
        return None

    def _must_have_consumer(self, is_exclusive: bool) -> bool:
        """Whether the query must have created its consumer in the group by now. Checkpoints with counts are of a
        version that creates it at once."""
        begin = self.checkpoint
        must_exist = self.stream in begin.shares or self.stream in self.run.reserved or self.stream in begin.counts
        return must_exist or (self.stream in begin.positions and is_exclusive)
