"""`rstream groups delete` and `prune`, `rstream trim`: delete groups, consumers, and entries that nobody needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import click

from spark_streams.base.units import binary_size, counted, duration
from spark_streams.operations.commands.dry_run import (
    ChangeOptions,
    ChangeReport,
    Row,
    change_options,
    load_groups,
    only_option,
    server_time,
    yes_option,
)
from spark_streams.operations.commands.shared import connect, json_option, milliseconds, say, url_option
from spark_streams.operations.commands.stream_names import exact_option, require_existing, resolve_streams

if TYPE_CHECKING:
    from spark_streams.connector.wire.connection import Server
    from spark_streams.operations.groups.change_plan import Only
    from spark_streams.operations.groups.group_deletion import Deleted, IdleConsumers
    from spark_streams.operations.groups.unused import Pruned, PruneSearch
    from spark_streams.operations.monitor.held import Held

_NAMES = 5  # of consumers in a row


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

    A consumer with pending entries is refused without --forget-pending; rstream groups claim hands them to another
    consumer.

    If the group no longer exists, its remaining keys are deleted; those of a deleted consumer with --consumer. Entries
    that wait for a retry stay, and the command prints where. A sink's ledger belongs to no group, and stays.

    \b
    Examples:
      rstream groups delete orders --group etl
      rstream groups delete orders --group etl --consumer bob --yes
    """
    if forget_pending and consumer is None:
        raise click.UsageError("--forget-pending applies only with --consumer")
    report: ChangeReport[Deleted] = ChangeReport(options.yes, options.as_json)
    with connect(options.url) as server:
        if consumer is None:
            _delete_groups(server, names, options, report)
        else:
            _delete_consumers(server, names, options, consumer, forget_pending, report)
    pending = sum(deleted.pending for deleted in report.stream_reports)
    deleted_names = counted(len(report.stream_reports), "group") if consumer is None else f"consumer {consumer}"
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
        f"deleted {deleted_names}, with {counted(pending, 'pending entry', 'pending entries')}",
    )


def _delete_groups(server: Server, names: Sequence[str], options: ChangeOptions, report: ChangeReport[Deleted]) -> None:
    from spark_streams.connector.admin.groups import find_keys_to_delete, find_query_keys, waiting_lines
    from spark_streams.connector.wire.xinfo import streams_with_group
    from spark_streams.operations.groups.change_plan import NO_GROUP
    from spark_streams.operations.groups.group_deletion import delete_group, delete_leftovers, resume_lines

    group = options.group
    streams = [s for s in resolve_streams(server, names, group, options.exact) if options.only.has(s, group)]
    of_queries = find_query_keys(server)
    keys, waiting = find_keys_to_delete(server, {group: streams}, of_queries)
    having_it = {*streams_with_group(server, streams, group)}
    # Keys may remain of a group that was deleted.
    snapshots = load_groups(
        server, [stream for stream in streams if stream in having_it or not keys[stream, group]], group, keys=of_queries
    )
    moved = [
        f"group {group!r} of stream {snapshot.stream!r} stands at {snapshot.position}, and not where the dry run has "
        "shown it. Repeat the dry run"
        for snapshot in snapshots
        if not options.only.stands(snapshot.stream, group, str(snapshot.position))
    ]
    report.add_all(
        server,
        snapshots,
        [*moved, *(reason for snapshot in snapshots for reason in snapshot.in_use(None, options.even_active))],
        lambda snapshot: delete_group(server, snapshot, keys[snapshot.stream, group]),
    )
    for stream in streams:
        if stream not in having_it and options.only.stands(stream, group, NO_GROUP):
            report.add(server, delete_leftovers(server, stream, group, keys[stream, group]))
    for deleted in report.stream_reports:
        report.notes += resume_lines(deleted.stream, group, deleted.committed)
    report.notes += waiting_lines(waiting)


