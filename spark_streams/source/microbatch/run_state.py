"""What a run of a query knows between two triggers: one value, which each trigger replaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_streams.model.ids import StreamId
from spark_streams.source.findings.account import Account
from spark_streams.source.findings.group_state import GroupState
from spark_streams.source.findings.snapshot import Run
from spark_streams.source.group.bookmarks import Bookmarks
from spark_streams.source.membership import Membership
from spark_streams.source.microbatch.acknowledge import Acknowledged
from spark_streams.source.microbatch.admission import Admission
from spark_streams.source.microbatch.prefetch import Prefetched
from spark_streams.source.offset import Offset
from spark_streams.source.recovery.poison_record import CachedPoisonState
from spark_streams.wire.replies.xinfo import StreamState


@dataclass(frozen=True)
class Moves:
    """Where a run goes on elsewhere than at its checkpoint (failOnDataLoss=false), until the next offset is
    logged: that has these positions. token: of the checkpoint; positions: per stream."""

    token: str = ""
    positions: Mapping[str, StreamId] = field(default_factory=dict)

    def apply_to(self, begin: Offset) -> Offset:
        """The checkpoint, with the positions that the run goes on from."""
        for stream, position in self.positions.items():
            begin = begin.with_position(stream, position) if begin.token == self.token else begin
        return begin

    def after(self, begin: Offset, repaired: Offset) -> Moves:
        """The same, with those of this checkpoint, as a repair has left it."""
        old_positions = self.positions if begin.token == self.token else {}
        moved = {stream: position for stream, position in repaired.positions.items() if position != begin[stream]}
        return Moves(begin.token, {**old_positions, **moved})


@dataclass(frozen=True)
class RunState:
    """What a run knows between two triggers. Each trigger replaces it. Whatever goes wrong replaces it by `unknown()`:
    then the next trigger asks the server, as after a restart."""

    is_known: bool = True
    heads: Mapping[str, StreamState] = field(default_factory=dict)  # the streams at the last trigger
    expected_positions: Mapping[str, StreamId] = field(default_factory=dict)  # where the groups must be
    acknowledged: Acknowledged = field(default_factory=Acknowledged)
    prefetched: Prefetched | None = None  # what was reserved for the next batch
    poison: CachedPoisonState = field(default_factory=CachedPoisonState)  # batches and pieces that killed the query
    admission: Admission = field(default_factory=Admission)  # how much a trigger takes
    turn: int = 0  # number of triggers
    account: Account = field(default_factory=Account)  # how many entries the streams have had
    moved: Moves = field(default_factory=Moves)  # where the query goes on elsewhere than at its checkpoint
    passed: Mapping[str, StreamId] = field(default_factory=dict)  # up to where it skips what nobody was given
    others_have_pending: bool = False  # other consumers of the groups have pending entries
    joined: frozenset[str] = frozenset()  # streams whose group did not have the query's consumer

    def unknown(self) -> RunState:
        """The run knows nothing of the server any more. It keeps what no server can tell: what was counted as lost is
        not counted again."""
        lasting = Acknowledged(covered=self.acknowledged.covered)
        return RunState(
            False,
            acknowledged=lasting,
            admission=self.admission,
            turn=self.turn,
            account=self.account,
            moved=self.moved,
            passed=self.passed,
            joined=self.joined,
        )

    def with_skipped_positions(
        self, begin: Offset, groups: Mapping[str, GroupState], acknowledged: Mapping[str, int]
    ) -> Offset:
        """The checkpoint behind what the run has accepted not to read, of streams with nothing pending for us.
        acknowledged: how many entries are pending in `groups`, and are not any more."""
        for stream, position in self.passed.items():
            is_read = stream in groups and groups[stream].ours <= acknowledged.get(stream, 0)
            if is_read and begin[stream] < position:
                begin = begin.with_position(stream, position)
        return begin

    def seen_by(self, member: Membership, by_pattern: bool, bookmarks: Bookmarks | None = None) -> Run:
        """What the diagnosis holds the groups against."""
        reserved = () if self.prefetched is None else self.prefetched.ends()
        return Run(member, self.account.counts, reserved, bookmarks, by_pattern)
