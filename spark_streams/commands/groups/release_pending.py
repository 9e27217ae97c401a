"""`rstream groups release`: pending entries of a consumer are given back to its group."""

from __future__ import annotations

from typing import Unpack

import click

from spark_streams.commands.groups.choice import Chosen, choice_of, choice_options
from spark_streams.commands.groups.group_change import Hand, Told, entries_in, hand_options, plural, standings_of
from spark_streams.commands.shared import connect


@click.command(short_help="Give pending entries back to the group.")
@click.argument("names", metavar="STREAM...", nargs=-1, required=True)
@click.option("--consumer", metavar="CONSUMER", required=True, help="Whose entries.")
@click.option(
    "--mode",
    type=click.Choice(["fail", "silent", "fatal"]),
    default="fail",
    show_default=True,
    help="fail: the delivery counts; silent: it does not count; fatal: nobody is to read them again.",
)
@choice_options
@hand_options
def release(names: tuple[str, ...], consumer: str, mode: str, hand: Hand, **chosen: Unpack[Chosen]) -> None:
    """Give entries that are pending for a consumer back to its group (XNACK; Redis 8.8 or the bundled engine).

    Released entries are pending for no consumer. The next query of the group takes them at once, without `claimIdle`.
    With --mode fatal they become dead letters, if the query that takes them has a dead-letter stream; else they stay
    pending.

    It is a dry run unless --yes. The consumer of a query that lives is refused.

    \b
    Examples:
      rstream groups release orders --group etl --consumer bob
      rstream groups release orders --group etl --consumer bob --mode silent --yes
      rstream groups release orders --group etl --consumer bob --id 1795163834542-0 --mode fatal --yes
    """
    from spark_streams.groups.group_snapshot import GroupSnapshot, query_of
    from spark_streams.groups.release import Released
    from spark_streams.groups.release import release as give_back

    told: Told[Released] = Told(hand.yes, hand.as_json)
    choice = choice_of((consumer,), chosen)

    def work(one: GroupSnapshot) -> Released:
        return give_back(server, one, choice.without_taken(entries_in(told.reports)), mode, hand.yes)

    with connect(hand.url) as server:
        standings = standings_of(server, names, hand.group)
        refused = [why for one in standings for why in one.in_use([consumer], hand.even_active)]
        told.carry_out(standings, refused, work)
    if any(query_of(consumer) in one.marks for one in standings):
        told.then.append(
            f"query {query_of(consumer)!r}, started again with its checkpoint, reads a batch of its log whole and the "
            "released entries, too: entries of that batch are read twice. Release entries of a query only if it is not "
            "to be started again"
        )
    told.show(
        ("stream", "group", "consumer", "entries", "mode"),
        lambda one: (one.stream, one.group, one.consumer, one.entries, one.mode),
        f"released {plural(entries_in(told.reports), 'entry', 'entries')}",
    )
