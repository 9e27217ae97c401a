"""Where a batch ends if the group delivers nothing (noAck): a second group walks ahead of the query.

The scratch group `rstream-probe:<group>:<consumer>` begins at the query's position. A step is CLIENT REPLY SKIP and
XREADGROUP … COUNT n NOACK, whose entries are not sent, then XINFO GROUPS, which says where the group is. So the driver
learns the ID of each n-th entry and receives none. Nothing is pending, and the server's memory does not grow.

A step has n entries, unless the stream ended within it. It did not end if the group has moved on since, to an entry
that existed when the trigger looked (`last`). So one more entry proves all steps before it. Entries of a step without
proof are counted with XRANGE.

A step that has not moved the group is the end of the stream, or the server has refused it: nobody reads its reply. So
one more entry is then asked for, with its reply: that is the error, or an entry up to `last`, and the trigger looks
again.

The group is destroyed before the trigger ends. If the run is killed in between, the next run finds it with its first
look, and destroys it. Until then it is at or above the query's own group, so it holds no entry that the query has read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import ServerReplyError
from spark_streams.connector.keys import probe_group
from spark_streams.connector.source.group.account import count_between
from spark_streams.connector.source.group.admin import GroupChange, change_groups
from spark_streams.connector.source.group.findings import Start
from spark_streams.connector.source.group.state import missing
from spark_streams.connector.source.limits import Limits
from spark_streams.connector.source.membership import Membership
from spark_streams.connector.source.range import Range
from spark_streams.connector.source.trigger.reserve import GroupSteps, in_rounds, silent_step, xreadgroup
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.replies import is_key_required, is_no_such_key
from spark_streams.connector.wire.replies.xinfo import GroupInfo, group_named

_NOACK = "NOACK"


@dataclass
class ScratchSteps(GroupSteps):
    """The steps of the scratch group through one stream, also over one entry above the limit, as proof. is_whole: the
    range has exactly as many entries as are wanted; reached: each step that moved it: the number of entries asked for,
    and the position after it; is_at_the_end: the last step has not moved it; was_refused: one has not moved
    it although there were entries; is_missing: there is no scratch group."""

    is_whole: bool
    reached: list[tuple[int, StreamId]] = field(default_factory=list)
    is_at_the_end: bool = False
    was_refused: bool = False
    is_missing: bool = False

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
        """Return the ranges whose number of entries is proven, and the range behind them, which has an unknown number.
        None: there is no such range. Pure."""
        wanted, ranges = self.wanted, list[Range]()
        after = wanted.after
        inside = [step for step in self.reached if step[1] <= wanted.last]
        for count, position in inside[:-1]:
            ranges.append(Range(self.stream, after, position, count))
            after = position
        within_limit = [position for _, position in self.reached if not self._is_above_limit(position)]
        end = wanted.last if self.is_at_the_end or not within_limit else min(within_limit[-1], wanted.last)
        return ranges, Range(self.stream, after, end) if after < end else None

    def _is_above_limit(self, position: StreamId) -> bool:
        """Whether the group got there with the entry above the limit."""
        return position == self.position and sum(count for count, _ in self.reached) > self.wanted.count


def exact_ranges(
    server: Server, member: Membership, wanted: Sequence[Range], whole: Collection[str], step: int, limits: Limits
) -> dict[str, list[Range]]:
    """Return the first `count` entries of each range as touching ranges, each with its exact number of entries. whole:
    streams whose range has exactly as many.

    The last range ends at `last` if there are no more. If entries leave the stream meanwhile, the last range of a
    stream whose entries are all wanted may have fewer entries than its number says.
    Raises GroupMissingError, StreamStateError, ServerError.
    """
    if not wanted:
        return {}
    scratch = replace(member, group=probe_group(member.group, member.consumer))
    begins = {entries.stream: Start(entries.after) for entries in wanted}
    # There is none yet: the first look of a run has destroyed that of a run that was killed.
    change_groups(server, scratch, {stream: GroupChange(create=start) for stream, start in begins.items()})
    walks = [ScratchSteps(entries, entries.stream in whole) for entries in wanted]
    _walk(server, scratch, walks, step, limits)
    ranges = {walk.stream: _counted(server, walk) for walk in walks}
    destroy_scratch_groups(server, member, list(begins))
    return ranges


def destroy_scratch_groups(server: Server, member: Membership, streams: Collection[str]) -> None:
    """Destroy the query's scratch groups on these streams, if they exist. Raises ServerError."""
    group = probe_group(member.group, member.consumer)
    commands = [("XGROUP", "DESTROY", stream, group) for stream in streams]
    server.execute_all(commands, is_key_required)  # a stream may be deleted meanwhile


def _walk(server: Server, scratch: Membership, walks: Sequence[ScratchSteps], step: int, limits: Limits) -> None:
    """Let the group walk until all walks have ended."""
    for of_round, sent in in_rounds(server, walks, step, limits.reserve_round, partial(_step, scratch)):
        for walk, count, connection in sent:
            groups = connection.next_answer(("XINFO", "GROUPS", walk.stream), is_no_such_key)
            walk.moved(count, group_named(scratch.group, groups))
        for walk in of_round:
            if walk.is_missing:
                raise missing(server, scratch, walk.stream, not server.execute("EXISTS", walk.stream))
            if walk.is_at_the_end and walk.position < walk.wanted.last:
                for _, entries in server.execute(*xreadgroup(scratch, walk.stream, 1, _NOACK)) or ():
                    walk.goes_on_at(StreamId.parse(entries[0][0]))
            if walk.was_refused:
                raise ServerReplyError(
                    f"the server at {server.address} has refused XREADGROUP of stream {walk.stream!r}", "TRYAGAIN"
                )


def _step(scratch: Membership, walk: ScratchSteps, count: int) -> bytes:
    return silent_step(scratch, walk.stream, count, _NOACK)


def _counted(server: Server, walk: ScratchSteps) -> list[Range]:
    """Return the ranges of a walk, each with its number of entries."""
    ranges, rest = walk.ranges()
    if rest is None:
        return ranges
    remaining = walk.wanted.count - sum(entries.count for entries in ranges)
    is_known = walk.is_whole and not walk.is_at_the_end and remaining > 0
    count = remaining if is_known else count_between(server, walk.stream, rest.after, rest.last)
    return [*ranges, replace(rest, count=count)]
