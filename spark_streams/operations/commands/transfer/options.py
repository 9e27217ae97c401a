"""Shared by the commands that transfer entries: the options that select entries, and the report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, NoReturn, TypedDict, TypeVar

import click

from spark_streams.base.units import counted
from spark_streams.connector.errors import OptionError
from spark_streams.operations.commands.dry_run import REFUSED, change_line, server_time
from spark_streams.operations.commands.groups.groups import target_of
from spark_streams.operations.commands.shared import print_json, print_table, say

if TYPE_CHECKING:
    from spark_streams.connector.wire.session import Session
    from spark_streams.operations.groups.position import Target
    from spark_streams.operations.transfer.entries import Entry, Rules
    from spark_streams.operations.transfer.groups import CopiedGroup
    from spark_streams.operations.transfer.reader import Range
    from spark_streams.operations.transfer.transfer import Filled

F = TypeVar("F", bound=Callable[..., object])


class RuleOptions(TypedDict):
    """Values of the options that select and change entries."""

    where: tuple[str, ...]
    limit: int | None
    transform: str | None


class SelectionOptions(RuleOptions):
    """Values of the options for a range of a stream, and of those above."""

    begin: Target | None
    end: Target | None
    newest: int | None


_POSITION = "entry ID, time, or 1h: an hour ago"
_SHOWN = 200  # characters of a value
_RANGE = (
    click.option("--from", "begin", metavar="ID|TIME", callback=target_of, help=f"First entry: {_POSITION}."),
    click.option("--to", "end", metavar="ID|TIME", callback=target_of, help="Last entry: its ID, or before this time."),
    click.option("--last", "newest", type=click.IntRange(1), metavar="N", help="The N newest entries of that range."),
)
_RULES = (
    click.option("--where", multiple=True, metavar="FIELD=VALUE", help="Only entries with this field; repeatable."),
    click.option("--limit", type=click.IntRange(1), metavar="N", help="Maximum number of entries, oldest first."),
    click.option("--transform", metavar="MODULE:FUNCTION", help="Function that changes each entry, or skips it."),
)


def range_options(command: F) -> F:
    """Add the options for a range of a stream."""
    for option in reversed(_RANGE):
        command = option(command)
    return command


def rule_options(command: F) -> F:
    """Add the options that select and change entries."""
    for option in reversed(_RULES):
        command = option(command)
    return command


def rate_option(command: F) -> F:
    """Add --rate."""
    return click.option("--rate", type=click.IntRange(1), metavar="N", help="Maximum number of entries per second.")(
        command
    )


def rules_of(options: RuleOptions, rate: int | None = None) -> Rules:
    """Return the rules of these options. Raises click.UsageError, TransformError."""
    from spark_streams.connector.admin.dead_letters import load
    from spark_streams.operations.transfer.entries import Rules, parse_fields

    try:
        fields = parse_fields(options["where"])
    except OptionError as error:
        raise click.UsageError(error.message) from None
    transform = options["transform"]
    return Rules(fields, options["limit"], rate, None if transform is None else load(transform))


def selected_range(session: Session, stream: str, options: SelectionOptions) -> Range:
    """Return the range of these options. Raises click.UsageError, StreamStateError, ServerError."""
    from spark_streams.operations.transfer.reader import find_range

    begin, end, newest = options["begin"], options["end"], options["newest"]
    try:
        return session.run(lambda server: find_range(server, stream, begin, end, newest, server_time(server)))
    except OptionError as error:
        raise click.UsageError(error.message) from None


def selected_pages(session: Session, stream: str, options: SelectionOptions) -> Iterator[list[Entry]]:
    """Return the pages of the range of these options. Raises as selected_range does."""
    from spark_streams.operations.transfer.reader import stream_pages

    return stream_pages(session, stream, selected_range(session, stream, options))


@dataclass
class TransferReport:
    """Report of a copy or an import. source, target: their names. notes: what the user should know; first: entries of
    an import."""

    source: str
    target: str
    yes: bool
    as_json: bool
    groups: list[CopiedGroup] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    first: list[Entry] = field(default_factory=list)

    def show(self, filled: Filled, verb: str) -> None:
        """Print the report. verb: `copied`."""
        passed, state = filled.passed, filled.state
        expected, actual = passed.digest.facts(), None if filled.actual is None else filled.actual.facts()
        if self.as_json:
            target = {"exists": state.exists, "length": state.length, "last_id": str(state.last)}
            print_json(
                {
                    **{"dry_run": not self.yes, "refused": [], **passed.facts()},
                    **{"source": expected, "target": actual, "target_before": target},
                    **{"groups": [asdict(group) for group in self.groups], "notes": self.notes},
                    **({} if self.yes or not self.first else {"first": _rows(self.first)}),
                }
            )
            return
        rows = [("source", self.source, expected), *([("target", self.target, actual)] if actual else [])]
        print_table(
            ("", "name", "entries", "first", "last", "checksum"),
            [(side, name, *_cells(facts)) for side, name, facts in rows],
        )
        if not self.yes:
            before = f"{counted(state.length, 'entry', 'entries')}, last ID {state.last}" if state.exists else "new"
            say(f"target: {self.target} ({before})")
        if self.groups:
            print_table(
                ("group", "source", "target", "pending (not copied)", "state"),
                [(g.group, g.position, g.target_position, g.pending, g.state) for g in self.groups],
            )
        for note in self.notes:
            say(f"note: {note}")
        summary = [f"{verb} {counted(passed.sent, 'entry', 'entries')}"]
        summary += [f"{passed.already:,} were in the target"] if passed.already else []
        summary += [f"{passed.skipped:,} skipped by the transform"] if passed.skipped else []
        if self.yes:
            summary.append(f"{passed.seconds:.1f} s, {passed.facts()['entries_per_second']:,}/s")
        say(change_line(self.yes, " · ".join(summary)))

    def refuse(self, reason: str) -> NoReturn:
        """Print why the change would be refused, and exit."""
        if self.as_json:
            print_json({"dry_run": True, "refused": [reason]})
        else:
            say(f"would be refused now: {reason}")
        sys.exit(REFUSED)


def _rows(entries: Sequence[Entry]) -> list[dict[str, str]]:
    """Return the fields of entries, with long values cut."""
    fields = [(str(entry.id), name, value) for entry in entries for name, value in entry.texts()]
    return [
        {"id": entry, "field": name, "value": f"{value[:_SHOWN]}{'…' * (len(value) > _SHOWN)}"}
        for entry, name, value in fields
    ]


def _cells(facts: Mapping[str, object]) -> tuple[object, ...]:
    return (facts["entries"], facts["first"] or "-", facts["last"] or "-", facts["checksum"])
