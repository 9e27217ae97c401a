"""Dead letters: the streams that hold them, one stream with filters, one dead letter with its history, and journeys."""

from __future__ import annotations

import time
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from spark_streams.base.ids import StreamId, age_ms
from spark_streams.base.numbers import parse_number
from spark_streams.base.untyped import Json
from spark_streams.connector.admin.dead_letters import (
    Criteria,
    DeadLetter,
    dead_letter_pages,
    dead_letters_of,
    extent,
    following,
    parse_criteria,
)
from spark_streams.connector.deadletter.envelope import raw, split_previous
from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.keys import read_retry_stream
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.session import Session
from spark_streams.operations.console.actions import with_options
from spark_streams.operations.console.allow_list import AllowList
from spark_streams.operations.console.cells import SHORT, Cell, DecodedCell, cell, fields_of
from spark_streams.operations.console.incoming import EDITABLE_FIELDS, Parameters
from spark_streams.operations.console.live import is_short
from spark_streams.operations.console.site import Site, key_of
from spark_streams.operations.console.stream_pages import entry_id
from spark_streams.operations.journey.entry_lines import RAISE_LIMIT

PAGE = 25  # dead letters
_SECONDS = 2.0  # that a search takes at most
_FIELDS = 6  # of a dead letter in a list
# The parameters of a filter, and the names of parse_criteria.
FILTERS = {"stream": "streams", "reason": "reasons", "stage": "stages", "error": "errors", "field": "fields"}
RANGES = {"older": "older", "newer": "newer", "first-id": "first", "last-id": "last"}


async def dead_letter_streams(site: Site, request: Request) -> Response:
    """Return the list of the streams that hold dead letters, and of the entries that wait for a retry."""
    view = await site.view()
    streams = [
        (stream, [reason for reason in view.reasons if reason.stream == stream.stream])
        for stream in view.survey.streams
        if stream.has_dead_letters and read_retry_stream(stream.stream) is None
    ]
    return await site.page(
        request, "dead_letter_streams.html", title="Dead letters", streams=streams, waiting=view.waiting
    )


@dataclass(frozen=True)
class LetterPage:
    """Matching dead letters, the oldest first. searched: entries that were read; next: the ID at which the next page
    begins, None if there are no more."""

    letters: tuple[DeadLetter, ...]
    searched: int
    next: StreamId | None


def find_letters(
    address: Address, stream: str | bytes, criteria: Criteria, allowed: AllowList, limit: int = PAGE
) -> LetterPage:
    """Return the first matching dead letters without hidden values; fewer if the search takes too long. Raises
    ServerError."""
    letters: list[DeadLetter] = []
    searched, deadline = 0, time.monotonic() + _SECONDS
    with Session(address) as session:
        within = extent(session.get(), stream, criteria)
        for page, rows in dead_letter_pages(session, stream, within):
            searched += page.count
            rest = limit - len(letters)
            letters += map(allowed.letter, dead_letters_of(page, rows[:rest]))
            if len(rows) > rest:
                return LetterPage(tuple(letters), searched, following(letters[-1].id.encode()))
            if time.monotonic() > deadline or len(letters) == limit:
                last = following(page.ids[page.count - 1].as_py())
                has_more = last is not None and last <= within.last
                return LetterPage(tuple(letters), searched, last if has_more else None)
    return LetterPage(tuple(letters), searched, None)


def criteria_of(parameters: Parameters, allowed: AllowList) -> Criteria:
    """Return the criteria of a filter. Raises InvalidOptionError, NotPermittedError."""
    allowed.require_shown({key: parameters.all(key) for key in FILTERS})
    lists = {name: [value for value in parameters.all(key) if value] for key, name in FILTERS.items()}
    single = {name: parameters.get(key) or None for key, name in RANGES.items()}
    return parse_criteria(**lists, **single)  # type: ignore[arg-type]


@dataclass(frozen=True)
class ShownLetter:
    """A dead letter in a list."""

    id: str
    age_ms: int | None  # None: its ID is no time
    reason: Cell
    message: Cell
    stream: Cell  # of the entry
    fields: list[tuple[Cell, Cell]]  # the first ones
    more: int  # number of the others


async def dead_letters(site: Site, request: Request) -> Response:
    """Return the page of one stream of dead letters."""
    parameters = Parameters.of_query(request)
    name = parameters.get("name")
    allowed = site.allowed
    criteria = criteria_of(parameters, allowed)
    view = await site.view()
    matches = await site.read(request, lambda server: find_letters(site.address, key_of(name), criteria, allowed))
    filters = [(key, value) for key in (*FILTERS, *RANGES) for value in parameters.all(key) if value]
    summary = next((stream for stream in view.survey.streams if stream.stream == name), None)
    return await site.page(
        request,
        "dead_letters.html",
        title=f"Dead letters of {name}",
        name=name,
        length=None if summary is None else summary.length,
        reasons=[reason for reason in view.reasons if reason.stream == name],
        uncounted=view.uncounted.get(name, 0),
        letters=[_shown(letter, view.survey.at_ms) for letter in matches.letters],
        searched=matches.searched,
        next=matches.next,
        filters=filters,
        parameters=parameters,
        command=site.command(["dead", "list", name, *[word for key, value in filters for word in (f"--{key}", value)]]),
    )


