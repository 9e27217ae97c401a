"""The convention of all commands that change something: without `--yes` a command prints what it would change.

A command whose purpose is to write new data (`rstream add`) or a file of the user (`rstream export`) acts at once.

A dry run also prints its bounds: options with which the change is no more than it has shown. A dead letter, an entry, a
group or a stream that arrives later is not part of the change. The options replace those of the same name. The console
adds them to the command of the button. A command that changes groups has one such option: `--only STREAM GROUP ID`, for
each group of the dry run. ID is what the dry run has shown of it: the last entry, or the group's position.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

import click
from click.core import ParameterSource

from spark_streams.base.ids import MIN_ID, InvalidStreamId, StreamId
from spark_streams.connector.errors import GroupInUseError, RStreamError
from spark_streams.connector.operator_commands import ONLY, shell_words
from spark_streams.operations.commands.exit_codes import REFUSED, found
from spark_streams.operations.commands.shared import json_option, print_json, print_table, say, url_option
from spark_streams.operations.commands.stream_names import exact_option, require_existing, resolve_streams

if TYPE_CHECKING:
    from spark_streams.connector.admin.groups import GroupSnapshot
    from spark_streams.connector.wire.connection import Server
    from spark_streams.operations.groups.change_plan import Bound, Only, Plan

F = TypeVar("F", bound=Callable[..., object])
Row = Sequence[object]


def yes_option(command: F) -> F:
    """Add `--yes`, without which a command makes no change."""
    text = "Make the change. Without --yes the command only prints what it would change."
    return click.option("--yes", is_flag=True, help=text)(command)


def change_line(yes: bool, summary: str) -> str:
    """Return the last line of a command that changes something. summary: it begins with a past participle."""
    return summary if yes else f"dry run, nothing was changed; with --yes: {summary}"


# -- bounds ------------------------------------------------------------------------------------------------------------


def only_option(command: F) -> F:
    """Add `--only`, which the command receives as `only`."""
    text = "Only this group of this stream, up to this ID of its dry run; repeatable."
    return click.option(ONLY, "only", metavar="STREAM GROUP ID", nargs=3, multiple=True, callback=_only, help=text)(
        command
    )


def _only(ctx: click.Context, param: click.Parameter, values: Sequence[tuple[str, str, str]]) -> Only:
    from spark_streams.operations.groups.change_plan import NO_GROUP, Only

    for *_, last in values:
        try:
            if last != NO_GROUP:
                StreamId.parse(last)
        except InvalidStreamId:
            raise click.BadParameter(
                f"{last!r} is not the ID of an entry, such as 1795163834542-0", ctx, param
            ) from None
    return Only({(stream, group): last for stream, group, last in values})


def bounds_of(options: Mapping[str, Iterable[str]], *flags: str) -> list[str]:
    """Return the options as words. options: values by name, without `--`."""
    words: list[str] = []
    for name, values in options.items():
        for value in values:
            words += [f"--{name}={value}"] if value.startswith("-") else [f"--{name}", value]
    return [*words, *(f"--{flag}" for flag in flags)]


def typed_options(context: click.Context, *without: str) -> list[str]:
    """Return the options that the user has typed, as words. without: names of parameters to leave out. The server's
    URL and login are never among them: they may hold a password."""
    words: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        is_typed = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if not isinstance(parameter, click.Option) or not is_typed or name in ("url", *without):
            continue
        value = context.params.get(name)
        option = parameter.opts[0].removeprefix("--")
        if parameter.is_flag:
            words += bounds_of({}, option)
        elif value is not None:
            words += bounds_of({option: map(str, value if parameter.multiple else [value])})
    return words


def up_to_last(last_ids: Iterable[str]) -> list[str]:
    """Return the bound of a change of one stream's entries: the last of these IDs. An empty text is none."""
    last = max((StreamId.parse(last_id) for last_id in last_ids if last_id), default=MIN_ID)
    return bounds_of({"last-id": [str(last)]})


def say_bounds(bounds: Sequence[str]) -> None:
    """Print the options, if there are any."""
    if bounds:
        say(f"to change no more than this, set or replace these options: {shell_words([*bounds, '--yes'])}")


# -- changes of groups -------------------------------------------------------------------------------------------------


class ChangedStream(Protocol):
    """A dataclass: the change of one stream, done or planned."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]

    @property
    def stream(self) -> str: ...

    @property
    def bound(self) -> Bound: ...


class OfEntries(ChangedStream, Protocol):
    """The change of entries of one stream."""

    @property
    def entries(self) -> int: ...


R = TypeVar("R", bound=ChangedStream)
S = TypeVar("S")


@dataclass(frozen=True)
class ChangeOptions:
    """Options of every command that changes groups."""

    group: str
    exact: bool  # streams are names, never patterns
    yes: bool  # make the change, otherwise only print it
    even_active: bool  # even if a consumer that is not a query was active in the last minute
    url: str
    as_json: bool
    only: Only  # the groups of a dry run


def change_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --group, --exact, --yes, --even-active, --only, the server and --json. The command receives them as
    `options`."""

    @click.option("--group", required=True, help="The group.")
    @exact_option
    @yes_option
    @click.option(
        "--even-active", is_flag=True, help="Even if a consumer that is not a query was active in the last minute."
    )
    @only_option
    @functools.wraps(command)
    def with_options(
        *,
        group: str,
        exact: bool,
        yes: bool,
        even_active: bool,
        url: str,
        as_json: bool,
        only: Only,
        **arguments: object,
    ) -> None:
        command(options=ChangeOptions(group, exact, yes, even_active, url, as_json, only), **arguments)

    return url_option(json_option(with_options))


