"""`rstream streams`, `pending` and `wait`: streams, what groups have not acknowledged, and what they have to read."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spark_streams.base.units import counted
from spark_streams.connector.errors import StreamStateError
from spark_streams.operations.commands import shared
from spark_streams.operations.commands.exit_codes import CHECK_FAILED, found
from spark_streams.operations.commands.stream_names import exact_option, named_streams, resolve_streams

if TYPE_CHECKING:
    from spark_streams.connector.lag.survey import GroupView


_OF_ADDS = ("idempotent", "duplicates")  # columns


@click.command(short_help="List the streams of a server.")
@shared.url_option
@shared.json_option
def streams(url: str, as_json: bool) -> None:
    """List all streams of the server: entries, last ID, groups. Streams in which entries wait for a retry are left out:
    `rstream dead list` shows them.

    \b
    groups       with the number of entries that a consumer released (XNACK) and no consumer has taken
    idempotent   entries ever added with XADD IDMP or IDMPAUTO (Redis 8.6), if there are any
    duplicates   repeated adds of these, which added nothing

    \b
    Examples:
      rstream streams
      rstream streams --json | jq '.[] | select(.length > 1000000) | .stream'
    """
    from spark_streams.connector.lag.survey import view_streams
    from spark_streams.connector.wire.scan import list_streams, without_retry_streams

    with shared.connect(url) as server:
        views = view_streams(server, without_retry_streams(list_streams(server)), count_released=True)
    if as_json:
        shared.print_json([asdict(view) for view in views])
        return
    counts_adds = any(view.idempotent for view in views)
    shared.print_table(
        ("stream", "entries", "ever added", *(_OF_ADDS if counts_adds else ()), "last id", "groups"),
        [
            (
                v.stream,
                v.length,
                v.added,
                *((v.idempotent.added, v.idempotent.duplicates) if v.idempotent else (0, 0) if counts_adds else ()),
                v.last,
                ", ".join(map(_name, v.groups)) or "-",
            )
            for v in views
        ],
    )


def _name(group: GroupView) -> str:
    return f"{group.group} ({group.released:,} released)" if group.released else group.group


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
    callback=shared.milliseconds,
    help="With --entries: only entries pending for at least this time (30s, 5m).",
)
@shared.url_option
@shared.json_option
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

    \b
    Examples:
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


def _consumers(words: tuple[str, ...], group: str | None, consumer: str | None, url: str, as_json: bool) -> None:
    from spark_streams.base.units import duration
    from spark_streams.connector.lag.survey import survey
    from spark_streams.connector.wire.xinfo import SHOWN

    with shared.connect(url) as server:
        snapshot = survey(server, named_streams(server, words, with_retry_streams=True), counted=1)
        address = str(server.address)
    groups = [group_lag for group_lag in snapshot.groups if group is None or group_lag.group == group]
    if group is not None and not groups:
        raise StreamStateError(f"no group {group!r} at {address} reads from these streams; rstream groups lists them")
    rows = [
        (one.stream, one.group, None, one.released, None, None)
        if holder is None
        else (one.stream, one.group, holder.consumer, holder.pending, holder.oldest_idle_ms, holder.idle_ms)
        for one in groups
        for holder in [*one.consumers, *([None] if one.released else [])]  # None: released entries have no consumer
        if consumer is None or (holder is not None and holder.consumer == consumer)
    ]
    if as_json:
        names = ("stream", "group", "consumer", "pending", "oldest_idle_ms", "idle_ms")
        shared.print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    shared.print_table(
        ("stream", "group", "consumer", "pending ", "oldest ", "last seen "),
        [
            (
                *(stream, group_name, SHOWN if who is None else who, number),
                "-" if oldest is None else duration(oldest),
                "-" if idle is None else f"{duration(idle)} ago",
            )
            for stream, group_name, who, number, oldest, idle in rows
        ],
    )


def _entries(
    stream: str, group: str, consumer: str | None, limit: int, idle: int | None, url: str, as_json: bool
) -> None:
    from spark_streams.base.printable import name_text
    from spark_streams.base.units import duration
    from spark_streams.connector.wire.xinfo import FATAL, SHOWN

    waited_for: tuple[str | int, ...] = () if idle is None else ("IDLE", idle)
    with shared.connect(url) as server:
        reply = server.execute(
            "XPENDING", stream, group, *waited_for, "-", "+", limit, *([] if consumer is None else [consumer])
        )
    rows = [
        (name_text(entry), None if waited < 0 else name_text(who), None if waited < 0 else waited, deliveries)
        for entry, who, waited, deliveries in reply
    ]
    if as_json:
        names = ("id", "consumer", "idle_ms", "deliveries")
        shared.print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    shared.print_table(
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


@click.command(short_help="Wait until a group has something to read.")
@click.argument("names", metavar="STREAM...", nargs=-1, required=True)
@click.option("--group", required=True, help="The consumer group.")
@click.option(
    "--lag", "entries", type=click.IntRange(1), default=1, show_default=True, help="Wait for this number of entries."
)
@click.option(
    "--for",
    "most",
    metavar="DURATION",
    callback=shared.milliseconds,
    help="Maximum time to wait, as 10m.  [default: none]",
)
@click.option("--must-exist", is_flag=True, help="Fail if a stream, or the group on it, does not exist.")
@exact_option
@shared.url_option
def wait(
    names: tuple[str, ...], group: str, entries: int, most: int | None, must_exist: bool, exact: bool, url: str
) -> None:
    """Wait until the group has at least --lag undelivered entries in these streams together.

    Exit codes: 0 it has; 3 the time of --for is over; 1 the server does not answer, a key is not a stream, or something
    is missing (--must-exist).

    A stream or group need not exist yet; the command says so on standard error, because the name may be misspelt. In a
    stream without this group all entries count, as for a query that starts with startingOffsets=earliest. With
    --must-exist this is an error, at the start and when the time of --for is over.

    A pattern is replaced by the streams that match it at the start. Pending entries, and those that wait for a retry,
    do not count.

    It sends at most one command a second to the server, on average; while nothing is added, two a minute and one per
    stream.

    \b
    Examples:
      rstream wait orders --group etl && rstream run etl --config etl.toml
      rstream wait orders payments --group etl --lag 10000 --for 10m
    """
    from spark_streams.connector.wire.session import Session
    from spark_streams.operations.monitor.undelivered import find_missing, wait_for_entries

    with Session(shared.address_of(url), "rstream wait") as session:
        streams = session.run(lambda server: resolve_streams(server, names, None, exact))
        missing = session.run(lambda server: find_missing(server, streams, group))
        if not must_exist:
            for error in missing:
                shared.say(
                    f"note: {error.message}. All entries of the stream count; --must-exist makes this an error",
                    err=True,
                )
        elif missing:
            raise missing[0]
        counts = wait_for_entries(session, streams, group, entries, math.inf if most is None else most / 1000)
        if counts is None and must_exist and (gone := session.run(lambda server: find_missing(server, streams, group))):
            raise gone[0]
    if counts is None:
        found(CHECK_FAILED)
        shared.say(f"group {group!r} has fewer than {counted(entries, 'undelivered entry', 'undelivered entries')}")
        return
    waiting = ", ".join(f"{count:,} of {stream}" for stream, count in counts.items() if count)
    shared.say(f"group {group!r} has undelivered entries: {waiting}")
