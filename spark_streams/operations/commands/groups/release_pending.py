"""`rstream groups release`: return a consumer's pending entries to its group."""

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
    names: tuple[str, ...], consumer: str, mode: str, options: ChangeOptions, **selection: Unpack[SelectionOptions]
) -> None:
    """Return pending entries of a consumer to its group (XNACK; Redis 8.8 or the bundled engine).

    Released entries are pending without a consumer. The next query of the group takes them at once, without
    `claimIdle`. With --mode fatal they become dead letters if that query has a dead-letter stream; otherwise they stay
    pending.

    The consumer of a running query is refused.

    \b
    Examples:
      rstream groups release orders --group etl --consumer bob
      rstream groups release orders --group etl --consumer bob --mode silent --yes
      rstream groups release orders --group etl --consumer bob --id 1795163834542-0 --mode fatal --yes
    """
    from spark_streams.connector.admin.groups import GroupSnapshot
    from spark_streams.operations.groups.release import Released
    from spark_streams.operations.groups.release import release as give_back

    report: ChangeReport[Released] = ChangeReport(options.yes, options.as_json)
    choice = choice_of((consumer,), selection)

    def release_on_stream(snapshot: GroupSnapshot) -> Released:
        remaining = choice.without_taken(entries_in(report.stream_reports))
        return give_back(server, snapshot, bounded(remaining, options.only, snapshot), mode, options.yes)

    with connect(options.url) as server:
        snapshots = load_groups(server, names, options.group, options.exact, only=options.only)
        refused = [reason for snapshot in snapshots for reason in snapshot.in_use([consumer], options.even_active)]
        report.carry_out(snapshots, refused, release_on_stream)
    if any(consumer in snapshot.marks for snapshot in snapshots):
        report.notes.append(
            f"if query {consumer!r} starts again with its checkpoint, it repeats its last batch and also "
            "takes the released entries: entries of that batch are read twice. Release entries of a query only if you "
            "do not start it again"
        )
    report.show(
        ("stream", "group", "consumer", "entries", "mode"),
        lambda released: (released.stream, released.group, released.consumer, released.entries, released.mode),
        f"released {plural(entries_in(report.stream_reports), 'entry', 'entries')}",
        only_these((one.stream, one.group, one.last) for one in report.stream_reports),
    )
