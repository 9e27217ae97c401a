"""`rstream groups`: list groups, set the position of one, create one; `rstream replay`."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import click

from spark_streams.base.ids import StreamId
from spark_streams.base.printable import printable
from spark_streams.base.units import counted
from spark_streams.operations.commands.dry_run import (
    ChangeOptions,
    ChangeReport,
    bounds_of,
    change_options,
    load_groups,
    only_option,
    server_time,
    yes_option,
)
from spark_streams.operations.commands.groups.deletions import delete, prune
from spark_streams.operations.commands.groups.pending_changes import ack, claim, release
from spark_streams.operations.commands.shared import (
    CommandGroup,
    connect,
    json_option,
    print_json,
    print_table,
    say,
    url_option,
)
from spark_streams.operations.commands.stream_names import exact_option, named_streams, resolve_streams

if TYPE_CHECKING:
    from spark_streams.operations.groups.change_plan import Only
    from spark_streams.operations.groups.position import GroupTarget


class _ListsByItself(CommandGroup):
    """A command group whose default command is `list`: `rstream groups orders`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ListsByItself, short_help="List groups; seek, claim, release, ack, delete, create, prune.")
def groups() -> None:
    """List consumer groups and their positions (`rstream groups [STREAM]...`), and manage them.

    A command that changes something is a dry run without --yes, and refuses a group or consumer of a running query.
    STREAM may be a pattern (`orders:*`): all matching streams that have the group. If a stream has the name of a
    command, write: rstream groups list seek.

    \b
    Examples:
      rstream groups                     all groups of all streams
      rstream groups seek orders --group etl --to 1h
    """


@groups.command("list")
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@url_option
@json_option
def list_(names: tuple[str, ...], url: str, as_json: bool) -> None:
    """List the consumer groups of streams (default: all streams): lag, pending entries, position.

    \b
    lag       entries not yet delivered to the group, as the server counts them;
              ? if the server cannot count them (rstream lag does)
    pending   entries delivered and not acknowledged
    released  pending entries that a consumer released (XNACK): the group's next reader takes them;
              ? if the user may not list pending entries

    \b
    Examples:
      rstream groups
    """
    from spark_streams.connector.lag.survey import trimmed_line, view_streams

    with connect(url) as server:
        views = view_streams(server, named_streams(server, names, with_retry_streams=True), count_released=True)
    group_views = [group for view in views for group in view.groups]
    if as_json:
        print_json([asdict(group) for group in group_views])
        return
    print_table(
        ("stream", "group", "consumers", "lag", "pending", "released", "last delivered"),
        [(g.stream, g.group, g.consumers, g.lag, g.pending, g.released, g.last_delivered) for g in group_views],
    )
    for line in filter(None, map(trimmed_line, group_views)):
        say(printable(line))


def target_of(ctx: click.Context, param: click.Parameter, value: str | None) -> GroupTarget | None:
    """Callback of an option: parse a position in a stream."""
    from spark_streams.operations.groups.position import GroupTarget

    if value is None:
        return None
    try:
        return GroupTarget.parse(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} {error}", ctx, param) from None


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
def seek(names: tuple[str, ...], target: GroupTarget, consumers: tuple[str, ...], options: ChangeOptions) -> None:
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

    A query that has a checkpoint goes on at the new position: rstream help change-a-group.

    \b
    Examples:
      rstream groups seek orders --group etl --to 1h
      rstream groups seek orders --group etl --to=-1000 --yes --json
    """
    from spark_streams.connector.admin.groups import find_query_keys
    from spark_streams.operations.groups.position import Sought, require_none_began_beside
    from spark_streams.operations.groups.position import seek as move

    with connect(options.url) as server:
        report: ChangeReport[Sought] = ChangeReport(options.yes, options.as_json)
        now = server_time(server)
        keys = find_query_keys(server)
        snapshots = load_groups(server, names, options.group, options.exact, consumers, options.only, keys)
        refused = [reason for snapshot in snapshots for reason in snapshot.in_use(None, options.even_active)]
        report.add_all(server, snapshots, refused, lambda snapshot: move(server, snapshot, target, now, options.only))
        if options.yes:
            require_none_began_beside(server, snapshots)
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
        f"set {counted(len(report.stream_reports), 'group')}: {counted(read_again, 'entry', 'entries')} to be read "
        f"again, {skipped:,} skipped",
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
    target: GroupTarget,
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
      rstream groups create new --group audit --mkstream --yes
    """
    from spark_streams.operations.groups.change_plan import effect
    from spark_streams.operations.groups.position import Created
    from spark_streams.operations.groups.position import create as make

    if target.entries is not None:
        raise click.UsageError(
            "--start +N and -N need a group's position, and a new group has none; use an ID or a time"
        )
    with connect(url, starts=yes) as server:
        report: ChangeReport[Created] = ChangeReport(yes, as_json)
        now = server_time(server)
        resolved = resolve_streams(server, names, None, exact, dead_letters=False)
        streams = [stream for stream in resolved if only.has(stream, group)]
        plans = [partial(make, server, stream, group, target, now, mkstream, only) for stream in streams]
        for plan in plans if yes else ():
            effect(plan())  # no group is created if one of them cannot be
        for plan in plans:
            report.add(server, plan())
    report.show(
        ("stream", "group", "position", "lag", "creates stream"),
        lambda created: (
            created.stream,
            created.group,
            created.position,
            created.lag,
            "yes" if created.makes_stream else "-",
        ),
        f"created {counted(len(report.stream_reports), 'group')}",
    )


