"""Copies of an entry that name it: dead letters, entries that wait for a retry, returned entries, sent-back entries.

    dl.stream = orders, dl.id = 5-0      in a dead-letter stream, rstream:retry:… or rstream:returned:…
    dl.previous = orders:dead/7-0 5-0        a dead letter of what the dead letter 7-0 was sent back as
    dl.redriven = 1 … orders:dead/7-0 5-0    an entry that the dead letter 7-0 was sent back as; 5-0 was the first entry

Streams are read page by page as `rstream dead` reads them, up to a number of entries. The lines about copies are pure.
A redrive deletes the dead letter that it sends back. Any producer may write such a field, so what only a field says is
not exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from spark_streams.base.given_text import moment
from spark_streams.base.ids import MIN_ID, StreamId, is_time
from spark_streams.base.printable import name_text
from spark_streams.base.units import counted
from spark_streams.connector.admin.dead_letters import (
    Criteria,
    DeadLetterPage,
    Extent,
    Mask,
    attempts_in,
    dead_letter_pages,
    dead_letters_of,
    delay_after,
)
from spark_streams.connector.deadletter.envelope import (
    MARK,
    RedriveMark,
    open_envelope,
    raw,
    split_mark,
    split_previous,
    text,
)
from spark_streams.connector.keys import read_retry_stream
from spark_streams.connector.wire.connection import Reply
from spark_streams.connector.wire.replies import is_error
from spark_streams.connector.wire.session import Session
from spark_streams.connector.wire.xinfo import stream_states
from spark_streams.operations.journey.entry_facts import EntryFacts
from spark_streams.operations.journey.entry_lines import RAISE_LIMIT, JourneyLine

Matches = Callable[[DeadLetterPage], Mask]


@dataclass(frozen=True)
class Copy:
    """An entry that names another one."""

    stream: bytes  # where the copy is
    id: StreamId
    pairs: tuple[tuple[bytes, bytes], ...]  # its own fields
    envelope: Mapping[str, str]  # names without `dl.`
    mark: RedriveMark | None = None  # of a sent-back entry


@dataclass(frozen=True)
class Found:
    """searched: streams that were read; unread: why a copy may be missing, "" if all were read to their end."""

    copies: tuple[Copy, ...] = ()
    searched: tuple[bytes, ...] = ()
    unread: str = ""


def of_entry(stream: bytes, entry: StreamId) -> Matches:
    """Select copies of an entry."""
    return lambda page: _equals(page, "stream", stream) & _equals(page, "id", bytes(entry))


def of_dead_letter(stream: bytes, entry: StreamId) -> Matches:
    """Select what a dead letter was sent back as."""
    letter = f"{text(stream)}/{entry}"
    return lambda page: _marks_of(page, letter, lambda past: past[0] == letter)


def of_first(streams: Sequence[bytes], entry: StreamId) -> Matches:
    """Select what dead letters of an entry were sent back as, and the dead letters of that. streams: of the entry, and
    those to which letters were sent besides."""

    def matches(page: DeadLetterPage) -> Mask:
        ends = pc.ends_with(pc.fill_null(page.envelope_column("previous"), b""), b" " + bytes(entry))
        letters = np.zeros(page.count, np.bool_)
        for stream in streams:
            letters |= np.asarray(ends.to_numpy(zero_copy_only=False), np.bool_) & _equals(page, "stream", stream)
        return letters | _marks_of(page, str(entry), lambda past: past[1] == str(entry))

    return matches


def _marks_of(page: DeadLetterPage, part: str, is_meant: Callable[[tuple[str, str]], bool]) -> Mask:
    """Return which rows have a mark of a redrive that is meant, by its dead letter and its first ID. part: of it."""
    marks = pc.fill_null(page.field(MARK), b"")
    found = np.asarray(pc.match_substring(marks, raw(f" {part}")).to_numpy(zero_copy_only=False), np.bool_).copy()
    for row in np.flatnonzero(found).tolist():
        mark = RedriveMark.parse(marks[row].as_py())
        found[row] = mark is not None and is_meant(split_previous(mark.previous))
    return found


def find_copies(session: Session, streams: Iterable[bytes], matches: Matches, limit: int) -> Found:
    """Return the entries of these streams that match. limit: of entries that are read of each stream. Raises
    ServerError."""
    names = list(dict.fromkeys(streams))
    states = session.run(lambda server: stream_states(server, names))
    copies: list[Copy] = []
    cut: list[bytes] = []
    for name, state in states.items():
        read = 0
        for page, _ in dead_letter_pages(session, name, Extent(MIN_ID, state.last, state.length, Criteria())):
            copies += _copies(name, page, matches(page))
            read += page.count
            if limit <= read < state.length:
                cut.append(name)
                break
    unread = f"only the first entries of {', '.join(map(name_text, cut))} were read; {RAISE_LIMIT}" if cut else ""
    return Found(tuple(copies), tuple(names), unread)


def _equals(page: DeadLetterPage, name: str, value: bytes) -> Mask:
    same = pc.fill_null(pc.equal(page.envelope_column(name), value), False)
    return np.asarray(same.to_numpy(zero_copy_only=False), np.bool_)


def _copies(stream: bytes, page: DeadLetterPage, mask: Mask) -> Sequence[Copy]:
    copies = []
    for letter in dead_letters_of(page, np.flatnonzero(mask)):
        pairs = [(raw(name), raw(value)) for name, value in letter.pairs]
        mark = RedriveMark.parse(pairs[-1][1]) if pairs and pairs[-1][0] == MARK else None
        own = pairs if mark is None else pairs[:-1]
        copies.append(Copy(stream, StreamId.parse(letter.id), tuple(own), letter.envelope, mark))
    return copies


def name_of(copy: Copy) -> str:
    """Return stream and ID of a copy as the envelope's `dl.previous` writes them."""
    return f"{text(copy.stream)}/{copy.id}"