def load_groups(
    server: Server,
    names: Sequence[str],
    group: str,
    exact: bool = False,
    absent: Sequence[str] = (),
    only: Only | None = None,
    keys: Sequence[bytes] = (),
) -> list[GroupSnapshot]:
    """Return the state of the group on each stream of the names. exact: as for resolve_streams; absent, keys: as for
    fetch_group; only: the groups of a dry run, others are left out. Raises StreamStateError."""
    from spark_streams.connector.admin.groups import fetch_group

    streams = resolve_streams(server, names, group, exact)
    require_existing(server, streams)
    streams = streams if only is None else [stream for stream in streams if only.has(stream, group)]
    return [fetch_group(server, stream, group, absent=absent, keys=keys) for stream in streams]


def server_time(server: Server) -> int:
    """Return the server's time in milliseconds since the epoch."""
    from spark_streams.connector.admin.groups import fetch_time

    return fetch_time(server, time.time_ns() // 1_000_000)


@dataclass
class ChangeReport(Generic[R]):
    """The change that a command makes or plans."""

    yes: bool
    as_json: bool
    stream_reports: list[R] = field(default_factory=list)  # one per stream
    refused: list[str] = field(default_factory=list)  # reasons why it would be refused now
    left_out: list[str] = field(default_factory=list)  # why these were, or would be, not changed, unlike the others
    notes: list[str] = field(default_factory=list)  # what a query does afterwards
    bounds: Sequence[str] = ()  # options that limit the change to the planned one

    def add_query_notes(self, queries: Iterable[str]) -> None:
        """Add a note for each query that has committed entries of the changed group."""
        self.notes += [
            f"query {query!r} has a checkpoint; rstream help change-a-group describes its next start"
            for query in queries
        ]

    def add(self, server: Server, plan: Plan[R]) -> None:
        """Make a change, or compute what it would do."""
        from spark_streams.operations.groups.change_plan import apply, effect

        self.stream_reports.append(apply(server, plan) if self.yes else effect(plan))

    def add_all(
        self, server: Server, subjects: Iterable[S], refused: Sequence[str], plan_of: Callable[[S], Plan[R]]
    ) -> None:
        """Make the change of each subject, if none is refused.

        Raises GroupInUseError, and errors of a plan, whose message then names the streams that were changed before.
        """
        self.refused = list(refused)
        if self.yes and refused:
            raise GroupInUseError("; ".join(refused))
        self.add_each(server, subjects, plan_of, leaves_out=False)

    def add_each(
        self, server: Server, subjects: Iterable[S], plan_of: Callable[[S], Plan[R]], leaves_out: bool = True
    ) -> None:
        """Make the change of each subject. leaves_out: name those that are in use, and go on. Errors: see `add_all`."""
        for subject in subjects:
            try:
                self.add(server, plan_of(subject))
            except RStreamError as error:
                if leaves_out and isinstance(error, GroupInUseError):
                    self.left_out.append(error.message)
                    continue
                if not self.yes or not self.stream_reports:
                    raise
                done = ", ".join(repr(report.stream) for report in self.stream_reports)
                raise type(error)(f"{error.message} (already changed: {done})") from None

    def show(self, head: Sequence[str], row: Callable[[R], Row], summary: str, bounds: Sequence[str] = ()) -> None:
        """Print the report. summary: one line that begins with a past participle: `set 2 groups`; bounds: of a dry run,
        before `--only` of each group."""
        from spark_streams.operations.groups.change_plan import only_these

        self.bounds = () if self.yes else [*bounds, *only_these(report.bound for report in self.stream_reports)]
        if self.refused or (self.left_out and not self.stream_reports):
            found(REFUSED)
        if self.as_json:
            print_json(self._json())
        else:
            self._print(head, row, summary)

    def _json(self) -> dict[str, object]:
        return {
            "dry_run": not self.yes,
            "refused": [*self.refused, *self.left_out],
            "streams": [asdict(report) for report in self.stream_reports],
            "then": self.notes,
            "bounds": self.bounds,
        }

    def _print(self, head: Sequence[str], row: Callable[[R], Row], summary: str) -> None:
        print_table(head, [row(report) for report in self.stream_reports])
        for line in dict.fromkeys(self.notes):
            say(f"note: {line}")
        for line in self.left_out:
            say(f"left out: {line}")
        for line in self.refused:
            say(f"would be refused now: {line}")
        say(change_line(self.yes, summary))
        say_bounds(self.bounds)


def entries_in(reports: Iterable[OfEntries]) -> int:
    """Return the number of entries in the reports."""
    return sum(report.entries for report in reports)
