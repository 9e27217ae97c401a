"""`rstream lag`: show how far groups are behind, as a table, as JSON, or as an exit code."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spark_streams.commands.names import named_streams
from spark_streams.commands.shared import connect, json_option, print_json, print_table, say, url_option
from spark_streams.errors import StreamStateError

if TYPE_CHECKING:
    from spark_streams.monitor.held import Held
    from spark_streams.monitor.lag_survey import GroupLag

BEHIND, UNKNOWN = 3, 4  # exit codes


@click.command(short_help="Show or check how far each group is behind.")
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@click.option("--group", help="Only this group.")
@click.option("--max", "max_entries", type=click.IntRange(0), help="Fail if the lag of a group exceeds this.")
@click.option("--max-seconds", type=click.FloatRange(0), help="Fail if an unacknowledged entry is older than this.")
@url_option
@json_option
def lag(
    names: tuple[str, ...],
    group: str | None,
    max_entries: int | None,
    max_seconds: float | None,
    url: str,
    as_json: bool,
) -> None:
    """Show how far each group is behind, in entries and in time (default: all groups of all streams).

    Groups without a read in the last day come last. --json keeps the order of the streams.

    \b
    lag       entries not yet delivered to the group (10,000+: counted only up to there,
              because the server does not know the lag)
    behind    age of the oldest entry that the group has not acknowledged;
              ? if its ID is not a time in milliseconds (before September 2001, or more
              than a day ahead of the server's clock)
    pending   entries delivered and not acknowledged
    released  pending entries that a consumer released (XNACK): the group's next reader takes them
    oldest    how long the oldest pending entry has been pending

    A last line names the group that holds most entries back, of those that rstream groups prune --hold --idle 1d lists.
    --json has all (held).

    With --max or --max-seconds the command prints one line and sets the exit code: 0 no group is too far behind; 3 a
    group is too far behind; 4 --max-seconds could not be checked for a group, because its entry IDs are not times, and
    no other group is too far behind; 1 the lag could not be read. Nothing on the server changes.

    \b
    Examples:
      rstream lag
      rstream lag orders --group billing --json
      rstream lag --max 10000 --max-seconds 60 || send-alert
    """
    from spark_streams.monitor.held import fetch_held, unused
    from spark_streams.monitor.lag_survey import survey

    checks = max_entries is not None or max_seconds is not None
    with connect(url) as server:
        # If entries must be counted, one more than the maximum is enough.
        snapshot = survey(
            server,
            named_streams(server, names, with_retry_streams=True),
            None if max_entries is None else max_entries + 1,
        )
        is_shown = as_json or not checks
        held = fetch_held(server, snapshot) if is_shown else []
        address = str(server.address)
    groups = [group_lag for group_lag in snapshot.groups if group is None or group_lag.group == group]
    if group is not None and not groups:
        raise StreamStateError(f"no group {group!r} at {address} reads from these streams; rstream groups lists them")
    late_groups = [group_lag for group_lag in groups if _is_beyond(group_lag, max_entries, max_seconds)]
    unchecked = [group_lag for group_lag in groups if max_seconds is not None and group_lag.lag_ms is None]
    if as_json:
        held_by = {(one.stream, one.group): {"entries": one.entries, "bytes": one.bytes} for one in held}
        print_json([{**asdict(one), "held": held_by.get((one.stream, one.group))} for one in groups])
    elif checks:
        say(_verdict(groups, late_groups, unchecked))
    else:
        _print(groups, [one for one in unused(held) if group in (None, one.group)])
    if late_groups or unchecked:
        sys.exit(BEHIND if late_groups else UNKNOWN)


def _is_beyond(group_lag: GroupLag, max_entries: int | None, max_seconds: float | None) -> bool:
    if max_entries is not None and group_lag.lag > max_entries:
        return True
    return max_seconds is not None and group_lag.lag_ms is not None and group_lag.lag_ms > max_seconds * 1000


def _verdict(groups: list[GroupLag], late_groups: list[GroupLag], unchecked: list[GroupLag]) -> str:
    from spark_streams.model.printable import printable

    group_count = "1 group" if len(groups) == 1 else f"{len(groups):,} groups"
    if not groups:
        return "ok: no groups"
    if unchecked and not late_groups:
        first = unchecked[0]
        more = f" ({len(unchecked) - 1:,} more of {group_count})" if len(unchecked) > 1 else ""
        return printable(
            f"unknown: {first.group} of {first.stream} is {_behind(first)}; how many seconds is not known, because its "
            f"entry IDs are not times{more}. Check the number of entries: --max"
        )
    worst = max(late_groups or groups, key=lambda group_lag: (group_lag.lag_ms or 0, group_lag.lag))
    worst_line = f"{worst.group} of {worst.stream} is {_behind(worst)}"
    if not late_groups:
        return printable(
            f"ok: {group_count}; {worst_line}" if worst.lag or worst.pending else f"ok: {group_count}, none behind"
        )
    more = f" ({len(late_groups) - 1:,} more of {group_count})" if len(late_groups) > 1 else ""
    return printable(f"behind: {worst_line}{more}")


def _behind(group_lag: GroupLag) -> str:
    from spark_streams.monitor.terminal.units import count, duration

    entries = f"{count(group_lag.lag, group_lag.at_least)} {'entry' if group_lag.lag == 1 else 'entries'}"
    age = "" if group_lag.lag_ms is None else f", {duration(group_lag.lag_ms)}"
    return f"{entries}{age} behind" + (f", {group_lag.pending:,} pending" if group_lag.pending else "")


def _print(groups: list[GroupLag], held: list[Held]) -> None:
    from spark_streams.monitor.terminal.units import count, duration

    print_table(
        ("stream", "group", "lag ", "behind ", "pending ", "released ", "oldest ", "consumers ", "last delivered"),
        [
            (
                group_lag.stream,
                group_lag.group,
                count(group_lag.lag, group_lag.at_least),
                duration(group_lag.lag_ms),
                group_lag.pending,
                group_lag.released,
                "-" if group_lag.oldest_idle_ms is None else duration(group_lag.oldest_idle_ms),
                len(group_lag.consumers),
                group_lag.last_delivered,
            )
            for group_lag in sorted(groups, key=lambda group_lag: not group_lag.is_active)
        ],
    )
    if inactive := sum(not group_lag.is_active for group_lag in groups):
        nouns = "1 group has" if inactive == 1 else f"{inactive:,} groups have"
        say(f"{nouns} not been read from in the last day; rstream groups prune finds abandoned groups")
    if held:
        say(_of_held(held))


def _of_held(held: list[Held]) -> str:
    from spark_streams.model.printable import printable

    most = held[0]
    more = f" ({len(held) - 1:,} more of such groups)" if len(held) > 1 else ""
    return printable(
        f"group {most.group} of {most.stream} {most}{more}: entries that another group no longer needs; "
        "rstream groups prune --hold --idle 1d lists them"
    )
