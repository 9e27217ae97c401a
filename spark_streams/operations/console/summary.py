"""The JSON output of a command for people: one sentence, and names of its values. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from spark_streams.base.units import counted
from spark_streams.base.untyped import Json

# Names of values of `rstream … --json`. Empty: the value is not shown.
_LABELS = {
    "dry_run": "",
    "bound": "",
    "bounds": "",
    "stopped": "",
    "stream": "",
    "seconds": "",
    "total": "entries in the stream",
    "looked_at": "entries examined",
    "moved": "sent back",
    "parked": "parked",
    "moved_before": "sent back before",
    "goes_on": "continues an earlier run",
    "left": "stay: left out",
    "homeless": "stay: they name no target stream",
    "refused": "stay: target not allowed",
    "vanished": "deleted by another client meanwhile",
    "letters_per_second": "",
    "letters": "dead letters",
    "fields": "Fields that change",
    "entry": "The new entry",
    "added": "",
    "last": "",
    "destinations": "Where they go",
    "by": "By reason",
    "streams": "Streams",
    "then": "Afterwards",
    "first": "The first entries",
    "sent": "",
    "already": "already in the stream",
    "entries_per_second": "",
    "kept": "Groups that stay",
    "in_use": "groups in use",
    "position_before": "from",
    "position": "to",
    "used_memory": "memory, bytes",
    "uptime_seconds": "uptime, seconds",
    "clock_ahead_ms": "clock ahead, ms",
    "gone": "deleted entries",
    "above": "stay with their consumer",
}


class Table(NamedTuple):
    """A list of objects. heads: names of the columns, `#` before a column of numbers; rows: values."""

    title: str
    heads: list[str]
    rows: list[list[Json]]


class Summary(NamedTuple):
    """sentence: what changes; facts: (name, value); tables; notes: lists of sentences, by title."""

    sentence: str
    facts: list[tuple[str, Json]]
    tables: list[Table]
    notes: list[tuple[str, list[str]]]


def summarize(command: str, output: Json, is_done: bool) -> Summary:
    """Return the summary of a command's output. command: words after `rstream`, such as `groups seek`; is_done: whether
    it was made, and not only planned. Values that are zero or empty are left out."""
    values = output if isinstance(output, dict) else {}
    sentence_of = _SENTENCES.get(command)
    facts, tables, notes = [], [], []
    for name, value in values.items():
        label = _LABELS.get(name, name.replace("_", " "))
        if not label or value in (None, 0, "", [], {}, False):
            continue
        if isinstance(value, list) and isinstance(value[0], dict):
            tables.append(_table(label, value))
        elif isinstance(value, list):
            title = "Why it would be refused now" if name == "refused" else label
            notes.append((title, [str(item) for item in value]))
        elif not isinstance(value, dict):
            facts.append((label, value))
    sentence = "" if sentence_of is None or not values else sentence_of(values, is_done)
    return Summary(sentence, facts, tables, notes)


def _table(title: str, rows: list[dict[str, Json]]) -> Table:
    names = [name for name in rows[0] if any(row.get(name) not in (None, "", [], {}) for row in rows)]
    heads = []
    for name in names:
        is_number = all(isinstance(row.get(name), int | None) for row in rows)
        label = _LABELS.get(name) or name.replace("_", " ")
        heads.append(f"#{label}" if is_number else label)
    return Table(title, heads, [[row.get(name) for name in names] for row in rows])


def _sum(values: Mapping[str, Json], name: str) -> int:
    rows: Iterable[Json] = values.get("streams") or ()
    return sum(row.get(name) or 0 for row in rows)


def _redrive(values: Mapping[str, Json], is_done: bool) -> str:
    moved = counted(values.get("moved", 0), "dead letter")
    return f"{'Sent' if is_done else 'Would send'} back {moved} of {values.get('stream')}."


def _add(values: Mapping[str, Json], is_done: bool) -> str:
    return f"Added entry {values.get('last')} to {values.get('stream')}." if is_done else "Would add this entry."


def _purge(values: Mapping[str, Json], is_done: bool) -> str:
    deleted = counted(values.get("deleted", 0), "dead letter")
    return f"{'Deleted' if is_done else 'Would delete'} {deleted} of {values.get('stream')} permanently."


def _entries(planned: str, done: str) -> Callable[[Mapping[str, Json], bool], str]:
    """Return a function that makes the sentence. planned, done: its beginning."""

    def sentence(values: Mapping[str, Json], is_done: bool) -> str:
        return f"{done if is_done else planned} {counted(_sum(values, 'entries'), 'entry', 'entries')}."

    return sentence


def _seek(values: Mapping[str, Json], is_done: bool) -> str:
    read_again = counted(_sum(values, "read_again"), "entry", "entries")
    verb = "will" if is_done else "would"
    return f"The group {verb} read {read_again} again, and skip {_sum(values, 'skipped'):,}."


def _prune(values: Mapping[str, Json], is_done: bool) -> str:
    groups = counted(len(values.get("streams") or ()), "group")
    pending = counted(_sum(values, "pending"), "pending entry", "pending entries")
    return f"{'Deleted' if is_done else 'Would delete'} {groups}, with {pending}."


_SENTENCES: dict[str, Callable[[Mapping[str, Json], bool], str]] = {
    "groups seek": _seek,
    "replay": _entries("Would let the query read again", "Lets the query read again"),
    "groups claim": _entries("Would hand over", "Handed over"),
    "groups ack": _entries("Would acknowledge", "Acknowledged"),
    "groups prune": _prune,
    "add": _add,
    "dead redrive": _redrive,
    "dead purge": _purge,
}
