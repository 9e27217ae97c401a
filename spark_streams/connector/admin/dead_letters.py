"""Dead letters for an operator: to list, to count, to send back and to delete them; pages of a stream's entries."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from urllib.parse import unquote

from spark_streams.base.ids import StreamId
from spark_streams.connector.deadletter.envelope import attempts_in, text
from spark_streams.connector.deadletter.letter_page import (
    KIND,
    Criteria,
    DeadLetterPage,
    Extent,
    dead_letter_pages,
    dead_letters_of,
    extent,
    following,
    parse_criteria,
    read_page,
    request_page,
    run_with_smaller_pages,
)
from spark_streams.connector.deadletter.listing import (
    OTHER_KINDS,
    REASONS,
    KindCounts,
    ReasonCounts,
    as_json,
    as_line,
    count_by_kind,
    dead_letter_streams,
    each_dead_letter,
    explain_no_match,
    fetch_streams,
    fields_as_json,
    text_as_json,
)
from spark_streams.connector.deadletter.mover import RedriveState, redrive_key
from spark_streams.connector.deadletter.post import (
    DEAD_LETTER_LIMITS,
    FIRST_STREAMS,
    DeadLetterLimits,
    PageSize,
    pages_of,
)
from spark_streams.connector.deadletter.redrive import DeadLetterRedrive, RedriveReport, purge
from spark_streams.connector.deadletter.redrive_plan import PARKED, Origin, RedriveOptions
from spark_streams.connector.deadletter.transform import DeadLetter, FieldChanges
from spark_streams.connector.deadletter.waiting_entries import delay_after
from spark_streams.connector.keys import delays_key, origins_key
from spark_streams.connector.running.progress_bar import showing_progress
from spark_streams.connector.wire.connection import Reply, Server
from spark_streams.connector.wire.entry_page import parse_entries
from spark_streams.connector.wire.lines import Mask
from spark_streams.connector.wire.replies import is_not_permitted
from spark_streams.connector.wire.session import Session

Entry = tuple[bytes, Sequence[bytes]]  # ID; name, value, name, value …


def entry_pages(
    session: Session, stream: str, first: StreamId, last: StreamId, limits: DeadLetterLimits = DEAD_LETTER_LIMITS
) -> Iterator[list[Entry]]:
    """Yield the entries of a range, both IDs included, page by page: memory does not depend on its length. Raises
    ServerError."""
    size = PageSize(limits)
    begin: StreamId | None = first
    while begin is not None and begin <= last:
        session.renew_login()
        read = partial(_read_entries, stream, begin, last, size)
        entries, received = run_with_smaller_pages(session, size, read)
        if not entries:
            return
        yield entries
        size.learn(len(entries), received, len(entries))
        begin = following(bytes(entries[-1][0]))


def _read_entries(
    stream: str, first: StreamId, last: StreamId, size: PageSize, server: Server
) -> tuple[list[Entry], int]:
    reply = request_page(server, stream, first, last, size.next(), size.limits.max_bytes)
    [parsed] = parse_entries(reply, 1)
    return [(entry[0], entry[1]) for entry in parsed], len(reply)  # type: ignore[index,misc]


def why_moving(server: Server, stream: str) -> str:
    """Return why a dead letter of the stream may be on its way to another one; empty: no redrive is moving any."""
    [state] = server.execute_all([("GET", redrive_key(stream))], is_not_permitted)
    if is_not_permitted(state):
        return "the user may not read whether a redrive writes entries just now"
    running = RedriveState.parse(state)
    if running is None and state is not None:
        return "a redrive by another version of spark-streams may write entries just now"
    return "a redrive writes entries just now" if running is not None and running.to else ""


def fetch_delays(server: Server, stream: str, groups: Iterable[str]) -> Mapping[str, Reply]:
    """Return the recorded retry delays of these groups, as `delay_after` reads them, or the refusal to read them."""
    names = sorted(groups)
    commands = [("GET", delays_key(stream, name)) for name in names]
    return dict(zip(names, server.execute_all(commands, is_not_permitted), strict=True))


def fetch_origins(server: Server, streams: Iterable[bytes]) -> Mapping[bytes, Collection[Origin] | None]:
    """Return the recorded origins of each dead-letter stream, and of the one that it is the parking stream of; None if
    the user may not read them."""
    origins: dict[bytes, Collection[Origin] | None] = {}
    for stream in sorted(streams):
        names = dict.fromkeys([text(stream), text(stream).removesuffix(PARKED)])
        replies = server.execute_all([("HKEYS", origins_key(name)) for name in names], is_not_permitted)
        is_refused = any(map(is_not_permitted, replies))
        origins[stream] = None if is_refused else {_origin(field) for reply in replies for field in reply}
    return origins


def _origin(field: bytes) -> Origin:
    stream, _, group = field.decode("ascii", "replace").partition(" ")
    return unquote(stream, errors="surrogateescape"), unquote(group, errors="surrogateescape")
