"""`rstream pending`: what was given to consumers and not acknowledged."""

from __future__ import annotations

import click

from spark_streams.commands.shared import (
    connect,
    json_option,
    milliseconds,
    named_streams,
    print_json,
    print_table,
    url_option,
)
from spark_streams.errors import StreamStateError


@click.command(short_help="What is not acknowledged, and who has it.")
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@click.option("--group", help="Only this group.")
@click.option("--consumer", help="Only this consumer.")
@click.option("--entries", type=click.IntRange(1), help="List the oldest so many entries, of one stream and --group.")
@click.option(
    "--idle",
    metavar="TIME",
    callback=milliseconds,
    help="With --entries: only those pending for so long (30s, 5m; Redis 6.2).",
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
    """Who holds entries that are not acknowledged, and which: per consumer, or one by one with --entries.

    \b
    oldest       how long the consumer's oldest entry has been pending
    (released)   entries that a consumer released (XNACK): they are pending for nobody
    last seen    when the consumer last asked the server for anything
    deliveries   how often the entry was given to somebody; fatal: it was released as fatal

    Nothing on the server changes: no entry is claimed, no counter moves.

    \b
    Examples:
      rstream pending
      rstream pending orders --group billing --entries 20
      rstream pending orders --group billing --entries 1000 --idle 10m --json
    """
    if entries is None:
        if idle is not None:
            raise click.UsageError("--idle goes with --entries")
        _consumers(names, group, consumer, url, as_json)
    elif len(names) != 1 or group is None:
        raise click.UsageError("--entries lists the entries of one STREAM and one --group")
    else:
        _entries(names[0], group, consumer, entries, idle, url, as_json)


def _consumers(names: tuple[str, ...], group: str | None, consumer: str | None, url: str, as_json: bool) -> None:
    from spark_streams.monitor.lag_survey import survey
    from spark_streams.monitor.terminal.units import duration
    from spark_streams.wire.replies.released import SHOWN

    with connect(url) as server:
        seen = survey(server, named_streams(server, names, beside=True), counted=1)
        where = str(server.address)
    groups = [one for one in seen.groups if group is None or one.group == group]
    if group is not None and not groups:
        raise StreamStateError(f"no group {group!r} at {where} reads from these streams; rstream groups lists them")
    # None: what is pending for nobody.
    found = [
        (one, each)
        for one in groups
        for each in [*one.consumers, *([None] if one.released else [])]
        if consumer is None or (each is not None and each.consumer == consumer)
    ]
    if as_json:
        print_json(
            [
                {
                    "stream": one.stream,
                    "group": one.group,
                    "consumer": None if each is None else each.consumer,
                    "pending": one.released if each is None else each.pending,
                    "oldest_idle_ms": None if each is None else each.oldest_idle_ms,
                    "idle_ms": None if each is None else each.idle_ms,
                }
                for one, each in found
            ]
        )
        return
    print_table(
        ("stream", "group", "consumer", "pending ", "oldest ", "last seen "),
        [
            (one.stream, one.group, SHOWN, one.released, "-", "-")
            if each is None
            else (
                one.stream,
                one.group,
                each.consumer,
                each.pending,
                "-" if each.oldest_idle_ms is None else duration(each.oldest_idle_ms),
                duration(each.idle_ms) + " ago",
            )
            for one, each in found
        ],
    )


def _entries(
    stream: str, group: str, consumer: str | None, most: int, idle: int | None, url: str, as_json: bool
) -> None:
    from spark_streams.monitor.groups import shown
    from spark_streams.monitor.terminal.units import duration
    from spark_streams.wire.replies.released import FATAL, SHOWN

    waited_for: tuple[str | int, ...] = () if idle is None else ("IDLE", idle)
    with connect(url) as server:
        found = server.execute(
            "XPENDING", stream, group, *waited_for, "-", "+", most, *([] if consumer is None else [consumer])
        )
    rows = [
        (shown(entry), None if waited < 0 else shown(who), None if waited < 0 else waited, deliveries)
        for entry, who, waited, deliveries in found
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
