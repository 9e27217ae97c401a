"""Groups that no longer hold entries back, because no client has used them for some time (forgetGroups).

    XINFO CONSUMERS                     the group has consumers, and all of them are idle for that time
    SCAN and GET the leases             no query of the group runs
    WATCH them   MULTI SET record EXEC  before an entry that the group needs is removed

Only groups that hold entries back are checked, each at most once a minute. The record has the time and the group's
position, and is valid while the group stands there. A query takes its lease before it looks for a record
(source.group.start): it finds the record, or EXEC fails. A client that works again is waited for again.

The idle time is that of the server. A query begins it anew when it reads from the group and when it starts; with noAck,
which reads nothing from the group, also when it commits (group.admin.touch_consumers).

A group without consumers is never forgotten, because the server cannot tell when it was last used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from spark_streams.model.ids import MAX_ID, InvalidStreamId, StreamId
from spark_streams.model.keys import forgotten_key, key_beside
from spark_streams.model.numbers import parse_number
from spark_streams.model.pattern import escape
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.lease import Processes, are_held
from spark_streams.wire.replies.multi_exec import transact
from spark_streams.wire.replies.replies import milliseconds
from spark_streams.wire.replies.reply_errors import is_no_group, is_no_such_key
from spark_streams.wire.replies.scan import matching_strings
from spark_streams.wire.replies.xinfo import ConsumerInfo, GroupInfo, consumers_in

CHECK_INTERVAL = 60.0  # seconds

GroupName = tuple[bytes, bytes]  # stream, group
Name = TypeVar("Name", bytes, str)


@dataclass(frozen=True)
class ForgottenGroup:
    """Record of a forgotten group. at: when, in Unix ms of the server; position: where the group stood."""

    at: int
    position: StreamId

    def __str__(self) -> str:
        return f"{self.at} {self.position}"

    @classmethod
    def parse(cls, value: bytes | None) -> ForgottenGroup | None:
        """Return the record of a key; None if there is none, or another client wrote something else."""
        number, _, position = (value or b"").partition(b" ")
        at = parse_number(number.decode("ascii", "replace"))
        try:
            return None if at is None else cls(at, StreamId.parse(position))
        except InvalidStreamId:
            return None


@dataclass(frozen=True)
class ReadingGroup:
    """A group of a stream. oldest: its lowest pending entry, None if nothing is pending; record: None if it was not
    forgotten."""

    info: GroupInfo
    oldest: StreamId | None
    record: ForgottenGroup | None = None

    @property
    def needed(self) -> StreamId:
        """Lowest ID that is undelivered or unacknowledged."""
        delivered = self.info.last_delivered
        above = delivered.next() if delivered < MAX_ID else delivered
        return above if self.oldest is None else min(above, self.oldest)

    @property
    def is_recorded(self) -> bool:
        """Whether the record is of the position where the group stands now."""
        return self.record is not None and self.record.position == self.info.last_delivered


def holding(readers: Mapping[tuple[Name, Name], ReadingGroup]) -> list[tuple[Name, Name]]:
    """Return the groups that hold entries back: another group of the stream needs less. readers: by stream and group.
    Pure."""
    most: dict[Name, StreamId] = {}
    for (stream, _), reader in readers.items():
        most[stream] = max(reader.needed, most.get(stream, reader.needed))
    return [group for group, reader in readers.items() if reader.needed < most[group[0]]]


class Forgetting:
    """Finds and records groups to forget. idle_ms: see forgetGroups; now: a monotonic clock, in seconds."""

    def __init__(self, idle_ms: int, now: Callable[[], float]) -> None:
        self._idle_ms = idle_ms
        self._now = now
        self._checked: dict[GroupName, float] = {}
        self._idle: set[GroupName] = set()  # by the last check of each group

    def forget(self, streams: Collection[bytes]) -> None:
        """Forget what was checked of these streams. They may be checked again."""
        self._checked = {group: at for group, at in self._checked.items() if group[0] not in streams}
        self._idle = {group for group in self._idle if group[0] not in streams}

    def forgotten(self, server: Server, readers: Mapping[GroupName, ReadingGroup]) -> set[GroupName]:
        """Return the groups that hold nothing back. Those that this call forgets are recorded. Raises ServerError."""
        now, holders = self._now(), holding(readers)
        due = [group for group in holders if now - self._checked.get(group, -CHECK_INTERVAL) >= CHECK_INTERVAL]
        recorded = {group for group in holders if readers[group].is_recorded}
        for group, consumers in fetch_consumers(server, due).items():
            self._checked[group] = now
            self._idle.discard(group)
            if is_idle(consumers, self._idle_ms):
                self._idle.add(group)
                if group not in recorded and record(server, group, readers[group].info, consumers) is not None:
                    recorded.add(group)
        return recorded & self._idle


def is_idle(consumers: Sequence[ConsumerInfo], idle_ms: int) -> bool:
    """Whether a group has consumers, and all of them are idle for this time."""
    return bool(consumers) and all(consumer.idle >= idle_ms for consumer in consumers)


def fetch_consumers(server: Server, groups: Sequence[GroupName]) -> dict[GroupName, list[ConsumerInfo]]:
    """Return the consumers of each group that exists, in one round trip. Raises ServerReplyError."""
    consumers = {}
    questions = [("XINFO", "CONSUMERS", *group) for group in groups]
    for group, question, reply in zip(groups, questions, server.pipeline(questions), strict=True):
        if isinstance(reply, ReplyError):
            if not (is_no_group(reply) or is_no_such_key(reply)):
                raise server.error_of(reply, question)
            continue
        consumers[group] = consumers_in(reply)
    return consumers


def record(
    server: Server, group: GroupName, info: GroupInfo, consumers: Iterable[ConsumerInfo]
) -> ForgottenGroup | None:
    """Record that a group is forgotten. Return None, and change nothing, if a query of it runs or begins to run.
    Raises ServerError."""
    stream, name = group[0], group[1].decode("utf-8", "surrogateescape")
    running = matching_strings(server, f"{escape(key_beside(stream, 'lease', name).decode())}:*")
    of_consumers = [key_beside(stream, "lease", name, consumer.text) for consumer in consumers]
    keys = list(dict.fromkeys([*running, *of_consumers]))
    leases = server.execute_all([("WATCH", *keys), *[("GET", key) for key in keys]])[1:]
    if any(are_held(server, leases, Processes())):
        server.connection_for(keys[0]).execute("UNWATCH")
        return None
    new = ForgottenGroup(milliseconds(server.connection_for(keys[0]).execute("TIME")), info.last_delivered)
    return None if transact(server, [("SET", forgotten_key(stream, name), str(new))]) is None else new
