"""List dead-letter streams, and their dead letters by kind or as lines of JSON.

    {"id": "1732097-0", "envelope": {"stream": "orders", "reason": "decode", …}, "fields": {"amount": "n/a", …}}

A text that is not UTF-8 (a name or a value) is written as {"base64": "…"}. If a name is not UTF-8 or occurs twice,
`fields` is a list of [name, value] instead of an object.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from spark_streams.base.printable import json_text, name_text
from spark_streams.connector.deadletter.counts import KindCounts
from spark_streams.connector.deadletter.dead_letter_limits import DEAD_LETTER_LIMITS, DeadLetterLimits
from spark_streams.connector.deadletter.envelope import names_origin, raw, text
from spark_streams.connector.deadletter.letter_page import Criteria
from spark_streams.connector.deadletter.page_reader import FIRST_STREAMS, PageSize, dead_letter_pages, extent, pages_of
from spark_streams.connector.deadletter.transform import DeadLetter, dead_letters_of
from spark_streams.connector.deadletter.waiting_entries import WaitingEntries, waiting_entries
from spark_streams.connector.keys import read_retry_stream
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.replies import is_wrong_type
from spark_streams.connector.wire.scan import list_streams
from spark_streams.connector.wire.session import Session


@dataclass(frozen=True)
class DeadLetterStream:
    """A stream whose first or last entry is a dead letter."""

    stream: str  # printable name
    letters: int  # number of its entries
    oldest: str  # ID
    newest: str  # ID
    key: bytes  # its name in bytes

    def facts(self) -> dict[str, str | int]:
        """Return the JSON fields."""
        return {"stream": self.stream, "letters": self.letters, "oldest": self.oldest, "newest": self.newest}


def dead_letter_streams(server: Server) -> list[DeadLetterStream]:
    """Return all dead-letter streams by name; entries that wait for a retry are not dead letters yet. Raises
    ServerError."""
    return fetch_streams(server)[0]


def fetch_streams(server: Server) -> tuple[list[DeadLetterStream], list[WaitingEntries]]:
    """Return (the dead-letter streams, the entries that wait for a retry), each by name. Raises ServerError."""
    names = list_streams(server)
    of_tries = {name for name in names if read_retry_stream(name.decode("utf-8", "replace")) is not None}
    streams = _dead_letter_streams(server, [name for name in names if name not in of_tries])
    return streams, waiting_entries(server, of_tries)


def _dead_letter_streams(server: Server, candidates: Sequence[bytes]) -> list[DeadLetterStream]:
    streams: list[DeadLetterStream] = []
    size = PageSize(first=FIRST_STREAMS)
    for names in pages_of(candidates, size):
        commands: list[tuple[str | bytes | int, ...]] = []
        for name in names:
            commands += [
                ("XREVRANGE", name, "+", "-", "COUNT", 1), ("XRANGE", name, "-", "+", "COUNT", 1), ("XLEN", name)
            ]  # fmt: skip
        replies = server.execute_all(commands, is_wrong_type)
        received = 0
        for place, name in enumerate(names):
            last, first, length = replies[3 * place : 3 * place + 3]
            # Deleted, or of another type by now: not a dead-letter stream any more.
            if is_wrong_type(last) or is_wrong_type(first) or not last or not first:
                continue
            received += sum(map(len, last[0][1])) + sum(map(len, first[0][1]))
            if any(names_origin(entry[0][1]) for entry in (first, last)):
                shown = name_text(name)
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
    """Count matching dead letters by (stream, stage, reason, error). tell: called with the number of entries read so
    far, and of all entries. Raises ServerError."""
    counts = KindCounts()
    done = 0
    with Session(address) as session:
        within = extent(session.get(), stream, criteria)
        for page, rows in dead_letter_pages(session, stream, within, limits):
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
    """Yield matching dead letters with all their fields. Raises ServerError."""
    remaining = limit
    with Session(address) as session:
        within = extent(session.get(), stream, criteria)
        for page, rows in dead_letter_pages(session, stream, within, limits):
            selected = rows if remaining is None else rows[:remaining]
            yield from dead_letters_of(page, selected)
            if remaining is not None:
                remaining -= len(selected)
                if not remaining:
                    return


def as_json(dead_letter: DeadLetter) -> dict[str, object]:
    """Return the JSON object of one dead letter."""
    return {
        "id": dead_letter.id,
        "envelope": {name: text_as_json(value) for name, value in dead_letter.envelope.items()},
        "fields": fields_as_json(dead_letter.pairs),
    }


def fields_as_json(pairs: Sequence[tuple[str, str]]) -> dict[str, object] | list[list[object]]:
    """Return `fields` of any entry. pairs: (name, value), bytes that are not UTF-8 as surrogate escapes."""
    shown = [(text_as_json(name), text_as_json(value)) for name, value in pairs]
    names = [name for name, _ in shown if isinstance(name, str)]
    plain = len(names) == len(shown) == len(set(names))
    return {str(name): value for name, value in shown} if plain else [list(pair) for pair in shown]


def as_line(dead_letter: DeadLetter) -> str:
    """Return the JSON object as one line, without a line end."""
    return json_text(as_json(dead_letter), separators=(",", ":"))


def text_as_json(value: str) -> str | dict[str, str]:
    """Return a text as JSON. value: bytes that are not UTF-8 as surrogate escapes."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"base64": base64.b64encode(raw(value)).decode()}
    return value
