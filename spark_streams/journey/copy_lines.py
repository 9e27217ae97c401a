"""Lines about the copies of an entry: dead letters, retries, and what it was sent back as. Pure.

A redrive deletes the dead letter that it sends back, and the new entry names the dead letter, not the first entry. So
from a dead letter the way onwards is exact. From an entry whose dead letter is gone it is not known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from spark_streams.deadletter.envelope import open_envelope, split_mark, text
from spark_streams.deadletter.retry.returned_entry import attempts_in
from spark_streams.journey.copies import Copy, Found, name_of
from spark_streams.journey.facts import EntryFacts
from spark_streams.journey.line import Line
from spark_streams.model.id_times import is_time
from spark_streams.model.keys import read_retry_stream
from spark_streams.model.printable import name_text
from spark_streams.model.times import moment

Origin = tuple[str, str]  # stream and group of a dead letter, as text


@dataclass(frozen=True)
class CopyFacts:
    """What is known beside the copies. recorded: origins that a key of the product names, by dead-letter stream; None:
    the user may not read it. delays: of the retries of each group, milliseconds; None likewise or if there are none."""

    recorded: Mapping[bytes, Collection[Origin] | None]
    delays: Mapping[str, Sequence[int] | None]


def copy_line(facts: EntryFacts, copy: Copy, beside: CopyFacts) -> Line:
    """Return the line of a dead letter, or of an entry that waits for a retry or was returned."""
    retry = read_retry_stream(text(copy.stream))
    return _dead_line(facts, copy, beside) if retry is None else _retry_line(copy, retry.attempts, beside)


def _dead_line(facts: EntryFacts, copy: Copy, beside: CopyFacts) -> Line:
    envelope, group = copy.envelope, copy.envelope.get("group", "")
    why = ": ".join(part for part in (envelope.get("reason"), envelope.get("message")) if part) or "no reason given"
    origins = beside.recorded.get(copy.stream)
    unknown = ""
    if origins is None:
        unknown = "the user may not read which streams have written dead letters there"
    elif (envelope["stream"], group) not in origins:
        unknown = "no query of this stream and group is recorded there: any client may have added it"
    batch = f", batch {envelope['batch']}" if envelope.get("batch") else ""
    return Line(
        "dead",
        f"dead letter {name_of(copy)}, {_compared(facts, copy)}{batch}: {why}",
        f"envelope of {name_of(copy)}",
        _time(envelope.get("last-failed", "")) or _time_of(copy, facts),
        unknown,
        group,
        {
            "stream": name_text(copy.stream),
            "id": str(copy.id),
            "same_fields": _is_same(facts, copy),
            **_named(envelope),
        },
    )


def _named(envelope: Mapping[str, str]) -> dict[str, object]:
    names = ("reason", "message", "query", "batch", "stage", "redrives", "previous")
    return {name: envelope[name] for name in names if envelope.get(name)}


def _is_same(facts: EntryFacts, copy: Copy) -> bool | None:
    """Whether the copy has the entry's fields byte for byte; None: the entry is gone."""
    if facts.fields is None:
        return None
    fields = split_mark(facts.fields)[0]
    return tuple(zip(fields[0::2], fields[1::2], strict=True)) == copy.pairs


def _compared(facts: EntryFacts, copy: Copy) -> str:
    same = _is_same(facts, copy)
    if same is None:
        return "not compared, because the entry is gone"
    return "byte for byte" if same else "with other fields"


