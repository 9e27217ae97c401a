"""Changes that the console can make. Each is a command of `rstream`, so the console does what the command line does.

A page shows the command; its dry run is shown before it can be run. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from spark_streams.base.pattern import escape
from spark_streams.base.untyped import Json
from spark_streams.connector.operator_commands import ONLY


@dataclass(frozen=True)
class Action:
    """title: of the page and its button; command: words after `rstream`; options: names of its options, each with its
    value; flags: options without a value; is_destructive: whether entries or a group are lost; patterns: parameters
    whose value the command takes as a pattern: a name of the server is escaped there; positional: parameters without
    an option; dry, real: option of the dry run, and of the change."""

    title: str
    command: tuple[str, ...]
    options: tuple[str, ...]
    flags: tuple[str, ...] = ()
    is_destructive: bool = False
    patterns: tuple[str, ...] = ()
    positional: tuple[str, ...] = ("names",)
    dry: str = ""
    real: str = "--yes"

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
_LETTERS = (
    *("id", "stream", "reason", "stage", "error", "field"),
    *("older", "newer", "first-id", "last-id", "limit"),
)
ACTIONS = {
    "seek": Action("Set the position", ("groups", "seek"), ("group", "to"), ("even-active",), patterns=_NAMES),
    "replay": Action("Read again", ("replay",), ("group", "from", "to", "consumer"), patterns=_NAMES),
    "claim": Action(
        "Hand over",
        ("groups", "claim"),
        ("group", "from", "to", "idle", "id", "limit"),
        ("released", "even-active"),
        patterns=_NAMES,
    ),
    "ack": Action(
        "Acknowledge",
        ("groups", "ack"),
        ("group", "consumer", "idle", "id", "limit"),
        ("all", "even-active"),
        patterns=_NAMES,
    ),
    "prune": Action(
        "Delete abandoned groups",
        ("groups", "prune"),
        ("idle", "group"),
        is_destructive=True,
        patterns=(*_NAMES, "group"),
    ),
    "add": Action(
        "Add an entry",
        ("add",),
        ("id", "again", "unset"),
        positional=("names", "fields"),
        dry="--check",
        real="",
    ),
    "redrive": Action(
        "Send back",
        ("dead", "redrive"),
        (*_LETTERS, "set", "unset", "to", "allow", "rate", "max-redrives", "parking"),
    ),
    "purge": Action("Delete dead letters", ("dead", "purge"), _LETTERS, is_destructive=True),
}


def with_options(arguments: Sequence[str], *options: str) -> list[str]:
    """Return the arguments with these options, before a `--` that ends options."""
    place = arguments.index("--") if "--" in arguments else len(arguments)
    return [*arguments[:place], *options, *arguments[place:]]
