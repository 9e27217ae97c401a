"""Where a batch ends if the group delivers nothing (noAck): a second group walks ahead of the query.

The scratch group `rstream-probe:<group>:<consumer>` begins at the query's position. A step is CLIENT REPLY SKIP and
XREADGROUP … COUNT n NOACK, whose entries are not sent, then XINFO GROUPS, which says where the group is. So the driver
learns the ID of each n-th entry and receives none. Nothing is pending, and the server's memory does not grow.

A step has n entries, unless the stream ended within it. It did not end if the group has moved on since, to an entry
that existed when the trigger looked (`last`). So one more entry proves all steps before it. Entries of a step without
proof are counted with XRANGE.

The group is destroyed before the trigger ends. If the run is killed in between, the next run finds it with its first
look, and destroys it. Until then it is at or above the query's own group, so it holds no entry that the query has read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from spark_streams.model.ids import StreamId
from spark_streams.model.keys import probe_group
from spark_streams.source.group.account import count_between
from spark_streams.source.group.admin import GroupChange, change_groups
from spark_streams.source.group.findings import Start
from spark_streams.source.group.state import missing
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.range import Range
from spark_streams.source.trigger.reserve import send_steps, silent_step, xreadgroup
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.reply_errors import is_key_required
from spark_streams.wire.replies.xinfo import GroupInfo, group_named

_NOACK = "NOACK"


@dataclass
class Walk:
    """The scratch group's way through one stream. wanted: the first `count` entries of a range; is_whole: the range has
    exactly as many; reached: each step that moved it: the number of entries asked for,
    and the position after it; is_at_the_end: a step has not moved it; is_missing: there is no scratch group."""

    wanted: Range
    is_whole: bool
    reached: list[tuple[int, StreamId]] = field(default_factory=list)
    is_at_the_end: bool = False
    is_missing: bool = False

    @property
    def stream(self) -> str:
        """Its name."""
        return self.wanted.stream

    @property
    def position(self) -> StreamId:
        """Where the group is."""
        return self.reached[-1][1] if self.reached else self.wanted.after

    @property
    def remaining(self) -> int:
        """How many entries are still to be asked for: also one above the limit, as proof."""
        if self.is_at_the_end or self.is_missing or self.position >= self.wanted.last:
            return 0
        return max(0, self.wanted.count + (not self.is_whole) - sum(count for count, _ in self.reached))

    def steps(self, size: int, budget: int) -> list[int]:
        """Return the numbers of entries of the next steps, of about `budget` entries in total. The entry above the
        limit is a step of its own."""
        proof = 0 if self.is_whole else min(1, self.remaining)
        counts: list[int] = []
        remaining = self.remaining - proof
        while remaining > 0 and budget > 0:
            counts.append(min(size, remaining))
            remaining -= counts[-1]
            budget -= counts[-1]
        return [*counts, 1] if proof and not remaining else counts

    def moved(self, count: int, group: GroupInfo | None) -> None:
        """Take the group as it is after a step. group: None: it does not exist."""
        if group is None:
            self.is_missing = True
        elif group.last_delivered <= self.position:
            self.is_at_the_end = True
        else:
            self.reached.append((count, group.last_delivered))

    def ranges(self) -> tuple[list[Range], Range | None]:
        """Return the ranges whose number of entries is proven, and the range behind them, which has an unknown number.
        None: there is no such range. Pure."""
        wanted, ranges = self.wanted, list[Range]()
        after, asked_for = wanted.after, 0
        inside = [step for step in self.reached if step[1] <= wanted.last]
        for count, position in inside[:-1]:
            ranges.append(Range(self.stream, after, position, count))
            after, asked_for = position, asked_for + count
        if asked_for >= wanted.count:  # the last step is the entry above the limit
            return ranges, None
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
    # The group may be of a run that was killed, and is set to the begin, too.
    changes = {stream: GroupChange(create=start, set_to=start) for stream, start in begins.items()}
    change_groups(server, scratch, changes)
    walks = [Walk(entries, entries.stream in whole) for entries in wanted]
    _walk(server, scratch, walks, step, limits)
    ranges = {walk.stream: _counted(server, walk) for walk in walks}
    destroy_scratch_groups(server, member, list(begins))
    return ranges


def destroy_scratch_groups(server: Server, member: Membership, streams: Collection[str]) -> None:
    """Destroy the query's scratch groups on these streams, if they exist. Raises ServerError."""
    group = probe_group(member.group, member.consumer)
    commands = [("XGROUP", "DESTROY", stream, group) for stream in streams]
    for command, reply in zip(commands, server.execute_each(commands), strict=True):
        if isinstance(reply, ReplyError) and not is_key_required(reply):  # the stream may be deleted meanwhile
            raise server.error_of(reply, command)


def _walk(server: Server, scratch: Membership, walks: Sequence[Walk], step: int, limits: Limits) -> None:
    """Let the group walk until all walks have ended."""
    unfinished = list(walks)
    while unfinished:
        steps: list[tuple[Walk, int]] = []
        budget = limits.reserve_round
        for walk in unfinished:
            counts = walk.steps(step, budget)
            steps += [(walk, count) for count in counts]
            budget -= sum(counts)
        sent = send_steps(server, steps, lambda one: one[0].stream, lambda one: _step(scratch, *one))
        for (walk, count), connection in sent:
            walk.moved(count, group_named(scratch.group, connection.next_reply()))
        for walk in unfinished:
            if walk.is_missing:
                raise missing(server, scratch, walk.stream, not server.execute("EXISTS", walk.stream))
            if walk.is_at_the_end and not walk.reached:  # to get the error, if that is the cause
                server.execute(*xreadgroup(scratch, walk.stream, 1, _NOACK))
        unfinished = [walk for walk in unfinished if walk.remaining]


def _step(scratch: Membership, walk: Walk, count: int) -> bytes:
    return silent_step(scratch, walk.stream, count, _NOACK)


def _counted(server: Server, walk: Walk) -> list[Range]:
    """Return the ranges of a walk, each with its number of entries."""
    ranges, rest = walk.ranges()
    if rest is None:
        return ranges
    remaining = walk.wanted.count - sum(entries.count for entries in ranges)
    is_known = walk.is_whole and not walk.is_at_the_end and remaining > 0
    count = remaining if is_known else count_between(server, walk.stream, rest.after, rest.last)
    return [*ranges, replace(rest, count=count)]
