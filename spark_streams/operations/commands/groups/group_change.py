"""Shared by the commands that change groups: their options, the streams, the dry run, and the report."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field, asdict, dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

import click

from spark_streams.connector.errors import GroupInUseError, RStreamError
from spark_streams.operations.commands.bounds import Only, only_option, say_bounds
from spark_streams.operations.commands.names import exact_option, require_existing, resolve_streams
from spark_streams.operations.commands.shared import json_option, print_json, print_table, say, url_option
from spark_streams.operations.commands.yes import change_line, yes_option

if TYPE_CHECKING:
    from spark_streams.connector.admin.groups import GroupSnapshot
    from spark_streams.connector.wire.connection.server import Server

REFUSED = 3  # exit code of a dry run of a change that would be refused
Row = Sequence[object]


class Report(Protocol):
    """A dataclass: the change of one stream, done or planned."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]

    @property
    def stream(self) -> str: ...


class _OfEntries(Protocol):
    @property
    def entries(self) -> int: ...


R = TypeVar("R", bound=Report)
S = TypeVar("S")
F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True)
class ChangeOptions:
    """Options of every command that changes groups. exact: streams are names, never patterns; yes: make the change,
    otherwise only print it; even_active: even if a consumer that is not a query was active in the last minute; only:
    the groups of a dry run."""

    group: str
    exact: bool
    yes: bool
    even_active: bool
    url: str
    as_json: bool
    only: Only


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


def all_streams(server: Server) -> list[str]:
    """Return all streams whose names are UTF-8, without the product's own."""
    from spark_streams.connector.wire.replies.scan import matching_streams

    return matching_streams(server, "*", ())


def load_groups(
    server: Server,
    names: Sequence[str],
    group: str,
    exact: bool = False,
    absent: Sequence[str] = (),
    only: Only | None = None,
) -> list[GroupSnapshot]:
    """Return the state of the group on each stream of the names. exact: as for resolve_streams; absent: see
    GroupSnapshot; only: the groups of a dry run, others are left out. Raises StreamStateError."""
    from spark_streams.connector.admin.groups import fetch_group

    streams = resolve_streams(server, names, group, exact)
    require_existing(server, streams)
    streams = streams if only is None else [stream for stream in streams if only.has(stream, group)]
    return [fetch_group(server, stream, group, absent=absent) for stream in streams]


def server_time(server: Server) -> int:
    """Return the server's time in milliseconds since the epoch."""
    from spark_streams.connector.admin.groups import fetch_time

    return fetch_time(server, time.time_ns() // 1_000_000)


@dataclass
class ChangeReport(Generic[R]):
    """The change that a command makes or plans. stream_reports: one per stream; refused: reasons why it would be
    refused now; notes: what a query does afterwards; bounds: options that limit the change to the planned one."""

    yes: bool
    as_json: bool
    stream_reports: list[R] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bounds: Sequence[str] = ()

    def add_query_notes(self, queries: Iterable[str]) -> None:
        """Add a note for each query that has committed entries of the changed group."""
        self.notes += [
            f"query {query!r} has a checkpoint; rstream help change-a-group describes its next start"
            for query in queries
        ]

    def carry_out(self, subjects: Sequence[S], refused: Sequence[str], work: Callable[[S], R]) -> None:
        """Do the work for each subject, if none is refused.

        Raises GroupInUseError, and errors of the work, whose message then names the streams that were changed before.
        """
        self.refused = list(refused)
        if self.yes and refused:
            raise GroupInUseError("; ".join(refused))
        try:
            for subject in subjects:
                self.stream_reports.append(work(subject))
        except RStreamError as error:
            if self.yes and self.stream_reports:
                done = ", ".join(repr(report.stream) for report in self.stream_reports)
                raise type(error)(f"{error.message} (already changed: {done})") from None
            raise

    def show(self, head: Sequence[str], row: Callable[[R], Row], summary: str, bounds: Sequence[str] = ()) -> None:
        """Print the report. summary: one line that begins with a past participle: `set 2 groups`; bounds: of a dry
        run."""
        self.bounds = () if self.yes else bounds
        if self.as_json:
            print_json(self._json())
        else:
            self._print(head, row, summary)
        if self.refused:
            sys.exit(REFUSED)

    def _json(self) -> dict[str, object]:
        return {
            "dry_run": not self.yes,
            "refused": self.refused,
            "streams": [asdict(report) for report in self.stream_reports],
            "then": self.notes,
            "bounds": self.bounds,
        }

    def _print(self, head: Sequence[str], row: Callable[[R], Row], summary: str) -> None:

        print_table(head, [row(report) for report in self.stream_reports])
        for line in dict.fromkeys(self.notes):
            say(f"note: {line}")
        for line in self.refused:
            say(f"would be refused now: {line}")
        say(change_line(self.yes, summary))
        say_bounds(self.bounds)


def entries_in(reports: Iterable[_OfEntries]) -> int:
    """Return the number of entries in the reports."""
    return sum(report.entries for report in reports)


def plural(count: int, noun: str, plural_noun: str = "") -> str:
    """Return the count with its noun: `1 entry`, `2,000 entries`."""
    return f"{count:,} {noun if count == 1 else plural_noun or noun + 's'}"