def _retry_line(copy: Copy, attempts: int | None, beside: CopyFacts) -> Line:
    group = copy.envelope.get("group", "")
    values: dict[str, object] = {"stream": name_text(copy.stream), "id": str(copy.id)}
    tried = attempts_in(copy.envelope.get("deliveries", ""))
    if attempts is None:
        text_of = f"returned after {tried} attempts, as {name_of(copy)}"
        return Line("returned", text_of, f"envelope of {name_of(copy)}", copy.id.ms, "", group, values)
    values["attempt"] = attempts + 1
    shown, source = f"waits for attempt {attempts + 1} as {name_of(copy)}", "XRANGE, retry delays of the group"
    delays = beside.delays.get(group)
    if not delays:
        why = "no delay is recorded: without a query that has retryDelay it is not returned"
        return Line("waiting", shown, source, copy.id.ms, why, group, values)
    due = copy.id.ms + delays[min(attempts, len(delays)) - 1]
    return Line("waiting", shown, source, copy.id.ms, "", group, {**values, "due_ms": due})


def origin_lines(facts: EntryFacts) -> list[Line]:
    """Return what the entry itself says of its past: the dead letter that it was, or the entry that it is a copy of."""
    if facts.fields is None:
        return []
    own, mark = split_mark(facts.fields)
    envelope = open_envelope(own)[1]
    lines = []
    if {"stream", "id"} <= envelope.keys():
        origin = {"of_stream": envelope["stream"], "of_id": envelope["id"]}
        shown = f"a copy of {envelope['stream']}/{envelope['id']} (dead letter or retry)"
        lines.append(
            Line("copy", shown, "its envelope", _time(envelope.get("last-failed", "")), "", "", dict(origin))
        )  # fmt: skip
    if mark is not None:
        shown = f"sent back from dead letter {mark.previous}, redrive {mark.redrives}"
        values: dict[str, object] = {"previous": mark.previous, "redrive": mark.redrives}
        at = facts.id.ms if is_time(facts.id, facts.now) else None
        lines.append(Line("sent back from", shown, "its field dl.redriven", at, "", "", values))
    return lines


def sent_back_lines(facts: EntryFacts, found: Found, is_moving: bool) -> list[Line]:
    """Return what a dead letter was sent back as. is_moving: a redrive of its stream is writing entries just now."""
    lines = []
    for copy in found.copies:
        redrive = copy.mark.redrives if copy.mark else 0
        lines.append(
            Line(
                "sent back",
                f"sent back as {name_of(copy)}, redrive {redrive}",
                f"field dl.redriven of {name_of(copy)}",
                _time_of(copy, facts),
                facts={"stream": name_text(copy.stream), "id": str(copy.id), "redrive": redrive},
            )
        )
    if lines:
        return lines
    source, searched = "XRANGE", ", ".join(map(name_text, found.searched)) or "no stream"
    if facts.fields is not None and not is_moving:
        return [Line("not sent back", "not sent back: a redrive deletes the dead letter", source)]
    why = "a redrive writes entries just now" if is_moving else (
        f"nothing that names it is in {searched}: it was deleted (rstream dead purge), or sent to another stream, or "
        "the entry has left the stream"
    )  # fmt: skip
    why = f"only the first entries of {', '.join(map(name_text, found.cut))} were read; raise --limit" if found.cut \
        else why  # fmt: skip
    return [Line("sent back", "sent back or deleted", source, why_unknown=why)]


def no_dead_letter_lines(found: Found) -> list[Line]:
    """Return that there is no dead letter of an entry that was delivered, and that nothing tells what it was sent back
    as."""
    if found.cut:
        why = f"only the first entries of {', '.join(map(name_text, found.cut))} were read; raise --limit"
        return [Line("dead", "no dead letter was found", "XRANGE", why_unknown=why)]
    why = "a redrive deletes the dead letter, and the entry that it writes names the dead letter, not the first entry"
    return [
        Line("no dead letter", f"no dead letter now, in {len(found.searched)} streams of dead letters", "XRANGE"),
        Line("sent back", "whether it was dead before, and was sent back", "XRANGE", why_unknown=why),
    ]


def _time_of(copy: Copy, facts: EntryFacts) -> int | None:
    return copy.id.ms if is_time(copy.id, facts.now) else None


def _time(value: str) -> int | None:
    """Return the time in an envelope, in Unix ms; None if another writer has written something else."""
    try:
        return moment(value) if "T" in value else None
    except ValueError:
        return None
