"""Selection of pending entries of a group, in pages of one consumer each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.connector.admin.groups import RELEASED_IDLE, SHOWN, GroupSnapshot
from spark_streams.connector.wire.connection.connection import Argument
from spark_streams.connector.wire.connection.server import Server

_PAGE = 1_000  # entries that one transaction changes, some milliseconds of the server's time


@dataclass(frozen=True)
class Choice:
    """Conditions that an entry must fulfil. consumers: its consumer, empty: any, also released entries; released: only
    released entries; idle: milliseconds pending, not known for released entries; first, last: range of IDs; ids: only
    these; limit: number of entries of all streams, the oldest of each consumer first."""

    consumers: tuple[str, ...] = ()
    idle: int | None = None
    first: StreamId = MIN_ID
    last: StreamId = MAX_ID
    ids: tuple[StreamId, ...] = ()
    limit: int | None = None
    released: bool = False

    def may_touch_released(self, snapshot: GroupSnapshot) -> bool:
        """Whether the choice includes released entries, and the group may have some."""
        is_any_consumer = not self.consumers and self.idle is None
        return (self.released or is_any_consumer) and snapshot.released

    def without_taken(self, count: int) -> Choice:
        """Return the choice after this many entries have been taken."""
        return self if self.limit is None else replace(self, limit=self.limit - count)

    def up_to(self, last: StreamId) -> Choice:
        """Return the choice without entries above this one."""
        return replace(self, last=min(self.last, last))


@dataclass(frozen=True)
class Page:
    """Pending entries of one consumer (its name in bytes; None: released entries), in order."""

    consumer: bytes | None
    ids: list[bytes]

    def later(self, last: str) -> str:
        """Return the later of an ID and the page's last one. last: empty for none."""
        return str(max(StreamId.parse(self.ids[-1]), StreamId.parse(last or "0-0")))

    @property
    def owner(self) -> str:
        """The consumer's name as text."""
        return SHOWN if self.consumer is None else self.consumer.decode("utf-8", "surrogateescape")


def pages(server: Server, snapshot: GroupSnapshot, choice: Choice, size: int = _PAGE) -> Iterator[Page]:
    """Yield the chosen entries. Each page is read when it is needed, so entries that the caller has changed are not
    yielded again. Raises ServerReplyError and its subclasses (IDLE needs Redis 6.2)."""
    remaining = choice.limit
    holders = [] if choice.released else snapshot.consumers_named(choice.consumers or None)
    names: list[bytes | None] = [consumer.name for consumer in holders if consumer.pending or choice.ids]
    names += [None] if choice.may_touch_released(snapshot) else []
    for name in names:
        find = _pages_of_ids if choice.ids else _pages_of_range
        for ids in find(server, _xpending(snapshot, choice, name), [] if name is None else [name], choice, size):
            taken_ids = ids if remaining is None else ids[:remaining]
            remaining = None if remaining is None else remaining - len(taken_ids)
            if taken_ids:
                yield Page(name, taken_ids)
            if remaining == 0:
                return


def _xpending(snapshot: GroupSnapshot, choice: Choice, name: bytes | None) -> list[Argument]:
    """Return the beginning of XPENDING, with the idle time that entries must have."""
    idle = RELEASED_IDLE if name is None else choice.idle
    head: list[Argument] = ["XPENDING", snapshot.stream, snapshot.group]
    return head if idle is None else [*head, "IDLE", idle]


def _pages_of_range(
    server: Server, head: Sequence[Argument], consumer: Sequence[bytes], choice: Choice, size: int
) -> Iterator[list[bytes]]:
    start = choice.first
    while start <= choice.last:
        reply = server.execute(*head, bytes(start), bytes(choice.last), size, *consumer)
        if not reply:
            return
        yield [entry[0] for entry in reply]
        last = StreamId.parse(reply[-1][0])
        if len(reply) < size or last == MAX_ID:
            return
        start = last.next()


def _pages_of_ids(
    server: Server, head: Sequence[Argument], consumer: Sequence[bytes], choice: Choice, size: int
) -> Iterator[list[bytes]]:
    ids = sorted({entry_id for entry_id in choice.ids if choice.first <= entry_id <= choice.last})
    for start in range(0, len(ids), size):
        commands = [(*head, bytes(entry_id), bytes(entry_id), 1, *consumer) for entry_id in ids[start : start + size]]
        yield [entry[0] for reply in server.execute_all(commands) for entry in reply]
