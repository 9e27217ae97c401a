"""The consumer group on the server as the driver sees it, in a round trip or two for all streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_streams.errors import GroupMissingError, GroupSharedError, StreamStateError
from spark_streams.model.ids import MIN_ID, StreamId
from spark_streams.model.operator_commands import delete_consumer_command, seek_command
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.findings.finding import Finding, Kind, Ownership
from spark_streams.source.findings.messages import Place, problem_of
from spark_streams.source.findings.remedies import error_of, remedy_of
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset
from spark_streams.wire.connection.connection import Reply, ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.reply_errors import is_no_group, is_no_such_key
from spark_streams.wire.replies.xinfo import StreamState, consumers_in, group_named, read_stream_state, stream_states

_MOMENTS = 5  # how often a stream and its group are looked for at one moment


class OtherConsumer(NamedTuple):
    """Another consumer of the group and how many entries are pending for it."""

    name: str
    pending: int


class GroupState(NamedTuple):
    """One stream's group at one moment.

    last_delivered: the group's position; entries_read, lag: Redis' own counts, None where it cannot tell;
    ours: entries pending for our consumer; known: whether the group has our consumer at all; others: who else is there;
    counted: whether entries_read is what the server says, and no estimate; released: entries that are pending for
    nobody (XNACK); the two replies were not made at one moment, so it may be too many; stands: where the group is, if
    it is a bookmark (noAck): then last_delivered is where the query is.
    """

    last_delivered: StreamId
    entries_read: int | None
    lag: int | None
    ours: int
    known: bool = True
    others: tuple[OtherConsumer, ...] = ()
    counted: bool = True
    released: int = 0
    stands: StreamId | None = None

    def at(self, position: StreamId) -> GroupState:
        """The group as the bookmark of a query that is at this position."""
        is_there = self.last_delivered == position
        read = self.entries_read if is_there else None
        return self._replace(last_delivered=position, entries_read=read, lag=None, stands=self.last_delivered)

    @property
    def has_others(self) -> bool:
        """Whether the group has consumers beside ours, also those made by this query, or released entries."""
        return bool(self.others) or self.released > 0

    def is_shared(self, member: Membership) -> bool:
        """Whether others read from the group, or did so and released entries; consumers that hold our own claims and
        pieces are not others."""
        return self.released > 0 or any(not member.owns(other.name) for other in self.others)


def fetch_state(
    server: Server, member: Membership, streams: Sequence[str], known: Mapping[str, StreamState] | None = None
) -> tuple[dict[str, StreamState], dict[str, GroupState | None]]:
    """Each stream and its group, None where it is gone. Raises WrongKeyTypeError, ServerReplyError.

    known: what an earlier look has found. XINFO STREAM sends the first and the last entry along, however large, so only
    streams whose counts have changed are asked again, in a second round trip.
    A group that has read nothing yet may have no entries-read; then it is what was added less the lag, where both were
    seen at one moment.
    """
    known = known or {}
    commands: list[tuple[str, ...]] = []
    for stream in streams:
        commands += [("XLEN", stream) if stream in known else ("XINFO", "STREAM", stream), *_questions(member, stream)]
    replies = server.execute_each(commands)
    heads: dict[str, StreamState] = {}
    states: dict[str, GroupState | None] = {}
    for stream, head, groups, consumers in zip(streams, replies, replies, replies, strict=True):
        state = _read_group_state(server, member, stream, groups, consumers)
        if stream not in known:
            heads[stream] = read_stream_state(server, stream, head)
        elif state is not None and _is_as_before(known[stream], head, state):
            heads[stream] = known[stream]
        states[stream] = state
    heads.update(stream_states(server, [stream for stream in streams if stream not in heads]))
    for _ in range(_MOMENTS):
        asked = [s for s, state in states.items() if state and state.entries_read is None and state.lag is not None]
        asked = [stream for stream in asked if heads[stream].added is not None]
        if not asked:
            break
        _look_at_one_moment(server, member, asked, heads, states)
    return heads, states


def _look_at_one_moment(
    server: Server,
    member: Membership,
    streams: Sequence[str],
    heads: dict[str, StreamState],
    states: dict[str, GroupState | None],
) -> None:
    """Ask for these streams before and after their groups: what was added less the lag, where nobody added between."""
    commands = [("XINFO", "STREAM", stream) for stream in streams]
    replies = server.execute_each([
        reply for again in commands for reply in (again, *_questions(member, again[2]), again)
    ])  # fmt: skip
    for stream, before, groups, consumers, after in zip(streams, replies, replies, replies, replies, strict=True):
        head, heads[stream] = (read_stream_state(server, stream, reply) for reply in (before, after))
        states[stream] = state = _read_group_state(server, member, stream, groups, consumers)
        if state is not None and state.entries_read is None and state.lag is not None and head.added is not None:
            is_quiet = head.added == heads[stream].added
            states[stream] = state._replace(entries_read=head.added - state.lag) if is_quiet else state


def _is_as_before(head: StreamState, length: Reply, state: GroupState) -> bool:
    """Whether as many entries are in the stream, and were ever added to it, as when `head` was seen."""
    if not length or head.length != length or state.entries_read is None or state.lag is None:
        return False  # an empty stream has a lag of 0 whatever came and went, and no entries to send along
    return state.entries_read + state.lag == head.added


def read_group_state(server: Server, member: Membership, stream: str, groups: Reply, consumers: Reply) -> GroupState:
    """From the replies of XINFO GROUPS and XINFO CONSUMERS. Raises GroupMissingError, DataLossError."""
    state = _read_group_state(server, member, stream, groups, consumers)
    if state is None:
        raise missing(server, member, stream, isinstance(groups, ReplyError))
    return state


def missing(
    server: Server, member: Membership, stream: str, stream_too: bool, logged: StreamId | None = None
) -> StreamStateError:
    """Return the error for a group that is gone, alone or with its stream. logged: the checkpoint's position, if it is
    known here."""
    place = Place(member, str(server.address), server.address.forgets)
    kind = Kind.STREAM_GONE if stream_too else Kind.GROUP_GONE
    finding = Finding(kind, stream, Ownership.EXCLUSIVE, MIN_ID if logged is None else logged)
    if stream_too or logged is not None:
        return error_of(finding, remedy_of(finding, lenient=False), place)
    return GroupMissingError(
        f"{problem_of(finding, place)}. Start the query again: the error then names the command that creates the group "
        "at the checkpoint. Or set failOnDataLoss=false: the query then creates it there"
    )


def require_groups(
    server: Server,
    member: Membership,
    heads: Mapping[str, StreamState],
    groups: Mapping[str, GroupState | None],
    checkpoint: Offset | None = None,
) -> None:
    """Raise GroupMissingError or DataLossError for the first group that is gone. With the checkpoint, the message names
    the command that creates the group there."""
    for stream, state in groups.items():
        if state is None:
            logged = None if checkpoint is None else checkpoint[stream]
            raise missing(server, member, stream, not heads[stream].exists, logged)


def _questions(member: Membership, stream: str) -> list[tuple[str, ...]]:
    return [("XINFO", "GROUPS", stream), ("XINFO", "CONSUMERS", stream, member.group)]


def _read_group_state(
    server: Server, member: Membership, stream: str, groups: Reply, consumers: Reply
) -> GroupState | None:
    if isinstance(groups, ReplyError):
        if is_no_such_key(groups):
            return None
        raise server.error_of(groups, ("XINFO", "GROUPS", stream))
    group = group_named(member.group, groups)
    if group is None:
        return None
    ours = None
    others = []
    released = 0
    if isinstance(consumers, ReplyError):
        if not (is_no_group(consumers) or is_no_such_key(consumers)):  # gone since the groups were looked at
            raise server.error_of(consumers, ("XINFO", "CONSUMERS", stream, member.group))
    else:
        known = consumers_in(consumers)
        released = max(0, group.pending - sum(consumer.pending for consumer in known))
        for consumer in known:
            if consumer.text == member.consumer:
                ours = consumer.pending
            else:
                others.append(OtherConsumer(consumer.text, consumer.pending))
    return GroupState(
        last_delivered=group.last_delivered,
        entries_read=group.entries_read,
        lag=group.lag,
        ours=ours or 0,
        known=ours is not None,
        others=tuple(others),
        counted=group.entries_read is not None,
        released=released,
    )


def require_alone(member: Membership, stream: str, state: GroupState) -> None:
    """Raise GroupSharedError if a noAck query is not alone in its group. Empty consumers of its own do not matter."""
    others = [other for other in state.others if other.pending or not member.owns(other.name)]
    if others:
        other, pending = others[0]
        remedy = (
            f"run the query without noAck; or, if {other!r} is used no more, delete it: that is refused while entries "
            f"are pending for it ({delete_consumer_command(stream, member.group, other)})"
        )
        if other.startswith(f"{member.consumer}~"):
            remedy = "it holds entries that an earlier run of this query has yet to read: run it without noAck first"
        raise GroupSharedError(
            f"stream {stream!r}: consumer {other!r} is in group {member.group!r} too, with {pending} pending entries, "
            f"and with noAck nobody can tell whose an entry is; {remedy}"
        )


def require_none_released(member: Membership, stream: str, state: GroupState) -> None:
    """Raises GroupSharedError if entries of the group were released: a noAck query has no pending list to read them."""
    if state.released:
        raise GroupSharedError(
            f"stream {stream!r}: {state.released} entries of group {member.group!r} were released (XNACK) and are "
            "pending for no consumer. A query with noAck does not read pending entries. Run it without noAck once, and "
            "it reads them"
        )


def shared_above(member: Membership, stream: str, state: GroupState, logged: StreamId) -> GroupSharedError:
    """Return the error for a run after one with noAck: others read from the group, and it stands above the checkpoint.

    logged: the checkpoint's position.
    """
    other = next(one.name for one in state.others if not member.owns(one.name))
    return GroupSharedError(
        f"stream {stream!r}: group {member.group!r} stands at {state.last_delivered}, above the checkpoint's {logged}, "
        f"consumer {other!r} reads from it, too, and the last run had noAck: nobody can tell which of the entries "
        "between were given to that run and are still to be read. Set the group back: the query reads all of them, "
        f"also those that {other!r} has read ({seek_command(stream, member.group, logged)})"
    )


@dataclass(frozen=True)
class Reserved:
    """ranges: what was delivered, in order per stream; states: the groups of all wanted streams after that."""

    ranges: list[EntryRange]
    states: Mapping[str, GroupState]
