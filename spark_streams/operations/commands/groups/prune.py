"""`rstream groups prune`: delete abandoned groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import click

from spark_streams.operations.commands.bounds import Only, only_option, only_these
from spark_streams.operations.commands.groups.group_change import (
    ChangeReport,
    Row,
    all_streams,
    plural,
    server_time,
)
from spark_streams.operations.commands.names import exact_option, resolve_streams
from spark_streams.operations.commands.shared import connect, json_option, milliseconds, say, url_option
from spark_streams.operations.commands.yes import yes_option

if TYPE_CHECKING:
    from spark_streams.operations.groups.prune import Pruned, PruneSearch

_NAMES = 5  # of consumers in a row


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
    entry is pending for that time, or an undelivered entry is that old. Other groups stay: a client may be waiting for
    the next entry. A group to which a query with noAck has committed stays, too. The command names these groups;
    rstream groups delete can delete them.

    As with rstream groups delete, the group's pending entries, consumers and keys are deleted with it. Entries that
    wait for a retry stay, and the command prints where.

    With --hold no group is deleted. The command lists groups that hold entries back which no other group needs. With
    --yes it forgets these groups and removes the entries. A query of such a group then stops (RSTREAM_GROUP_FORGOTTEN).

    With --consumers no group is deleted, but consumers that were idle for --idle and have no pending entry. Those of
    running queries stay. A client that returns is a consumer again.

    \b
    Examples:
      rstream groups prune --idle 7d
      rstream groups prune --idle 1d --group 'nb-*' 'orders:*' --yes
      rstream groups prune --idle 7d --hold
      rstream groups prune --idle 1d --consumers --yes
    """
    from spark_streams.base.units import duration
    from spark_streams.connector.admin.groups import count_waiting, find_group_keys, split_by_stream, waiting_lines
    from spark_streams.operations.groups import prune as pruning
    from spark_streams.operations.groups.delete import resume_lines

    if idle < pruning.SHORTEST_MS:
        raise click.UsageError(
            "--idle must be at least 1m: a running consumer may pause that long between two requests"
        )
    if hold and consumers:
        raise click.UsageError("--hold and --consumers are different changes: leave one of them out")
    if hold or consumers:
        (_hold if hold else _consumers)(names, idle, groups, exact, yes, only, url, as_json)
        return
    report = _PruneReport(yes, as_json)
    with connect(url) as server:
        streams = resolve_streams(server, names, None, exact) if names else all_streams(server)
        report.outcome = pruning.find_abandoned(server, streams, groups, exact, idle, server_time(server))
        abandoned = [
            group for group in report.outcome.abandoned if only.stands(group.stream, group.group, str(group.position))
        ]
        streams_of = {
            group: [abandoned_group.stream for abandoned_group in abandoned if abandoned_group.group == group]
            for group in dict.fromkeys(abandoned_group.group for abandoned_group in abandoned)
        }
        group_keys = find_group_keys(server, streams_of) if abandoned else {}
        waiting = count_waiting(server, [key for keys in group_keys.values() for key in keys])
        keys_by_stream = {
            group: split_by_stream([key for key in group_keys[group] if key.key not in waiting], group_streams)
            for group, group_streams in streams_of.items()
        }
        report.carry_out(
            abandoned,
            [],
            lambda group: (
                pruning.prune_group(server, group, keys_by_stream[group.group][group.stream], idle)
                if yes
                else pruning.plan_prune(server, group, keys_by_stream[group.group][group.stream])
            ),
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
        f"deleted {plural(len(report.stream_reports), 'group')}, "
        f"with {plural(pending, 'pending entry', 'pending entries')}",
        only_these((pruned.stream, pruned.group, pruned.position) for pruned in report.stream_reports),
    )


def _hold(
    names: tuple[str, ...],
    idle: int,
    groups: tuple[str, ...],
    exact: bool,
    yes: bool,
    only: Only,
    url: str,
    as_json: bool,
) -> None:
    """List groups that hold entries back; with `yes` forget them."""
    from spark_streams.base.units import duration
    from spark_streams.operations.groups.held import find_held, find_undecided, forget_group
    from spark_streams.operations.monitor.held import Held

    report: ChangeReport[Held] = ChangeReport(yes, as_json)
    forgotten: set[tuple[bytes, bytes]] = set()
    with connect(url) as server:
        streams = resolve_streams(server, names, None, exact) if names else all_streams(server)
        found = [
            one
            for one in find_held(server, streams, groups, exact, idle)
            if only.stands(one.stream, one.group, one.position)
        ]
        kept = find_undecided(server, found, idle, server_time(server))
        undecided = {(one.stream, one.group) for one in kept}
        held = [one for one in found if (one.stream, one.group) not in undecided]
        report.carry_out(held, [], lambda one: forget_group(server, one, idle, forgotten) if yes else one)
    report.notes += [f"kept: group {one.group!r} of stream {one.stream!r}: {one.why}" for one in kept]
    report.show(
        ("stream", "group", "idle ", "last delivered", "holds about", "bytes", "removed"),
        lambda one: (
            *(one.stream, one.group, duration(one.idle_ms), one.position),
            one.entries,
            one.bytes,
            one.removed,
        ),
        f"forgot {plural(len(report.stream_reports), 'group')}",
        only_these((one.stream, one.group, one.position) for one in report.stream_reports),
    )


def _consumers(
    names: tuple[str, ...],
    idle: int,
    groups: tuple[str, ...],
    exact: bool,
    yes: bool,
    only: Only,
    url: str,
    as_json: bool,
) -> None:
    """List idle consumers without pending entries; with `yes` delete them."""
    from spark_streams.base.units import duration
    from spark_streams.operations.groups.idle_consumers import IdleConsumers, delete_idle_consumers, find_idle_consumers

    report: ChangeReport[IdleConsumers] = ChangeReport(yes, as_json)
    with connect(url) as server:
        streams = resolve_streams(server, names, None, exact) if names else all_streams(server)
        found = [
            one
            for one in find_idle_consumers(server, streams, groups, exact, idle)
            if only.stands(one.stream, one.group, one.position)
        ]
        report.carry_out(found, [], lambda one: delete_idle_consumers(server, one, idle) if yes else one)
    for one in report.stream_reports:
        report.notes += [
            f"consumer {name!r} of group {one.group!r} of stream {one.stream!r} has read meanwhile, and stays with "
            f"{plural(entries, 'pending entry', 'pending entries')}"
            for name, entries in one.given_back.items()
        ]
    report.show(
        ("stream", "group", "consumers ", "idle ", "names"),
        lambda one: (
            *(one.stream, one.group, len(one.consumers), duration(min(one.consumers.values(), default=None))),
            ", ".join([*one.consumers][:_NAMES]) + (", …" if len(one.consumers) > _NAMES else ""),
        ),
        f"deleted {plural(sum(len(one.consumers) for one in report.stream_reports), 'consumer')}",
        only_these((one.stream, one.group, one.position) for one in report.stream_reports),
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
            say(f"kept: {plural(self.outcome.in_use, 'group')} in use, or active within the time")