def _delete_consumers(
    server: Server,
    names: Sequence[str],
    options: ChangeOptions,
    consumer: str,
    forget_pending: bool,
    report: ChangeReport[Deleted],
) -> None:
    from spark_streams.connector.admin.groups import GroupKey
    from spark_streams.connector.operator_commands import claim_command
    from spark_streams.operations.groups.group_deletion import (
        delete_consumer,
        delete_leftovers,
        find_consumer_keys,
        find_consumers,
        position_lines,
    )
    from spark_streams.operations.groups.pending_entries import require_consumer

    group = options.group
    streams = [s for s in resolve_streams(server, names, group, options.exact) if options.only.has(s, group)]
    leftover_keys = {
        stream: [GroupKey(key, "", consumer, stream) for key in find_consumer_keys(server, stream, group, consumer)]
        for stream in streams
        if not find_consumers(server, stream, group, consumer)
    }
    # Keys may remain of a consumer that was deleted.
    snapshots = load_groups(server, [stream for stream in streams if not leftover_keys.get(stream)], group, exact=True)
    refused = []
    for snapshot in snapshots:
        require_consumer(snapshot, consumer)
        refused += snapshot.in_use([consumer], options.even_active)
        pending = sum(consumer_info.pending for consumer_info in snapshot.consumers_named([consumer]))
        if pending and not forget_pending and not report.yes:
            refused.append(
                f"{counted(pending, 'entry is', 'entries are')} pending for consumer {consumer!r} on stream "
                f"{snapshot.stream!r}: hand them over with {claim_command(snapshot.stream, group, consumer)}, or "
                "forget them with --forget-pending"
            )
    report.add_all(
        server,
        snapshots,
        refused,
        lambda snapshot: delete_consumer(server, snapshot, consumer, forget_pending, options.only),
    )
    report.add_query_notes(consumer for snapshot in snapshots if consumer in snapshot.marks)
    for stream, keys in leftover_keys.items():
        if keys:
            report.add(server, delete_leftovers(server, stream, group, keys))
    for deleted in report.stream_reports:
        own = {name: up_to for name, up_to in deleted.committed.items() if name == consumer}
        report.notes += position_lines(deleted.stream, group, own)


@click.command(short_help="Delete abandoned groups.")
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@click.option(
    "--idle",
    metavar="TIME",
    required=True,
    callback=milliseconds,
    help="Only groups without a read for this time (1d, 7d).",
)
@click.option(
    "--group",
    "groups",
    metavar="GROUP",
    multiple=True,
    help="Only this group, or groups that match (nb-*); repeatable.",
)
@click.option("--hold", is_flag=True, help="Do not delete groups: let them hold no entries back, and remove these.")
@click.option("--consumers", is_flag=True, help="Do not delete groups: delete their idle consumers that hold no entry.")
@exact_option
@yes_option
@only_option
@url_option
@json_option
def prune(
    names: tuple[str, ...],
    idle: int,
    groups: tuple[str, ...],
    hold: bool,
    consumers: bool,
    exact: bool,
    yes: bool,
    only: Only,
    url: str,
    as_json: bool,
) -> None:
    """Delete groups of STREAM (a name or a pattern; default: all streams) that were not read from for --idle.

    A group stays if a running query uses it, or if a consumer was active within the time. Otherwise it is deleted if an
    entry is pending for that time, or an undelivered entry is that old. Other groups, and those without a pending list
    (noAck), stay and are named: a client may be waiting. rstream groups delete can delete them.

    As rstream groups delete does, it also deletes the group's pending entries, consumers and keys.

    With --hold no group is deleted. The command lists groups that hold entries back which no other group needs; with
    --yes it forgets them, and removes the entries. A query of such a group then stops (RSTREAM_GROUP_FORGOTTEN).

    With --consumers no group is deleted, but idle consumers without a pending entry. Those of running queries stay.

    The command names groups that came into use meanwhile. If it changed no other one, the exit code is 3.

    \b
    Examples:
      rstream groups prune --idle 1d --group 'nb-*' 'orders:*' --yes
      rstream groups prune --idle 7d --hold
      rstream groups prune --idle 1d --consumers --yes
    """
    from spark_streams.operations.groups import unused

    if idle < unused.SHORTEST_MS:
        raise click.UsageError(
            "--idle must be at least 1m: a running consumer may pause that long between two requests"
        )
    if hold and consumers:
        raise click.UsageError("--hold and --consumers are different changes: leave one of them out")
    wanted = _Unused(names, idle, groups, exact, only)
    with connect(url) as server:
        if hold:
            wanted.forget(server, ChangeReport(yes, as_json))
        elif consumers:
            wanted.delete_consumers(server, ChangeReport(yes, as_json))
        else:
            wanted.delete_groups(server, _PruneReport(yes, as_json))


