"""Groups that an operator lets hold no entries back: `rstream groups prune --hold`.

    XINFO CONSUMERS                     the group has consumers, and all of them are idle for that time
    SCAN and GET the leases             no query of the group runs
    WATCH them   MULTI SET record EXEC  before an entry that the group needs is removed

The record has the time and the group's position, and is valid while the group stands there. A query takes its lease
before it looks for a record (source.group.begin): it finds the record, or EXEC fails.

The idle time is that of the server. A query begins it anew when it reads from the group and when it starts; with noAck,
which reads nothing from the group, also when it commits (GroupChange.touch).

A group without consumers is never forgotten, because the server cannot tell when it was last used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from spark_streams.base.ids import MAX_ID, InvalidStreamId, StreamId
from spark_streams.base.numbers import parse_number
from spark_streams.base.pattern import escape
from spark_streams.connector.keys import forgotten_key, key_beside
from spark_streams.connector.wire.connection.connection import ReplyError
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.lease import Processes, are_held
from spark_streams.connector.wire.replies.multi_exec import transact
from spark_streams.connector.wire.replies.replies import milliseconds
from spark_streams.connector.wire.replies.reply_errors import is_no_group, is_no_such_key
from spark_streams.connector.wire.replies.scan import matching_strings
from spark_streams.connector.wire.replies.xinfo import ConsumerInfo, GroupInfo, consumers_in

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
    """A group of a stream. oldest: its lowest pending entry, None if nothing is pending."""

    info: GroupInfo
    oldest: StreamId | None

    @property
    def needed(self) -> StreamId:
        """Lowest ID that is undelivered or unacknowledged."""
        delivered = self.info.last_delivered
        above = delivered.next() if delivered < MAX_ID else delivered
        return above if self.oldest is None else min(above, self.oldest)


def holding(readers: Mapping[tuple[Name, Name], ReadingGroup]) -> list[tuple[Name, Name]]:
    """Return the groups that hold entries back: another group of the stream needs less. readers: by stream and group.
    Pure."""
    most: dict[Name, StreamId] = {}
    for (stream, _), reader in readers.items():
        most[stream] = max(reader.needed, most.get(stream, reader.needed))
    return [group for group, reader in readers.items() if reader.needed < most[group[0]]]


def is_idle(consumers: Sequence[ConsumerInfo], idle_ms: int) -> bool:
    """Whether a group has consumers, and all of them are idle for this time."""
    return bool(consumers) and all(consumer.idle >= idle_ms for consumer in consumers)


def fetch_consumers(server: Server, groups: Sequence[GroupName]) -> dict[GroupName, list[ConsumerInfo]]:
    """Return the consumers of each group that exists, in one round trip. Raises ServerReplyError."""
    replies = server.execute_all([("XINFO", "CONSUMERS", *group) for group in groups], is_no_group, is_no_such_key)
    return {
        group: consumers_in(reply)
        for group, reply in zip(groups, replies, strict=True)
        if not isinstance(reply, ReplyError)
    }


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
