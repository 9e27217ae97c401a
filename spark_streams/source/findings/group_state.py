"""Consumer groups as the driver sees them, fetched in one or two round trips for all streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_streams.errors import GroupMissingError, GroupSharedError, StreamStateError
from spark_streams.model.ids import MIN_ID, StreamId
from spark_streams.model.operator_commands import delete_consumer_command, seek_command
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.findings.finding import Finding, GroupUse, Kind
from spark_streams.source.findings.messages import Place, problem_of
from spark_streams.source.findings.remedies import error_of, remedy_of
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset
from spark_streams.wire.connection.connection import Reply, ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.reply_errors import is_no_group, is_no_such_key
from spark_streams.wire.replies.xinfo import StreamState, consumers_in, group_named, read_stream_state, stream_states

_ATTEMPTS = 5  # at reading a stream and its group at the same moment


class OtherConsumer(NamedTuple):
    """Another consumer of the group and how many entries are pending for it."""

    name: str
    pending: int


class GroupState(NamedTuple):
    """One stream's group at one moment.

    last_delivered: the group's position; entries_read, lag: Redis' own counts, None: unknown; ours: entries pending for
    the query's consumer; has_consumer: whether the group has the query's consumer; others: all other consumers;
    counted: whether entries_read is the server's number, and no estimate; released: entries that are pending for no
    consumer (XNACK), possibly too many, because two replies are compared; bookmark_position: of the group, if it is a
    bookmark (noAck); its last_delivered is then the query's position.
    """

    last_delivered: StreamId
    entries_read: int | None
    lag: int | None
    ours: int
    has_consumer: bool = True
    others: tuple[OtherConsumer, ...] = ()
    counted: bool = True
    released: int = 0
    bookmark_position: StreamId | None = None

    def as_bookmark(self, position: StreamId) -> GroupState:
        """Return the group as the bookmark of a query at this position."""
        is_in_place = self.last_delivered == position
        read = self.entries_read if is_in_place else None
        return self._replace(
            last_delivered=position, entries_read=read, lag=None, bookmark_position=self.last_delivered
        )

    @property
    def has_others(self) -> bool:
        """Whether the group has other consumers, also those that this query has created, or released entries."""
        return bool(self.others) or self.released > 0

    @property
    def is_alone(self) -> bool:
        """Whether the group has the query's consumer, no other one, and no released entries."""
        return self.has_consumer and not self.has_others

    def is_shared(self, member: Membership) -> bool:
        """Whether other clients read from the group, or have released entries. Consumers that the query has created for
        claims and pieces do not count."""
        if not self.others:
            return self.released > 0
        return self.released > 0 or any(not member.owns(other.name) for other in self.others)


def fetch_state(
    server: Server, member: Membership, streams: Sequence[str], cached_heads: Mapping[str, StreamState] | None = None
) -> tuple[dict[str, StreamState], dict[str, GroupState | None]]:
    """Return each stream and its group; None: the group does not exist. Raises WrongKeyTypeError, ServerReplyError.

    cached_heads: of an earlier call. XINFO STREAM also returns the first and the last entry, however large. So only
    streams whose counts have changed are fetched again, in a second round trip.
    A group that has read no entry may lack entries-read. Then it is entries-added minus lag, if both are of the same
    moment.
    """
    cached_heads = cached_heads or {}
    commands: list[tuple[str, ...]] = []
    for stream in streams:
        commands += [
            ("XLEN", stream) if stream in cached_heads else ("XINFO", "STREAM", stream),
            *_group_commands(member, stream),
        ]
    replies = server.execute_each(commands)
    heads: dict[str, StreamState] = {}
    states: dict[str, GroupState | None] = {}
    for stream, head, groups, consumers in zip(streams, replies, replies, replies, strict=True):
        states[stream] = state = _read_group_state(server, member, stream, groups, consumers)
        cached_head = cached_heads.get(stream)
        if cached_head is None:
            heads[stream] = read_stream_state(server, stream, head)
        elif state is not None and _is_unchanged(cached_head, head, state):
            heads[stream] = cached_head
    heads.update(stream_states(server, [stream for stream in streams if stream not in heads]))
    for _ in range(_ATTEMPTS):
        uncounted = [s for s, state in states.items() if state and state.entries_read is None and state.lag is not None]
        uncounted = [stream for stream in uncounted if heads[stream].added is not None]
        if not uncounted:
            break
        _fetch_at_one_moment(server, member, uncounted, heads, states)
    return heads, states


def _fetch_at_one_moment(
    server: Server,
    member: Membership,
    streams: Sequence[str],
    heads: dict[str, StreamState],
    states: dict[str, GroupState | None],
) -> None:
    """Fetch these streams before and after their groups. If no entry was added in between, entries-read is
    entries-added minus lag."""
    commands: list[tuple[str, ...]] = []
    for stream in streams:
        head_command = ("XINFO", "STREAM", stream)
        commands += [head_command, *_group_commands(member, stream), head_command]
    replies = server.execute_each(commands)
    for stream, before, groups, consumers, after in zip(streams, replies, replies, replies, replies, strict=True):
        head, heads[stream] = (read_stream_state(server, stream, reply) for reply in (before, after))
        states[stream] = state = _read_group_state(server, member, stream, groups, consumers)
        if state is not None and state.entries_read is None and state.lag is not None and head.added is not None:
            is_quiet = head.added == heads[stream].added
            states[stream] = state._replace(entries_read=head.added - state.lag) if is_quiet else state


