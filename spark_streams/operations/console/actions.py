"""Changes that the console can make, and what a person reads of them. Pure.

Each is a command of `rstream`, so the console does what the command line does. A page shows the command; its dry run is
shown before it can be run. What the command prints in JSON becomes one sentence, facts and tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple

from spark_streams.base.pattern import escape
from spark_streams.base.units import counted
from spark_streams.base.untyped import Json
from spark_streams.connector.operator_commands import ONLY


@dataclass(frozen=True)
class ConsoleAction:
    """A change as a command of `rstream`."""

    title: str  # of the page and its button
    command: tuple[str, ...]  # words after `rstream`
    options: tuple[str, ...]  # names of its options, each with its value
    flags: tuple[str, ...] = ()  # options without a value
    is_destructive: bool = False  # whether entries or a group are lost
    patterns: tuple[str, ...] = ()  # parameters that the command takes as patterns: a name is escaped there
    positional: tuple[str, ...] = ("names",)  # parameters without an option
    dry: str = ""  # option of the dry run
    real: str = "--yes"  # option of the change

    def arguments(self, parameters: Mapping[str, Sequence[str]], is_dry: bool) -> list[str]:
        """Return the words after `rstream`. parameters: values by the name of the option; `names`: streams; `fields`:
        NAME=VALUE. Values that are empty are left out, except those of --set. Raises ValueError for a parameter that
        the command lacks."""
        unknown = parameters.keys() - {*self.options, *self.flags, *self.positional}
        if unknown:
            raise ValueError(f"rstream {' '.join(self.command)} has no option {', '.join(sorted(unknown))}")
        words: list[str] = []
        for option in self.options:
            for value in map(partial(self._plain, option), parameters.get(option, ())):
                if value:
                    words += [f"--{option}={value}"] if value.startswith("-") else [f"--{option}", value]
        words += [f"--{flag}" for flag in self.flags if any(parameters.get(flag, ()))]
        words += filter(None, [self.dry if is_dry else self.real])
        names = [self._plain(name, value) for name in self.positional for value in parameters.get(name, ()) if value]
        if any(name.startswith("-") for name in names):
            return [*self.command, *words, "--", *names]
        return [*self.command, *names, *words]

    def has_made(self, arguments: Sequence[str]) -> bool:
        """Whether these are arguments of this action."""
        return tuple(arguments[: len(self.command)]) == self.command

    def _plain(self, parameter: str, value: str) -> str:
        return escape(value) if parameter in self.patterns else value


def bounds_of(dry_run: Json) -> list[str]:
    """Return the options with which a change is no more than its dry run has shown (commands/bounds.py). dry_run: its
    output."""
    return [*dry_run.get("bounds", ())] if isinstance(dry_run, dict) else []


def is_empty(dry_run: Json) -> bool:
    """Whether a dry run has found nothing to change: what arrives later has no bound. dry_run: its output."""
    return isinstance(dry_run, dict) and dry_run.get("streams") == []


def without(options: Mapping[str, Sequence[str]], replaced: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return the options without those that these words set."""
    left, names = iter(replaced), set[str]()
    for word in left:
        if word.startswith("--"):
            names.add(word.removeprefix("--").partition("=")[0])
            if word == ONLY:
                list(islice(left, 3))  # names of the server, which may begin with `--`
    return {name: values for name, values in options.items() if name not in names}


_NAMES = ("names",)
_LETTERS = (*("id", "stream", "reason", "stage", "error", "field"), *("older", "newer", "first-id", "last-id", "limit"))
ACTIONS = {
    "seek": ConsoleAction("Set the position", ("groups", "seek"), ("group", "to"), ("even-active",), patterns=_NAMES),
    "replay": ConsoleAction("Read again", ("replay",), ("group", "from", "to", "consumer"), patterns=_NAMES),
    "claim": ConsoleAction(
        "Hand over",
        ("groups", "claim"),
        ("group", "from", "to", "idle", "id", "limit"),
        ("released", "even-active"),
        patterns=_NAMES,
    ),
    "ack": ConsoleAction(
        "Acknowledge",
        ("groups", "ack"),
        ("group", "consumer", "idle", "id", "limit"),
        ("all", "even-active"),
        patterns=_NAMES,
    ),
    "prune": ConsoleAction(
        "Delete abandoned groups",
        ("groups", "prune"),
        ("idle", "group"),
        is_destructive=True,
        patterns=(*_NAMES, "group"),
    ),
    "add": ConsoleAction(
        "Add an entry", ("add",), ("id", "again", "unset"), positional=("names", "fields"), dry="--check", real=""
    ),
    "redrive": ConsoleAction(
        "Send back", ("dead", "redrive"), (*_LETTERS, "set", "unset", "to", "allow", "rate", "max-redrives", "parking")
    ),
    "purge": ConsoleAction("Delete dead letters", ("dead", "purge"), _LETTERS, is_destructive=True),
}


