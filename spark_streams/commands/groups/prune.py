"""`rstream groups prune`: groups that nobody has read from for a while."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import click

from spark_streams.commands.groups.group_change import Row, Told, plural, server_time, streams_meant
from spark_streams.commands.shared import connect, json_option, milliseconds, say, url_option

if TYPE_CHECKING:
    from spark_streams.groups.prune import Pruned, PruneSearch


@click.command(short_help="Delete groups that nobody reads from any more.")
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@click.option(
    "--idle", metavar="TIME", required=True, callback=milliseconds, help="Not read from for so long (1d, 7d)."
)
@click.option("--group", "pattern", metavar="PATTERN", default="*", help="Only groups whose names match (nb-*).")
@click.option("--yes", is_flag=True, help="Do it; else only what it would change is printed.")
@url_option
@json_option
def prune(names: tuple[str, ...], idle: int, pattern: str, yes: bool, url: str, as_json: bool) -> None:
    """Delete groups of STREAM (patterns, too; default: all streams) that nobody has read from for --idle.

    It is a dry run unless --yes. A group is deleted if no query lives in it, none of its consumers was active within
    the time, and an entry that it was not given is older than that. A group of which nobody can tell how long it was
    idle stays, and is named: rstream groups delete deletes it. With a group goes what rstream groups delete forgets:
    its pending entries, its consumers, and the keys of its queries; entries that wait for another try stay, and it says
    where.

    \b
    Examples:
      rstream groups prune --idle 7d
      rstream groups prune --idle 1d --group 'nb-*' 'orders:*' --yes
    """
    from spark_streams.groups import prune as pruning
    from spark_streams.groups.delete import resume_lines
    from spark_streams.groups.group_keys import count_waiting, find_group_keys, split_by_stream, waiting_lines
    from spark_streams.monitor.terminal.units import duration

    if idle < pruning.SHORTEST_MS:
        raise click.UsageError("--idle must be at least 1m: below that a consumer may be between two requests")
    told = _Told(yes, as_json)
    with connect(url) as server:
        streams = streams_meant(server, names or ("*",), None)
        told.found = pruning.find_abandoned(server, streams, pattern, idle, server_time(server))
        abandoned = told.found.abandoned
        groups = dict.fromkeys(one.group for one in abandoned)
        streams_of = {group: [one.stream for one in abandoned if one.group == group] for group in groups}
        found = find_group_keys(server, streams_of) if abandoned else {}
        waiting = count_waiting(server, [one for some in found.values() for one in some])
        kept = {
            group: split_by_stream([one for one in found[group] if one.key not in waiting], of)
            for group, of in streams_of.items()
        }
        told.carry_out(
            abandoned,
            [],
            lambda one: (
                pruning.prune_group(server, one, kept[one.group][one.stream], idle)
                if yes
                else pruning.plan_prune(one, kept[one.group][one.stream])
            ),
        )
    for report in told.reports:
        told.then += resume_lines(report.stream, report.group, report.committed)
    told.then += waiting_lines(waiting)
    pending = sum(one.pending for one in told.reports)
    told.show(
        ("stream", "group", "idle ", "consumers", "pending forgotten", "not yet given", "keys"),
        lambda one: (
            *(one.stream, one.group, duration(one.idle_ms)),
            ", ".join(f"{name}: {n:,}" for name, n in one.consumers.items()),
            *(one.pending, one.lag, ", ".join(one.keys) or "-"),
        ),
        f"deleted {plural(len(told.reports), 'group')}, with {plural(pending, 'pending entry', 'pending entries')}",
    )


@dataclass
class _Told(Told["Pruned"]):
    """With the groups that stay."""

    found: PruneSearch = field(init=False)

    def _json(self) -> dict[str, object]:
        return {
            **super()._json(),
            "kept": [asdict(one) for one in self.found.kept],
            "in_use": self.found.in_use,
        }

    def _print(self, head: Sequence[str], row: Callable[[Pruned], Row], said: str) -> None:
        super()._print(head, row, said)
        for one in self.found.kept:
            say(f"kept: group {one.group!r} of stream {one.stream!r}: {one.why}")
        if self.found.in_use:
            say(f"{plural(self.found.in_use, 'group')} in use or active within the time")
