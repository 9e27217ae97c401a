"""Which pending entries of a group are meant, and these, a page at a time: one page is one consumer's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from spark_streams.groups.group_snapshot import Standing
from spark_streams.model.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.wire.connection.connection import Argument
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.released import RELEASED_IDLE, SHOWN

_PAGE = 1_000  # entries that one transaction changes, some milliseconds of the server's time


@dataclass(frozen=True)
class Choice:
    """All that is given must hold. consumers: whose, empty: anybody's, and released ones; released: those alone; idle:
    milliseconds that they have been pending, which nobody knows of released ones; first, last: the range of ids; ids:
    these alone; limit: so many at most, of all streams, the oldest of each consumer."""

    consumers: tuple[str, ...] = ()
    idle: int | None = None
    first: StreamId = MIN_ID
    last: StreamId = MAX_ID
    ids: tuple[StreamId, ...] = ()
    limit: int | None = None
    released: bool = False

    def may_touch_released(self, standing: Standing) -> bool:
        """Whether released entries are meant, and there may be some."""
        anybody_s = not self.consumers and self.idle is None
        return (self.released or anybody_s) and standing.released

    def less(self, count: int) -> Choice:
        """When so many have been taken."""
        return self if self.limit is None else replace(self, limit=self.limit - count)

    def up_to(self, last: StreamId) -> Choice:
        """The same, nothing above this entry."""
        return replace(self, last=min(self.last, last))


@dataclass(frozen=True)
class Page:
    """Pending entries of one consumer (its name as the server has it; None: of none, they were released), in order."""

    consumer: bytes | None
    ids: list[bytes]

    @property
    def owner(self) -> str:
        """The consumer's name as text."""
        return SHOWN if self.consumer is None else self.consumer.decode("utf-8", "surrogateescape")


def pages(server: Server, standing: Standing, choice: Choice, size: int = _PAGE) -> Iterator[Page]:
    """What is meant, as it is when the page is made: what is changed before the next one does not come again. Raises
    ServerReplyError and kin (IDLE takes Redis 6.2)."""
    left = choice.limit
    holders = [] if choice.released else standing.of(choice.consumers or None)
    names: list[bytes | None] = [one.name for one in holders if one.pending or choice.ids]
    names += [None] if choice.may_touch_released(standing) else []
    for name in names:
        find = _named if choice.ids else _ranged
        for ids in find(server, _question(standing, choice, name), [] if name is None else [name], choice, size):
            some = ids if left is None else ids[:left]
            left = None if left is None else left - len(some)
            if some:
                yield Page(name, some)
            if left == 0:
                return


def _question(standing: Standing, choice: Choice, name: bytes | None) -> list[Argument]:
    """The beginning of XPENDING, with what its entries must have been idle."""
    idle = RELEASED_IDLE if name is None else choice.idle
    head: list[Argument] = ["XPENDING", standing.stream, standing.group]
    return head if idle is None else [*head, "IDLE", idle]


def _ranged(
    server: Server, head: Sequence[Argument], of: Sequence[bytes], choice: Choice, size: int
) -> Iterator[list[bytes]]:
    start = choice.first
    while start <= choice.last:
        reply = server.execute(*head, bytes(start), bytes(choice.last), size, *of)
        if not reply:
            return
        yield [entry[0] for entry in reply]
        last = StreamId.parse(reply[-1][0])
        if len(reply) < size or last == MAX_ID:
            return
        start = last.next()


def _named(
    server: Server, head: Sequence[Argument], of: Sequence[bytes], choice: Choice, size: int
) -> Iterator[list[bytes]]:
    ids = sorted({one for one in choice.ids if choice.first <= one <= choice.last})
    for at in range(0, len(ids), size):
        commands = [(*head, bytes(one), bytes(one), 1, *of) for one in ids[at : at + size]]
        yield [entry[0] for reply in server.execute_all(commands) for entry in reply]
