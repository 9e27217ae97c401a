"""What the commands share that change groups: which streams, looking before changing, and how it is told."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field, asdict, dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

import click

from spark_streams.commands.shared import json_option, named_streams, print_json, print_table, say, url_option
from spark_streams.errors import GroupInUseError, RStreamError, StreamStateError
from spark_streams.model.pattern import is_pattern

if TYPE_CHECKING:
    from spark_streams.groups.group_snapshot import GroupSnapshot
    from spark_streams.wire.connection.server import Server

REFUSED = 3  # exit code of a dry run of what would be refused
Row = Sequence[object]


class Report(Protocol):
    """A dataclass: what was, or would be, done on one stream."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]

    @property
    def stream(self) -> str: ...


class _OfEntries(Protocol):
    @property
    def entries(self) -> int: ...


R = TypeVar("R", bound=Report)
S = TypeVar("S")


@dataclass(frozen=True)
class Hand:
    """The options of every command that changes groups. yes: change, else only tell; even_active: also if a consumer
    that is not a query was active in the last minute."""

    group: str
    yes: bool
    even_active: bool
    url: str
    as_json: bool


def hand_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --group, --yes, --even-active, the server and --json. The command gets them as `hand`, a Hand."""

    @click.option("--group", required=True, help="The group.")
    @click.option("--yes", is_flag=True, help="Do it; else only what it would change is printed.")
    @click.option(
        "--even-active", is_flag=True, help="Also where a consumer that is no query was active in the last minute."
    )
    @functools.wraps(command)
    def with_hand(*, group: str, yes: bool, even_active: bool, url: str, as_json: bool, **others: object) -> None:
        command(hand=Hand(group, yes, even_active, url, as_json), **others)

    return url_option(json_option(with_hand))


def streams_meant(server: Server, names: Sequence[str], group: str | None) -> list[str]:
    """The streams of names (of one in shards, these) and patterns (with `*`, `?` or `[`), in order; of a pattern
    those that have the group, where one is given. Raises StreamStateError where it finds none."""
    from spark_streams.shards.settling import fetch_shard_sets
    from spark_streams.wire.replies.scan import matching_streams
    from spark_streams.wire.replies.xinfo import group_named

    found: list[str] = []
    sets = fetch_shard_sets(server, [name for name in names if not is_pattern(name)])
    for name in names:
        if not is_pattern(name):
            found += sets[name].names if name in sets else [name]
            continue
        matching = matching_streams(server, name, ())
        if group is not None:
            replies = server.pipeline([("XINFO", "GROUPS", one) for one in matching])
            matching = [one for one, reply in zip(matching, replies, strict=True) if group_named(group, reply)]
        if not matching:
            having = "" if group is None else f" has a group {group!r} and"
            raise StreamStateError(f"no stream at {server.address}{having} matches {name!r}")
        found += matching
    return list(dict.fromkeys(found))


def standings_of(server: Server, names: Sequence[str], group: str) -> list[GroupSnapshot]:
    """Fetch the group on each stream that the names or patterns select. Raises StreamStateError."""
    from spark_streams.groups.group_snapshot import fetch_group

    found = streams_meant(server, names, group)
    named_streams(server, found)
    return [fetch_group(server, stream, group) for stream in found]


def server_time(server: Server) -> int:
    """Milliseconds since the epoch."""
    from spark_streams.groups.group_snapshot import fetch_time

    return fetch_time(server, time.time_ns() // 1_000_000)


@dataclass
class Told(Generic[R]):
    """What was, or would be, done. reports: one a stream; refused: why it would be refused now; then:
    what a query does afterwards."""

    yes: bool
    as_json: bool
    reports: list[R] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    then: list[str] = field(default_factory=list)

    def note_queries(self, queries: Iterable[str]) -> None:
        """These queries have committed entries of the group, which is changed."""
        self.then += [
            f"query {query!r} has a checkpoint: docs/reference/group-changes.md says what it does when it is started "
            "again"
            for query in queries
        ]

    def carry_out(self, standings: Sequence[S], refused: Sequence[str], work: Callable[[S], R]) -> None:
        """The work of each stream, when none of them is refused. Raises GroupInUseError, and what the work raises: then
        what was done before is told."""
        self.refused = list(refused)
        if self.yes and refused:
            raise GroupInUseError("; ".join(refused))
        try:
            for standing in standings:
                self.reports.append(work(standing))
        except RStreamError as error:
            if self.yes and self.reports:
                done = ", ".join(repr(one.stream) for one in self.reports)
                raise type(error)(f"{error.message} (done before: {done})") from None
            raise

    def show(self, head: Sequence[str], row: Callable[[R], Row], said: str) -> None:
        """Print it; said: one line on all of it, which begins with a verb's past: `set 2 groups`."""
        if self.as_json:
            print_json(self._json())
        else:
            self._print(head, row, said)
        if self.refused:
            sys.exit(REFUSED)

    def _json(self) -> dict[str, object]:
        return {
            "dry_run": not self.yes,
            "refused": self.refused,
            "streams": [asdict(one) for one in self.reports],
            "then": self.then,
        }

    def _print(self, head: Sequence[str], row: Callable[[R], Row], said: str) -> None:

        print_table(head, [row(one) for one in self.reports])
        for line in dict.fromkeys(self.then):
            say(f"then: {line}")
        for line in self.refused:
            say(f"refused now: {line}")
        say(said if self.yes else f"dry run, nothing is changed: --yes, and it has {said}")


def entries_in(reports: Iterable[_OfEntries]) -> int:
    """How many entries the reports tell of."""
    return sum(report.entries for report in reports)


def plural(count: int, one: str, many: str = "") -> str:
    """`1 entry`, `2,000 entries`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
