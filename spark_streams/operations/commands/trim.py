"""`rstream trim --acked`: remove entries that every group has acknowledged."""

from __future__ import annotations

import click

from spark_streams.operations.commands.bounds import Only, only_option, only_these
from spark_streams.operations.commands.groups.group_change import ChangeReport, plural
from spark_streams.operations.commands.names import exact_option, require_existing, resolve_streams
from spark_streams.operations.commands.shared import connect, json_option, url_option
from spark_streams.operations.commands.yes import yes_option


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
    that a group has not received, or that a query with noAck has not committed. A stream without groups stays whole,
    and so do dead letters and entries that wait for a retry. Queries may run.

    The command also works if the server's memory is full.

    \b
    acknowledged  entries that no group needs, and that are removed (? before Redis 7)
    bytes         memory that they take (about)
    needed        lowest ID that a group needs
    needed by     this group

    If a group that nobody uses keeps entries, they stay: rstream groups prune --hold --idle 1d lists such groups.
    Removed entries cannot be read again: not by spark.read, a new group, or an older checkpoint.

    \b
    Examples:
      rstream trim --acked
      rstream trim orders 'payments-*' --acked --yes
    """
    from spark_streams.base.sizes import size
    from spark_streams.operations.groups import trim as trimming

    if not acked:
        raise click.UsageError("say what to remove: --acked, entries that every group has acknowledged")
    report: ChangeReport[trimming.Trimmed] = ChangeReport(yes, as_json)
    with connect(url) as server:
        streams = resolve_streams(server, names or ("*",), None, exact, dead_letters=False)
        require_existing(server, streams)
        planned, without_groups = trimming.plan_trim(server, only.streams(streams))
        lasts = {one.stream: only.last_of(one.stream) for one in planned}
        report.carry_out(planned, [], lambda one: trimming.trim(server, one, lasts[one.stream]) if yes else one)
        memory = server.memory()
    if without_groups:
        named = f"{', '.join(map(repr, without_groups[:3]))}{', …' if len(without_groups) > 3 else ''}"
        report.notes.append(f"all entries stay of {plural(len(without_groups), 'stream')} without a group: {named}")
    if planned and not any(one.acknowledged != 0 or one.removed for one in report.stream_reports):
        report.notes.append(
            "the groups in column `needed by` have not finished any entry. Start their queries, or look for groups "
            "that nobody uses: rstream groups prune --hold --idle 1d"
        )
    if memory.limit:
        report.notes.append(f"the server uses {size(memory.used)} of maxmemory {size(memory.limit)}")
    removed = sum((one.removed if yes else one.acknowledged or 0) for one in report.stream_reports)
    report.show(
        ("stream", "entries", "acknowledged ", "bytes ", "needed", "needed by", "removed"),
        lambda one: (one.stream, one.entries, one.acknowledged, one.bytes, one.needed, one.needed_by, one.removed),
        f"removed {plural(removed, 'entry', 'entries')} of {plural(len(report.stream_reports), 'stream')}",
        only_these((one.stream, one.needed_by, one.delivered) for one in report.stream_reports),
    )
