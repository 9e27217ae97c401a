"""The journey of an entry, and of the entries that it was sent back as."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from spark_streams.deadletter.envelope import is_dead_letter, text
from spark_streams.deadletter.inspect.listing import dead_letter_streams
from spark_streams.deadletter.redrive.destinations import PARKED
from spark_streams.deadletter.redrive.redrive_state import RedriveState, redrive_key
from spark_streams.journey.batches import Checkpoint, batch_lines, ledger_lines
from spark_streams.journey.copies import Copy, Found, find_copies, of_dead_letter, of_entry
from spark_streams.journey.copy_lines import (
    CopyFacts,
    Origin,
    copy_line,
    no_dead_letter_lines,
    origin_lines,
    sent_back_lines,
)
from spark_streams.journey.facts import EntryFacts, Name, fetch_facts
from spark_streams.journey.group_line import group_line
from spark_streams.journey.line import Line, in_order
from spark_streams.journey.presence import is_never_added, presence_lines
from spark_streams.model.ids import StreamId
from spark_streams.model.keys import delays_key, is_returned, origins_key, read_retry_stream, record_key
from spark_streams.model.numbers import parse_number
from spark_streams.model.printable import name_text
from spark_streams.sink.ledger.ledger import QueryRecord
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.scan import list_streams
from spark_streams.wire.session import Session

_MOST_SENT_BACK = 20  # journeys that follow one another


@dataclass(frozen=True)
class Journey:
    """Lines of one entry in order of time. is_present: the server has the entry, or something that names it; is_known:
    or at least its stream."""

    stream: bytes
    id: StreamId
    lines: Sequence[Line]
    is_present: bool
    is_known: bool

    def as_json(self) -> dict[str, object]:
        """Return the JSON object."""
        lines = [line.as_json() for line in self.lines]
        return {"stream": name_text(self.stream), "id": str(self.id), "lines": lines}


def journeys(
    session: Session, stream: Name, entry: StreamId, limit: int, checkpoints: Sequence[Checkpoint] = ()
) -> list[Journey]:
    """Return the journey of an entry, and the journeys of what it was sent back as. limit: of entries that are read of
    each stream; checkpoints: of queries whose batches are told. Raises WrongKeyTypeError, ServerError."""
    told: dict[tuple[bytes, StreamId], Journey] = {}
    waiting: list[tuple[Name, StreamId]] = [(stream, entry)]
    while waiting and len(told) < _MOST_SENT_BACK:
        name, entry_id = waiting.pop(0)
        if (key := (_raw(name), entry_id)) not in told:
            told[key], sent_back = _journey(session, name, entry_id, limit, checkpoints)
            waiting += [(_name(copy.stream), copy.id) for copy in sent_back]
    return list(told.values())


def _journey(
    session: Session, stream: Name, entry: StreamId, limit: int, checkpoints: Sequence[Checkpoint]
) -> tuple[Journey, Sequence[Copy]]:
    facts = session.run(lambda server: fetch_facts(server, stream, entry, limit))
    dead, retries = _copies(session, _raw(stream), entry, limit)
    copies = [*dead.copies, *retries.copies]
    beside = session.run(lambda server: _beside(server, stream, copies))
    lines = [*presence_lines(facts, bool(copies)), *origin_lines(facts)]
    lines += [copy_line(facts, copy, beside) for copy in copies]
    was_delivered = any(group.pending is None and entry <= group.info.last_delivered for group in facts.groups)
    if not is_never_added(facts) or copies:
        lines += _group_lines(facts, copies)
        for copy in retries.copies:
            lines += _returned_lines(session, copy, limit)
        if was_delivered and not dead.copies:
            lines += no_dead_letter_lines(dead)
        for checkpoint in checkpoints:
            lines += _batch_lines(session, facts, retries.copies, checkpoint)
    sent_back, found = _sent_back(session, facts, limit)
    lines += sent_back
    is_present = facts.fields is not None or facts.is_pending or bool(copies) or bool(found)
    return Journey(_raw(stream), entry, in_order(lines), is_present, is_present or facts.state.exists), found


def _copies(session: Session, stream: bytes, entry: StreamId, limit: int) -> tuple[Found, Found]:
    """Return (dead letters of an entry, its copies that wait for a retry or were returned)."""
    dead = session.run(lambda server: [letters.key for letters in dead_letter_streams(server)])
    parsed = {name: read_retry_stream(text(name)) for name in session.run(list_streams)}
    retries = [name for name, retry in parsed.items() if retry is not None and retry.stream == text(stream)]
    matches = of_entry(stream, entry)
    return find_copies(session, dead, matches, limit), find_copies(session, retries, matches, limit)


def _group_lines(facts: EntryFacts, copies: Sequence[Copy]) -> list[Line]:
    proofs = {copy.envelope.get("group", ""): f"envelope of {text(copy.stream)}/{copy.id}" for copy in copies}
    return [group_line(facts, group, proofs.get(text(group.info.name), "")) for group in facts.groups]


def _returned_lines(session: Session, copy: Copy, limit: int) -> list[Line]:
    """Return where a returned entry is in the group that reads it."""
    retry = read_retry_stream(text(copy.stream))
    if retry is None or retry.attempts is not None:
        return []
    facts = session.run(lambda server: fetch_facts(server, text(copy.stream), copy.id, limit))
    return [group_line(facts, group) for group in facts.groups if text(group.info.name) == retry.group]


def _batch_lines(session: Session, facts: EntryFacts, copies: Sequence[Copy], checkpoint: Checkpoint) -> list[Line]:
    """Return the batches of a query that read the entry or its returned copies, and what the sink has of them."""
    read = [(text(_raw(facts.stream)), facts.id)]
    read += [(text(copy.stream), copy.id) for copy in copies if is_returned(text(copy.stream))]
    lines = [line for of in read for line in batch_lines(facts, *of, checkpoint)]
    flat = session.run(lambda server: server.pipeline([("HGETALL", record_key(checkpoint.query))])[0])
    if isinstance(flat, ReplyError) or not flat or not checkpoint.query:
        return lines  # the query has another sink, or the user may not read the ledger
    return [*lines, *ledger_lines(lines, QueryRecord.read(flat))]


def _sent_back(session: Session, facts: EntryFacts, limit: int) -> tuple[list[Line], Sequence[Copy]]:
    """Return lines about what a dead letter was sent back as, and these entries; nothing for another entry."""
    stream = _raw(facts.stream)
    origins = session.run(lambda server: _origins(server, [stream]))[stream]
    if not origins and (facts.fields is None or not is_dead_letter(facts.fields)):
        return [], ()
    if is_never_added(facts) or read_retry_stream(text(stream)) is not None:
        return [], ()
    state = session.run(lambda server: server.pipeline([("GET", redrive_key(text(stream)))])[0])
    running = RedriveState.parse(state) if isinstance(state, bytes) else None
    streams = [origin.encode("utf-8", "surrogateescape") for origin, _ in sorted(origins or ())]
    found = find_copies(session, streams, of_dead_letter(stream, facts.id), limit)
    return sent_back_lines(facts, found, running is not None and bool(running.to)), found.copies


def _beside(server: Server, stream: Name, copies: Sequence[Copy]) -> CopyFacts:
    """Return the recorded origins of the copies' streams, and the retry delays of their groups."""
    groups = sorted({copy.envelope.get("group", "") for copy in copies})
    replies = server.pipeline([("GET", delays_key(text(_raw(stream)), group)) for group in groups])
    delays = {group: _numbers(reply) for group, reply in zip(groups, replies, strict=True)}
    return CopyFacts(_origins(server, {copy.stream for copy in copies}), delays)


