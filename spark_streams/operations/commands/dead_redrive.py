"""`rstream dead redrive`: send dead letters back to a stream."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

import click

from spark_streams.base.pattern import is_pattern
from spark_streams.base.printable import name_text
from spark_streams.base.units import counted
from spark_streams.connector.keys import is_product_key
from spark_streams.connector.operator_commands import command_on
from spark_streams.operations.commands import shared
from spark_streams.operations.commands.dead import (
    FilterOptions,
    criteria_of,
    criteria_options,
    print_why_none_match,
    progress,
)
from spark_streams.operations.commands.dry_run import (
    bounds_of,
    change_line,
    say_bounds,
    typed_options,
    up_to_last,
    yes_option,
)
from spark_streams.operations.commands.exit_codes import REFUSED, STOPPED, found

if TYPE_CHECKING:
    from spark_streams.connector.admin.dead_letters import RedriveOptions, RedriveReport


@click.command()
@click.argument("stream")
@click.option(
    "--to", metavar="STREAM", help="Target stream for all entries; default: the stream that each entry came from."
)
@click.option(
    "--allow",
    multiple=True,
    metavar="STREAM",
    help="Send entries back only to this stream; repeatable.  [default: recorded origins of dead letters]",
)
@click.option("--exact", is_flag=True, help="Each STREAM of --allow is a name, never a pattern.")
@click.option("--recorded", is_flag=True, help="With --allow: only to recorded origins among these streams.")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of dead letters, oldest first.")
@click.option("--rate", type=click.IntRange(1), help="Maximum number of dead letters per second.")
@click.option(
    "--max-redrives",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Park a dead letter that was redriven this often.",
)
@click.option("--parking", metavar="STREAM", help="Stream for parked dead letters.  [default: STREAM:parked]")
@click.option("--transform", metavar="MODULE:FUNCTION", help="Function that repairs each dead letter, or skips it.")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a field of each dead letter; repeatable. Within a name write \\= for an equals sign.",
)
@click.option("--unset", multiple=True, metavar="NAME", help="Remove a field of each dead letter; repeatable.")
@yes_option
@criteria_options
@shared.url_option
@shared.json_option
def redrive(
    stream: str,
    to: str | None,
    allow: tuple[str, ...],
    exact: bool,
    recorded: bool,
    limit: int | None,
    rate: int | None,
    max_redrives: int,
    parking: str | None,
    transform: str | None,
    assignments: tuple[str, ...],
    unset: tuple[str, ...],
    yes: bool,
    url: str,
    as_json: bool,
    **filters: Unpack[FilterOptions],
) -> None:
    """Send dead letters of STREAM back to a stream, each exactly once, so that they are read again.

    The dry run, without --yes, counts the dead letters per target stream, and names the groups that read it.

    A dead letter is written as an entry with its original fields, then deleted. The new entry has one more field,
    dl.redriven, with the number of redrives and the IDs of dead letter and first entry. It goes to its original stream
    (dl.stream) if a query or consumer has recorded this origin: that dead letters of that stream and group are written
    here. Any other target must be named with --allow or --to: the command is printed. If all dead letters stay, the
    exit code is 3. A redrive never writes to keys rstream:*.

    All groups of the target stream receive the entry, also those that have processed it before. To avoid that, write to
    another stream with --to.

    Dead letters that are added meanwhile stay. Ctrl-C stops the run after the current page. Within a day the same
    command continues it, also after a kill. Only one redrive of a STREAM may run.

    \b
    Examples:
      rstream dead redrive orders:dead --allow orders --reason decode --rate 2000 --yes
      rstream dead redrive orders:dead --id 1795163834542-0 --set amount=12.50 --unset note --yes
      rstream dead redrive orders:dead --field customer=ann --to orders:retry --transform repairs:amounts --yes
    """
    from spark_streams.connector.admin.dead_letters import DeadLetterRedrive, FieldChanges, RedriveOptions

    address, criteria = shared.address_of(url, starts=yes), criteria_of(filters)
    with shared.refusing_usage():
        changes = FieldChanges.parse(assignments, unset)
    if (exact or recorded) and not allow:
        raise click.UsageError("--exact and --recorded apply only with --allow; name the streams with --allow")
    options = RedriveOptions(
        *(stream, criteria, to, limit, rate, max_redrives, parking, transform, allow, changes, exact, recorded)
    )
    with progress("redrive", quiet=as_json) as tell:

        def show(report: RedriveReport) -> None:
            done = report.moved + report.parked
            tell(done if limit else report.looked_at, report.total, "" if limit else f"moved {done:,}")

        with shared.refusing_usage():
            run = DeadLetterRedrive(address, options, show)

        def stop(number: int, frame: object) -> None:
            """Stop after the current page, on a second SIGINT at once."""
            run.stop()
            signal.signal(signal.SIGINT, signal.default_int_handler)

        with shared.on_signals(stop):
            report = run.run(not yes)
    bounds = _bounds(report, options) if report.dry_run and not report.stopped else []
    refused = [to for action, to, _ in report.destinations() if action == "refuse" and not is_product_key(to)]
    command = _allowing(report, refused) if refused else None
    if report.stopped:
        found(STOPPED)
    elif report.refused + report.homeless + report.left and not report.moved + report.parked:
        found(REFUSED)
    groups = _readers(url, report) if report.dry_run else {}
    if as_json:
        shared.print_json({**report.facts(), "groups": groups, "bounds": bounds, "command": command})
    else:
        print_report(report)
        for name, readers in groups.items():
            shared.say(f"entries of {name} will be read by its groups: {', '.join(readers) or 'none'}")
        say_bounds(bounds)
        if command is not None:
            shared.say(f"to send the refused dead letters back, if these are the right streams:\n{command}")
    if not report.has_matches and not report.stopped and not report.goes_on:
        print_why_none_match(address, stream, criteria, as_json)


def _readers(url: str, report: RedriveReport) -> dict[str, list[str]]:
    """Return the groups of each stream that would receive an entry: all of them read it."""
    from spark_streams.connector.lag.survey import view_streams

    streams = [to.encode(errors="surrogateescape") for action, to, _ in report.destinations() if action == "move"]
    with shared.connect(url) as server:
        views = view_streams(server, streams)
    groups = {view.stream: sorted(group.group for group in view.groups) for view in views}
    return {name: groups.get(name, []) for name in map(name_text, streams)}


def _allowing(report: RedriveReport, streams: Sequence[str]) -> str:
    """Return the command that sends dead letters back to these streams."""
    typed = typed_options(click.get_current_context(), "allow", "exact", "recorded", "yes", "as_json")
    flags = [name for name, is_set in (("exact", any(map(is_pattern, streams))), ("yes", not report.dry_run)) if is_set]
    return command_on(report.stream, "dead redrive", *typed, *bounds_of({"allow": streams}, *flags))


def _bounds(report: RedriveReport, options: RedriveOptions) -> list[str]:
    """Return the bounds of a redrive: the last dead letter, and the streams that receive one."""
    last = up_to_last([report.last])
    streams = [to for action, to, _ in report.destinations() if action == "move"]
    if options.to is not None or not streams:
        return last
    flags = ["exact"] if any(map(is_pattern, streams)) else []
    # A recorded origin is a stream and a group. Other groups of the same stream stay refused.
    flags += [] if options.allow and not options.recorded else ["recorded"]
    return [*last, *bounds_of({"allow": streams}, *flags)]


_ACTIONS = {
    "move": "sent there",
    "park": "parked there",
    "stay": "stay: no target stream",
    "refuse": "stay: target not allowed",
}


def print_report(report: RedriveReport) -> None:
    """Print the report as tables and a summary line."""
    streams = [(to, letters, _ACTIONS[action]) for action, to, letters in report.destinations()]
    if streams:
        shared.print_table(("destination", "dead letters", "action"), streams)
    rows = [(reason, stage, action, to, count.letters) for (action, to, stage, reason), count in report.counts]
    if rows:
        shared.print_table(("reason", "stage", "action", "to", "dead letters"), rows)
    if report.fields:
        heads = ("dead letter", "field", "now", "then")
        shared.print_table(
            heads, [["-" if row[head] is None else row[head] for head in heads] for row in report.fields]
        )
    summary = [f"moved {counted(report.moved, 'dead letter')} of {report.stream}"]
    if report.parked:
        summary.append(f"parked {report.parked:,}")
    if report.left:
        summary.append(f"{report.left:,} skipped by the transform")
    if report.homeless:
        summary.append(f"{report.homeless:,} stay: they name no target stream, or this one; name a target with --to")
    if report.refused:
        summary.append(
            f"{report.refused:,} stay: no query has recorded that stream and group as an origin, or --allow does not "
            "name the stream. Check the destinations, and name the right ones with --allow STREAM"
        )
    if report.vanished:
        summary.append(f"{report.vanished:,} of them had just been deleted by another client")
    if not report.dry_run and report.seconds:
        summary.append(f"{report.seconds:.1f} s, {(report.moved + report.parked) / report.seconds:,.0f}/s")
    shared.say(change_line(not report.dry_run, " · ".join(summary)))
    if report.goes_on:
        shared.say(
            f"continued a run that had moved {report.moved_before:,} dead letters; those after its last ID "
            f"{report.bound} stay for the next run"
        )
    elif report.moved_before:
        shared.say(f"finished what a killed run with other options had moved: {report.moved_before:,} dead letters")
    if report.stopped:
        shared.say("stopped; run the same command again to continue")
