"""Streams, consumer groups and consumers, as XINFO describes them.

The functions `…_in` read a reply that is no error; the caller interprets errors (wire.replies).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.connector.keys import PROBE
from spark_streams.connector.wire.connection import Reply, ReplyError, Server
from spark_streams.connector.wire.replies import is_no_such_key, is_not_permitted, pairs

Name = TypeVar("Name", str, bytes, str | bytes)
# The fields of a group, as all servers send them except Redis 6.2, which lacks the last two. A trigger reads them for
# each stream, so this form is read without a dictionary.
_GROUP_FIELDS = [b"name", b"consumers", b"pending", b"last-delivered-id", b"entries-read", b"lag"]
_PROBE = PROBE.encode()
Entry = tuple[StreamId, Sequence[bytes]]  # its ID; name, value, name, value …


class StreamState(NamedTuple):
    last: StreamId  # ID of the last entry ever added; 0-0: none
    length: int  # current entries
    added: int | None  # entries ever added; None before Redis 7
    first: StreamId | None  # the oldest entry's ID; None before Redis 7
    exists: bool = True  # the key exists
    top: StreamId = MIN_ID  # the newest entry's ID; 0-0: the stream is empty
    deleted: StreamId = MIN_ID  # the highest ID that XDEL has removed; 0-0: none


@dataclass(frozen=True)
class StreamEnds:
    """The first and the last entry of a stream that is not empty, and its length."""

    first: Entry
    last: Entry
    length: int


@dataclass(frozen=True)
class IdempotentAdds:
    """Adds of a stream with XADD IDMP or IDMPAUTO."""

    producers: int  # that the server remembers
    messages: int  # that the server remembers
    added: int  # entries that were ever added so
    duplicates: int  # repeated adds that added nothing


class GroupInfo(NamedTuple):
    """A group. `entries_read` and `lag` are Redis' own counts; None if unknown, as always before Redis 7.

    A lag below zero, which XGROUP and XSETID can make (ENTRIESREAD too high, ENTRIESADDED too low), is unknown.
    """

    name: bytes
    consumers: int  # their number
    pending: int  # entries delivered and not acknowledged
    last_delivered: StreamId  # the group's position
    entries_read: int | None
    lag: int | None


class ConsumerInfo(NamedTuple):
    name: bytes
    pending: int  # entries that it has not acknowledged
    idle: int  # milliseconds since its last attempt to read or claim
    counts_attempts: bool = True  # also one that found nothing: not so before Redis 7.2

    @property
    def text(self) -> str:
        """The name as text, from which the same bytes can be restored."""
        return self.name.decode("utf-8", "surrogateescape")


def stream_states(server: Server, streams: Sequence[Name]) -> dict[Name, StreamState]:
    """Return the state of each stream, in one round trip; a missing stream is empty."""
    replies = server.execute_each([("XINFO", "STREAM", stream) for stream in streams], is_no_such_key)
    return {s: read_stream_state(server, s, reply) for s, reply in zip(streams, replies, strict=True)}


def read_stream_state(server: Server, stream: str | bytes, reply: Reply) -> StreamState:
    """Return the state from the reply to XINFO STREAM; a missing stream is empty.

    Raises WrongKeyTypeError, ServerReplyError.
    """
    if isinstance(reply, ReplyError):
        server.answer(("XINFO", "STREAM", stream), reply, is_no_such_key)
        return StreamState(MIN_ID, 0, 0, None, exists=False)
    return stream_in(reply)


def stream_in(reply: Sequence[Reply]) -> StreamState:
    info = pairs(reply)
    first, newest = info.get(b"recorded-first-entry-id"), info[b"last-entry"]
    last = info[b"last-generated-id"]
    deleted = info.get(b"max-deleted-entry-id", b"0-0")
    last_id = StreamId.parse(last)
    return StreamState(
        last=last_id,
        length=info[b"length"],
        added=info.get(b"entries-added"),
        first=None if first is None else StreamId.parse(first),
        # Most streams end with their newest entry and have no deleted one: such IDs are not parsed again.
        top=MIN_ID if not newest else last_id if newest[0] == last else StreamId.parse(newest[0]),
        deleted=MIN_ID if deleted == b"0-0" else StreamId.parse(deleted),
    )


def ends_in(reply: Sequence[Reply]) -> StreamEnds | None:
    """Return first and last entry from the reply to XINFO STREAM; None if the stream is empty."""
    info = pairs(reply)
    first, last = info[b"first-entry"], info[b"last-entry"]
    if first is None or last is None:
        return None
    return StreamEnds((StreamId.parse(first[0]), first[1]), (StreamId.parse(last[0]), last[1]), info[b"length"])


def idempotent_adds_in(reply: Sequence[Reply]) -> IdempotentAdds | None:
    """Return the counts of idempotent adds from the reply to XINFO STREAM; None if there were none, or if the server
    does not have them (Redis before 8.6, Valkey)."""
    info = pairs(reply)
    names = (b"pids-tracked", b"iids-tracked", b"iids-added", b"iids-duplicates")
    counts = IdempotentAdds(*(info.get(name, 0) for name in names))
    return counts if counts.added or counts.duplicates else None


def all_groups_in(reply: Sequence[Reply]) -> list[GroupInfo]:
    """Return the groups from the reply to XINFO GROUPS, also scratch groups."""
    return [_group_in(group) for group in reply]


def groups_in(reply: Sequence[Reply]) -> list[GroupInfo]:
    """Return the groups from the reply to XINFO GROUPS, without scratch groups: nobody reads by them."""
    return [group for group in all_groups_in(reply) if not group.name.startswith(_PROBE)]


def group_named(name: str, reply: Reply) -> GroupInfo | None:
    """Return the group of this name from the answer to XINFO GROUPS; None if there is none, or no such key."""
    if is_no_such_key(reply):
        return None
    wanted = name.encode()
    for group in reply:
        if wanted in group and (info := _group_in(group)).name == wanted:
            return info
    return None


def streams_with_group(server: Server, streams: Sequence[Name], group: str) -> list[Name]:
    """Return those of these streams that have the group, and that the user may read. Raises ServerError."""
    replies = server.execute_all([("XINFO", "GROUPS", stream) for stream in streams], is_no_such_key, is_not_permitted)
    return [
        stream
        for stream, reply in zip(streams, replies, strict=True)
        if not is_not_permitted(reply) and group_named(group, reply) is not None
    ]


def _group_in(group: Sequence[Reply]) -> GroupInfo:
    if group[0::2] == _GROUP_FIELDS:
        values = group[1::2]
    else:
        info = pairs(group)
        values = [info.get(name) for name in _GROUP_FIELDS]
    name, consumers, pending, last_delivered, entries_read, lag = values
    lag = None if lag is None or lag < 0 else lag
    return GroupInfo(name, consumers, pending, StreamId.parse(last_delivered), entries_read, lag)


def lag_of(info: GroupInfo, length: int, first: StreamId | None, top: StreamId) -> int | None:
    """Return the undelivered entries of a group; None if they must be counted. All numbers of a lag come from here.
    length, first, top: of the stream: its entries, the lowest and the highest one (None: unknown, or there is none).

    The group's position decides, if it stands outside of the stream. Within it, the server's count holds unless the
    position contradicts it: the first entry is delivered, and the last one is not. Redis 7.0 has such a count after a
    restart with an append-only file (R90), and XGROUP and XSETID can set one.
    """
    if length == 0 or info.last_delivered >= top:
        return 0
    if first is not None and info.last_delivered < first:
        return length
    return info.lag if info.lag is not None and 1 <= info.lag < length else None


def consumers_in(reply: Sequence[Reply]) -> list[ConsumerInfo]:
    return [
        ConsumerInfo(info[b"name"], info[b"pending"], info[b"idle"], b"inactive" in info) for info in map(pairs, reply)
    ]


# -- entries that XNACK (Redis 8.8) released: pending in their group, and for no consumer ------------------------------

# XPENDING lists them with an empty consumer name and an idle time of -1, and its summary counts them for no consumer. A
# claim takes them whatever minimum idle time it has, and XPENDING … IDLE lists them likewise. So an impossibly long
# idle time selects exactly these entries.

RELEASED_IDLE = 1 << 50  # milliseconds
SHOWN = "(released)"  # shown instead of a consumer's name
FATAL = (1 << 63) - 1  # deliveries: XNACK FATAL sets an entry's counter to this, and no other delivery count reaches it


def released_in(summary: Reply) -> int:
    """Number of released entries of a group. summary: the reply to XPENDING key group."""
    total, _, _, consumers = summary
    return max(0, int(total) - sum(int(count) for _, count in consumers or ()))
