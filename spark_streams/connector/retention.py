"""What may be removed of a stream: what every group has been given and has acknowledged.

    entries   █ █ █ █ █ · █ · · █ · · · · | ○ ○ ○ ○ ○ ○     █ acknowledged by all   · pending in some group
                        ↑ needed            ↑ delivered     ○ undelivered in some group

**Readers**: the groups of streams, with their lowest pending entry.

**Sweeper** removes entries that every group has acknowledged (onCommit=trim and onCommit=delete):

trim    XTRIM MINID ~ needed: whole nodes, of about a hundred entries each. The same on every server.
delete  XTRIM MINID = needed: each entry. If entries below `delivered` are pending, and the server supports it (Redis
        since 8.2, the bundled engine), XTRIM MINID = delivered ACKED follows: it also removes the acknowledged entries
        between pending ones.

The cost is that of the removed entries. Only ACKED also walks past all pending entries. Its time is measured, and the
next one is postponed if it takes long, so that it uses a small share of the time. A sweep keeps no state that matters:
the next sweep finds what a crash or an outage has left.

**Forgotten groups**: those that an operator lets hold no entries back (`rstream groups prune --hold`).

    XINFO CONSUMERS                     the group has consumers, and all of them are idle for that time
    SCAN and GET the leases             no query of the group runs
    WATCH them   MULTI SET record EXEC  before an entry that the group needs is removed

The record has the time and the group's position, and is valid while the group stands there. A query takes its lease
before it looks for a record (source.group.begin): it finds the record, or EXEC fails. The idle time is that of the
server. A query begins it anew when it reads from the group and when it starts; without a pending list it reads nothing
from the group, and begins it when it commits (`GroupChange.touch`). A group without consumers is never forgotten,
because the server cannot tell when it was last used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from spark_streams.base.ids import MAX_ID, InvalidStreamId, StreamId
from spark_streams.base.numbers import parse_number
from spark_streams.base.pattern import escape
from spark_streams.connector.keys import forgotten_key, key_beside
from spark_streams.connector.wire.connection import Reply, ReplyError, Server
from spark_streams.connector.wire.lease import Processes, are_held
from spark_streams.connector.wire.replies import (
    is_no_group,
    is_no_such_key,
    is_not_permitted,
    is_syntax_error,
    milliseconds,
    transact,
)
from spark_streams.connector.wire.scan import matching_strings
from spark_streams.connector.wire.xinfo import ConsumerInfo, GroupInfo, groups_in

GroupName = tuple[bytes, bytes]  # stream, group
Name = TypeVar("Name", bytes, str)
Key = TypeVar("Key")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class ForgottenGroup:
    """Record of a forgotten group. at: when, in Unix ms of the server; position: where the group stood."""

    at: int
    position: StreamId

    def __str__(self) -> str:
        return f"{self.at} {self.position}"

    @classmethod
    def parse(cls, value: bytes | None) -> ForgottenGroup | None:
        """Return the record_forgotten of a key; None if there is none, or another client wrote something else."""
        number, _, position = (value or b"").partition(b" ")
        at = parse_number(number.decode("ascii", "replace"))
        try:
            return None if at is None else cls(at, StreamId.parse(position))
        except InvalidStreamId:
            return None


@dataclass(frozen=True)
class ReadingGroup:
    """A group of a stream. oldest: its lowest pending entry, None if nothing is pending."""

    info: GroupInfo
    oldest: StreamId | None

    @property
    def needed(self) -> StreamId:
        """Lowest ID that is undelivered or unacknowledged."""
        above = _above(self.info.last_delivered)
        return above if self.oldest is None else min(above, self.oldest)


def holding(readers: Mapping[tuple[Name, Name], ReadingGroup]) -> list[tuple[Name, Name]]:
    """Return the groups that hold entries back: another group of the stream needs less. readers: by stream and group.
    Pure."""
    most: dict[Name, StreamId] = {}
    for (stream, _), reader in readers.items():
        most[stream] = max(reader.needed, most.get(stream, reader.needed))
    return [group for group, reader in readers.items() if reader.needed < most[group[0]]]


def record_forgotten(
    server: Server, group: GroupName, info: GroupInfo, consumers: Iterable[ConsumerInfo]
) -> ForgottenGroup | None:
    """Record that a group is forgotten. Return None, and change nothing, if a query of it runs or begins to run.
    Raises ServerError."""
    stream, name = group[0], group[1].decode("utf-8", "surrogateescape")
    forgotten, pattern = forgotten_key(stream, name), f"{escape(key_beside(stream, 'lease', name).decode())}:*"
    running = matching_strings(server, pattern)
    of_consumers = [key_beside(stream, "lease", name, consumer.text) for consumer in consumers]
    keys = list(dict.fromkeys([*running, *of_consumers]))
    leases = server.execute_all([("WATCH", *keys), *[("GET", key) for key in keys]])[1:]
    if any(are_held(server, leases, Processes())):
        server.connection_for(keys[0]).execute("UNWATCH")
        return None
    new = ForgottenGroup(milliseconds(server.connection_for(keys[0]).execute("TIME")), info.last_delivered)
    if transact(server, [("SET", forgotten, str(new))]) is None:
        return None
    # A query of another name takes its lease before it asks for this key: one of the two sees the other.
    begun = [("GET", key) for key in matching_strings(server, pattern) if key not in keys]
    if any(are_held(server, server.execute_all(begun), Processes())):
        server.execute("DEL", forgotten)
        return None
    return new


_DELETED = (is_no_group, is_no_such_key)  # in the meantime


def _read(keys: Sequence[Key], replies: Sequence[Reply], read: Callable[[Reply], Answer]) -> dict[Key, Answer]:
    """Return what each reply says that is not one of _DELETED."""
    return {key: read(reply) for key, reply in zip(keys, replies, strict=True) if not isinstance(reply, ReplyError)}


@dataclass(frozen=True)
class RetentionState:
    """The groups of one stream, by name. limit: the position of the query that removes, above which it has read
    nothing.

    Groups move forwards, so the state is still safe a moment later. (A group that is created again or set back
    meanwhile may miss entries, as it may after the removal.)"""

    readers: Mapping[bytes, ReadingGroup]
    limit: StreamId = MAX_ID

    @property
    def delivered(self) -> StreamId:
        """ID below which all entries were delivered to every group, and read by the query. Needs a group."""
        return _above(min(self.limit, *(reader.info.last_delivered for reader in self.readers.values())))

    @property
    def needed(self) -> StreamId:
        """Lowest ID that is undelivered or unacknowledged in a group."""
        return min(_above(self.limit), *(reader.needed for reader in self.readers.values()))


class Readers:
    """Fetches the groups of streams. It remembers groups and asks for their pending entries together with the next
    request, so that a further fetch takes one round trip if no group is new."""

    def __init__(self) -> None:
        self._groups: set[GroupName] = set()

    def forget(self, streams: Collection[bytes]) -> None:
        """Forget these streams. They may be fetched again."""
        self._groups = {group for group in self._groups if group[0] not in streams}

    def fetch(self, server: Server, streams: Sequence[bytes]) -> dict[bytes, RetentionState]:
        """Return the state of each stream that exists. Raises ServerReplyError.

        The pending entries of a group are fetched after the group itself: entries that are delivered in between are
        above the position that was read.
        """
        requested = set(streams)
        known_groups = sorted(group for group in self._groups if group[0] in requested)
        questions = [*[("XINFO", "GROUPS", stream) for stream in streams], *_questions(known_groups)]
        replies = server.execute_all(questions, *_DELETED)
        groups = _read(streams, replies[: len(streams)], groups_in)
        oldest = _read_answers(known_groups, replies[len(streams) :])
        present_groups = {(stream, info.name) for stream, infos in groups.items() for info in infos}
        new_groups = sorted(present_groups - set(known_groups))
        oldest |= _read_answers(new_groups, server.execute_all(_questions(new_groups), *_DELETED))
        self._groups = (self._groups - set(known_groups)) | present_groups
        return {
            stream: RetentionState({info.name: ReadingGroup(info, oldest.get((stream, info.name))) for info in infos})
            for stream, infos in groups.items()
        }


def _questions(groups: Sequence[GroupName]) -> list[tuple[str | bytes, ...]]:
    """Return the command for the pending entries of each group."""
    return [("XPENDING", stream, group) for stream, group in groups]


def _read_answers(groups: Sequence[GroupName], replies: Sequence[Reply]) -> dict[GroupName, StreamId]:
    """Return the lowest pending entry of each group that has one."""
    pending = _read(groups, replies, lambda reply: StreamId.parse(reply[1]) if reply[0] else None)
    return {group: oldest for group, oldest in pending.items() if oldest is not None}


def _above(entry: StreamId) -> StreamId:
    return entry.next() if entry < MAX_ID else entry


_SHORT = 0.01  # seconds: walking past pending entries may always take this long
_SHARE = 20  # otherwise it takes at most this fraction (1/20) of the time

Words = tuple[str | bytes, ...]


class Sweeper:
    """Sweeps streams, over any connection to their server. exactly: as `delete` does; now: monotonic clock, in seconds.
    Not thread-safe."""

    def __init__(self, exactly: bool, now: Callable[[], float]) -> None:
        self._exactly = exactly
        self._now = now
        self.forget()

    def forget(self) -> None:
        """Forget the readers and what the server supports: it may be another server."""
        self._readers = Readers()
        self._knows_acked: bool | None = None
        self._walk_again = 0.0

    def forget_streams(self, streams: Collection[bytes]) -> None:
        """Forget the readers of these streams. They may be swept again."""
        self._readers.forget(streams)

    def sweep(
        self, server: Server, streams: Sequence[str], limits: Mapping[str, StreamId] | None = None
    ) -> dict[bytes, RetentionState]:
        """Sweep the streams and return the state of their readers before. Two round trips if no reader is new, and a
        third if entries are pending between acknowledged ones. limits: positions above which nothing is removed.

        A stream without groups is not swept: no group has acknowledged its entries. Raises StreamStateError,
        ServerReplyError and its subclasses.
        """
        states = self._readers.fetch(server, [stream.encode() for stream in streams])
        states = {
            stream: replace(state, limit=(limits or {}).get(stream.decode(), MAX_ID))
            for stream, state in states.items()
            if state.readers
        }
        server.execute_all([self._up_to(stream, state) for stream, state in states.items()], is_no_such_key)
        with_pending = [(stream, state) for stream, state in states.items() if state.needed < state.delivered]
        if self._exactly and with_pending and self._knows_acked is not False and self._now() >= self._walk_again:
            self._walk(server, with_pending)
        return states

    def _up_to(self, stream: bytes, state: RetentionState) -> Words:
        if self._exactly:
            return ("XTRIM", stream, "MINID", "=", str(state.needed))
        return ("XTRIM", stream, "MINID", "~", str(state.needed), "LIMIT", "0")

    def _walk(self, server: Server, with_pending: Sequence[tuple[bytes, RetentionState]]) -> None:
        """Remove the acknowledged entries between pending ones."""
        commands: list[Words] = [
            ("XTRIM", stream, "MINID", "=", str(state.delivered), "ACKED") for stream, state in with_pending
        ]
        if self._knows_acked is None:
            [first] = server.execute_all(commands[:1], is_no_such_key, is_syntax_error)
            self._knows_acked = not is_syntax_error(first)
        if not self._knows_acked:
            return
        begun = self._now()
        server.execute_all(commands, is_no_such_key)
        ended = self._now()
        if ended - begun > _SHORT:
            self._walk_again = ended + (_SHARE - 1) * (ended - begun)


def knows_acked(server: Server, stream: str) -> bool:
    """Whether the server removes acknowledged entries between pending ones. Nothing is removed: no ID is below 0-0."""
    command = ("XTRIM", stream, "MINID", "=", "0-0", "ACKED")
    return not is_syntax_error(server.execute_all([command], is_syntax_error, is_not_permitted)[0])
