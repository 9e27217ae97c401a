"""The journey of an entry, and of the entries that it was sent back as."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from spark_streams.base.ids import StreamId
from spark_streams.base.printable import name_text
from spark_streams.connector.admin.checkpoint import Checkpoint, fetch_record
from spark_streams.connector.admin.dead_letters import (
    Origin,
    dead_letter_streams,
    fetch_delays,
    fetch_origins,
    why_moving,
)
from spark_streams.connector.deadletter.envelope import is_dead_letter, raw, text
from spark_streams.connector.keys import is_returned, read_retry_stream
from spark_streams.connector.wire.scan import list_streams
from spark_streams.connector.wire.session import Session
from spark_streams.operations.journey.batches import (
    BatchTable,
    archive_line,
    batch_lines,
    ledger_lines,
    proved_by_rows,
    table_lines,
)
from spark_streams.operations.journey.copies import (
    Copy,
    Found,
    copy_line,
    find_copies,
    name_of,
    no_dead_letter_lines,
    of_dead_letter,
    of_entry,
    of_first,
    origin_lines,
    sent_back_lines,
)
from spark_streams.operations.journey.entry_facts import EntryFacts, Name, fetch_facts
from spark_streams.operations.journey.entry_lines import (
    JourneyLine,
    group_line,
    in_order,
    is_never_added,
    presence_lines,
    verdict,
)

_MOST_SENT_BACK = 20  # journeys that follow one another


@dataclass(frozen=True)
class Journey:
    """The journey of one entry."""

    stream: bytes
    id: StreamId
    lines: Sequence[JourneyLine]  # in order of time
    is_present: bool  # the server or an archive has it, or the server has something that names it
    is_known: bool  # or at least its stream

    def as_json(self) -> dict[str, object]:
        """Return the JSON object."""
        lines = [line.as_json() for line in self.lines]
        return {"stream": name_text(self.stream), "id": str(self.id), "verdict": verdict(self.lines), "lines": lines}


@dataclass(frozen=True)
class Beside:
    """What is told beside the server: checkpoints of queries, tables of their rows, paths of archives, and the streams
    to which dead letters were sent besides those that they came from."""

    checkpoints: Sequence[Checkpoint] = ()
    tables: Sequence[BatchTable] = ()
    archives: Sequence[str] = ()
    sent_to: Sequence[Name] = ()


def journeys(
    session: Session, stream: Name, entry: StreamId, limit: int, beside: Beside = Beside()
) -> list[Journey]:  # fmt: skip
    """Return the journey of an entry, and the journeys of what it was sent back as. limit: of entries that are read of
    each stream. Raises WrongKeyTypeError, ServerError."""
    told: dict[tuple[bytes, StreamId], Journey] = {}
    waiting: list[tuple[Name, StreamId]] = [(stream, entry)]
    while waiting and len(told) < _MOST_SENT_BACK:
        name, entry_id = waiting.pop(0)
        if (key := (_raw(name), entry_id)) not in told:
            told[key], sent_back = _journey(session, name, entry_id, limit, beside)
            waiting += [(_name(copy.stream), copy.id) for copy in sent_back]
    return list(told.values())


def _journey(
    session: Session, stream: Name, entry: StreamId, limit: int, beside: Beside
) -> tuple[Journey, Sequence[Copy]]:
    facts = session.run(lambda server: fetch_facts(server, stream, entry, limit))
    dead, retries = _copies(session, _raw(stream), entry, limit)
    copies = [*dead.copies, *retries.copies]
    origins = session.run(lambda server: fetch_origins(server, {copy.stream for copy in dead.copies}))
    doubted = [(copy, copy.envelope.get("group", ""), _doubt(copy, origins)) for copy in copies]
    proofs = {group: f"envelope of {name_of(copy)}" for copy, group, doubt in doubted if not doubt}
    later = Found()
    archives = [archive_line(archive, text(_raw(stream)), entry) for archive in beside.archives]
    is_archived = any(line.event == "archived" and line.is_exact for line in archives)
    was_added = bool(proofs) or is_archived
    lines = [*presence_lines(facts, was_added), *origin_lines(facts)]
    delays = session.run(lambda server: fetch_delays(server, text(_raw(stream)), {group for _, group, _ in doubted}))
    lines += [copy_line(facts, copy, doubt, delays[group]) for copy, group, doubt in doubted]
    was_delivered = any(group.pending is None and entry <= group.info.last_delivered for group in facts.groups)
    if was_added or not is_never_added(facts):
        lines += [group_line(facts, group, proofs.get(text(group.info.name), "")) for group in facts.groups]
        for copy in retries.copies:
            lines += _returned_lines(session, copy, limit)
        if was_delivered and not dead.copies:
            streams = [*map(_raw, (stream, *beside.sent_to))]
            later = find_copies(session, [*streams, *dead.searched], of_first(streams, entry), limit)
            lines += no_dead_letter_lines(facts, dead, later)
    for checkpoint in beside.checkpoints:
        lines += _batch_lines(session, facts, retries.copies, checkpoint, beside.tables, archives)
    lines += archives
    sent_back, found = _sent_back(session, facts, limit, beside.sent_to)
    is_present = facts.fields is not None or facts.is_pending or bool(copies or found or later.copies) or is_archived
    ordered = in_order([*lines, *sent_back])
    return Journey(_raw(stream), entry, ordered, is_present, is_present or facts.state.exists), [
        *found,
        *later.copies,
    ]


def _copies(session: Session, stream: bytes, entry: StreamId, limit: int) -> tuple[Found, Found]:
    """Return (dead letters of an entry, its copies that wait for a retry or were returned)."""
    names = session.run(list_streams)
    dead = session.run(lambda server: [letters.key for letters in dead_letter_streams(server, names)])
    parsed = {name: read_retry_stream(text(name)) for name in names}
    retries = [name for name, retry in parsed.items() if retry is not None and retry.stream == text(stream)]
    matches = of_entry(stream, entry)
    return find_copies(session, dead, matches, limit), find_copies(session, retries, matches, limit)


def _doubt(copy: Copy, origins: Mapping[bytes, Collection[Origin] | None]) -> str:
    """Return why a stranger may have written a copy, "" if it is in a stream that only queries write, or a key of the
    product records its origin."""
    recorded = origins.get(copy.stream, ())
    if recorded is None:
        return "the user may not read which streams have written dead letters there"
    if copy.stream not in origins or (copy.envelope["stream"], copy.envelope.get("group", "")) in recorded:
        return ""
    return "no query of this stream and group is recorded there: any client may have added it"


def _returned_lines(session: Session, copy: Copy, limit: int) -> list[JourneyLine]:
    """Return where a returned entry is in the group that reads it."""
    retry = read_retry_stream(text(copy.stream))
    if retry is None or retry.attempts is not None:
        return []
    facts = session.run(lambda server: fetch_facts(server, text(copy.stream), copy.id, limit))
    return [group_line(facts, group) for group in facts.groups if text(group.info.name) == retry.group]


def _batch_lines(
    session: Session,
    facts: EntryFacts,
    copies: Sequence[Copy],
    checkpoint: Checkpoint,
    tables: Sequence[BatchTable],
    archives: Sequence[JourneyLine],
) -> list[JourneyLine]:
    """Return the batches of a query that read the entry or its returned copies, and where their rows are. archives:
    what archives have of the entry."""
    stream = text(_raw(facts.stream))
    read = [(stream, facts.id)]
    read += [(text(copy.stream), copy.id) for copy in copies if is_returned(text(copy.stream))]
    lines = [line for of in read for line in batch_lines(facts, *of, checkpoint)]
    rows = [row for table in tables for row in table_lines(table, lines, stream, facts.id)]
    lines = proved_by_rows(lines, rows, archives)
    record = session.run(lambda server: fetch_record(server, checkpoint.query))
    return [*lines, *rows, *([] if record is None else ledger_lines(lines, record))]


def _sent_back(
    session: Session, facts: EntryFacts, limit: int, sent_to: Sequence[Name]
) -> tuple[list[JourneyLine], Sequence[Copy]]:
    """Return lines about what a dead letter was sent back as, and these entries; nothing for another entry. sent_to:
    streams that are searched besides those that letters came from."""
    stream = _raw(facts.stream)
    origins = session.run(lambda server: fetch_origins(server, [stream]))[stream]
    if not origins and (facts.fields is None or not is_dead_letter(facts.fields)):
        return [], ()
    if is_never_added(facts) or read_retry_stream(text(stream)) is not None:
        return [], ()
    moving = session.run(lambda server: why_moving(server, text(stream)))
    streams = [raw(origin) for origin, _ in sorted(origins or ())]
    found = find_copies(session, [*streams, *map(_raw, sent_to)], of_dead_letter(stream, facts.id), limit)
    return sent_back_lines(facts, found, moving), found.copies


def _raw(stream: Name) -> bytes:
    return stream if isinstance(stream, bytes) else raw(stream)


def _name(stream: bytes) -> Name:
    try:
        return stream.decode()
    except UnicodeDecodeError:
        return stream
