"""What the server has of one entry: the stream, the entry and its groups. Nothing on the server changes.

TIME   XINFO STREAM   XINFO GROUPS   XRANGE id id   PTTL     and XINFO STREAM again: see `EntryFacts.after`
XPENDING … id id 1                                           of each group
SCAN and GET committed …                                     of all its queries
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_streams.base.ids import StreamId
from spark_streams.connector.admin.groups import Mark, count_between, fetch_marks_of_stream, nth_from
from spark_streams.connector.wire.connection import Argument, ReplyError, Server
from spark_streams.connector.wire.replies import is_no_group, milliseconds
from spark_streams.connector.wire.xinfo import (
    GroupInfo,
    IdempotentAdds,
    StreamState,
    groups_in,
    idempotent_adds_in,
    read_stream_state,
)

Name = str | bytes  # of a stream; bytes if it is not UTF-8


@dataclass(frozen=True)
class Pending:
    """An entry in a pending list. consumer: empty if the entry was released (XNACK); idle: milliseconds."""

    consumer: bytes
    idle: int
    deliveries: int


@dataclass(frozen=True)
class GroupFacts:
    """A group and one entry."""

    info: GroupInfo
    pending: Pending | None = None
    before: int | None = None  # undelivered entries before it; None: not counted
    at_least: bool = False  # there may be more than `before`
    marks: tuple[tuple[str, Mark], ...] = ()  # of the queries of the group, by consumer


@dataclass(frozen=True)
class EntryFacts:
    """An entry of a stream. One that is absent was not above `state.last`, and `after` counts its removal."""

    stream: Name
    id: StreamId
    now: int  # the server's time
    state: StreamState  # of the stream, before the entry was read
    after: StreamState  # of the stream, behind it
    fields: Sequence[bytes] | None  # None: the entry is absent
    groups: tuple[GroupFacts, ...] = ()
    marks_refused: bool = False  # the user may not read the commit marks
    adds: IdempotentAdds | None = None
    expires_in: int | None = None  # ms; None: the stream does not expire, or the user may not ask

    @property
    def is_pending(self) -> bool:
        """Whether a group has it in its pending list."""
        return any(group.pending is not None for group in self.groups)


def fetch_facts(server: Server, stream: Name, entry: StreamId, limit: int) -> EntryFacts:
    """Return the facts of an entry. limit: of undelivered entries that are counted before it. Raises WrongKeyTypeError,
    ServerError."""
    node = server.connection_for(stream)
    about: tuple[Argument, ...] = ("XINFO", "STREAM", stream)
    asked: list[tuple[Argument, ...]] = [
        ("TIME",), about, ("XINFO", "GROUPS", stream), ("XRANGE", stream, bytes(entry), bytes(entry)), about,
        ("PTTL", stream),
    ]  # fmt: skip
    clock, before, groups, found, after, ttl = node.pipeline(asked)
    state = read_stream_state(server, stream, before)
    server.answer(("TIME",), clock)
    if not state.exists:
        return EntryFacts(stream, entry, milliseconds(clock), state, state, None)
    server.checked(asked[2:4], [groups, found])
    marks, refused = fetch_marks_of_stream(server, stream)
    return EntryFacts(
        stream,
        entry,
        milliseconds(clock),
        state,
        read_stream_state(server, stream, after),
        found[0][1] if found else None,
        tuple(
            replace(_fetch_group(server, stream, entry, info, limit), marks=marks.get(info.name, ()))
            for info in groups_in(groups)
        ),
        refused,
        idempotent_adds_in(before),
        None if isinstance(ttl, ReplyError) or ttl < 0 else ttl,
    )


def _fetch_group(server: Server, stream: Name, entry: StreamId, info: GroupInfo, limit: int) -> GroupFacts:
    asked = ("XPENDING", stream, info.name, bytes(entry), bytes(entry), 1)
    [pending] = server.execute_all([asked], is_no_group)
    if pending and not is_no_group(pending):  # the group was not deleted in the meantime
        return GroupFacts(info, Pending(*pending[0][1:4]))
    if entry <= info.last_delivered or not isinstance(stream, str):
        return GroupFacts(info)
    last, end = nth_from(server, stream, info.last_delivered, limit), entry.previous()
    before = count_between(server, stream, info.last_delivered, min(last, end))
    return GroupFacts(info, None, before, at_least=last < end and before >= limit)