@dataclass(frozen=True)
class _Unused:
    """What `prune` looks for: groups that nobody uses, and idle consumers."""

    names: tuple[str, ...]
    idle: int  # milliseconds
    groups: tuple[str, ...]  # names or patterns; none: all
    exact: bool
    only: Only

    def _streams(self, server: Server) -> list[str]:
        from spark_streams.connector.wire.scan import matching_streams

        if self.names:
            return resolve_streams(server, self.names, None, self.exact)
        return matching_streams(server, "*", ())

    def delete_groups(self, server: Server, report: _PruneReport) -> None:
        """Delete abandoned groups."""
        from spark_streams.connector.admin.groups import find_keys_to_delete, waiting_lines
        from spark_streams.operations.groups import unused
        from spark_streams.operations.groups.group_deletion import resume_lines

        report.outcome = unused.find_abandoned(
            *(server, self._streams(server), self.groups, self.exact, self.idle, server_time(server))
        )
        abandoned = [
            one for one in report.outcome.abandoned if self.only.stands(one.stream, one.group, str(one.position))
        ]
        streams_of: dict[str, list[str]] = {}
        for one in abandoned:
            streams_of.setdefault(one.group, []).append(one.stream)
        keys, waiting = find_keys_to_delete(server, streams_of)
        report.add_each(
            server, abandoned, lambda one: unused.prune_group(server, one, keys[one.stream, one.group], self.idle)
        )
        for pruned in report.stream_reports:
            report.notes += resume_lines(pruned.stream, pruned.group, pruned.committed)
        report.notes += waiting_lines(waiting)
        pending = sum(pruned.pending for pruned in report.stream_reports)
        report.show(
            ("stream", "group", "idle ", "consumers", "pending forgotten", "not delivered", "keys"),
            lambda pruned: (
                *(pruned.stream, pruned.group, duration(pruned.idle_ms)),
                ", ".join(f"{name}: {n:,}" for name, n in pruned.consumers.items()),
                *(pruned.pending, pruned.lag, ", ".join(pruned.keys) or "-"),
            ),
            f"deleted {counted(len(report.stream_reports), 'group')}, "
            f"with {counted(pending, 'pending entry', 'pending entries')}",
        )

    def forget(self, server: Server, report: ChangeReport[Held]) -> None:
        """Forget groups that hold entries back."""
        from spark_streams.connector.admin.groups import find_with_running_query
        from spark_streams.operations.groups.unused import find_held, find_undecided, forget_group

        found = find_held(server, self._streams(server), self.groups, self.exact, self.idle)
        found = [one for one in found if self.only.stands(*one.bound)]
        kept = find_undecided(server, found, self.idle, server_time(server))
        undecided = {(one.stream, one.group) for one in kept}
        held = [one for one in found if (one.stream, one.group) not in undecided]
        forgotten: set[tuple[bytes, bytes]] = set()
        running = find_with_running_query(server, [(one.stream, one.group) for one in held])
        report.add_each(server, held, lambda one: forget_group(server, one, self.idle, forgotten, running))
        report.notes += [f"kept: group {one.group!r} of stream {one.stream!r}: {one.why}" for one in kept]
        report.show(
            ("stream", "group", "idle ", "last delivered", "holds about", "bytes", "removed"),
            lambda one: (
                *(one.stream, one.group, duration(one.idle_ms), one.position),
                *(one.entries, one.bytes, one.removed),
            ),
            f"forgot {counted(len(report.stream_reports), 'group')}",
        )

    def delete_consumers(self, server: Server, report: ChangeReport[IdleConsumers]) -> None:
        """Delete idle consumers without pending entries."""
        from spark_streams.operations.groups.group_deletion import delete_idle_consumers, find_idle_consumers

        found = find_idle_consumers(server, self._streams(server), self.groups, self.exact, self.idle)
        found = [one for one in found if self.only.stands(*one.bound)]
        report.add_each(server, found, lambda one: delete_idle_consumers(server, one, self.idle))
        for one in report.stream_reports:
            report.notes += [
                f"consumer {name!r} of group {one.group!r} of stream {one.stream!r} has read meanwhile, and stays with "
                f"{counted(entries, 'pending entry', 'pending entries')}"
                for name, entries in one.given_back.items()
            ]
        report.show(
            ("stream", "group", "consumers ", "idle ", "names"),
            lambda one: (
                *(one.stream, one.group, len(one.consumers), duration(min(one.consumers.values(), default=None))),
                ", ".join([*one.consumers][:_NAMES]) + (", …" if len(one.consumers) > _NAMES else ""),
            ),
            f"deleted {counted(sum(len(one.consumers) for one in report.stream_reports), 'consumer')}",
        )