@click.command(short_help="Let a stopped query read entries again.")
@click.argument("names", metavar="STREAM...", nargs=-1, required=True)
@click.option("--group", required=True, help="The query's group.")
@click.option(
    "--from", "begin", metavar="POSITION", required=True, callback=target_of, help="The first entry to read again."
)
@click.option(
    "--to",
    "end",
    metavar="POSITION",
    callback=target_of,
    help="The last entry; default: the last one that it has committed.",
)
@click.option("--consumer", metavar="QUERY", help="The query (its option consumer), if several read from the group.")
@exact_option
@yes_option
@only_option
@url_option
@json_option
def replay(
    names: tuple[str, ...],
    group: str,
    begin: GroupTarget,
    end: GroupTarget | None,
    consumer: str | None,
    exact: bool,
    yes: bool,
    only: Only,
    url: str,
    as_json: bool,
) -> None:
    """Let a stopped query read a part of STREAM again, with its existing checkpoint.

    \b
    earliest           from the first entry of the stream
    1795163834542-0    from this entry; --to: up to and including this entry
    2026-11-20T08:00   from the first entry at or after this time (UTC); --to: before this time; also as milliseconds
    1h                 the same, for the time one hour ago (500ms, 30s, 15m, 2h, 7d)
    -100               the last 100 entries that the query has committed

    Stop the query before, and start it afterwards with its checkpoint, which stays unchanged, as the group's position
    does. A query that reads without a pending list is refused.

    \b
    held     entries of that part that are already pending; they stay with their consumers

    \b
    Examples:
      rstream replay orders --group etl --from 1h
      rstream replay orders --group etl --from 2026-11-20T08:00 --to 2026-11-20T09:00 --yes
    """
    from spark_streams.operations.groups.position import Replayed, Span, find_query, next_steps
    from spark_streams.operations.groups.position import replay as hand_again

    with connect(url) as server:
        report: ChangeReport[Replayed] = ChangeReport(yes, as_json)
        span = Span(begin, end, server_time(server), only)
        snapshots = load_groups(server, names, group, exact, only=only)
        queries = {snapshot.stream: find_query(snapshot, consumer) for snapshot in snapshots}
        in_use = [snapshot.in_use([queries[snapshot.stream]], even_active=True) for snapshot in snapshots]
        report.add_all(
            server,
            snapshots,
            [reason for reasons in in_use for reason in reasons],
            lambda snapshot: hand_again(server, snapshot, queries[snapshot.stream], span),
        )
    for replayed in report.stream_reports:
        report.notes += next_steps(replayed)
    # The first entry, of one stream. A time that passes makes a part of several streams only smaller.
    reports = report.stream_reports
    firsts = [str(StreamId.parse(replayed.after).next()) for replayed in reports if len(reports) == 1]
    entries = sum(replayed.entries for replayed in report.stream_reports)
    report.show(
        ("stream", "group", "query", "after", "up to", "read again", "held"),
        lambda replayed: (
            replayed.stream,
            replayed.group,
            replayed.query,
            replayed.after,
            replayed.last,
            replayed.entries,
            replayed.held,
        ),
        f"returned {counted(entries, 'entry', 'entries')} to the query",
        bounds_of({"from": firsts}),
    )


for _command in (seek, claim, release, ack, delete, create, prune):
    groups.add_command(_command)
