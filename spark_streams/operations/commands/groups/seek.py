"""`rstream groups seek` and `create`: set the position of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_streams.operations.commands.bounds import Only, only_option, only_these
from spark_streams.operations.commands.groups.group_change import (
    ChangeOptions,
    ChangeReport,
    change_options,
    load_groups,
    plural,
    server_time,
)
from spark_streams.operations.commands.names import exact_option, resolve_streams
from spark_streams.operations.commands.shared import connect, json_option, url_option
from spark_streams.operations.commands.yes import yes_option

if TYPE_CHECKING:
    from spark_streams.operations.groups.create import Created
    from spark_streams.operations.groups.seek import Sought
    from spark_streams.operations.groups.target import Target


def target_of(ctx: click.Context, param: click.Parameter, value: str | None) -> Target | None:
    """Callback of an option: parse a position in a stream."""
    from spark_streams.operations.groups.target import Target

    if value is None:
        return None
    try:
        return Target.parse(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} {error}", ctx, param) from None


def _bounded(target: Target, only: Only, stream: str, group: str) -> Target:
    """Return the position that the dry run has shown for this stream, if there is a bound."""
    from spark_streams.operations.groups.target import Target

    position = only.id(stream, group)
    return target if position is None else Target(str(position), id=position)


@click.command(short_help="Set a group to another position.")
@click.argument("names", metavar="STREAM...", nargs=-1, required=True)
@click.option("--to", "target", metavar="POSITION", required=True, callback=target_of, help="The new position.")
@click.option(
    "--consumer",
    "consumers",
    multiple=True,
    help="A query that also goes on there, by its option consumer, if its consumer is missing from the group.",
)
@change_options
def seek(names: tuple[str, ...], target: Target, consumers: tuple[str, ...], options: ChangeOptions) -> None:
    """Set a group of STREAM to another position (XGROUP SETID). The group then reads the entries after the position.

    \b
    earliest           before the first entry
    latest             after the last entry
    1795163834542-0    after this entry: it counts as delivered
    2026-11-20T08:00   before the first entry at or after this time (UTC); also as milliseconds
    1h                 before the first entry of the last hour (500ms, 30s, 15m, 2h, 7d)
    -100, +100         this many entries before or after the current position

    The group's count of read entries is set, too, so that its lag stays known. Pending entries stay pending. Those
    after the new position are delivered again, and the consumer that receives them takes them over.

    The command refuses a group that a running query uses. A query that has a checkpoint goes on at the new position:
    rstream help change-a-group describes what the query does at its next start.

    \b
    Examples:
      rstream groups seek orders --group etl --to 1h
      rstream groups seek 'orders:*' --group etl --to latest --yes
      rstream groups seek orders --group etl --to=-1000 --yes --json
    """
    from spark_streams.operations.groups.seek import plan_seek
    from spark_streams.operations.groups.seek import seek as move

    def wanted(stream: str) -> Target:
        return _bounded(target, options.only, stream, options.group)

    with connect(options.url) as server:
        report: ChangeReport[Sought] = ChangeReport(options.yes, options.as_json)
        now = server_time(server)
        snapshots = load_groups(server, names, options.group, options.exact, consumers, options.only)
        refused = [reason for snapshot in snapshots for reason in snapshot.in_use(None, options.even_active)]
        report.carry_out(
            snapshots,
            refused,
            lambda snapshot: (
                move(server, snapshot, wanted(snapshot.stream), now)
                if options.yes
                else plan_seek(server, snapshot, wanted(snapshot.stream), now)[0]
            ),
        )
        for snapshot, sought in zip(snapshots, report.stream_reports, strict=True):
            if sought.position != sought.position_before:
                report.add_query_notes(snapshot.marks)
    read_again = sum(sought.read_again for sought in report.stream_reports)
    skipped = sum(sought.skipped for sought in report.stream_reports)
    report.show(
        ("stream", "group", "from", "to", "read again", "of these pending", "skipped", "lag"),
        lambda sought: (
            *(sought.stream, sought.group, sought.position_before, sought.position),
            *(sought.read_again, sought.pending_again, sought.skipped, sought.lag),
        ),
        f"set {plural(len(report.stream_reports), 'group')}: {plural(read_again, 'entry', 'entries')} to be read "
        f"again, {skipped:,} skipped",
        only_these((sought.stream, sought.group, sought.position) for sought in report.stream_reports),
    )


@click.command(short_help="Create a group.")
@click.argument("names", metavar="STREAM...", nargs=-1, required=True)
@click.option("--group", required=True, help="The group.")
@click.option(
    "--start",
    "target",
    metavar="POSITION",
    default="latest",
    show_default=True,
    callback=target_of,
    help="The first position, as --to of seek.",
)
@click.option("--mkstream", is_flag=True, help="Create the stream if it does not exist.")
@exact_option
@yes_option
@only_option
@url_option
@json_option
def create(
    names: tuple[str, ...],
    group: str,
    target: Target,
    mkstream: bool,
    exact: bool,
    yes: bool,
    only: Only,
    url: str,
    as_json: bool,
) -> None:
    """Create a group of STREAM (XGROUP CREATE) that begins at --start.

    The group's count of read entries is set, too, so that its lag is known. A pattern leaves out streams to which
    queries have written dead letters, as option streamsPattern does.

    \b
    Examples:
      rstream groups create orders --group audit --start earliest --yes
      rstream groups create orders --group audit --start 1h
      rstream groups create new --group audit --mkstream --yes
    """
    from spark_streams.operations.groups.create import create as make
    from spark_streams.operations.groups.create import plan_create

    if target.entries is not None:
        raise click.UsageError(
            "--start +N and -N need a group's position, and a new group has none; use an ID or a time"
        )
    with connect(url, starts=yes) as server:
        report: ChangeReport[Created] = ChangeReport(yes, as_json)
        now = server_time(server)
        resolved = resolve_streams(server, names, None, exact, dead_letters=False)
        targets = {stream: _bounded(target, only, stream, group) for stream in resolved if only.has(stream, group)}
        planned = [plan_create(server, stream, group, to, now, mkstream)[0] for stream, to in targets.items()]
        if yes:
            report.stream_reports = [make(server, stream, group, to, now, mkstream) for stream, to in targets.items()]
        else:
            report.stream_reports = planned
    report.show(
        ("stream", "group", "position", "lag", "creates stream"),
        lambda created: (
            created.stream,
            created.group,
            created.position,
            created.lag,
            "yes" if created.makes_stream else "-",
        ),
        f"created {plural(len(report.stream_reports), 'group')}",
        only_these((created.stream, created.group, created.position) for created in report.stream_reports),
    )
