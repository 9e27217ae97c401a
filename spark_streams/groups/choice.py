"""Which pending entries of a group are meant, and these, a page at a time: one page is one consumer's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from spark_streams.groups.standing import Standing
from spark_streams.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.wire.connection import Argument, ReplyError
from spark_streams.wire.server import Server

_PAGE = 1_000  # entries that one transaction changes, some milliseconds of the server's time


@dataclass(frozen=True)
class Choice:
    """All that is given must hold. consumers: whose, empty: anybody's; idle: milliseconds that they have been pending;
    first, last: the range of ids; ids: these alone; limit: so many at most, of all streams, the oldest of each
    consumer."""

    consumers: tuple[str, ...] = ()
    idle: int | None = None
    first: StreamId = MIN_ID
    last: StreamId = MAX_ID
    ids: tuple[StreamId, ...] = ()
    limit: int | None = None

    def less(self, count: int) -> Choice:
        """When so many have been taken."""
        return self if self.limit is None else replace(self, limit=self.limit - count)

    def up_to(self, last: StreamId) -> Choice:
        """The same, nothing above this entry."""
        return replace(self, last=min(self.last, last))


@dataclass(frozen=True)
class Page:
    """Pending entries of one consumer (its name as the server has it), in order."""

    consumer: bytes
    ids: list[bytes]

    @property
    def owner(self) -> str:
        """The consumer's name as text."""
        return self.consumer.decode("utf-8", "surrogateescape")


def pages(server: Server, standing: Standing, choice: Choice, size: int = _PAGE) -> Iterator[Page]:
    """What is meant, as it is when the page is made: what is changed before the next one does not come again. Raises
    ServerReplyError and kin (IDLE takes Redis 6.2)."""
    left = choice.limit
    idle: list[Argument] = [] if choice.idle is None else ["IDLE", choice.idle]
    head = ["XPENDING", standing.stream, standing.group, *idle]
    for one in standing.of(choice.consumers or None):
        if choice.ids:
            found = _named(server, head, one.name, choice, size)
        else:
            found = _ranged(server, head, one.name, choice, size) if one.pending else iter(())
        for ids in found:
            some = ids if left is None else ids[:left]
            left = None if left is None else left - len(some)
            if some:
                yield Page(one.name, some)
            if left == 0:
                return


def _ranged(server: Server, head: Sequence[Argument], name: bytes, choice: Choice, size: int) -> Iterator[list[bytes]]:
    start = choice.first
    while start <= choice.last:
        reply = server.execute(*head, bytes(start), bytes(choice.last), size, name)
        if not reply:
            return
        yield [entry[0] for entry in reply]
        last = StreamId.parse(reply[-1][0])
        if len(reply) < size or last == MAX_ID:
            return
        start = last.next()


def _named(server: Server, head: Sequence[Argument], name: bytes, choice: Choice, size: int) -> Iterator[list[bytes]]:
    ids = sorted({one for one in choice.ids if choice.first <= one <= choice.last})
    for at in range(0, len(ids), size):
        commands = [(*head, bytes(one), bytes(one), 1, name) for one in ids[at : at + size]]
        replies = server.pipeline(commands)
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, ReplyError):
                raise server.error_of(reply, command[:3])
        yield [entry[0] for reply in replies for entry in reply]
