"""Shared by the commands that change groups: their options, the streams, the dry run, and the report."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field, asdict, dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

import click

from spark_streams.commands.shared import json_option, named_streams, print_json, print_table, say, url_option
from spark_streams.commands.yes import change_line, yes_option
from spark_streams.errors import GroupInUseError, RStreamError, StreamStateError
from spark_streams.model.pattern import is_pattern

if TYPE_CHECKING:
    from spark_streams.groups.group_snapshot import GroupSnapshot
    from spark_streams.wire.connection.server import Server

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


@dataclass(frozen=True)
class ChangeOptions:
    """Options of every command that changes groups. yes: make the change, otherwise only print it; even_active: even if
    a consumer that is not a query was active in the last minute."""

    group: str
    yes: bool
    even_active: bool
    url: str
    as_json: bool


def change_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --group, --yes, --even-active, the server and --json. The command receives them as `options`."""

    @click.option("--group", required=True, help="The group.")
    @yes_option
    @click.option(
        "--even-active", is_flag=True, help="Even if a consumer that is not a query was active in the last minute."
    )
    @functools.wraps(command)
    def with_options(*, group: str, yes: bool, even_active: bool, url: str, as_json: bool, **arguments: object) -> None:
        command(options=ChangeOptions(group, yes, even_active, url, as_json), **arguments)

    return url_option(json_option(with_options))


def resolve_streams(server: Server, names: Sequence[str], group: str | None) -> list[str]:
    """Return the streams of names and patterns (with `*`, `?` or `[`), in order. A sharded stream becomes its shards.

    group: a pattern matches only streams that have this group. Raises StreamStateError if a pattern matches none."""
    from spark_streams.shards.settling import fetch_shard_sets
    from spark_streams.wire.replies.scan import matching_streams
    from spark_streams.wire.replies.xinfo import group_named

    streams: list[str] = []
    sets = fetch_shard_sets(server, [name for name in names if not is_pattern(name)])
    for name in names:
        if not is_pattern(name):
            streams += sets[name].names if name in sets else [name]
            continue
        matching = matching_streams(server, name, ())
        if group is not None:
            replies = server.pipeline([("XINFO", "GROUPS", stream) for stream in matching])
            matching = [stream for stream, reply in zip(matching, replies, strict=True) if group_named(group, reply)]
        if not matching:
            having = "" if group is None else f" has a group {group!r} and"
            raise StreamStateError(f"no stream at {server.address}{having} matches {name!r}")
        streams += matching
    return list(dict.fromkeys(streams))


def load_groups(server: Server, names: Sequence[str], group: str) -> list[GroupSnapshot]:
    """Return the state of the group on each stream of the names. Raises StreamStateError."""
    from spark_streams.groups.group_snapshot import fetch_group

    streams = resolve_streams(server, names, group)
    named_streams(server, streams)
    return [fetch_group(server, stream, group) for stream in streams]


def server_time(server: Server) -> int:
    """Return the server's time in milliseconds since the epoch."""
    from spark_streams.groups.group_snapshot import fetch_time

    return fetch_time(server, time.time_ns() // 1_000_000)


@dataclass
class ChangeReport(Generic[R]):
    """The change that a command makes or plans. stream_reports: one per stream; refused: reasons why it would be
    refused now; notes: what a query does afterwards."""

    yes: bool
    as_json: bool
    stream_reports: list[R] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add_query_notes(self, queries: Iterable[str]) -> None:
        """Add a note for each query that has committed entries of the changed group."""
        self.notes += [
            f"query {query!r} has a checkpoint; docs/reference/group-changes.md describes its next start"
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

    def show(self, head: Sequence[str], row: Callable[[R], Row], summary: str) -> None:
        """Print the report. summary: one line that begins with a past participle: `set 2 groups`."""
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
        }

    def _print(self, head: Sequence[str], row: Callable[[R], Row], summary: str) -> None:

        print_table(head, [row(report) for report in self.stream_reports])
        for line in dict.fromkeys(self.notes):
            say(f"note: {line}")
        for line in self.refused:
            say(f"would be refused now: {line}")
        say(change_line(self.yes, summary))


def entries_in(reports: Iterable[_OfEntries]) -> int:
    """Return the number of entries in the reports."""
    return sum(report.entries for report in reports)


def plural(count: int, noun: str, plural_noun: str = "") -> str:
    """Return the count with its noun: `1 entry`, `2,000 entries`."""
    return f"{count:,} {noun if count == 1 else plural_noun or noun + 's'}"
