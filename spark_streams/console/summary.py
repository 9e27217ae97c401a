"""The JSON output of a command for people: one sentence, and names of its values. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from spark_streams.model.untyped import Json
from spark_streams.monitor.terminal.units import counted

# Names of values of `rstream … --json`. Empty: the value is not shown.
_LABELS = {
    "dry_run": "",
    "bound": "",
    "stopped": "",
    "stream": "",
    "seconds": "seconds",
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
    "letters_per_second": "per second",
    "letters": "dead letters",
    "destinations": "Where they go",
    "by": "By reason",
    "streams": "Streams",
    "then": "Afterwards",
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
    sentence = "" if sentence_of is None or not values else sentence_of(values, "" if is_done else "would be ")
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


def _redrive(values: Mapping[str, Json], would: str) -> str:
    moved = counted(values.get("moved", 0), "dead letter")
    return f"{moved} of {values.get('stream')} {would or 'were '}sent back."


def _entries(verb: str) -> Callable[[Mapping[str, Json], str], str]:
    def sentence(values: Mapping[str, Json], would: str) -> str:
        return f"{counted(_sum(values, 'entries'), 'entry', 'entries')} {would or 'were '}{verb}."

    return sentence


def _seek(values: Mapping[str, Json], would: str) -> str:
    read_again, skipped = _sum(values, "read_again"), _sum(values, "skipped")
    verb = would or "will be "
    return f"{counted(read_again, 'entry', 'entries')} {verb}read again, {skipped:,} {verb}skipped."


def _prune(values: Mapping[str, Json], would: str) -> str:
    groups = counted(len(values.get("streams") or ()), "group")
    pending = counted(_sum(values, "pending"), "pending entry", "pending entries")
    return f"{groups} {would or 'were '}deleted, with {pending}."


def _purge(values: Mapping[str, Json], would: str) -> str:
    deleted = counted(values.get("deleted", 0), "dead letter")
    return f"{deleted} of {values.get('stream')} {would or 'were '}deleted permanently."


_SENTENCES: dict[str, Callable[[Mapping[str, Json], str], str]] = {
    "groups seek": _seek,
    "replay": _entries("handed to the query again"),
    "groups claim": _entries("handed over"),
    "groups ack": _entries("acknowledged"),
    "groups prune": _prune,
    "dead redrive": _redrive,
    "dead purge": _purge,
}