_FORGED = "any producer may write this field"
_NAMED = ("reason", "message", "query", "batch", "stage", "redrives", "previous")  # of the envelope, in JSON


def copy_line(facts: EntryFacts, copy: Copy, doubt: str, delays: Reply) -> JourneyLine:
    """Return the line of a dead letter, or of an entry that waits for a retry or was returned. doubt: why a stranger
    may have written the dead letter; delays: of the group, as `delays_key` has them."""
    retry = read_retry_stream(text(copy.stream))
    return _dead_line(facts, copy, doubt) if retry is None else _retry_line(copy, retry.attempts, delays)


def _dead_line(facts: EntryFacts, copy: Copy, doubt: str) -> JourneyLine:
    envelope, same = copy.envelope, _is_same(facts, copy)
    why = ": ".join(part for part in (envelope.get("reason"), envelope.get("message")) if part) or "no reason given"
    compared = "byte for byte" if same else "with other fields"
    compared = "not compared, because the entry is gone" if same is None else compared
    batch = f", batch {envelope['batch']}" if envelope.get("batch") else ""
    named = {name: envelope[name] for name in _NAMED if envelope.get(name)}
    return JourneyLine(
        "dead",
        f"dead letter {name_of(copy)}, {compared}{batch}: {why}",
        f"envelope of {name_of(copy)}",
        _time(envelope.get("last-failed", "")) or _time_of(copy, facts),
        doubt,
        envelope.get("group", ""),
        {**_place(copy), "same_fields": same, **named},
    )


def _is_same(facts: EntryFacts, copy: Copy) -> bool | None:
    """Whether the copy has the entry's fields byte for byte; None: the entry is gone."""
    if facts.fields is None:
        return None
    fields = split_mark(facts.fields)[0]
    return tuple(zip(fields[0::2], fields[1::2], strict=True)) == copy.pairs


def _retry_line(copy: Copy, attempts: int | None, delays: Reply) -> JourneyLine:
    group, values = copy.envelope.get("group", ""), _place(copy)
    if attempts is None:
        shown = f"returned after {attempts_in(copy.envelope.get('deliveries', ''))} attempts, as {name_of(copy)}"
        return JourneyLine("returned", shown, f"envelope of {name_of(copy)}", copy.id.ms, "", group, values)
    shown, source = f"waits for attempt {attempts + 1} as {name_of(copy)}", "XRANGE, retry delays of the group"
    delay, values = delay_after(delays, attempts), {**values, "attempt": attempts + 1}
    if delay is None:
        why = "no delay is recorded: without a query that has retryDelay it is not returned"
        why = "the user may not read the retry delays of the group" if is_error(delays) else why
        return JourneyLine("waiting", shown, source, copy.id.ms, why, group, values)
    return JourneyLine("waiting", shown, source, copy.id.ms, "", group, {**values, "due_ms": copy.id.ms + delay})


