"""Reserving a batch: the group delivers entries to our consumer, and their data does not come to the driver
(docs/internals/facts.md, R1–R4).

A step is four commands: CLIENT REPLY SKIP and XREADGROUP, whose reply is suppressed, then XINFO GROUPS and XINFO
CONSUMERS, which say where the group is now and how many entries are ours. Steps of all streams travel in one round
trip. The driver keeps only the ids where steps end. If XREADGROUP fails, the two others show nothing new: the driver
then reads one entry with its reply, to get the error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_streams.model.ids import StreamId
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.findings.group_state import GroupState, Reserved, read_group_state
from spark_streams.source.limits import LIMITS, Limits
from spark_streams.source.membership import Membership
from spark_streams.source.microbatch.admission import Admission
from spark_streams.source.quota import BatchQuota, take_in_parts
from spark_streams.wire.connection.connection import Reply, pack
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.xinfo import StreamState

_SKIP = pack("CLIENT", "REPLY", "SKIP")


@dataclass(frozen=True)
class Wanted:
    """most: how many entries of a stream to reserve; until: stop once the group has come to this id."""

    most: int
    until: StreamId


@dataclass(frozen=True)
class Reserving:
    """How one query reserves new entries: when a batch is made, or ahead of it."""

    member: Membership
    admission: Admission
    limits: Limits

    def new_entries(
        self,
        server: Server,
        heads: Mapping[str, StreamState],
        states: Mapping[str, GroupState],
        backlog: Mapping[str, int],
        quota: BatchQuota,
        turn: int,
    ) -> tuple[Reserved, BatchQuota]:
        """Reserve what the quota admits of each stream's backlog. Return it with the remaining quota. Raises as
        `reserve` does."""
        ends = {stream: self.admission.end_of(stream, heads).last for stream in backlog}
        now: dict[str, GroupState] = {}

        def take(allowed: Mapping[str, int], after: Mapping[str, StreamId]) -> list[EntryRange]:
            wanted = {s: Wanted(n, ends[s]) for s, n in allowed.items() if n > 0 and after[s] < ends[s]}
            step = min(self.limits.reserve_step, self.admission.size(list(allowed.values())))
            part = reserve(server, self.member, wanted, {**states, **now}, step, self.limits)
            now.update(part.states)
            return part.ranges

        after = {stream: states[stream].last_delivered for stream in backlog}
        ranges, left = take_in_parts(server, quota, backlog, after, turn, take, self.limits)
        return Reserved(ranges, now), left

    def is_worth_it(self, backlog: Mapping[str, int], quota: BatchQuota) -> bool:
        """Whether reserving the next batch, with this quota and backlog, takes long."""
        left, there = sum(backlog.values()), sum(quota.within_stream_limits(backlog).values())
        taken = there if quota.entries is None else min(there, quota.entries)
        return taken >= self.limits.prefetch_entries and not self.admission.is_too_little(left)


def reserve(
    server: Server,
    member: Membership,
    wanted: Mapping[str, Wanted],
    states: Mapping[str, GroupState],
    step: int,
    limits: Limits = LIMITS,
) -> Reserved:
    """Have up to the wanted entries delivered to our consumer.

    states: the group of each wanted stream, read just before; step: entries of one command at most.
    Raises GroupMissingError, DataLossError, ServerError.
    """
    reserving = [_Reserving(stream, want, states[stream]) for stream, want in wanted.items()]
    left = reserving
    while left:
        steps = _round(left, step, limits.reserve_round)
        for (one, _), groups, consumers in _taken(server, member, steps):
            after = read_group_state(server, member, one.stream, groups, consumers)
            one.delivered(_range(one.stream, one.before, after), after)
        for one in left:
            if one.is_finished and one.got_nothing:
                one.delivered(*_read_one_with_reply(server, member, one.stream, one.before))
        left = [one for one in left if not one.is_finished]
    return Reserved(
        [entries for one in reserving for entries in one.ranges], {one.stream: one.now for one in reserving}
    )


def _taken(
    server: Server, member: Membership, steps: Sequence[tuple[_Reserving, int]]
) -> list[tuple[tuple[_Reserving, int], Reply, Reply]]:
    """Each step with the replies to its two questions; all servers work at the same time."""
    parts = server.parts(steps, lambda step: step[0].stream)
    for there, some in parts:
        there.require_silence()
        there.send(b"".join([_step(member, one.stream, count) for one, count in some]))
    taken = []
    for there, some in parts:
        replies = there.replies(2 * len(some))
        taken += list(zip(some, replies[0::2], replies[1::2], strict=True))
    return taken


@dataclass
class _Reserving:
    """One stream. before: its group where the next range begins; now: its group as last seen; ranges: what was
    delivered; is_finished: nothing more is asked for."""

    stream: str
    wanted: Wanted
    before: GroupState

    def __post_init__(self) -> None:
        self.now = self.before
        self.ranges: list[EntryRange] = []
        self.left = self.wanted.most
        self.is_finished = False

    def delivered(self, entries: EntryRange, after: GroupState) -> None:
        """What a step has delivered, and the group after it.

        If other clients claimed as many entries from us as the step delivered, it seems to have delivered none. The
        next range then includes their ids. If there is no next range, the next trigger finds them pending above the
        batch.
        """
        self.now = after
        self.left -= entries.count
        if entries.count:
            self.before = after
            self.ranges.append(entries)
        is_at_the_end = self.left <= 0 or after.last_delivered >= self.wanted.until
        self.is_finished |= entries.count == 0 or is_at_the_end

    @property
    def got_nothing(self) -> bool:
        """Whether there should have been something to deliver."""
        return not self.ranges and self.now.last_delivered < self.wanted.until


def _round(streams: Sequence[_Reserving], step: int, limit: int) -> list[tuple[_Reserving, int]]:
    """Return the steps of one round trip, stream by stream, each with its number of entries: at least one step, and
    about `limit` entries."""
    steps: list[tuple[_Reserving, int]] = []
    for reserving in streams:
        for done in range(0, min(reserving.left, limit), step):
            count = min(reserving.left - done, step)
            steps.append((reserving, count))
            limit -= count
    return steps


def _ask(member: Membership, stream: str, count: int) -> list[str | int]:
    words: list[str | int] = ["XREADGROUP", "GROUP", member.group, member.consumer, "COUNT", count]
    return [*words, "STREAMS", stream, ">"]


def _step(member: Membership, stream: str, count: int) -> bytes:
    return b"".join(
        [
            _SKIP,
            pack(*_ask(member, stream, count)),
            pack("XINFO", "GROUPS", stream),
            pack("XINFO", "CONSUMERS", stream, member.group),
        ]
    )


def _read_one_with_reply(
    server: Server, member: Membership, stream: str, before: GroupState
) -> tuple[EntryRange, GroupState]:
    """Nothing was delivered although there is more: read one entry with its reply, so that an error is heard.

    Raises ServerReplyError and kin. No entry and no error: what is left of the stream was deleted, or others read it.
    """
    server.execute(*_ask(member, stream, 1))
    groups, consumers = server.pipeline([("XINFO", "GROUPS", stream), ("XINFO", "CONSUMERS", stream, member.group)])
    after = read_group_state(server, member, stream, groups, consumers)
    return _range(stream, before, after), after


def _range(stream: str, before: GroupState, after: GroupState) -> EntryRange:
    """What one step delivered to us. The range is owned when the group as a whole delivered no more than that."""
    count = max(0, after.ours - before.ours)
    owned = (
        before.entries_read is not None
        and after.entries_read is not None
        and after.entries_read - before.entries_read == count
    )
    return EntryRange(stream, before.last_delivered, after.last_delivered, count, owned)
