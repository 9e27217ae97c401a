"""`rstream groups delete`: delete a group or one consumer, with the keys that queries keep for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from spark_streams.operations.commands.bounds import NO_GROUP, only_these
from spark_streams.operations.commands.groups.group_change import (
    ChangeOptions,
    ChangeReport,
    change_options,
    load_groups,
    plural,
)
from spark_streams.operations.commands.names import resolve_streams
from spark_streams.operations.commands.shared import connect

if TYPE_CHECKING:
    from spark_streams.connector.wire.connection.server import Server
    from spark_streams.operations.groups.delete import Deleted


@click.command(short_help="Delete a group, or one consumer.")
@click.argument("names", metavar="STREAM...", nargs=-1, required=True)
@click.option(
    "--consumer", metavar="CONSUMER", help="Only this consumer; of a query also the consumers that it created."
)
@click.option("--forget-pending", is_flag=True, help="With --consumer: even if it holds pending entries.")
@change_options
def delete(names: tuple[str, ...], consumer: str | None, forget_pending: bool, options: ChangeOptions) -> None:
    """Delete a group of STREAM (XGROUP DESTROY) or one of its consumers (XGROUP DELCONSUMER), and the keys that queries
    keep on the server for it. Its pending entries are forgotten: they are not delivered again.

    A group or consumer of a running query is refused. A consumer with pending entries is refused without
    --forget-pending; rstream groups claim hands them to another consumer.

    If the group no longer exists, the command deletes its remaining keys. For the keys of a deleted consumer other than
    `spark`, name it with --consumer. Entries that wait for a retry (retryDelay) stay, and the command prints where. A
    sink's ledger belongs to no group, and stays.

    \b
    Examples:
      rstream groups delete orders --group etl
      rstream groups delete 'orders:*' --group etl --yes
      rstream groups delete orders --group etl --consumer bob --yes
    """
    if forget_pending and consumer is None:
        raise click.UsageError("--forget-pending applies only with --consumer")
    report: ChangeReport[Deleted] = ChangeReport(options.yes, options.as_json)
    with connect(options.url) as server:
        if consumer is None:
            _groups(server, names, options, report)
        else:
            _consumers(server, names, options, consumer, forget_pending, report)
    pending = sum(deleted.pending for deleted in report.stream_reports)
    deleted_names = plural(len(report.stream_reports), "group") if consumer is None else f"consumer {consumer}"
    report.show(
        ("stream", "group", "consumers", "pending forgotten", "not delivered", "keys"),
        lambda deleted: (
            *(
                deleted.stream,
                deleted.group,
                ", ".join(f"{name}: {n:,}" for name, n in deleted.consumers.items()) or "-",
            ),
            *(deleted.pending, deleted.lag, ", ".join(deleted.keys) or "-"),
        ),
        f"deleted {deleted_names}, with {plural(pending, 'pending entry', 'pending entries')}",
        only_these((deleted.stream, deleted.group, deleted.position) for deleted in report.stream_reports),
    )


def _groups(server: Server, names: Sequence[str], options: ChangeOptions, report: ChangeReport[Deleted]) -> None:
    from spark_streams.connector.admin.groups import count_waiting, find_group_keys, split_by_stream, waiting_lines
    from spark_streams.connector.wire.replies.xinfo import streams_with_group
    from spark_streams.operations.groups.delete import (
        delete_group,
        delete_leftovers,
        plan_delete_group,
        plan_delete_leftovers,
        resume_lines,
    )

    group = options.group
    streams = [s for s in resolve_streams(server, names, group, options.exact) if options.only.has(s, group)]
    group_keys = find_group_keys(server, {group: streams})[group]
    waiting = count_waiting(server, group_keys)
    group_keys = [group_key for group_key in group_keys if group_key.key not in waiting]
    keys_by_stream = split_by_stream(group_keys, streams)
    having_it = {*streams_with_group(server, streams, group)}
    # Keys may remain of a group that was deleted.
    snapshots = load_groups(
        server, [stream for stream in streams if stream in having_it or not keys_by_stream[stream]], group
    )
    moved = [
        f"group {group!r} of stream {snapshot.stream!r} stands at {snapshot.position}, and not where the dry run has "
        "shown it. Repeat the dry run"
        for snapshot in snapshots
        if not options.only.stands(snapshot.stream, group, str(snapshot.position))
    ]
    report.carry_out(
        snapshots,
        [*moved, *(reason for snapshot in snapshots for reason in snapshot.in_use(None, options.even_active))],
        lambda snapshot: (
            delete_group(server, snapshot, keys_by_stream[snapshot.stream])
            if report.yes
            else plan_delete_group(server, snapshot, keys_by_stream[snapshot.stream])
        ),
    )
    for stream in streams:
        if stream in having_it or not options.only.stands(stream, group, NO_GROUP):
            continue
        report.stream_reports.append(
            delete_leftovers(server, stream, group, keys_by_stream[stream])
            if report.yes
            else plan_delete_leftovers(stream, group, keys_by_stream[stream])
        )
    for deleted in report.stream_reports:
        report.notes += resume_lines(deleted.stream, group, deleted.committed)
    report.notes += waiting_lines(waiting)


def _consumers(
    server: Server,
    names: Sequence[str],
    options: ChangeOptions,
    consumer: str,
    forget_pending: bool,
    report: ChangeReport[Deleted],
) -> None:
    from spark_streams.base.ids import MAX_ID
    from spark_streams.connector.admin.groups import GroupKey
    from spark_streams.operations.groups.delete import (
        delete_consumer,
        delete_leftovers,
        find_consumer_keys,
        find_consumers,
        plan_delete_consumer,
        plan_delete_leftovers,
        require_consumers,
    )

    group = options.group
    streams = [s for s in resolve_streams(server, names, group, options.exact) if options.only.has(s, group)]
    streams_with_consumer = {stream for stream in streams if find_consumers(server, stream, group, consumer)}
    leftover_keys = {
        stream: [GroupKey(key, "", consumer, stream) for key in find_consumer_keys(server, stream, group, consumer)]
        for stream in streams
        if stream not in streams_with_consumer
    }
    # Keys may remain of a consumer that was deleted.
    snapshots = load_groups(server, [stream for stream in streams if not leftover_keys.get(stream)], group, exact=True)
    refused = [
        reason
        for snapshot in snapshots
        for reason in snapshot.in_use(require_consumers(snapshot, consumer), options.even_active)
    ]
    for snapshot in snapshots:
        pending = sum(
            consumer_info.pending for consumer_info in snapshot.consumers_named(require_consumers(snapshot, consumer))
        )
        if pending and not forget_pending and not report.yes:
            refused.append(
                f"{plural(pending, 'entry is', 'entries are')} pending for consumer {consumer!r} on stream "
                f"{snapshot.stream!r}: hand them over with rstream groups claim {snapshot.stream} --group {group} "
                f"--from {consumer} --to OTHER_CONSUMER, or forget them with --forget-pending"
            )
    report.carry_out(
        snapshots,
        refused,
        lambda snapshot: (
            delete_consumer(
                *(server, snapshot, consumer, forget_pending), options.only.id(snapshot.stream, group) or MAX_ID
            )
            if report.yes
            else plan_delete_consumer(snapshot, consumer, find_consumer_keys(server, snapshot.stream, group, consumer))
        ),
    )
    report.add_query_notes(consumer for snapshot in snapshots if consumer in snapshot.marks)
    for stream, keys in leftover_keys.items():
        if keys:
            deleted = (
                delete_leftovers(server, stream, group, keys)
                if report.yes
                else plan_delete_leftovers(stream, group, keys)
            )
            report.stream_reports.append(deleted)