def origin_lines(facts: EntryFacts) -> list[JourneyLine]:
    """Return what the entry itself says of its past: the dead letter that it was, or the entry that it is a copy of."""
    if facts.fields is None:
        return []
    own, mark = split_mark(facts.fields)
    envelope = open_envelope(own)[1]
    lines = []
    if {"stream", "id"} <= envelope.keys():
        shown = f"a copy of {envelope['stream']}/{envelope['id']} (dead letter or retry)"
        values: dict[str, object] = {"of_stream": envelope["stream"], "of_id": envelope["id"]}
        lines.append(
            JourneyLine("copy", shown, "its envelope", _time(envelope.get("last-failed", "")), _FORGED, facts=values)
        )
    if mark is not None:
        letter, first = split_previous(mark.previous)
        shown = f"sent back from dead letter {letter}, redrive {mark.redrives}"
        shown += f" of entry {first}" if first else ""
        at = facts.id.ms if is_time(facts.id, facts.now) else None
        values = {"previous": letter, "first": first, "redrive": mark.redrives}
        lines.append(JourneyLine("sent back from", shown, "its field dl.redriven", at, _FORGED, facts=values))
    return lines


def sent_back_lines(facts: EntryFacts, found: Found, moving: str) -> list[JourneyLine]:
    """Return what a dead letter was sent back as. moving: why a redrive may be moving it just now; empty: none is."""
    is_left = facts.fields is not None and not moving
    doubt = f"the dead letter is still there, and {_FORGED}" if is_left else _FORGED
    if found.copies:
        return [_sent_back_line(facts, copy, doubt) for copy in found.copies]
    if is_left:
        shown = "still a dead letter: a redrive deletes what it has sent back"
        return [JourneyLine("not sent back", shown, "XRANGE")]
    why = moving or found.unread or (
        f"nothing that names it is in {', '.join(map(name_text, found.searched)) or 'no stream'}: it was deleted "
        "(rstream dead purge), or sent to another stream (--sent-to), or the entry has left the stream"
    )  # fmt: skip
    return [JourneyLine("sent back", "sent back or deleted", "XRANGE", why_unknown=why)]


def _sent_back_line(facts: EntryFacts, copy: Copy, doubt: str) -> JourneyLine:
    redrive = copy.mark.redrives if copy.mark else attempts_in(copy.envelope.get("redrives", ""))
    shown = f"sent back {'as' if copy.mark else 'before it became dead letter'} {name_of(copy)}, redrive {redrive}"
    source, values = f"field dl.{'redriven' if copy.mark else 'previous'} of {name_of(copy)}", _place(copy)
    return JourneyLine("sent back", shown, source, _time_of(copy, facts), doubt, facts={**values, "redrive": redrive})


def no_dead_letter_lines(facts: EntryFacts, found: Found, later: Found) -> list[JourneyLine]:
    """Return that there is no dead letter of an entry that was delivered. later: what names it as the first entry."""
    if found.unread:
        return [JourneyLine("dead", "no dead letter was found", "XRANGE", why_unknown=found.unread)]
    shown = f"no dead letter now, in {counted(len(found.searched), 'stream', 'streams')} of dead letters"
    lines = [_sent_back_line(facts, copy, _FORGED) for copy in later.copies]
    if not lines:
        names = ", ".join(map(name_text, later.searched))
        why = later.unread or f"nothing in {names} names it as the first entry (--sent-to searches another stream)"
        lines = [JourneyLine("sent back", "whether it was dead before, and was sent back", "XRANGE", why_unknown=why)]
    return [JourneyLine("no dead letter", shown, "XRANGE"), *lines]


def _place(copy: Copy) -> Mapping[str, object]:
    return {"stream": name_text(copy.stream), "id": str(copy.id)}


def _time_of(copy: Copy, facts: EntryFacts) -> int | None:
    return copy.id.ms if is_time(copy.id, facts.now) else None


def _time(value: str) -> int | None:
    """Return the time in an envelope, in Unix ms; None if another writer has written something else."""
    try:
        return moment(value) if "T" in value else None
    except ValueError:
        return None
