"""`rstream replay`: a stopped query reads a part of its streams again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_streams.commands.groups.group_change import Told, plural, server_time, standings_of
from spark_streams.commands.groups.seek import target_of
from spark_streams.commands.shared import connect, json_option, url_option

if TYPE_CHECKING:
    from spark_streams.groups.target import Target


@click.command(short_help="Have a stopped query read a part again.")
@click.argument("names", metavar="STREAM...", nargs=-1, required=True)
@click.option("--group", required=True, help="The query's group.")
@click.option(
    "--from", "begin", metavar="POSITION", required=True, callback=target_of, help="The first entry to read again."
)
@click.option(
    "--to", "end", metavar="POSITION", callback=target_of, help="The last one; default: all that it has committed."
)
@click.option("--consumer", metavar="QUERY", help="The query, if several read from the group (its option consumer).")
@click.option("--yes", is_flag=True, help="Do it; else only what it would change is printed.")
@url_option
@json_option
def replay(
    names: tuple[str, ...],
    group: str,
    begin: Target,
    end: Target | None,
    consumer: str | None,
    yes: bool,
    url: str,
    as_json: bool,
) -> None:
    """Have a stopped query read a part of STREAM again, with the checkpoint that it has.

    \b
    earliest           from the first entry that the stream still has
    1795163834542-0    from this entry on; --to: up to this entry, and it, too
    2026-11-20T08:00   from the first entry of that time (UTC) or later; --to: below that time; milliseconds likewise
    1h                 the same, so long ago (500ms, 30s, 15m, 2h, 7d)
    -100               the last 100 entries that the query has committed

    It is a dry run unless --yes. The query must be stopped; start it afterwards as always, with its checkpoint. Its
    group and its checkpoint stay where they are. A query with noAck=true or delivery=at-most-once is refused.

    \b
    held     entries of that part that are pending already; they stay where they are

    \b
    Examples:
      rstream replay orders --group etl --from 1h
      rstream replay orders --group etl --from 2026-11-20T08:00 --to 2026-11-20T09:00 --yes
    """
    from spark_streams.groups.replay import Replayed, Span, find_query, next_steps
    from spark_streams.groups.replay import replay as hand_again

    with connect(url) as server:
        told: Told[Replayed] = Told(yes, as_json)
        span = Span(begin, end, server_time(server))
        standings = standings_of(server, names, group)
        queries = {one.stream: find_query(one, consumer) for one in standings}
        told.carry_out(
            standings,
            [why for one in standings for why in one.in_use([queries[one.stream]], even_active=True)],
            lambda one: hand_again(server, one, queries[one.stream], span, yes),
        )
    for report in told.reports:
        told.then += next_steps(report)
    entries = sum(one.entries for one in told.reports)
    told.show(
        ("stream", "group", "query", "after", "up to", "read again", "held"),
        lambda one: (one.stream, one.group, one.query, one.after, one.last, one.entries, one.held),
        f"handed {plural(entries, 'entry', 'entries')} to the query again",
    )
