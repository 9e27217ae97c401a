"""`rstream lag`: how far groups are behind, as a table, as JSON, or as one line and an exit code."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spark_streams.base.printable import name_text, printable
from spark_streams.base.units import count, counted, duration
from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.lag.survey import GroupLag, Survey, trimmed_line
from spark_streams.connector.operator_commands import command_on
from spark_streams.connector.wire.scan import suggest_names
from spark_streams.operations.commands import shared
from spark_streams.operations.commands.exit_codes import CHECK_FAILED, UNPROVED, found
from spark_streams.operations.commands.stream_names import named_streams, streams_by_word

if TYPE_CHECKING:
    from spark_streams.connector.lag.margin import Margin
    from spark_streams.connector.wire.connection import Server
    from spark_streams.operations.monitor.held import Held
    from spark_streams.operations.monitor.rates import GroupTotal


_SHOWN = 3  # missing groups that are named


def _verdict(
    groups: Sequence[GroupLag], missing: Sequence[str], max_entries: int | None, max_seconds: float | None
) -> tuple[str, int]:
    """Return the line, and the exit code: 0, CHECK_FAILED if a group is too far behind or missing, UNPROVED. missing:
    from find_missing. None: no limit."""
    most = math.inf if max_entries is None else max_entries
    most_ms = math.inf if max_seconds is None else max_seconds * 1000
    late = [group for group in groups if group.lag > most or (group.lag_ms or 0) > most_ms]
    unknown = [group for group in groups if max_seconds is not None and group.lag_ms is None]
    group_count = "1 group" if len(groups) == 1 else f"{len(groups):,} groups"
    lines = []
    if missing:
        lines.append(f"not found: {'; '.join(missing[:_SHOWN])}{_more(len(missing) - _SHOWN, '')}")
    if late:
        lines.append(f"behind: {_worst(late)}{_more(len(late) - 1, group_count)}")
    if lines:
        return printable("; ".join(lines)), CHECK_FAILED
    if unknown:
        one = unknown[0]
        return printable(
            f"unknown: {one.group} of {one.stream} is {_behind(one)}; how many seconds is not known, because "
            f"its entry IDs are not times{_more(len(unknown) - 1, group_count)}. Check the number of entries: "
            "--max"
        ), UNPROVED
    worst = max(groups, key=_distance)
    behind = f"; {_worst(groups)}" if worst.lag or worst.pending else ", none behind"
    return printable(f"ok: {group_count}{behind}"), 0


def find_missing(
    found: Survey,
    by_word: Mapping[str, tuple[Sequence[str | bytes], bool]],
    group: str | None,
    server: Server,
) -> list[str]:
    """Return a line for each stream that was named and does not exist or lacks the group, and for each pattern without
    such a stream. by_word: the streams of each word, and whether it is a pattern; empty: all streams; group: None: any
    group."""
    with_group = {one.stream for one in found.groups if group in (None, one.group)}
    existing = {one.stream for one in found.streams}
    wanted, address = "group" if group is None else f"group {group!r}", server.address
    if not by_word:
        return [] if with_group else [f"no {wanted} at {address}; rstream streams lists the streams and their groups"]
    texts = [name_text(name) for names, is_pattern in by_word.values() if not is_pattern for name in names]
    near = suggest_names(server, [text for text in texts if text not in existing])
    missing = []
    for word, (names, is_pattern) in by_word.items():
        streams = [name_text(name) for name in names]
        if is_pattern:
            if with_group.isdisjoint(streams):
                article = "a group" if group is None else f"a {wanted}"
                missing.append(f"no stream that matches {word!r} has {article}; rstream streams lists the streams")
            continue
        for stream in streams:
            if stream not in existing:
                hint = f"did you mean {near[stream]!r}?" if stream in near else "rstream streams lists the streams"
                missing.append(f"no stream {stream!r} at {address}; {hint}")
            elif stream not in with_group:
                listing = command_on(stream, "groups list")
                missing.append(f"stream {stream!r} has no {wanted}; {listing} lists its groups")
    return missing


def _more(number: int, of_groups: str) -> str:
    of = f" of {of_groups}" if of_groups else ""
    return f" ({number:,} more{of})" if number > 0 else ""


def _distance(group: GroupLag) -> tuple[int, int]:
    return group.lag_ms or 0, group.lag


def _worst(groups: Sequence[GroupLag]) -> str:
    worst = max(groups, key=_distance)
    return f"{worst.group} of {worst.stream} is {_behind(worst)}"


def _behind(group: GroupLag) -> str:
    entries = f"{count(group.lag, group.at_least)} {'entry' if group.lag == 1 else 'entries'}"
    age = "" if group.lag_ms is None else f", {duration(group.lag_ms)}"
    return f"{entries}{age} behind" + (f", {group.pending:,} pending" if group.pending else "")


_SNAPSHOTS = 5  # within --over

Key = tuple[str, str]  # stream, group


@click.command(short_help="Show or check how far each group is behind.")
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@click.option("--group", help="Only this group.")
@click.option("--max", "max_entries", type=click.IntRange(0), help="Fail if the lag of a group exceeds this.")
@click.option("--max-seconds", type=click.FloatRange(0), help="Fail if an unacknowledged entry is older than this.")
@click.option(
    "--over",
    "over_ms",
    metavar="TIME",
    callback=shared.milliseconds,
    help="Look during this time (1m), for margin.",
)
@shared.url_option
@shared.json_option
def lag(
    names: tuple[str, ...],
    group: str | None,
    max_entries: int | None,
    max_seconds: float | None,
    over_ms: int | None,
    url: str,
    as_json: bool,
) -> None:
    """Show how far each group is behind, in entries and in time (default: all groups of all streams).

    Groups without a consumer, or without a read in the last day, come last, except with --json.

    \b
    lag       entries not yet delivered to the group (10,000+: counted only up to there,
              because the server does not know the lag)
    behind    age of the oldest entry that the group has not acknowledged;
              ? if its ID is not a time in milliseconds (before September 2001, or more
              than a day ahead of the server's clock)
    pending   entries delivered and not acknowledged
    released  pending entries that a consumer released (XNACK): the group's next reader takes them
    oldest    how long the oldest pending entry has been pending
    margin    time until trimming removes an unacknowledged entry (--over); ? if not known

    Lines below the table have the sums of a group with several of these streams (--json: total), and entries that were
    trimmed before a group read them (trimmed). The last one names the group that holds most entries back, of those of
    rstream groups prune --hold --idle 1d (--json: held).

    --max or --max-seconds print one line and set the exit code: 0 no group is too far behind; 3 one is, or was not
    found; 4 --max-seconds could not be checked, because entry IDs are not times, and no other group is too far behind;
    1 the lag could not be read.

    In a check that runs by itself, name streams and group: otherwise a deleted group is not missed.

    \b
    Examples:
      rstream lag orders --over 1m
      rstream lag orders --group billing --max 10000 --max-seconds 60 || send-alert
    """
    from spark_streams.connector.lag.survey import survey
    from spark_streams.operations.monitor.held import fetch_held, unused
    from spark_streams.operations.monitor.rates import group_totals

    is_check = max_entries is not None or max_seconds is not None
    if over_ms is not None and is_check:
        raise click.UsageError("--over shows margins, which --max and --max-seconds do not check: leave one out")
    missing: list[str] = []
    with shared.connect(url) as server:
        by_word = streams_by_word(server, names) if is_check and names else {}
        streams = (
            list(dict.fromkeys(stream for of_word, _ in by_word.values() for stream in of_word))
            if by_word
            else named_streams(server, names, with_retry_streams=True)
        )
        # If entries must be counted, one more than the maximum is enough.
        snapshot = survey(server, streams, None if max_entries is None else max_entries + 1)
        address = str(server.address)
        if is_check:
            missing = find_missing(snapshot, by_word, group, server)
        held = fetch_held(server, snapshot) if as_json or not is_check else []
        margins: dict[Key, Margin] = {}
        if not is_check:
            snapshot, margins = _with_margins(server, streams, snapshot, over_ms or 0)
    groups = [group_lag for group_lag in snapshot.groups if group is None or group_lag.group == group]
    if not is_check and group is not None and not groups:
        raise StreamStateError(f"no group {group!r} at {address} reads from these streams; rstream groups lists them")
    totals = group_totals(groups)
    if is_check:
        line, code = _verdict(groups, missing, max_entries, max_seconds)
        found(code)
    if as_json:
        held_by = {(one.stream, one.group): {"entries": one.entries, "bytes": one.bytes} for one in held}
        shared.print_json(
            [
                {
                    **asdict(one),
                    "held": held_by.get((one.stream, one.group)),
                    "margin": margins[one.stream, one.group].as_json() if margins else None,
                    "total": asdict(totals[one.group]) if one.group in totals else None,
                }
                for one in groups
            ]
        )
    elif not is_check:
        _print(groups, margins, totals, [one for one in unused(held) if group in (None, one.group)])
    if is_check and (code or not as_json):
        shared.say(line, err=as_json)


def _with_margins(
    server: Server, streams: Sequence[str | bytes], seen: Survey, over_ms: int
) -> tuple[Survey, dict[Key, Margin]]:
    """Return the last survey of those that are taken during this time, and the margin of each of its groups."""
    from spark_streams.connector.lag.margin import MarginWindow, node_memories
    from spark_streams.connector.lag.survey import survey
    from spark_streams.operations.monitor.held import stream_sizes

    window = MarginWindow(apart_ms=0)
    for number in range(_SNAPSHOTS + 1 if over_ms else 1):
        if number:
            time.sleep(over_ms / 1000 / _SNAPSHOTS)
            seen = survey(server, streams)
        existing = {stream.stream for stream in seen.streams}
        known = [stream for stream in streams if over_ms and name_text(stream) in existing]
        window.add(seen, stream_sizes(server, known, refused=lambda _: None) if known else {})
        if over_ms:  # one snapshot shows no rate
            window.add_memory(node_memories(server, refused=lambda _: None), seen.at_ms)
    return seen, window.margins((group.stream, group.group) for group in seen.groups)


def _print(
    groups: list[GroupLag], margins: Mapping[Key, Margin], totals: Mapping[str, GroupTotal], held: list[Held]
) -> None:
    shared.print_table(
        (
            *("stream", "group", "lag ", "behind ", "pending ", "released ", "oldest ", "margin ", "consumers "),
            "last delivered",
        ),
        [
            (
                group_lag.stream,
                group_lag.group,
                count(group_lag.lag, group_lag.at_least),
                duration(group_lag.lag_ms),
                group_lag.pending,
                group_lag.released,
                "-" if group_lag.oldest_idle_ms is None else duration(group_lag.oldest_idle_ms),
                str(margins[group_lag.stream, group_lag.group]),
                len(group_lag.consumers),
                group_lag.last_delivered,
            )
            for group_lag in sorted(groups, key=lambda group_lag: not group_lag.is_active)
        ],
    )
    for name, total in totals.items():
        oldest = "-" if total.oldest_idle_ms is None else duration(total.oldest_idle_ms)
        shared.say(
            f"group {printable(name)}, {total.streams:,} streams: lag {count(total.lag, total.at_least)}, "
            f"behind {duration(total.lag_ms)}, pending {total.pending:,}, released {total.released:,}, oldest {oldest}"
        )
    for line in filter(None, map(trimmed_line, groups)):
        shared.say(printable(line))
    never = sum(not one.consumers for one in groups)  # perhaps a second old: the server does not tell
    since = sum(not one.is_active for one in groups) - never
    told = ((never, "no consumer"), (since, "not been read from in the last day"))
    if said := [f"{counted(n, 'group')} {'has' if n == 1 else 'have'} {what}" for n, what in told if n]:
        shared.say(f"{', '.join(said)}; rstream groups prune --idle 1d finds abandoned groups")
    if held:
        shared.say(_of_held(held))


def _of_held(held: list[Held]) -> str:
    most = held[0]
    more = f" ({len(held) - 1:,} more of such groups)" if len(held) > 1 else ""
    return printable(
        f"group {most.group} of {most.stream} {most}{more}: entries that another group no longer needs; "
        "rstream groups prune --hold --idle 1d lists them"
    )
