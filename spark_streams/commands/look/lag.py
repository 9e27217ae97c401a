"""`rstream lag`: how far behind the groups are, as a table, as JSON, or as an exit code."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spark_streams.commands.shared import connect, json_option, named_streams, print_json, print_table, say, url_option
from spark_streams.errors import StreamStateError

if TYPE_CHECKING:
    from spark_streams.monitor.lag_survey import GroupStanding

BEHIND = 3  # exit code


@click.command(short_help="How far each group is behind; as an alert, too.")
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@click.option("--group", help="Only this group.")
@click.option("--max", "most", type=click.IntRange(0), help="Fail where a group is behind by more entries than this.")
@click.option(
    "--max-seconds", type=click.FloatRange(0), help="Fail where an entry older than this is not acknowledged."
)
@url_option
@json_option
def lag(
    names: tuple[str, ...], group: str | None, most: int | None, max_seconds: float | None, url: str, as_json: bool
) -> None:
    """How far each group is behind, in entries and in time (default: all groups of all streams).

    Groups that nobody has read from within a day stand last; --json keeps the order of the streams.

    \b
    lag       entries that the group has yet to be given (10,000+: counted only that far,
              because the server cannot tell)
    behind    the age of the oldest entry that the group has not acknowledged;
              ? where ids are not times
    pending   given, and not acknowledged; oldest: how long the longest has waited
    released  of the pending ones those that a consumer released (XNACK): the group's next reader takes them

    With --max or --max-seconds it prints one line and says by its exit code whether all is well: 0 it is, 3 a group is
    too far behind, 1 it could not be found out. Nothing on the server changes.

    \b
    Examples:
      rstream lag
      rstream lag orders --group billing --json
      rstream lag --max 10000 --max-seconds 60 || page-somebody
    """
    from spark_streams.monitor.lag_survey import survey

    with connect(url) as server:
        # Where entries must be counted, one more than is allowed is enough.
        seen = survey(server, named_streams(server, names, beside=True), None if most is None else most + 1)
        where = str(server.address)
    found = [one for one in seen.groups if group is None or one.group == group]
    if group is not None and not found:
        raise StreamStateError(f"no group {group!r} at {where} reads from these streams; rstream groups lists them")
    checks = most is not None or max_seconds is not None
    beyond = [one for one in found if _is_beyond(one, most, max_seconds)]
    if as_json:
        print_json([asdict(one) for one in found])
    elif checks:
        say(_verdict(found, beyond))
    else:
        _print(found)
    if beyond:
        sys.exit(BEHIND)


def _is_beyond(one: GroupStanding, most: int | None, max_seconds: float | None) -> bool:
    if most is not None and one.lag > most:
        return True
    return max_seconds is not None and one.lag_ms is not None and one.lag_ms > max_seconds * 1000


def _verdict(found: list[GroupStanding], beyond: list[GroupStanding]) -> str:
    from spark_streams.model.printable import printable

    groups = "1 group" if len(found) == 1 else f"{len(found):,} groups"
    if not found:
        return "ok: no groups"
    worst = max(beyond or found, key=lambda one: (one.lag_ms or 0, one.lag))
    said = f"{worst.group} of {worst.stream} is {_behind(worst)}"
    if not beyond:
        return printable(f"ok: {groups}; {said}" if worst.lag or worst.pending else f"ok: {groups}, none behind")
    more = f" ({len(beyond) - 1:,} more of {groups})" if len(beyond) > 1 else ""
    return printable(f"behind: {said}{more}")


def _behind(one: GroupStanding) -> str:
    from spark_streams.monitor.terminal.units import count, duration

    entries = f"{count(one.lag, one.at_least)} {'entry' if one.lag == 1 else 'entries'}"
    age = "" if one.lag_ms is None else f", {duration(one.lag_ms)}"
    return f"{entries}{age} behind" + (f", {one.pending:,} pending" if one.pending else "")


def _print(found: list[GroupStanding]) -> None:
    from spark_streams.monitor.terminal.units import count, duration

    print_table(
        ("stream", "group", "lag ", "behind ", "pending ", "released ", "oldest ", "consumers ", "last delivered"),
        [
            (
                one.stream,
                one.group,
                count(one.lag, one.at_least),
                duration(one.lag_ms),
                one.pending,
                one.released,
                "-" if one.oldest_idle_ms is None else duration(one.oldest_idle_ms),
                len(one.consumers),
                one.last_delivered,
            )
            for one in sorted(found, key=lambda one: not one.is_active)
        ],
    )
    if silent := sum(not one.is_active for one in found):
        were = "group was" if silent == 1 else "groups were"
        say(f"{silent:,} {were} not read from within a day; rstream groups prune finds those that are abandoned")
