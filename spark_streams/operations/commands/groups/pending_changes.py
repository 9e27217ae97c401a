"""`rstream groups claim`, `ack` and `release`: hand over, acknowledge or release pending entries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack

import click

from spark_streams.base.units import counted
from spark_streams.operations.commands.dry_run import (
    ChangeOptions,
    ChangeReport,
    OfEntries,
    change_options,
    entries_in,
    load_groups,
)
from spark_streams.operations.commands.print_entry import parse_id
from spark_streams.operations.commands.shared import OptionSet, connect, milliseconds

if TYPE_CHECKING:
    from spark_streams.connector.admin.groups import GroupSnapshot
    from spark_streams.connector.wire.connection import Server
    from spark_streams.operations.groups.change_plan import Plan
    from spark_streams.operations.groups.pending_entries import Choice

R = TypeVar("R", bound=OfEntries)


class PendingOptions(TypedDict):
    """Values of the options that select pending entries."""

    idle: int | None
    ids: tuple[str, ...]
    first: str | None
    last: str | None
    limit: int | None


# The options that select pending entries.
choice_options = OptionSet(
    click.option(
        "--idle", metavar="TIME", callback=milliseconds, help="Only entries pending for at least this time (30s, 5m)."
    ),
    click.option("--id", "ids", metavar="ID", multiple=True, help="Only this entry; repeatable."),
    click.option("--first-id", "first", metavar="ID", help="Only entries with this ID or a later one."),
    click.option("--last-id", "last", metavar="ID", help="Only entries with this ID or an earlier one."),
    click.option("--limit", type=click.IntRange(1), help="Maximum number of entries over all streams."),
)


def choice_of(consumers: tuple[str, ...], selection: PendingOptions, released: bool = False) -> Choice:
    """Return the choice that these options describe. consumers, released: as in Choice."""
    from spark_streams.base.ids import MAX_ID, MIN_ID
    from spark_streams.operations.groups.pending_entries import Choice

    first, last = selection["first"], selection["last"]
    low = MIN_ID if first is None else parse_id(first)[0]
    high = MAX_ID if last is None else parse_id(last)[1]
    ids = tuple(parse_id(entry_id)[0] for entry_id in selection["ids"])
    return Choice(consumers, selection["idle"], low, high, ids, selection["limit"], released)


def _change_entries(
    report: ChangeReport[R],
    names: Sequence[str],
    options: ChangeOptions,
    choice: Choice,
    touched: Callable[[GroupSnapshot], Collection[str] | None],
    plan_of: Callable[[Server, GroupSnapshot, Choice], Plan[R]],
) -> list[GroupSnapshot]:
    """Make or plan the change of chosen entries of each stream, and return the groups as they were before. touched: the
    consumers that the change touches, None: all."""
    with connect(options.url) as server:
        snapshots = load_groups(server, names, options.group, options.exact, only=options.only)
        refused = [
            reason for snapshot in snapshots for reason in snapshot.in_use(touched(snapshot), options.even_active)
        ]
        report.add_all(
            server,
            snapshots,
            refused,
            lambda one: plan_of(server, one, choice.without_taken(entries_in(report.stream_reports))),
        )
    return snapshots


@click.command(short_help="Hand pending entries to another consumer.")
@click.argument("names", metavar="STREAM...", nargs=-1, required=True)
@click.option("--from", "source", metavar="CONSUMER", help="The consumer that holds the entries.")
@click.option("--released", is_flag=True, help="Instead of --from: entries that a consumer released (XNACK).")
@click.option("--to", "to", metavar="CONSUMER", required=True, help="The consumer that receives the entries.")
@choice_options
@change_options
def claim(
    names: tuple[str, ...],
    source: str | None,
    released: bool,
    to: str,
    options: ChangeOptions,
    **selection: Unpack[PendingOptions],
) -> None:
    """Hand pending entries of one consumer to another consumer of the group (XCLAIM). Delivery counts do not change.

    --from must not be a running query. --to may be one: with its next batch it reads the claimed entries up to its
    committed position. Later entries stay with their consumer.

    \b
    deleted  entries that were deleted from the stream; Redis 7 and later also remove them from the pending list
    stay     entries after the committed position of query --to: its running batch may contain them

    \b
    Examples:
      rstream groups claim orders --group etl --from bob --to spark --idle 5m
      rstream groups claim orders --group etl --released --to ann
    """
    from spark_streams.operations.groups.pending_entries import Claimed
    from spark_streams.operations.groups.pending_entries import claim as hand_over

    has_idle = selection["idle"] is not None
    if released and (source is not None or has_idle):
        raise click.UsageError("--released cannot be combined with --from or --idle")
    if not released and source is None:
        raise click.UsageError("no entries selected; use --from CONSUMER or --released")
    if source == to:
        raise click.UsageError("--from and --to name the same consumer; name two")
    held_by = () if source is None else (source,)
    report: ChangeReport[Claimed] = ChangeReport(options.yes, options.as_json)
    snapshots = _change_entries(
        *(report, names, options, choice_of(held_by, selection, released)),
        touched=lambda snapshot: held_by,
        plan_of=lambda server, snapshot, choice: hand_over(server, snapshot, to, choice, options.only),
    )
    report.add_query_notes(query for snapshot in snapshots for query in snapshot.marks if query in {to, *held_by})
    report.show(
        ("stream", "group", "from", "to", "entries", "deleted", "stay"),
        lambda claimed: (
            claimed.stream,
            claimed.group,
            claimed.source or "-",
            claimed.to,
            claimed.entries,
            claimed.gone,
            claimed.above,
        ),
        f"handed over {counted(entries_in(report.stream_reports), 'entry', 'entries')}",
    )


@click.command(short_help="Acknowledge pending entries.")
@click.argument("names", metavar="STREAM...", nargs=-1, required=True)
@click.option(
    "--consumer", "consumers", metavar="CONSUMER", multiple=True, help="Only entries of this consumer; repeatable."
)
@click.option("--released", is_flag=True, help="Only entries that a consumer released (XNACK).")
@click.option(
    "--all", "everything", is_flag=True, help="All pending entries; of the selecting options it takes only --last-id."
)
@choice_options
@change_options
def ack(
    names: tuple[str, ...],
    consumers: tuple[str, ...],
    released: bool,
    everything: bool,
    options: ChangeOptions,
    **selection: Unpack[PendingOptions],
) -> None:
    """Acknowledge pending entries of a group (XACK): they are not delivered again. An entry must match all options.

    Entries of a running query are refused. Released entries are refused while any query of the group runs, because it
    might take them at the same time.

    \b
    Examples:
      rstream groups ack orders --group etl --id 1795163834542-0 --yes
      rstream groups ack orders --group etl --consumer bob --idle 1d
      rstream groups ack 'orders:*' --group etl --all --yes
    """
    from spark_streams.operations.groups.pending_entries import AcknowledgedEntries, acknowledge, selected_consumers

    has_idle = selection["idle"] is not None
    selecting = {name: value for name, value in selection.items() if not (everything and name == "last")}
    if everything == bool(
        consumers or released or any(value is not None and value != () for value in selecting.values())
    ):
        selecting_options = "--consumer, --released, --id, --first-id, --last-id, --idle, --limit"
        raise click.UsageError(f"no entries selected; use one of {selecting_options}, or --all with at most --last-id")
    if released and (consumers or has_idle):
        raise click.UsageError("--released cannot be combined with --consumer or --idle")
    report: ChangeReport[AcknowledgedEntries] = ChangeReport(options.yes, options.as_json)
    choice = choice_of(consumers, selection, released)
    snapshots = _change_entries(
        *(report, names, options, choice),
        touched=lambda snapshot: selected_consumers(snapshot, choice),
        plan_of=lambda server, snapshot, remaining: acknowledge(server, snapshot, remaining, options.only),
    )
    queries = {query for snapshot in snapshots for query in snapshot.marks}
    touched = {name for stream_report in report.stream_reports for name in stream_report.consumers}
    report.add_query_notes(sorted(touched & queries))
    report.show(
        ("stream", "group", "entries", "of consumers"),
        lambda acknowledged: (
            *(acknowledged.stream, acknowledged.group, acknowledged.entries),
            ", ".join(f"{name}: {count:,}" for name, count in acknowledged.consumers.items()) or "-",
        ),
        f"acknowledged {counted(entries_in(report.stream_reports), 'entry', 'entries')}",
    )


@click.command(short_help="Return pending entries to the group.")
@click.argument("names", metavar="STREAM...", nargs=-1, required=True)
@click.option("--consumer", metavar="CONSUMER", required=True, help="The consumer that holds the entries.")
@click.option(
    "--mode",
    type=click.Choice(["fail", "silent", "fatal"]),
    default="fail",
    show_default=True,
    help="fail: the delivery is counted; silent: it is not counted; fatal: the entries are not read again.",
)
@choice_options
@change_options
def release(
    names: tuple[str, ...], consumer: str, mode: str, options: ChangeOptions, **selection: Unpack[PendingOptions]
) -> None:
    """Return pending entries of a consumer to its group (XNACK; Redis 8.8 or the bundled engine).

    Released entries are pending without a consumer. The next query of the group takes them at once, without
    `claimIdle`. With --mode fatal they become dead letters if that query has a dead-letter stream; otherwise they stay
    pending.

    \b
    Examples:
      rstream groups release orders --group etl --consumer bob
      rstream groups release orders --group etl --consumer bob --id 1795163834542-0 --mode fatal --yes
    """
    from spark_streams.operations.groups.pending_entries import Released
    from spark_streams.operations.groups.pending_entries import release as give_back

    report: ChangeReport[Released] = ChangeReport(options.yes, options.as_json)
    snapshots = _change_entries(
        *(report, names, options, choice_of((consumer,), selection)),
        touched=lambda snapshot: [consumer],
        plan_of=lambda server, snapshot, choice: give_back(server, snapshot, choice, mode, options.only),
    )
    if any(consumer in snapshot.marks for snapshot in snapshots):
        report.notes.append(
            f"if query {consumer!r} starts again with its checkpoint, it repeats its last batch and also "
            "takes the released entries: entries of that batch are read twice. Release entries of a query only if you "
            "do not start it again"
        )
    report.show(
        ("stream", "group", "consumer", "entries", "mode"),
        lambda released: (released.stream, released.group, released.consumer, released.entries, released.mode),
        f"released {counted(entries_in(report.stream_reports), 'entry', 'entries')}",
    )