@dataclass
class _PruneReport(ChangeReport["Pruned"]):
    """The groups that were deleted, and those that stay."""

    outcome: PruneSearch = field(init=False)

    def _json(self) -> dict[str, object]:
        return {
            **super()._json(),
            "kept": [asdict(group) for group in self.outcome.kept],
            "in_use": self.outcome.in_use,
        }

    def _print(self, head: Sequence[str], row: Callable[[Pruned], Row], summary: str) -> None:
        super()._print(head, row, summary)
        for group in self.outcome.kept:
            say(f"kept: group {group.group!r} of stream {group.stream!r}: {group.why}")
        if self.outcome.in_use:
            say(f"kept: {counted(self.outcome.in_use, 'group')} in use, or active within the time")


@click.command(short_help="Remove entries that all groups have acknowledged.")
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@click.option("--acked", is_flag=True, help="Remove what every group of the stream has received and acknowledged.")
@exact_option
@yes_option
@only_option
@url_option
@json_option
def trim(names: tuple[str, ...], acked: bool, exact: bool, yes: bool, only: Only, url: str, as_json: bool) -> None:
    """Remove the entries of STREAM (a name or a pattern; default: all streams) that no group needs any more.

    An entry is removed if every group of its stream has received and acknowledged it. Entries stay that are pending,
    that a group has not received, or that a query without a pending list (noAck) has not committed. A stream without
    groups stays whole, and so do dead letters and entries that wait for a retry. Queries may run, and the server's
    memory may be full.

    \b
    acknowledged  entries that no group needs, and that are removed (? before Redis 7)
    bytes         memory that they take (about)
    needed        lowest ID that a group needs
    needed by     this group

    rstream groups prune --hold --idle 1d lists unused groups that keep entries. Removed entries cannot be read again:
    not by spark.read, a new group, or an older checkpoint.

    \b
    Examples:
      rstream trim --acked
      rstream trim orders 'payments-*' --acked --yes
    """
    from spark_streams.operations.groups import trim_acknowledged as trimming

    if not acked:
        raise click.UsageError("say what to remove: --acked, entries that every group has acknowledged")
    report: ChangeReport[trimming.Trimmed] = ChangeReport(yes, as_json)
    with connect(url) as server:
        streams = resolve_streams(server, names or ("*",), None, exact, dead_letters=False)
        require_existing(server, streams)
        found, without_groups = trimming.find_acknowledged(server, only.streams(streams))
        report.add_all(server, found, [], lambda one: trimming.trim(server, one, only))
        memory = server.memory()
    if without_groups:
        named = f"{', '.join(map(repr, without_groups[:3]))}{', …' if len(without_groups) > 3 else ''}"
        report.notes.append(f"all entries stay of {counted(len(without_groups), 'stream')} without a group: {named}")
    if found and not any(one.acknowledged != 0 or one.removed for one in report.stream_reports):
        report.notes.append(
            "the groups in column `needed by` have not finished any entry. Start their queries, or delete a "
            "group that nobody uses: rstream groups delete STREAM --group GROUP"
        )
    if memory.limit:
        report.notes.append(f"the server uses {binary_size(memory.used)} of maxmemory {binary_size(memory.limit)}")
    removed = sum((one.removed if yes else one.acknowledged or 0) for one in report.stream_reports)
    report.show(
        ("stream", "entries", "acknowledged ", "bytes ", "needed", "needed by", "removed"),
        lambda one: (one.stream, one.entries, one.acknowledged, one.bytes, one.needed, one.needed_by, one.removed),
        f"removed {counted(removed, 'entry', 'entries')} of {counted(len(report.stream_reports), 'stream')}",
    )
