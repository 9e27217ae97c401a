"""`rstream groups claim` and `ack`: pending entries are handed to another consumer, or acknowledged."""

from __future__ import annotations

from typing import Unpack

import click

from spark_streams.commands.groups.choice import Chosen, choice_of, choice_options
from spark_streams.commands.groups.group_change import Hand, Told, entries_in, hand_options, plural, standings_of
from spark_streams.commands.shared import connect


def _refuse_again(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        raise click.UsageError("--again was removed: use rstream replay, which has a stopped query read a part again")


@click.command(short_help="Hand pending entries to another consumer.")
@click.argument("names", metavar="STREAM...", nargs=-1, required=True)
@click.option("--from", "source", metavar="CONSUMER", help="Whose entries.")
@click.option("--released", is_flag=True, help="Instead of --from: entries that a consumer released (XNACK).")
@click.option("--to", "to", metavar="CONSUMER", required=True, help="Who gets them.")
@click.option("--again", is_flag=True, hidden=True, expose_value=False, callback=_refuse_again)
@choice_options
@hand_options
def claim(
    names: tuple[str, ...],
    source: str | None,
    released: bool,
    to: str,
    hand: Hand,
    **chosen: Unpack[Chosen],
) -> None:
    """Hand what is pending for one consumer of a group to another one (XCLAIM). It counts as no delivery.

    It is a dry run unless --yes. --from must not be a query that lives. --to may be one: what it has committed beyond
    it reads with its next batch, with the checkpoint that it has; what lies above stays where it is.

    \b
    gone     entries that are in the stream no more; Redis 7 and later drop them from the pending list meanwhile
    stay     entries above what the query --to has committed: they may be of its batch in flight

    \b
    Examples:
      rstream groups claim orders --group etl --from bob --to spark --idle 5m
      rstream groups claim orders payments --group etl --from bob --to ann --yes
      rstream groups claim orders --group etl --released --to ann
    """
    from spark_streams.groups.claim import Claimed
    from spark_streams.groups.claim import claim as hand_over
    from spark_streams.groups.group_snapshot import GroupSnapshot, query_of

    has_idle = chosen["idle"] is not None
    if released and (source is not None or has_idle):
        raise click.UsageError("--released goes without --from and --idle")
    if not released and source is None:
        raise click.UsageError("say whose entries: --from CONSUMER (or --released)")
    if source == to:
        raise click.UsageError("--from and --to are the same consumer")
    told: Told[Claimed] = Told(hand.yes, hand.as_json)
    choice = choice_of(() if source is None else (source,), chosen, released)

    def work(one: GroupSnapshot) -> Claimed:
        left = choice.without_taken(entries_in(told.reports))
        return hand_over(server, one, to, left, hand.yes)

    with connect(hand.url) as server:
        standings = standings_of(server, names, hand.group)
        touched = None if source is None else [source]
        refused = [] if touched is None else [why for one in standings for why in one.in_use(touched, hand.even_active)]
        told.carry_out(standings, refused, work)
    touched_queries = {to, *([] if source is None else [query_of(source)])}
    told.note_queries(query for one in standings for query in one.marks if query in touched_queries)
    told.show(
        ("stream", "group", "from", "to", "entries", "gone", "stay"),
        lambda one: (one.stream, one.group, one.source or "-", one.to, one.entries, one.gone, one.above),
        f"handed over {plural(entries_in(told.reports), 'entry', 'entries')}",
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
    hand: Hand,
    **chosen: Unpack[Chosen],
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
    from spark_streams.groups.acknowledge import Acknowledged, acknowledge, selected_consumers
    from spark_streams.groups.group_snapshot import GroupSnapshot, query_of

    has_idle = chosen["idle"] is not None
    if everything == bool(consumers or released or has_idle or any(chosen.values())):
        which = "--consumer, --released, --id, --first-id, --last-id, --idle, --limit"
        raise click.UsageError(f"say which entries ({which}), or --all")
    if released and (consumers or has_idle):
        raise click.UsageError("--released goes without --consumer and --idle")
    told: Told[Acknowledged] = Told(hand.yes, hand.as_json)
    choice = choice_of(consumers, chosen, released)

    def work(one: GroupSnapshot) -> Acknowledged:
        return acknowledge(server, one, choice.without_taken(entries_in(told.reports)), hand.yes)

    with connect(hand.url) as server:
        standings = standings_of(server, names, hand.group)
        refused = [why for one in standings for why in one.in_use(selected_consumers(one, choice), hand.even_active)]
        told.carry_out(standings, refused, work)
    queries = {query for one in standings for query in one.marks}
    touched = {query_of(name) for report in told.reports for name in report.consumers}
    told.note_queries(sorted(touched & queries))
    told.show(
        ("stream", "group", "entries", "of consumers"),
        lambda one: (
            *(one.stream, one.group, one.entries),
            ", ".join(f"{name}: {count:,}" for name, count in one.consumers.items()) or "-",
        ),
        f"acknowledged {plural(entries_in(told.reports), 'entry', 'entries')}",
    )
