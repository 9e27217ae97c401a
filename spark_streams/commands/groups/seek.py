"""`rstream groups seek` and `create`: where a group stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_streams.commands.groups.group_change import (
    Hand,
    Told,
    hand_options,
    plural,
    server_time,
    standings_of,
    streams_meant,
)
from spark_streams.commands.shared import connect, json_option, url_option

if TYPE_CHECKING:
    from spark_streams.groups.create import Created
    from spark_streams.groups.seek import Sought
    from spark_streams.groups.target import Target


def target_of(ctx: click.Context, param: click.Parameter, value: str | None) -> Target | None:
    """An option's callback: a position in a stream."""
    from spark_streams.groups.target import Target

    if value is None:
        return None
    try:
        return Target.parse(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} {error}", ctx, param) from None


@click.command(short_help="Set a group to another position.")
@click.argument("names", metavar="STREAM...", nargs=-1, required=True)
@click.option("--to", "target", metavar="POSITION", required=True, callback=target_of, help="Where it is to stand.")
@hand_options
def seek(names: tuple[str, ...], target: Target, hand: Hand) -> None:
    """Set a group of STREAM to another position (XGROUP SETID). What lies above it is yet to be given.

    \b
    earliest           before the first entry
    latest             behind the last one
    1795163834542-0    at this entry: it counts as given
    2026-11-20T08:00   below the first entry of that time (UTC) or later; milliseconds likewise
    1h                 the same, so long ago (500ms, 30s, 15m, 2h, 7d)
    -100, +100         so many entries below or above where it stands

    It is a dry run unless --yes, with the same numbers. The group is told how many entries lie below, so that its lag
    stays known. What is pending stays pending; where it lies above the new position, it is given again, and whoever is
    given it takes it over. A group in which a query lives is refused; a query's checkpoint does not move along:
    docs/reference/group-changes.md says what it does then.

    \b
    Examples:
      rstream groups seek orders --group etl --to 1h
      rstream groups seek 'orders:*' --group etl --to latest --yes
      rstream groups seek orders --group etl --to=-1000 --yes --json
    """
    from spark_streams.groups.seek import plan_seek
    from spark_streams.groups.seek import seek as move

    with connect(hand.url) as server:
        told: Told[Sought] = Told(hand.yes, hand.as_json)
        now = server_time(server)
        standings = standings_of(server, names, hand.group)
        refused = [why for one in standings for why in one.in_use(None, hand.even_active)]
        told.carry_out(
            standings,
            refused,
            lambda one: move(server, one, target, now) if hand.yes else plan_seek(server, one, target, now)[0],
        )
        for one, report in zip(standings, told.reports, strict=True):
            if report.position != report.position_before:
                told.note_queries(one.marks)
    again = sum(one.read_again for one in told.reports)
    skipped = sum(one.skipped for one in told.reports)
    told.show(
        ("stream", "group", "from", "to", "read again", "of these pending", "skipped", "lag"),
        lambda one: (
            *(one.stream, one.group, one.position_before, one.position),
            *(one.read_again, one.pending_again, one.skipped, one.lag),
        ),
        f"set {plural(len(told.reports), 'group')}: {plural(again, 'entry', 'entries')} to be read again, "
        f"{skipped:,} skipped",
    )


@click.command(short_help="Make a group.")
@click.argument("names", metavar="STREAM...", nargs=-1, required=True)
@click.option("--group", required=True, help="The group.")
@click.option(
    "--start",
    "target",
    metavar="POSITION",
    default="latest",
    show_default=True,
    callback=target_of,
    help="Where it begins, as --to of seek.",
)
@click.option("--mkstream", is_flag=True, help="Also make a stream that is not there.")
@click.option("--yes", is_flag=True, help="Do it; else only what it would change is printed.")
@url_option
@json_option
def create(
    names: tuple[str, ...], group: str, target: Target, mkstream: bool, yes: bool, url: str, as_json: bool
) -> None:
    """Make a group of STREAM (XGROUP CREATE), which begins at --start.

    It is a dry run unless --yes. The group is told how many entries lie below, so that its lag is known.

    \b
    Examples:
      rstream groups create orders --group audit --start earliest --yes
      rstream groups create orders --group audit --start 1h
      rstream groups create new --group audit --mkstream --yes
    """
    from spark_streams.groups.create import create as make
    from spark_streams.groups.create import plan_create

    if target.entries is not None:
        raise click.UsageError("--start +N and -N are from where a group stands, and there is none yet")
    with connect(url, starts=yes) as server:
        told: Told[Created] = Told(yes, as_json)
        now = server_time(server)
        meant = streams_meant(server, names, None)
        planned = [plan_create(server, stream, group, target, now, mkstream)[0] for stream in meant]
        if yes:
            told.reports = [make(server, stream, group, target, now, mkstream) for stream in meant]
        else:
            told.reports = planned
    told.show(
        ("stream", "group", "position", "lag", "stream is made"),
        lambda one: (one.stream, one.group, one.position, one.lag, "yes" if one.makes_stream else "-"),
        f"made {plural(len(told.reports), 'group')}",
    )