def _numbers(reply: object) -> list[int] | None:
    parsed = (
        [parse_number(word.decode("ascii", "replace")) for word in reply.split()] if isinstance(reply, bytes) else []
    )
    numbers = [number for number in parsed if number is not None]
    return numbers if numbers and len(numbers) == len(parsed) else None


def _origins(server: Server, streams: Iterable[bytes]) -> dict[bytes, Collection[Origin] | None]:
    """Return the recorded origins of each dead-letter stream, and of the one that it is the parking stream of; None if
    the user may not read them."""
    origins: dict[bytes, Collection[Origin] | None] = {}
    for stream in sorted(streams):
        names = dict.fromkeys([text(stream), text(stream).removesuffix(PARKED)])
        replies = server.pipeline([("HKEYS", origins_key(name)) for name in names])
        if any(isinstance(reply, ReplyError) for reply in replies):
            origins[stream] = None
        else:
            origins[stream] = {_origin(field) for reply in replies for field in reply}
    return origins


def _origin(field: bytes) -> Origin:
    stream, _, group = field.decode("ascii", "replace").partition(" ")
    return unquote(stream, errors="surrogateescape"), unquote(group, errors="surrogateescape")


def _raw(stream: Name) -> bytes:
    return stream if isinstance(stream, bytes) else stream.encode("utf-8", "surrogateescape")


def _name(stream: bytes) -> Name:
    try:
        return stream.decode()
    except UnicodeDecodeError:
        return stream