def _is_unchanged(head: StreamState, length: Reply, state: GroupState) -> bool:
    """Whether the stream has as many entries, and ever had as many, as when `head` was fetched."""
    if not length or head.length != length or state.entries_read is None or state.lag is None:
        return False  # an empty stream always has a lag of 0; and XINFO STREAM returns no entry of it
    return state.entries_read + state.lag == head.added


def read_group_state(server: Server, member: Membership, stream: str, groups: Reply, consumers: Reply) -> GroupState:
    """Parse the replies of XINFO GROUPS and XINFO CONSUMERS. Raises GroupMissingError, DataLossError."""
    state = _read_group_state(server, member, stream, groups, consumers)
    if state is None:
        raise missing(server, member, stream, isinstance(groups, ReplyError))
    return state


def read_lone_group(member: Membership, groups: Reply) -> GroupState | None:
    """Parse the reply of XINFO GROUPS alone, for a group in which the query was alone: what is pending is pending for
    it. None: it is no longer alone, or XINFO GROUPS failed."""
    group = group_named(member.group, groups)
    if group is None or group.consumers != 1:
        return None
    is_counted = group.entries_read is not None
    return GroupState(group.last_delivered, group.entries_read, group.lag, group.pending, counted=is_counted)


def read_group_now(server: Server, member: Membership, stream: str) -> GroupState:
    """Ask the server for the group. Raises GroupMissingError, DataLossError."""
    groups, consumers = server.pipeline(_group_commands(member, stream))
    return read_group_state(server, member, stream, groups, consumers)


def missing(
    server: Server, member: Membership, stream: str, stream_too: bool, logged: StreamId | None = None
) -> StreamStateError:
    """Return the error for a missing group, alone or with its stream. logged: the checkpoint's position, None:
    unknown."""
    place = Place(member, str(server.address), server.address.forgets)
    kind = Kind.STREAM_GONE if stream_too else Kind.GROUP_GONE
    finding = Finding(kind, stream, GroupUse.EXCLUSIVE, MIN_ID if logged is None else logged)
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
    """Raise GroupMissingError or DataLossError for the first missing group. With the checkpoint, the message names the
    command that creates the group there."""
    for stream, state in groups.items():
        if state is None:
            logged = None if checkpoint is None else checkpoint[stream]
            raise missing(server, member, stream, not heads[stream].exists, logged)


def _group_commands(member: Membership, stream: str) -> list[tuple[str, ...]]:
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
        if not (is_no_group(consumers) or is_no_such_key(consumers)):  # deleted after XINFO GROUPS
            raise server.error_of(consumers, ("XINFO", "CONSUMERS", stream, member.group))
    else:
        consumer_list = consumers_in(consumers)
        released = max(0, group.pending - sum(consumer.pending for consumer in consumer_list))
        for consumer in consumer_list:
            if consumer.text == member.consumer:
                ours = consumer.pending
            else:
                others.append(OtherConsumer(consumer.text, consumer.pending))
    return GroupState(
        group.last_delivered,
        group.entries_read,
        group.lag,
        ours or 0,
        ours is not None,
        tuple(others),
        group.entries_read is not None,
        released,
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
    """Return the error for a run after one with noAck: others read from the group, and it is above the checkpoint.

    logged: the checkpoint's position.
    """
    other = next(other_consumer.name for other_consumer in state.others if not member.owns(other_consumer.name))
    return GroupSharedError(
        f"stream {stream!r}: group {member.group!r} is at {state.last_delivered}, above the checkpoint's {logged}. "
        f"Consumer {other!r} reads from it, too, and the last run had noAck. So it is unknown which of the entries in "
        "between that run was given and has not read. Set the group back: the query reads all of them, also those "
        f"that {other!r} has read ({seek_command(stream, member.group, logged)})"
    )


def shared_at_restart(member: Membership, stream: str, state: GroupState) -> GroupSharedError:
    """Return the error for onNewCheckpoint=restart in a group that others read from."""
    other = next((other.name for other in state.others if not member.owns(other.name)), None)
    who = f"{state.released} entries of it were released (XNACK)" if other is None else f"consumer {other!r} reads too"
    remedy = (
        ""
        if other is None
        else (
            f", or delete {other!r} if it is used no more: that is refused while entries are pending for it "
            f"({delete_consumer_command(stream, member.group, other)})"
        )
    )
    return GroupSharedError(
        f"stream {stream!r}: onNewCheckpoint=restart cannot set group {member.group!r} to startingOffsets, because "
        f"{who}. Give the query a group of its own (option group){remedy}"
    )


@dataclass(frozen=True)
class Reserved:
    """Reserved entries. ranges: in order per stream; states: the groups of all requested streams after that."""

    ranges: list[EntryRange]
    states: Mapping[str, GroupState]
