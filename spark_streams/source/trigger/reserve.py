"""Reserving a batch: the group delivers entries to our consumer, and their data does not come to the driver
(docs/internals/facts.md, R1–R4).

A step is three commands: CLIENT REPLY SKIP and XREADGROUP, whose reply is suppressed, then XINFO GROUPS, which says
where the group is now and how many entries are pending. If the group has other consumers, XINFO CONSUMERS follows,
which says how many of these are ours. Steps of all streams travel in one round trip. The driver keeps only the ids
where steps end. If XREADGROUP fails, the others show nothing new: the driver then reads one entry with its reply, to
get the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from spark_streams.source.group.state import (
    GroupState,
    Reserved,
    read_group_now,
    read_group_state,
    read_lone_group,
)
from spark_streams.source.limits import LIMITS, Limits
from spark_streams.source.membership import Membership
from spark_streams.source.part import ALL, PENDING, Part
from spark_streams.source.range import Range
from spark_streams.wire.connection.connection import SKIP, Connection, Reply, pack
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.replies import milliseconds

_SENT_AT_ONCE = 100  # steps
_TIME = pack("TIME")
Step = TypeVar("Step")


def reserve(
    server: Server,
    member: Membership,
    wanted: Sequence[Range],
    states: Mapping[str, GroupState],
    step: int,
    limits: Limits = LIMITS,
) -> Reserved:
    """Have entries delivered to the query's consumer.

    wanted: of each stream, the first `count` entries of a range that begins at its group; states: the group of each
    wanted stream, read just before; step: entries of one command at most.
    Raises GroupMissingError, DataLossError, ServerError.
    """
    reserving = [_Reserving(entries, states[entries.stream]) for entries in wanted]
    times: dict[str, int] = {}
    unfinished = reserving
    while unfinished:
        steps = _round(unfinished, step, limits.reserve_round)
        read_to_the_end: set[str] = set()  # of this round
        for stream, lone, replies in _taken(server, member, steps, times):
            name = stream.stream
            if name in read_to_the_end:
                continue
            if lone is not None:
                after = lone
            elif replies is not None:
                after = read_group_state(server, member, name, *replies)
            else:  # another client has joined the group: all steps of this round are one range
                after = read_group_now(server, member, name)
                read_to_the_end.add(name)
            stream.delivered(_part(name, stream.before, after), after)
        for stream in unfinished:
            if stream.is_finished and stream.got_nothing:
                part, after, times[stream.stream] = _read_one_with_reply(server, member, stream.stream, stream.before)
                stream.delivered(part, after)
        unfinished = [stream for stream in unfinished if not stream.is_finished]
    return Reserved(
        [part for stream in reserving for part in stream.parts],
        {stream.stream: stream.now for stream in reserving},
        times,
    )


def _taken(
    server: Server, member: Membership, steps: Sequence[tuple[_Reserving, int]], times: dict[str, int]
) -> list[tuple[_Reserving, GroupState | None, tuple[Reply, Reply] | None]]:
    """Send all steps, to all servers at once. Return the stream of each step with the group after it, if the query is
    alone in the group; with the replies to XINFO GROUPS and XINFO CONSUMERS, if it was not alone; with neither, if it
    is no longer alone.

    Replies are parsed as they arrive, while the server executes the next steps. All are read before any error of the
    server is raised. times: gets the server's time after the last step of each stream."""
    taken: list[tuple[_Reserving, GroupState | None, tuple[Reply, Reply] | None]] = []
    sent = send_steps(server, steps, lambda step: step[0].stream, lambda step: _step(member, *step))
    for (reserving, _), connection in sent:
        groups = connection.next_reply()
        if reserving.now.is_alone:
            taken.append((reserving, read_lone_group(member, groups), None))
        else:
            taken.append((reserving, None, (groups, connection.next_reply())))
        times[reserving.stream] = milliseconds(connection.next_reply())
    return taken