def with_options(arguments: Sequence[str], *options: str) -> list[str]:
    """Return the arguments with these options, before a `--` that ends options."""
    place = arguments.index("--") if "--" in arguments else len(arguments)
    return [*arguments[:place], *options, *arguments[place:]]


# Names of values of `rstream … --json`, and those that are not shown.
_UNSHOWN = ("dry_run", "bound", "bounds", "stopped", "stream", "seconds", "letters_per_second", "added", "last")
_LABELS = {
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
    "letters": "dead letters",
    "fields": "Fields that change",
    "entry": "The new entry",
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


class SummaryTable(NamedTuple):
    """A list of objects. heads: names of the columns, `#` before a column of numbers; rows: values."""

    title: str
    heads: list[str]
    rows: list[list[Json]]


class Summary(NamedTuple):
    """What a command has printed, for people."""

    sentence: str  # what changes
    facts: list[tuple[str, Json]]  # (name, value)
    tables: list[SummaryTable]
    notes: list[tuple[str, list[str]]]  # (title, sentences)


def summarize(command: str, output: Json, is_done: bool) -> Summary:
    """Return the summary of a command's output. command: words after `rstream`, such as `groups seek`; is_done: whether
    it was made, and not only planned. Values that are zero or empty are left out."""
    values = output if isinstance(output, dict) else {}
    facts, tables, notes = [], [], []
    for name, value in values.items():
        label = _LABELS.get(name, name.replace("_", " "))
        if name in _UNSHOWN or value in (None, 0, "", [], {}, False):
            continue
        if isinstance(value, list) and isinstance(value[0], dict):
            tables.append(_table(label, value))
        elif isinstance(value, list):
            title = "Why it would be refused now" if name == "refused" else label
            notes.append((title, [str(item) for item in value]))
        elif not isinstance(value, dict):
            facts.append((label, value))
    return Summary(_sentence(command, values, is_done), facts, tables, notes)


def _table(title: str, rows: list[dict[str, Json]]) -> SummaryTable:
    names = [name for name in rows[0] if any(row.get(name) not in (None, "", [], {}) for row in rows)]
    heads = []
    for name in names:
        is_number = all(isinstance(row.get(name), int | None) for row in rows)
        label = _LABELS.get(name) or name.replace("_", " ")
        heads.append(f"#{label}" if is_number else label)
    return SummaryTable(title, heads, [[row.get(name) for name in names] for row in rows])


# What each command would do, and what it has done. Numbers are counted with their noun: `2 groups`.
_SENTENCES = {
    "groups seek": (
        "The group would read {read_again} again, and skip {skipped:,}.",
        "The group will read {read_again} again, and skip {skipped:,}.",
    ),
    "replay": ("Would let the query read again {entries}.", "Lets the query read again {entries}."),
    "groups claim": ("Would hand over {entries}.", "Handed over {entries}."),
    "groups ack": ("Would acknowledge {entries}.", "Acknowledged {entries}."),
    "groups prune": ("Would delete {streams}, with {pending}.", "Deleted {streams}, with {pending}."),
    "add": ("Would add this entry.", "Added entry {last} to {stream}."),
    "dead redrive": ("Would send back {moved} of {stream}.", "Sent back {moved} of {stream}."),
    "dead purge": ("Would delete {deleted} of {stream} permanently.", "Deleted {deleted} of {stream} permanently."),
}


def _sentence(command: str, values: Mapping[str, Json], is_done: bool) -> str:
    """Return what a command would do or has done; empty if it has no sentence, or has printed nothing."""
    if command not in _SENTENCES or not values:
        return ""
    rows = values.get("streams") or ()
    named = ("entries", "read_again", "skipped", "pending")
    sums = {name: sum(row.get(name) or 0 for row in rows) for name in named}
    return _SENTENCES[command][is_done].format(
        stream=values.get("stream"),
        last=values.get("last"),
        moved=counted(values.get("moved", 0), "dead letter"),
        deleted=counted(values.get("deleted", 0), "dead letter"),
        streams=counted(len(rows), "group"),
        entries=counted(sums["entries"], "entry", "entries"),
        read_again=counted(sums["read_again"], "entry", "entries"),
        skipped=sums["skipped"],
        pending=counted(sums["pending"], "pending entry", "pending entries"),
    )
