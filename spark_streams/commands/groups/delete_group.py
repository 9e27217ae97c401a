"""`rstream groups delete`: a group, or one consumer of it, with what is kept for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from spark_streams.commands.groups.group_change import Hand, Told, hand_options, plural, standings_of, streams_meant
from spark_streams.commands.shared import connect

if TYPE_CHECKING:
    from spark_streams.groups.delete import Deleted
    from spark_streams.wire.connection.server import Server


@click.command(short_help="Delete a group, or a consumer of it.")
@click.argument("names", metavar="STREAM...", nargs=-1, required=True)
@click.option("--consumer", metavar="CONSUMER", help="Only this consumer, and those that it has made as a query.")
@click.option("--forget-pending", is_flag=True, help="With --consumer: also where entries are pending for it.")
@hand_options
def delete(names: tuple[str, ...], consumer: str | None, forget_pending: bool, hand: Hand) -> None:
    """Delete a group of STREAM (XGROUP DESTROY), or one consumer of it (XGROUP DELCONSUMER), and what queries keep on
    the server for it. What was pending is forgotten: nobody is given it again.

    It is a dry run unless --yes. A group or a consumer in which a query lives is refused, and so is a consumer that
    holds entries, without --forget-pending: rstream groups claim hands them to another one. Keys that are left of a
    group which is gone are deleted, too. If they belong to a consumer that is gone and is not `spark`, name it with
    --consumer. Entries that wait for another try (retryDelay) stay, and it says where. What a sink has written down of
    its rows belongs to no group, and stays.

    \b
    Examples:
      rstream groups delete orders --group etl
      rstream groups delete 'orders:*' --group etl --yes
      rstream groups delete orders --group etl --consumer bob --yes
    """
    if forget_pending and consumer is None:
        raise click.UsageError("--forget-pending goes with --consumer")
    told: Told[Deleted] = Told(hand.yes, hand.as_json)
    with connect(hand.url) as server:
        if consumer is None:
            _groups(server, names, hand, told)
        else:
            _consumers(server, names, hand, consumer, forget_pending, told)
    pending = sum(one.pending for one in told.reports)
    what = plural(len(told.reports), "group") if consumer is None else f"consumer {consumer}"
    told.show(
        ("stream", "group", "consumers", "pending forgotten", "not yet given", "keys"),
        lambda one: (
            *(one.stream, one.group, ", ".join(f"{name}: {n:,}" for name, n in one.consumers.items()) or "-"),
            *(one.pending, one.lag, ", ".join(one.keys) or "-"),
        ),
        f"deleted {what}, with {plural(pending, 'pending entry', 'pending entries')}",
    )


def _groups(server: Server, names: Sequence[str], hand: Hand, told: Told[Deleted]) -> None:
    from spark_streams.groups.delete import (
        delete_group,
        delete_leftovers,
        plan_delete_group,
        plan_delete_leftovers,
        resume_lines,
    )
    from spark_streams.groups.group_keys import count_waiting, find_group_keys, split_by_stream, waiting_lines
    from spark_streams.wire.replies.xinfo import group_named

    group = hand.group
    streams = streams_meant(server, names, group)
    found = find_group_keys(server, {group: streams})[group]
    waiting = count_waiting(server, found)
    found = [one for one in found if one.key not in waiting]
    kept = split_by_stream(found, streams)
    replies = server.pipeline([("XINFO", "GROUPS", stream) for stream in streams])
    there = {stream for stream, reply in zip(streams, replies, strict=True) if group_named(group, reply) is not None}
    # Of a group that is gone there may be keys.
    standings = standings_of(server, [one for one in streams if one in there or not kept[one]], group)
    told.carry_out(
        standings,
        [why for one in standings for why in one.in_use(None, hand.even_active)],
        lambda one: (
            delete_group(server, one, kept[one.stream]) if told.yes else plan_delete_group(one, kept[one.stream])
        ),
    )
    for stream in (one for one in streams if one not in there):
        told.reports.append(
            delete_leftovers(server, stream, group, kept[stream])
            if told.yes
            else plan_delete_leftovers(stream, group, kept[stream])
        )
    for report in told.reports:
        told.then += resume_lines(report.stream, group, report.committed)
    told.then += waiting_lines(waiting)


def _consumers(
    server: Server, names: Sequence[str], hand: Hand, consumer: str, forget_pending: bool, told: Told[Deleted]
) -> None:
    from spark_streams.groups.delete import (
        delete_consumer,
        delete_leftovers,
        find_consumer_keys,
        find_consumers,
        plan_delete_consumer,
        plan_delete_leftovers,
        require_consumers,
    )
    from spark_streams.groups.group_keys import GroupKey

    group = hand.group
    streams = streams_meant(server, names, group)
    there = {stream for stream in streams if find_consumers(server, stream, group, consumer)}
    left = {
        stream: [GroupKey(key, "", consumer, stream) for key in find_consumer_keys(server, stream, group, consumer)]
        for stream in streams
        if stream not in there
    }
    # Of a consumer that is gone there may be keys.
    standings = standings_of(server, [one for one in streams if not left.get(one)], group)
    refused = [why for one in standings for why in one.in_use(require_consumers(one, consumer), hand.even_active)]
    for one in standings:
        held = sum(other.pending for other in one.consumers_named(require_consumers(one, consumer)))
        if held and not forget_pending and not told.yes:
            refused.append(
                f"{plural(held, 'entry is', 'entries are')} pending for consumer {consumer!r} on stream "
                f"{one.stream!r}: hand them over (rstream groups claim {one.stream} --group {group} --from {consumer} "
                "--to …), or drop them with --forget-pending"
            )
    told.carry_out(
        standings,
        refused,
        lambda one: (
            delete_consumer(server, one, consumer, forget_pending)
            if told.yes
            else plan_delete_consumer(one, consumer, find_consumer_keys(server, one.stream, group, consumer))
        ),
    )
    told.note_queries(consumer for one in standings if consumer in one.marks)
    for stream, kept in left.items():
        if kept:
            forget = (
                delete_leftovers(server, stream, group, kept)
                if told.yes
                else plan_delete_leftovers(stream, group, kept)
            )
            told.reports.append(forget)
