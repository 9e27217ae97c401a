"""`rstream dead redrive`: dead letters on their way back."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Unpack

import click

from spark_streams.commands.dead.criteria import Chosen, criteria_of, criteria_options, progress, say_none_is_meant
from spark_streams.commands.shared import address_of, json_option, print_json, print_table, say, url_option
from spark_streams.errors import OptionError
from spark_streams.monitor.terminal.units import counted

if TYPE_CHECKING:
    from spark_streams.deadletter.redrive.redrive import Redrive, Report


@click.command()
@click.argument("stream")
@click.option("--to", metavar="STREAM", help="Where entries go; else each to the stream that it came from.")
@click.option(
    "--allow",
    multiple=True,
    metavar="STREAM",
    help="A stream that entries may go back to, and no other; repeatable.  [default: those that their group reads]",
)
@click.option("--limit", type=click.IntRange(1), help="So many dead letters at most, oldest first.")
@click.option("--rate", type=click.IntRange(1), help="So many dead letters a second.")
@click.option("--max-redrives", type=click.IntRange(0), default=3, show_default=True, help="Then one is parked.")
@click.option("--parking", metavar="STREAM", help="Where it is parked, whole.  [default: STREAM:parked]")
@click.option("--transform", metavar="MODULE:FUNCTION", help="Repairs each dead letter, or leaves it.")
@click.option("--dry-run", is_flag=True, help="Only count what would go where.")
@criteria_options
@url_option
@json_option
def redrive(
    stream: str,
    to: str | None,
    allow: tuple[str, ...],
    limit: int | None,
    rate: int | None,
    max_redrives: int,
    parking: str | None,
    transform: str | None,
    dry_run: bool,
    url: str,
    as_json: bool,
    **chosen: Unpack[Chosen],
) -> None:
    """Send dead letters of STREAM back to be read again, each once.

    A dead letter becomes an entry with its original fields and one more, dl.redriven, from which the next dead letter
    would know of this one; and is deleted, in the same transaction. It goes back to its stream (dl.stream) if its group
    (dl.group) exists there. Another stream must be named (--allow or --to). A redrive never writes to keys rstream:*.
    Every group of the stream is given the entry, also
    those that were content with it: name another stream with --to where that matters.

    Dead letters that come while it runs stay. Ctrl-C ends it after the page that is under way; started again with the
    same options within a day, also after a kill, it goes on where it was. A second one for the same STREAM is refused.

    \b
    Examples:
      rstream dead redrive orders:dead --dry-run
      rstream dead redrive orders:dead --allow orders --reason decode --rate 2000
      rstream dead redrive orders:dead --field customer=ann --to orders:retry --transform repairs:amounts
    """
    from spark_streams.deadletter.redrive.redrive import Redrive
    from spark_streams.deadletter.redrive.redrive_plan import RedriveOptions

    address, criteria = address_of(url, starts=not dry_run), criteria_of(chosen)
    options = RedriveOptions(stream, criteria, to, limit, rate, max_redrives, parking, transform, allow)
    with progress("redrive", quiet=as_json) as tell:

        def show(report: Report) -> None:
            done = report.moved + report.parked
            tell(done if limit else report.looked_at, report.total, "" if limit else f"moved {done:,}")

        try:
            run = Redrive(address, options, show)
        except OptionError as error:
            raise click.UsageError(error.message) from None
        with stopping(run):
            report = run.run(dry_run)
    if as_json:
        print_json(report.facts())
    else:
        print_report(report)
    if not report.found and not report.stopped:
        say_none_is_meant(address, stream, criteria, as_json)
    if report.stopped:
        sys.exit(130)


_ACTIONS = {"move": "go there", "park": "are parked there", "stay": "stay: no other stream", "refuse": "stay: not open"}


def print_report(report: Report) -> None:
    """For people."""
    streams = [(to, letters, _ACTIONS[action]) for action, to, letters in report.destinations()]
    if streams:
        print_table(("destination", "dead letters", "which"), streams)
    rows = [(reason, stage, action, to, count.letters) for (action, to, stage, reason), count in report.counts]
    if rows:
        print_table(("reason", "stage", "action", "to", "dead letters"), rows)
    said = [f"{'would move' if report.dry_run else 'moved'} {counted(report.moved, 'dead letter')} of {report.stream}"]
    if report.parked:
        said.append(f"{'would park' if report.dry_run else 'parked'} {report.parked:,}")
    if report.left:
        said.append(f"{report.left:,} left by the transform")
    if report.homeless:
        said.append(f"{report.homeless:,} stay: they name no stream to go to, or this one itself (--to)")
    if report.refused:
        said.append(
            f"{report.refused:,} stay: their group does not read that stream, or --allow does not name it; look at the "
            "destinations, and name those that are meant (--allow STREAM)"
        )
    if report.vanished:
        said.append(f"{report.vanished:,} of them had been deleted by somebody else a moment before")
    if not report.dry_run and report.seconds:
        said.append(f"{report.seconds:.1f} s, {(report.moved + report.parked) / report.seconds:,.0f}/s")
    say(" · ".join(said))
    if report.goes_on:
        say(
            f"went on with a run that had moved {report.moved_before:,} before it ended; dead letters above its bound "
            f"{report.bound} wait for the next one"
        )
    if report.stopped:
        say("stopped; the same command goes on where it was")


@contextlib.contextmanager
def stopping(run: Redrive) -> Iterator[None]:
    """SIGINT and SIGTERM end the run after its page; a second SIGINT at once."""

    def stop(number: int, frame: object) -> None:
        run.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
