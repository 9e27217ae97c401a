"""`rstream groups claim` and `ack`: pending entries are handed to another consumer, or acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from spark_streams.commands.entry import parse_id
from spark_streams.commands.hands import Told, hand_options, plural, standings_of
from spark_streams.commands.shared import connect, milliseconds

if TYPE_CHECKING:
    from spark_streams.groups.choice import Choice

F = TypeVar("F", bound=Callable[..., Any])


def choice_options(command: F) -> F:
    """The options that choose pending entries."""
    options = (
        click.option("--idle", metavar="TIME", callback=milliseconds, help="Only those pending for so long (30s, 5m)."),
        click.option("--id", "ids", metavar="ID", multiple=True, help="Only this entry; repeatable."),
        click.option("--first-id", "first", metavar="ID", help="From this entry on."),
        click.option("--last-id", "last", metavar="ID", help="Up to this entry, and it, too."),
        click.option("--limit", type=click.IntRange(1), help="So many entries at most, of all streams."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def choice_of(
    consumers: tuple[str, ...],
    idle: int | None,
    ids: tuple[str, ...],
    first: str | None,
    last: str | None,
    limit: int | None,
    released: bool = False,
) -> Choice:
    """What these options mean."""
    from spark_streams.groups.choice import Choice
    from spark_streams.ids import MAX_ID, MIN_ID

    low = MIN_ID if first is None else parse_id(first)[0]
    high = MAX_ID if last is None else parse_id(last)[1]
    return Choice(consumers, idle, low, high, tuple(parse_id(one)[0] for one in ids), limit, released)


@click.command(short_help="Hand pending entries to another consumer.")
@click.argument("names", metavar="STREAM...", nargs=-1, required=True)
@click.option("--from", "source", metavar="CONSUMER", help="Whose entries.")
@click.option("--released", is_flag=True, help="Instead of --from: entries that a consumer released (XNACK).")
@click.option("--to", "to", metavar="CONSUMER", required=True, help="Who gets them.")
@click.option("--again", is_flag=True, help="Instead: entries of --first-id to --last-id that nobody holds any more.")
@choice_options
@hand_options
def claim(
    names: tuple[str, ...],
    source: str | None,
    released: bool,
    to: str,
    again: bool,
    idle: int | None,
    ids: tuple[str, ...],
    first: str | None,
    last: str | None,
    limit: int | None,
    group: str,
    yes: bool,
    even_active: bool,
    url: str,
    as_json: bool,
) -> None:
    """Hand what is pending for one consumer of a group to another one (XCLAIM). It counts as no delivery.

    It is a dry run unless --yes. --from must not be a query that lives. --to may be one: what it has committed beyond
    it reads with its next batch, with the checkpoint that it has; what lies above stays where it is.

    With --again, --to is handed entries that the group was given and that nobody holds any more: acknowledged ones. So
    a query reads a part of its stream a second time, with its checkpoint, and without moving its group.

    \b
    gone     entries that are in the stream no more; Redis 7 and later drop them from the pending list meanwhile
    stay     entries above what the query --to has committed: they may be of its batch in flight

    \b
    Examples:
      rstream groups claim orders --group etl --from bob --to spark --idle 5m
      rstream groups claim orders payments --group etl --from bob --to ann --yes
      rstream groups claim orders --group etl --released --to ann
      rstream groups claim orders --group etl --again --first-id 1795163000000 --last-id 1795163834542 --to spark
    """
    from spark_streams.groups.afterwards import after_handing, after_taking
    from spark_streams.groups.claim import Claimed, claim_again, plan_claim, plan_claim_again
    from spark_streams.groups.claim import claim as hand_over
    from spark_streams.groups.standing import Standing, query_of

    if released and (source is not None or again or idle is not None):
        raise click.UsageError("--released goes without --from, --again and --idle")
    if again and (source is not None or ids or idle is not None or first is None or last is None):
        raise click.UsageError("--again goes with --first-id and --last-id, and without --from, --id and --idle")
    if not again and not released and source is None:
        raise click.UsageError("say whose entries: --from CONSUMER (or --released, or --again)")
    if source == to:
        raise click.UsageError("--from and --to are the same consumer")
    told = Told(yes, as_json)
    choice = choice_of(() if source is None else (source,), idle, ids, first, last, limit, released)

    def work(one: Standing) -> Claimed:
        left = choice.less(sum(report.entries for report in told.reports))
        if again:
            return (claim_again if yes else plan_claim_again)(server, one, to, left)
        return hand_over(server, one, to, left, even_active) if yes else plan_claim(server, one, to, left)

    with connect(url) as server:
        standings = standings_of(server, names, group)
        touched = None if source is None else [source]
        refused = [] if touched is None else [why for one in standings for why in one.in_use(touched, even_active)]
        told.carry_out(standings, refused, work)
    if any(to in one.marks or to in one.holders for one in standings):
        told.then += after_handing(to)
    if source is not None and any(query_of(source) in one.marks for one in standings):
        told.then += after_taking([query_of(source)])
    entries = sum(one.entries for one in told.reports)
    told.show(
        ("stream", "group", "from", "to", "entries", "gone", "stay"),
        lambda one: (one.stream, one.group, one.source or "-", one.to, one.entries, one.gone, one.above),
        f"handed over {plural(entries, 'entry', 'entries')}",
    )


@click.command(short_help="Acknowledge pending entries.")
@click.argument("names", metavar="STREAM...", nargs=-1, required=True)
@click.option("--consumer", "consumers", metavar="CONSUMER", multiple=True, help="Only of this consumer; repeatable.")
@click.option("--released", is_flag=True, help="Only entries that a consumer released (XNACK).")
@click.option("--all", "everything", is_flag=True, help="All that is pending, where nothing else is said.")
@choice_options
@hand_options
def ack(
    names: tuple[str, ...],
    consumers: tuple[str, ...],
    released: bool,
    everything: bool,
    idle: int | None,
    ids: tuple[str, ...],
    first: str | None,
    last: str | None,
    limit: int | None,
    group: str,
    yes: bool,
    even_active: bool,
    url: str,
    as_json: bool,
) -> None:
    """Acknowledge pending entries of a group (XACK): nobody is given them again. All that is said of them must hold.

    It is a dry run unless --yes. Entries of a query that lives are refused, and released entries while any query of the
    group lives, which might take them meanwhile.

    \b
    Examples:
      rstream groups ack orders --group etl --id 1795163834542-0 --yes
      rstream groups ack orders --group etl --consumer bob --idle 1d
      rstream groups ack 'orders:*' --group etl --all --yes
    """
    from spark_streams.groups.acknowledge import Acknowledged, acknowledge, consumers_of, plan_acknowledge
    from spark_streams.groups.afterwards import after_taking
    from spark_streams.groups.standing import Standing, query_of

    if everything == bool(consumers or released or ids or first or last or limit or idle is not None):
        which = "--consumer, --released, --id, --first-id, --last-id, --idle, --limit"
        raise click.UsageError(f"say which entries ({which}), or --all")
    if released and (consumers or idle is not None):
        raise click.UsageError("--released goes without --consumer and --idle")
    told, choice = Told(yes, as_json), choice_of(consumers, idle, ids, first, last, limit, released)

    def work(one: Standing) -> Acknowledged:
        left = choice.less(sum(report.entries for report in told.reports))
        return acknowledge(server, one, left, even_active) if yes else plan_acknowledge(server, one, left)

    with connect(url) as server:
        standings = standings_of(server, names, group)
        refused = [why for one in standings for why in one.in_use(consumers_of(one, choice), even_active)]
        told.carry_out(standings, refused, work)
    queries = {query for one in standings for query in one.marks}
    touched = {query_of(name) for report in told.reports for name in report.consumers}
    told.then += after_taking(sorted(touched & queries))
    entries = sum(one.entries for one in told.reports)
    told.show(
        ("stream", "group", "entries", "of consumers"),
        lambda one: (
            *(one.stream, one.group, one.entries),
            ", ".join(f"{name}: {count:,}" for name, count in one.consumers.items()) or "-",
        ),
        f"acknowledged {plural(entries, 'entry', 'entries')}",
    )
