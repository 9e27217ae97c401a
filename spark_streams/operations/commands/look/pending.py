"""`rstream pending`: show entries that were delivered and not acknowledged."""

from __future__ import annotations

import click

from spark_streams.connector.errors import StreamStateError
from spark_streams.operations.commands.names import named_streams
from spark_streams.operations.commands.shared import (
    connect,
    json_option,
    milliseconds,
    print_json,
    print_table,
    url_option,
)


@click.command(short_help="Show pending entries and their consumers.")
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@click.option("--group", help="Only this group.")
@click.option("--consumer", help="Only this consumer.")
@click.option(
    "--entries", type=click.IntRange(1), help="List this many entries of one STREAM and --group, oldest first."
)
@click.option(
    "--idle",
    metavar="TIME",
    callback=milliseconds,
    help="With --entries: only entries pending for at least this time (30s, 5m).",
)
@url_option
@json_option
def pending(
    names: tuple[str, ...],
    group: str | None,
    consumer: str | None,
    entries: int | None,
    idle: int | None,
    url: str,
    as_json: bool,
) -> None:
    """Show entries that were delivered and not acknowledged: a count per consumer, or each entry with --entries.

    \b
    oldest       how long the consumer's oldest entry has been pending
    (released)   entries that a consumer released (XNACK): they are pending without a consumer
    last seen    when the consumer sent its last request
    deliveries   how often the entry was delivered; fatal: it was released as fatal

    Nothing on the server changes: no entry is claimed, and no counter changes.

    \b
    Examples:
      rstream pending
      rstream pending orders --group billing --entries 20
      rstream pending orders --group billing --entries 1000 --idle 10m --json
    """
    if entries is None:
        if idle is not None:
            raise click.UsageError("--idle applies only with --entries")
        _consumers(names, group, consumer, url, as_json)
    elif len(names) != 1 or group is None:
        raise click.UsageError("--entries needs exactly one STREAM and --group")
    else:
        _entries(names[0], group, consumer, entries, idle, url, as_json)


def _consumers(names: tuple[str, ...], group: str | None, consumer: str | None, url: str, as_json: bool) -> None:
    from spark_streams.base.units import duration
    from spark_streams.connector.admin.groups import SHOWN
    from spark_streams.connector.lag.survey import survey

    with connect(url) as server:
        snapshot = survey(server, named_streams(server, names, with_retry_streams=True), counted=1)
        address = str(server.address)
    groups = [group_lag for group_lag in snapshot.groups if group is None or group_lag.group == group]
    if group is not None and not groups:
        raise StreamStateError(f"no group {group!r} at {address} reads from these streams; rstream groups lists them")
    # A holder None: released entries, which have no consumer.
    rows = [
        (group_lag, holder)
        for group_lag in groups
        for holder in [*group_lag.consumers, *([None] if group_lag.released else [])]
        if consumer is None or (holder is not None and holder.consumer == consumer)
    ]
    if as_json:
        print_json(
            [
                {
                    "stream": group_lag.stream,
                    "group": group_lag.group,
                    "consumer": None if holder is None else holder.consumer,
                    "pending": group_lag.released if holder is None else holder.pending,
                    "oldest_idle_ms": None if holder is None else holder.oldest_idle_ms,
                    "idle_ms": None if holder is None else holder.idle_ms,
                }
                for group_lag, holder in rows
            ]
        )
        return
    print_table(
        ("stream", "group", "consumer", "pending ", "oldest ", "last seen "),
        [
            (group_lag.stream, group_lag.group, SHOWN, group_lag.released, "-", "-")
            if holder is None
            else (
                group_lag.stream,
                group_lag.group,
                holder.consumer,
                holder.pending,
                "-" if holder.oldest_idle_ms is None else duration(holder.oldest_idle_ms),
                duration(holder.idle_ms) + " ago",
            )
            for group_lag, holder in rows
        ],
    )


def _entries(
    stream: str, group: str, consumer: str | None, limit: int, idle: int | None, url: str, as_json: bool
) -> None:
    from spark_streams.base.printable import name_text
    from spark_streams.base.units import duration
    from spark_streams.connector.admin.groups import FATAL, SHOWN

    waited_for: tuple[str | int, ...] = () if idle is None else ("IDLE", idle)
    with connect(url) as server:
        reply = server.execute(
            "XPENDING", stream, group, *waited_for, "-", "+", limit, *([] if consumer is None else [consumer])
        )
    rows = [
        (name_text(entry), None if waited < 0 else name_text(who), None if waited < 0 else waited, deliveries)
        for entry, who, waited, deliveries in reply
    ]
    if as_json:
        names = ("id", "consumer", "idle_ms", "deliveries")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    print_table(
        ("id", "consumer", "pending for ", "deliveries "),
        [
            (
                entry,
                SHOWN if who is None else who,
                "-" if waited is None else duration(waited),
                "fatal" if deliveries == FATAL else deliveries,
            )
            for entry, who, waited, deliveries in rows
        ],
    )
