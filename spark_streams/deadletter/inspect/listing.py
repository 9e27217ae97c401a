"""What is in dead-letter streams: which streams are some, and their dead letters by kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from spark_streams.deadletter.criteria import Criteria
from spark_streams.deadletter.envelope import says_where_from, text
from spark_streams.deadletter.kind_counts import KindCounts
from spark_streams.deadletter.limits import DEAD_LETTER_LIMITS, DeadLetterLimits
from spark_streams.deadletter.page_reader import FIRST_LOOK, PageSize, dead_letter_pages, extent, pages_of
from spark_streams.deadletter.retry.waiting_entries import WaitingEntries, waiting_entries
from spark_streams.deadletter.transform import DeadLetter, dead_letters_of
from spark_streams.model.keys import read_retry_stream
from spark_streams.wire.address.address import Address
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.scan import list_streams
from spark_streams.wire.session import Session


@dataclass(frozen=True)
class DeadLetterStream:
    """A stream whose first or last entry is a dead letter. stream: its name for people, key: as it is; letters: its
    entries; oldest, newest: their ids."""

    stream: str
    letters: int
    oldest: str
    newest: str
    key: bytes

    def facts(self) -> dict[str, str | int]:
        """For programs."""
        return {"stream": self.stream, "letters": self.letters, "oldest": self.oldest, "newest": self.newest}


def dead_letter_streams(server: Server) -> list[DeadLetterStream]:
    """All of them, by name; what waits for another try is no dead letter yet. Raises ServerError."""
    return look(server)[0]


def look(server: Server) -> tuple[list[DeadLetterStream], list[WaitingEntries]]:
    """(the streams that hold dead letters, what waits for another try), each by name. Raises ServerError."""
    found = list_streams(server)
    of_tries = {name for name in found if read_retry_stream(name.decode("utf-8", "replace")) is not None}
    streams = _dead_letter_streams(server, [name for name in found if name not in of_tries])
    return streams, waiting_entries(server, of_tries)


def _dead_letter_streams(server: Server, found: Sequence[bytes]) -> list[DeadLetterStream]:
    streams: list[DeadLetterStream] = []
    size = PageSize(first=FIRST_LOOK)
    for names in pages_of(found, size):
        commands: list[tuple[str | bytes | int, ...]] = []
        for name in names:
            commands += [
                ("XREVRANGE", name, "+", "-", "COUNT", 1), ("XRANGE", name, "-", "+", "COUNT", 1), ("XLEN", name)
            ]  # fmt: skip
        replies = server.pipeline(commands)
        received = 0
        for place, name in enumerate(names):
            last, first, length = replies[3 * place : 3 * place + 3]
            # Gone, or something else by now: no dead-letter stream any more.
            if isinstance(last, ReplyError) or isinstance(first, ReplyError) or not last or not first:
                continue
            received += sum(map(len, last[0][1])) + sum(map(len, first[0][1]))
            if any(says_where_from(entry[0][1]) for entry in (first, last)):
                shown = name.decode("utf-8", "backslashreplace")
                streams.append(DeadLetterStream(shown, length, text(first[0][0]), text(last[0][0]), name))
        size.learn(len(names), received, len(names))
    return streams


def count_by_kind(
    address: Address,
    stream: str | bytes,
    criteria: Criteria,
    tell: Callable[[int, int], None] = lambda done, total: None,
    limits: DeadLetterLimits = DEAD_LETTER_LIMITS,
) -> KindCounts:
    """The dead letters that are meant, by (stream, stage, reason, error). tell: called with entries looked at, and how
    many there are. Raises ServerError."""
    counts = KindCounts()
    done = 0
    with Session(address) as session:
        within = extent(session.get(), stream, criteria)
        for page, rows in dead_letter_pages(session, stream, within, criteria, limits):
            counts.add(page.ids, page.kind(), rows)
            done += page.count
            tell(done, within.length)
    return counts


def each_dead_letter(
    address: Address,
    stream: str,
    criteria: Criteria,
    limit: int | None = None,
    limits: DeadLetterLimits = DEAD_LETTER_LIMITS,
) -> Iterator[DeadLetter]:
    """The dead letters that are meant, one by one, with all their fields. Raises ServerError."""
    left = limit
    with Session(address) as session:
        within = extent(session.get(), stream, criteria)
        for page, rows in dead_letter_pages(session, stream, within, criteria, limits):
            wanted = rows if left is None else rows[:left]
            yield from dead_letters_of(page, wanted)
            if left is not None:
                left -= len(wanted)
                if not left:
                    return