async def dead_letter(site: Site, request: Request) -> Response:
    """Return the page of one dead letter: its fields, why it failed, and its history."""
    parameters = Parameters.of_query(request)
    name, wanted = parameters.get("name"), parameters.get("id")
    view = await site.view()

    def read(server: Server) -> tuple[DeadLetter, list[DecodedCell | None]]:
        whole = fetch_letter(site.address, name, wanted, AllowList())
        pairs = [(raw(field), raw(value)) for field, value in whole.pairs[:EDITABLE_FIELDS]]
        return site.allowed.letter(whole), site.decoded(pairs)

    letter, decoded = await site.read(request, read)
    envelope = [(key, cell(raw(value))) for key, value in letter.envelope.items() if value]
    previous_stream, _, previous_id = split_previous(letter.envelope.get("previous", ""))[0].rpartition("/")
    return await site.page(
        request,
        "dead_letter.html",
        title=f"Dead letter {wanted} of {name}",
        name=name,
        letter=letter,
        age_ms=age_ms(StreamId.parse(letter.id), view.survey.at_ms),
        envelope=envelope,
        fields=fields_of(letter.pairs, site.allowed),
        decoded=decoded,
        more=max(0, len(letter.pairs) - EDITABLE_FIELDS),
        origin=_named(letter.envelope.get("stream", ""), letter.envelope.get("id", "")),
        previous=_named(previous_stream, previous_id),
        command=site.command(["dead", "show", name, wanted]),
    )


def _named(stream: str, entry: str) -> tuple[str, str] | None:
    """Return stream and ID of another entry; None if a page does not take them."""
    return (stream, entry) if stream and entry and is_short(stream, entry) else None


def fetch_letter(address: Address, stream: str, wanted: str, allowed: AllowList) -> DeadLetter:
    """Return one dead letter without hidden values. Raises StreamStateError if there is none with this ID."""
    criteria = parse_criteria(first=wanted, last=wanted)
    letters = find_letters(address, key_of(stream), criteria, allowed, 1).letters
    if not letters:
        raise StreamStateError(f"stream {stream!r} has no dead letter {wanted}; it was sent back or deleted")
    return letters[0]


def _shown(letter: DeadLetter, now_ms: int) -> ShownLetter:
    envelope = {key: raw(value) for key, value in letter.envelope.items()}
    return ShownLetter(
        letter.id,
        age_ms(StreamId.parse(letter.id), now_ms),
        cell(envelope.get("reason", b""), SHORT),
        cell(envelope.get("message", b""), SHORT),
        cell(envelope.get("stream", b""), SHORT),
        [(cell(raw(name), SHORT // 2), cell(raw(value), SHORT // 2)) for name, value in letter.pairs[:_FIELDS]],
        max(0, len(letter.pairs) - _FIELDS),
    )


_ENTRIES = 10_000  # of each stream that one page reads or counts
_MOST_ENTRIES = 1_000_000  # after its button for more was pressed


async def where(site: Site, request: Request) -> Response:
    """Return the page."""
    parameters = Parameters.of_query(request)
    name, wanted = parameters.get("name"), str(entry_id(parameters.get("id")))
    words = ["where", "--", name, wanted] if name.startswith("-") else ["where", name, wanted]
    limit = min(parse_number(parameters.get("limit")) or _ENTRIES, _MOST_ENTRIES)
    outcome = await site.dry_run(request, with_options(words, "--limit", str(limit)))
    told = outcome.output if isinstance(outcome.output, list) else None
    is_cut = limit < _MOST_ENTRIES and any(
        RAISE_LIMIT in (line["because"] or "") for one in told or () for line in one["lines"]
    )
    return await site.page(
        request,
        "where.html",
        title=f"Journey of {wanted}",
        name=name,
        wanted=wanted,
        more=10 * limit if is_cut else 0,
        journeys=[
            (one["stream"], one["id"], [_shown_line(line, site.allowed) for line in one["lines"]]) for one in told or ()
        ],
        error=outcome.error if told is None else "",
        command=site.command(words),
    )


def _shown_line(line: Json, allowed: AllowList) -> tuple[Json, tuple[str, str] | None]:
    """Return a line without hidden values, and stream and ID of another entry that it names, if a page takes them. Only
    the line of a dead letter quotes an entry: the reason and the message."""
    if line["event"] == "dead":
        place, colon, why = line["text"].partition(": ")
        line = {**line, "text": f"{place}{colon}{allowed.text(why)}"}
    return line, _named(line.get("stream") or line.get("of_stream") or "", line.get("id") or line.get("of_id") or "")