def send_steps(
    server: Server, steps: Sequence[Step], stream_of: Callable[[Step], str], commands_of: Callable[[Step], bytes]
) -> Iterator[tuple[Step, Connection]]:
    """Send the commands of all steps, to all servers at once. Then yield each step with the connection from which the
    caller takes its replies."""
    parts = server.parts(steps, stream_of)
    for connection, steps_of_server in parts:
        connection.require_silence()
        for start in range(0, len(steps_of_server), _SENT_AT_ONCE):  # the server begins with the first ones
            piece = steps_of_server[start : start + _SENT_AT_ONCE]
            connection.send(b"".join([commands_of(step) for step in piece]))
    for connection, steps_of_server in parts:
        for step in steps_of_server:
            yield step, connection


@dataclass
class _Reserving:
    """One stream. before: its group where the next range begins; now: its group as last seen; parts: what was
    delivered; remaining: how many entries it may still ask for; is_finished: nothing more is asked for."""

    wanted: Range
    before: GroupState

    def __post_init__(self) -> None:
        self.now = self.before
        self.parts: list[Part] = []
        self.remaining = self.wanted.count
        self.is_finished = False

    def delivered(self, part: Part, after: GroupState) -> None:
        """What a step has delivered, and the group after it.

        If other clients claimed as many entries from us as the step delivered, it seems to have delivered none. The
        same holds for entries that were pending for us before, of a group that was set back. The next range then
        includes their ids. If there is no next range, the next trigger finds them pending above the batch.
        """
        is_stuck = after.last_delivered <= self.now.last_delivered
        self.now = after
        if part.count:
            self.before = after
            self.parts.append(part)
        self.is_finished |= is_stuck or self.remaining <= 0 or after.last_delivered >= self.wanted.last

    @property
    def stream(self) -> str:
        """Its name."""
        return self.wanted.stream

    @property
    def got_nothing(self) -> bool:
        """Whether the group has not moved, although it is not at the end."""
        return not self.parts and self.now.last_delivered <= self.before.last_delivered < self.wanted.last


def _round(streams: Sequence[_Reserving], step: int, limit: int) -> list[tuple[_Reserving, int]]:
    """Return the steps of one round trip, stream by stream, each with its number of entries: at least one step, and
    about `limit` entries. A step never delivers more. It may seem to deliver less: so the number asked for counts."""
    steps: list[tuple[_Reserving, int]] = []
    for reserving in streams:
        for _ in range(0, min(reserving.remaining, limit), step):
            count = min(reserving.remaining, step)
            steps.append((reserving, count))
            reserving.remaining -= count
            limit -= count
    return steps


def xreadgroup(member: Membership, stream: str, count: int, *options: str) -> list[str | int]:
    """Return the command that has new entries delivered. options: NOACK."""
    return ["XREADGROUP", "GROUP", member.group, member.consumer, "COUNT", count, *options, "STREAMS", stream, ">"]


def silent_step(member: Membership, stream: str, count: int, *options: str) -> bytes:
    """Return the commands of a step: XREADGROUP without its reply, then XINFO GROUPS."""
    return SKIP + pack(*xreadgroup(member, stream, count, *options)) + pack("XINFO", "GROUPS", stream)


def _step(member: Membership, reserving: _Reserving, count: int) -> bytes:
    stream = reserving.stream
    commands = silent_step(member, stream, count)
    if not reserving.now.is_alone:
        commands += pack("XINFO", "CONSUMERS", stream, member.group)
    return commands + _TIME


def _read_one_with_reply(
    server: Server, member: Membership, stream: str, before: GroupState
) -> tuple[Part, GroupState, int]:
    """Read one entry with its reply, to get the error: nothing was delivered, although the group is not at the end.
    Return the part, the group after that, and the server's time in milliseconds.

    Raises ServerReplyError. If there is neither entry nor error, the entries were deleted, or other clients read them.
    """
    server.execute(*xreadgroup(member, stream, 1))
    now = milliseconds(server.connection_for(stream).execute("TIME"))
    after = read_group_now(server, member, stream)
    return _part(stream, before, after), after, now


def _part(stream: str, before: GroupState, after: GroupState) -> Part:
    """What one step delivered to us: all entries of a range if the group as a whole delivered no more than that."""
    count = max(0, after.ours - before.ours)
    is_all = (
        before.entries_read is not None
        and after.entries_read is not None
        and after.entries_read - before.entries_read == count
    )
    return Part(Range(stream, before.last_delivered, after.last_delivered, count), ALL if is_all else PENDING)
