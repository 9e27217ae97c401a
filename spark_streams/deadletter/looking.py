"""What is in dead-letter streams: which streams are some, and their letters by kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from spark_streams.deadletter.criteria import Criteria
from spark_streams.deadletter.envelope import opened, text
from spark_streams.deadletter.reading import extent, letters
from spark_streams.deadletter.tally import Tally
from spark_streams.deadletter.transform import DeadLetter, letters_of
from spark_streams.monitor.groups import list_streams
from spark_streams.wire.address import Address
from spark_streams.wire.connection import Connection, ReplyError
from spark_streams.wire.link import Link

_STREAMS_AT_ONCE = 500


@dataclass(frozen=True)
class DeadStream:
    """A stream whose last entry is a letter. letters: its entries; oldest, newest: their ids."""

    stream: str
    letters: int
    oldest: str
    newest: str


def dead_streams(server: Connection) -> list[DeadStream]:
    """All of them, by name. Raises ServerError."""
    names = list_streams(server)
    found = []
    for at in range(0, len(names), _STREAMS_AT_ONCE):
        some = names[at : at + _STREAMS_AT_ONCE]
        commands: list[tuple[str | bytes | int, ...]] = []
        for name in some:
            commands += [
                ("XREVRANGE", name, "+", "-", "COUNT", 1), ("XRANGE", name, "-", "+", "COUNT", 1), ("XLEN", name)
            ]  # fmt: skip
        replies = server.pipeline(commands)
        for place, name in enumerate(some):
            last, first, length = replies[3 * place : 3 * place + 3]
            # Gone, or something else by now: no dead-letter stream any more.
            if isinstance(last, ReplyError) or isinstance(first, ReplyError) or not last or not first:
                continue
            if {"stream", "id"} <= opened(last[0][1])[1].keys():
                shown = name.decode("utf-8", "backslashreplace")
                found.append(DeadStream(shown, length, text(first[0][0]), text(last[0][0])))
    return found


def by_kind(
    address: Address, stream: str, criteria: Criteria, tell: Callable[[int, int], None] = lambda done, total: None
) -> Tally:
    """The letters that are meant, by (stream, stage, reason, error). tell: called with entries looked at, and how many
    there are. Raises ServerError."""
    tally = Tally()
    done = 0
    with Link(address) as link:
        within = extent(link.server, stream, criteria)
        for page, rows in letters(link, stream, within, criteria):
            tally.add(page.ids, page.kind(), rows)
            done += page.count
            tell(done, within.length)
    return tally


def each_letter(address: Address, stream: str, criteria: Criteria, limit: int | None = None) -> Iterator[DeadLetter]:
    """The letters that are meant, one by one, with all their fields. Raises ServerError."""
    left = limit
    with Link(address) as link:
        for page, rows in letters(link, stream, extent(link.server, stream, criteria), criteria):
            some = rows if left is None else rows[:left]
            yield from letters_of(page, some)
            if left is not None:
                left -= len(some)
                if not left:
                    return
