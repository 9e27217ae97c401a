"""`rstream replay`: let a stopped query read a part of its streams again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from spark_streams.base.ids import StreamId
from spark_streams.operations.commands.bounds import Only, bounds_of, only_option, only_these
from spark_streams.operations.commands.groups.group_change import ChangeReport, load_groups, plural, server_time
from spark_streams.operations.commands.groups.seek import target_of
from spark_streams.operations.commands.names import exact_option
from spark_streams.operations.commands.shared import connect, json_option, url_option
from spark_streams.operations.commands.yes import yes_option

if TYPE_CHECKING:
    from spark_streams.operations.groups.replay import Replayed
    from spark_streams.operations.groups.target import Target


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
    begin: Target,
    end: Target | None,
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

    Stop the query before, and start it as usual afterwards, with its checkpoint. The group's position and the
    checkpoint stay unchanged. A query with noAck=true is refused.

    \b
    held     entries of that part that are already pending; they stay with their consumers

    \b
    Examples:
      rstream replay orders --group etl --from 1h
      rstream replay orders --group etl --from 2026-11-20T08:00 --to 2026-11-20T09:00 --yes
    """
    from spark_streams.operations.groups.replay import Span, find_query, next_steps
    from spark_streams.operations.groups.replay import replay as hand_again

    with connect(url) as server:
        report: ChangeReport[Replayed] = ChangeReport(yes, as_json)
        span = Span(begin, end, server_time(server))
        snapshots = load_groups(server, names, group, exact, only=only)
        queries = {snapshot.stream: find_query(snapshot, consumer) for snapshot in snapshots}
        report.carry_out(
            snapshots,
            [
                reason
                for snapshot in snapshots
                for reason in snapshot.in_use([queries[snapshot.stream]], even_active=True)
            ],
            lambda snapshot: hand_again(
                server, snapshot, queries[snapshot.stream], span.up_to(only.id(snapshot.stream, group)), yes
            ),
        )
    for replayed in report.stream_reports:
        report.notes += next_steps(replayed)
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
        f"returned {plural(entries, 'entry', 'entries')} to the query",
        _bounds(report.stream_reports),
    )


def _bounds(replays: Sequence[Replayed]) -> list[str]:
    """Return the last entry of each stream; of one stream also the first one. (A time that passes makes a part of
    several streams only smaller.)"""
    firsts = [str(StreamId.parse(replayed.after).next()) for replayed in replays if len(replays) == 1]
    lasts = only_these((replayed.stream, replayed.group, replayed.last) for replayed in replays)
    return [*bounds_of({"from": firsts}), *lasts]
