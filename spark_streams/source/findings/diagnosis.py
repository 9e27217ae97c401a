"""Compare a snapshot of the streams and groups with the checkpoint. Pure: what only the server can tell is asked for.

    1. diagnose(snapshot, checkpoint, run)             ─▶ findings, and questions if the snapshot does not decide
    2. the reconciler asks the server                  ─▶ evidence
    3. diagnose(snapshot, checkpoint, run, evidence)   ─▶ findings

The reconciler calls `diagnose` at each trigger that finds something changed, and `explain` when a run begins, before it
acknowledges anything. The table `remedies.REMEDIES` says what the query does about a finding. A healthy query has no
finding and no question.

Two facts decide most cases:

- The commit mark. It is written after the entries up to it were delivered and acknowledged. So no replica and no backup
  holds a mark above its group: if the mark is above the group, a client has moved the group.
- The entry at the checkpoint's position. Streams grow at the end only. So if the entry is there, the server has lost no
  entry up to it, except those that were trimmed or deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from spark_streams.model.commit_mark import Mark
from spark_streams.model.ids import MIN_ID, StreamId
from spark_streams.source.findings.account import held_above
from spark_streams.source.findings.finding import Finding, Kind, Ownership, Start
from spark_streams.source.findings.group_state import GroupState
from spark_streams.source.findings.snapshot import Ask, Evidence, Question, Run, Snapshot
from spark_streams.source.offset import Count, Offset
from spark_streams.wire.replies.xinfo import StreamState


@dataclass(frozen=True)
class Diagnosis:
    """findings: at most one of a stream, and REREAD_ASKED beside it. questions: of streams that are not decided yet."""

    findings: tuple[Finding, ...] = ()
    questions: tuple[Question, ...] = ()


def diagnose(
    snapshot: Snapshot, checkpoint: Offset, run: Run, evidence: Mapping[str, Evidence] | None = None
) -> Diagnosis:
    """Return what is wrong with the streams and groups of the snapshot. evidence: answers to questions, per stream."""
    return _diagnosis(snapshot, checkpoint, run, evidence, lambda one: one.found())


def explain(
    snapshot: Snapshot, checkpoint: Offset, run: Run, evidence: Mapping[str, Evidence] | None = None
) -> Diagnosis:
    """Return why groups stand above the checkpoint, if nothing that this run has reserved explains it.

    The entries in between may be pending for us; or read by a consumer that has left since; or delivered to no consumer
    (the group was set forward); or the checkpoint is an older copy whose commit mark is missing. Call this before
    anything up to the checkpoint is acknowledged: that writes a new mark in place of a missing one. If the mark is
    there, it is not above the checkpoint, so the checkpoint is no older copy.
    """
    return _diagnosis(snapshot, checkpoint, run, evidence, lambda one: one.explained())


def _diagnosis(
    snapshot: Snapshot,
    checkpoint: Offset,
    run: Run,
    evidence: Mapping[str, Evidence] | None,
    look: Callable[[_One], list[Finding | Question]],
) -> Diagnosis:
    known = evidence or {}
    found: list[Finding | Question] = []
    for stream, state in snapshot.groups.items():
        head, mark = snapshot.heads[stream], snapshot.marks.get(stream)
        found += look(_One(stream, head, state, mark, checkpoint, run, known.get(stream)))
    return Diagnosis(
        tuple(one for one in found if isinstance(one, Finding)),
        tuple(one for one in found if isinstance(one, Question)),
    )


def is_another(head: StreamState, position: StreamId, known: Count | None, logged: Count | None) -> bool:
    """Whether a stream whose group is missing, or lacks our consumer, is not the one that the query has read: it does
    not exist, is empty, or was created again. position: where the query was in it; known: what this run knew of it;
    logged: what the checkpoint knows at that position."""
    if not head.exists or head.added is None:
        return True
    if known is None or (head.length and head.first is not None and head.first <= position <= head.last):
        return False
    if head.added < known.added:
        return True
    if head.last < position:
        return not known.ahead  # else the query was above all entries before, too
    if logged is not None and head.added - head.length < logged.read:
        return True  # fewer entries were ever removed than we have read, and none of those is there
    return known.read > 0 and head.added == head.length  # nothing was ever removed, but what we have read is not there


@dataclass(frozen=True)
class _One:
    """One stream. state: its group; None: there is none."""

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
        """What the checkpoint knows at its position."""
        return self.checkpoint.counts.get(self.stream)

    @property
    def run_count(self) -> Count | None:
        """What the run knows at the group's position."""
        return self.run.counts.get(self.stream)

    def _may_be_another(self, there: int | None) -> bool:
        """Whether another stream under this name may have the same numbers. there: how many entries the stream has had
        up to the checkpoint. The query had read all entries, none of them is there, and as many have left the stream:
        those, or others."""
        head, known = self.head, self.checkpoint_count
        if known is None or known.read == 0 or known.read < known.added or there != known.read:
            return False
        return head.last != self.logged and (head.first is None or head.first > self.logged)

    @property
    def unread(self) -> int:
        """Entries that the stream was known to have, and the group had not read."""
        return 0 if self.run_count is None else max(0, self.run_count.added - self.run_count.read)

    @property
    def ownership(self) -> Ownership:
        """A bookmark only if the checkpoint names the stream: else its group says where the query begins."""
        if self.run.bookmarks is not None and self.stream in self.checkpoint.positions:
            return Ownership.BOOKMARK
        is_shared = self.state is not None and self.state.is_shared(self.run.member)
        return Ownership.SHARED if is_shared else Ownership.EXCLUSIVE

    @property
    def at_checkpoint(self) -> Start:
        """The checkpoint's position, for the group."""
        return Start(self.logged, None if self.checkpoint_count is None else self.checkpoint_count.read)

    @property
    def was_set_back_for_this_checkpoint(self) -> bool:
        """Whether somebody has set the group to an older copy of the checkpoint: its mark is above both."""
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
            self.ownership,
            self.logged,
            None if self.state is None else self.state.last_delivered,
            None if self.mark is None else self.mark.reached,
            to or self.at_checkpoint,
            lost,
            committed,
            next((one.name for one in others if not self.run.member.owns(one.name)), ""),
        )

    # -- what is wrong with it -----------------------------------------------------------------------------------

    def found(self) -> list[Finding | Question]:
        """Return what is wrong; a question, if only the server can tell."""
        found: list[Finding | Question] = []
        if self.was_set_back_for_this_checkpoint:
            found.append(self.finding(Kind.REREAD_ASKED))
        wrong = self._wrong()
        return found if wrong is None else [*found, wrong]

    def _wrong(self) -> Finding | Question | None:
        if self.run.by_pattern and not self.head.exists:
            had_some = self.logged > MIN_ID or self.unread > 0
            return self.finding(Kind.PATTERN_STREAM_GONE if had_some else Kind.STREAM_LEFT, lost=self.unread)
        if self.state is None:
            return self._without_group()
        replaced = self._replaced(self.state)
        if replaced is not None:
            return replaced
        if self.ownership is Ownership.BOOKMARK:
            return self._set_back(self.state)
        if self.state.last_delivered < self.logged:
            return self._below(self.state)
        return self._above(self.state) if self.state.last_delivered > self.logged else None

    def explained(self) -> list[Finding | Question]:
        """Return why the group is above the checkpoint, if entries are skipped or others have read them."""
        state, known = self.state, self.checkpoint_count
        is_ours = bool(self.checkpoint.token) and known is not None and not known.shared
        if state is None or known is None or not is_ours or self.ownership is not Ownership.EXCLUSIVE:
            return []
        if state.last_delivered <= self.logged:
            return []
        if self.evidence is None:
            return [Question(self.stream, Ask.PENDING, self.logged)]
        reached = max(self.logged, self.evidence.last_pending)
        is_short = reached < state.last_delivered
        if is_short and not (state.known and self.evidence.has_consumer):  # since the diagnosis
            return [self.finding(Kind.CONSUMER_GONE, lost=None)]
        if self.mark is not None and state.counted:
            # The checkpoint is no older copy, and XGROUP SETID by hand drops the server's count (unless it is given
            # one): another consumer has read what is not pending.
            return [self.finding(Kind.OTHERS_LEFT)] if is_short else []
        unknown = state.entries_read - known.read if state.counted and state.entries_read is not None else 0
        if unknown > self.evidence.pending:
            # The group has read more than the checkpoint knows and is pending.
            lost, kind = unknown - self.evidence.pending, Kind.CHECKPOINT_OLDER_UNMARKED
        elif is_short:
            lost, kind = 0, Kind.GROUP_AHEAD
        else:
            return []
        found = self.finding(kind, Start(state.last_delivered), lost)
        return [replace(found, above=reached if is_short else self.logged)]

    def _without_group(self) -> Finding | Question:
        if not is_another(self.head, self.logged, self.run_count, self.checkpoint_count):
            there = self._entries_up_to_checkpoint()
            if isinstance(there, Question):
                return there
            lost = None if self._may_be_another(there) else 0
            return self._restored(there) or self.finding(Kind.GROUP_GONE, lost=lost)
        return self.finding(Kind.STREAM_REPLACED if self.head.exists else Kind.STREAM_GONE, self._anew, self.unread)

    @property
    def _anew(self) -> Start:
        """Where the query begins in a stream that was created again. It has read nothing of it."""
        is_above = self.head.exists and self.head.last >= self.logged
        return Start(self.logged if is_above else MIN_ID, 0)

    def _replaced(self, state: GroupState) -> Finding | None:
        """The stream and its group, if both were made anew."""
        if state.known or not is_another(self.head, self.logged, self.run_count, self.checkpoint_count):
            return None
        to = Start(state.last_delivered) if self.ownership is Ownership.SHARED else self._anew
        return self.finding(Kind.STREAM_REPLACED, to, self.unread)

    def _set_back(self, state: GroupState) -> Finding | Question | None:
        """Whether the server came back from an older state under a bookmark. Where the bookmark stands does not show
        it: a run may have set it just after the server came back. So the stream's numbers decide. They are compared at
        each trigger if the snapshot has them, and asked for if this run has not set the bookmark where it stands."""
        left = (self.run.bookmarks or {}).get(self.stream)
        there = self._entries_up_to_checkpoint()
        if isinstance(there, Question):
            is_expected = state.last_delivered in (self.logged, left) and not self._was_longer
            return None if is_expected else there
        return self._restored(there)

    @property
    def _was_longer(self) -> bool:
        """Whether the stream of a bookmark had more entries ever added when the checkpoint was written."""
        logged, added = self.checkpoint_count, self.head.added
        if self.ownership is not Ownership.BOOKMARK or logged is None or added is None:
            return False
        return added < logged.added

    def _below(self, state: GroupState) -> Finding | Question:
        """The group was made anew or set back, or the server came back from an older state."""
        if self.ownership is Ownership.SHARED:  # one remedy, whichever it is
            return self.finding(Kind.GROUP_BEHIND)
        there = self._entries_up_to_checkpoint()
        if isinstance(there, Question):
            return there
        restored = self._restored(there)
        if restored is not None:
            return restored
        is_known = self.checkpoint_count is not None and there is not None
        return self.finding(Kind.DELIVERIES_LOST if is_known and self._is_as_it_was(state) else Kind.GROUP_BEHIND)

    def _entries_up_to_checkpoint(self) -> int | Question | None:
        """How many entries the stream has ever had up to the checkpoint's position, as the server says: fewer than the
        query has read if the server has lost some. None: the server cannot tell."""
        known, head = self.checkpoint_count, self.head
        if known is None or head.added is None:
            return None
        if head.last < self.logged:
            # Unless the query was ahead of the stream, the entry that it read last is missing.
            return head.added if known.ahead else min(head.added, max(0, known.read - 1))
        held = held_above(head, self.logged)
        if held is not None:
            return head.added - held
        if self.evidence is None:
            return Question(self.stream, Ask.ENTRIES_UP_TO, self.logged)
        return known.read if self.evidence.has_entry else self.evidence.up_to

    def _restored(self, there: int | None) -> Finding | None:
        """The server has lost its last entries, among them such as the query has read; others may have come since.
        there: how many entries the stream has had up to the checkpoint's position."""
        logged = self.checkpoint_count
        if logged is None or there is None or (there >= logged.read and not self._was_longer):
            return None
        if self.head.last < self.logged:
            to = Start(self.head.last, self.head.added)
        else:
            to = Start(self.logged, None if logged.before else there)
        if logged.before or there >= logged.read:
            # How many the last batch has read is in notes, which are gone, too; or what is there may have come since.
            return self.finding(Kind.SERVER_RESTORED, to, None, None)
        added = max((self.run_count or logged).added, logged.added)
        return self.finding(Kind.SERVER_RESTORED, to, added - there, logged.read - there)

    def _is_as_it_was(self, state: GroupState) -> bool:
        """Whether the group may have stood here once. A mark is written when what it speaks of is delivered and
        acknowledged: on no replica, and in no file, it stands above the group, unless somebody has moved that."""
        is_known = state.known or (self.mark is not None and self.mark.begun)
        return self.mark is None or (is_known and self.mark.reached <= state.last_delivered)

    def _above(self, state: GroupState) -> Finding | None:
        mark, is_shared = self.mark, self.ownership is Ownership.SHARED
        if mark is not None and mark.begun and self.stream not in self.checkpoint.positions:
            mark = None  # the query was to read the stream before its first batch, and then was not
        if mark is not None and self.checkpoint.token and mark.reached > self.logged:
            if is_shared:  # the query has read a part of it, under the newer checkpoint: nobody can tell which
                return self.finding(Kind.CHECKPOINT_OLDER, Start(mark.reached), lost=None)
            return self.finding(Kind.CHECKPOINT_OLDER)
        if not state.known and self._was_entered(not is_shared):
            return self.finding(Kind.CONSUMER_GONE, lost=None)
        return None

    def _was_entered(self, alone: bool) -> bool:
        """Whether our consumer must be in the group by now. Checkpoints that count were written by a version that
        enters it at once."""
        begin = self.checkpoint
        entered = self.stream in begin.shares or self.stream in self.run.reserved or self.stream in begin.counts
        return entered or (self.stream in begin.positions and alone)
