"""`rstream groups claim` and `ack`: hand pending entries to another consumer, or acknowledge them."""

from __future__ import annotations

from typing import Unpack

import click

from spark_streams.operations.commands.bounds import only_these
from spark_streams.operations.commands.groups.choice import SelectionOptions, bounded, choice_of, choice_options
from spark_streams.operations.commands.groups.group_change import (
    ChangeOptions,
    ChangeReport,
    change_options,
    entries_in,
    load_groups,
    plural,
)
from spark_streams.operations.commands.shared import connect


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
    **selection: Unpack[SelectionOptions],
) -> None:
    """Hand pending entries of one consumer to another consumer of the group (XCLAIM). Delivery counts do not change.

    --from must not be a running query. --to may be one: with its next batch it reads the claimed entries up to its
    committed position. Its checkpoint stays in use. Later entries stay with their consumer.

    \b
    deleted  entries that were deleted from the stream; Redis 7 and later also remove them from the pending list
    stay     entries after the committed position of query --to: its running batch may contain them

    \b
    Examples:
      rstream groups claim orders --group etl --from bob --to spark --idle 5m
      rstream groups claim orders payments --group etl --from bob --to ann --yes
      rstream groups claim orders --group etl --released --to ann
    """
    from spark_streams.connector.admin.groups import GroupSnapshot
    from spark_streams.operations.groups.claim import Claimed
    from spark_streams.operations.groups.claim import claim as hand_over

    has_idle = selection["idle"] is not None
    if released and (source is not None or has_idle):
        raise click.UsageError("--released cannot be combined with --from or --idle")
    if not released and source is None:
        raise click.UsageError("no entries selected; use --from CONSUMER or --released")
    if source == to:
        raise click.UsageError("--from and --to name the same consumer; name two")
    report: ChangeReport[Claimed] = ChangeReport(options.yes, options.as_json)
    choice = choice_of(() if source is None else (source,), selection, released)

    def claim_on_stream(snapshot: GroupSnapshot) -> Claimed:
        remaining = choice.without_taken(entries_in(report.stream_reports))
        return hand_over(server, snapshot, to, bounded(remaining, options.only, snapshot), options.yes)

    with connect(options.url) as server:
        snapshots = load_groups(server, names, options.group, options.exact, only=options.only)
        touched = None if source is None else [source]
        refused = (
            []
            if touched is None
            else [reason for snapshot in snapshots for reason in snapshot.in_use(touched, options.even_active)]
        )
        report.carry_out(snapshots, refused, claim_on_stream)
    touched_queries = {to, *([] if source is None else [source])}
    report.add_query_notes(query for snapshot in snapshots for query in snapshot.marks if query in touched_queries)
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
        f"handed over {plural(entries_in(report.stream_reports), 'entry', 'entries')}",
        only_these((one.stream, one.group, one.last) for one in report.stream_reports),
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
    **selection: Unpack[SelectionOptions],
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
    from spark_streams.connector.admin.groups import GroupSnapshot
    from spark_streams.operations.groups.acknowledge import Acknowledged, acknowledge, selected_consumers

    has_idle = selection["idle"] is not None
    selecting = {name: value for name, value in selection.items() if not (everything and name == "last")}
    if everything == bool(
        consumers or released or any(value is not None and value != () for value in selecting.values())
    ):
        selecting_options = "--consumer, --released, --id, --first-id, --last-id, --idle, --limit"
        raise click.UsageError(f"no entries selected; use one of {selecting_options}, or --all with at most --last-id")
    if released and (consumers or has_idle):
        raise click.UsageError("--released cannot be combined with --consumer or --idle")
    report: ChangeReport[Acknowledged] = ChangeReport(options.yes, options.as_json)
    choice = choice_of(consumers, selection, released)

    def acknowledge_on_stream(snapshot: GroupSnapshot) -> Acknowledged:
        remaining = choice.without_taken(entries_in(report.stream_reports))
        return acknowledge(server, snapshot, bounded(remaining, options.only, snapshot), options.yes)

    with connect(options.url) as server:
        snapshots = load_groups(server, names, options.group, options.exact, only=options.only)
        refused = [
            reason
            for snapshot in snapshots
            for reason in snapshot.in_use(selected_consumers(snapshot, choice), options.even_active)
        ]
        report.carry_out(snapshots, refused, acknowledge_on_stream)
    queries = {query for snapshot in snapshots for query in snapshot.marks}
    touched = {name for stream_report in report.stream_reports for name in stream_report.consumers}
    report.add_query_notes(sorted(touched & queries))
    report.show(
        ("stream", "group", "entries", "of consumers"),
        lambda acknowledged: (
            *(acknowledged.stream, acknowledged.group, acknowledged.entries),
            ", ".join(f"{name}: {count:,}" for name, count in acknowledged.consumers.items()) or "-",
        ),
        f"acknowledged {plural(entries_in(report.stream_reports), 'entry', 'entries')}",
        only_these((one.stream, one.group, one.last) for one in report.stream_reports),
    )
