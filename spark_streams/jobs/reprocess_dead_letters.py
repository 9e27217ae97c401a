"""Redrive dead letters: the selected ones become entries again, each once, at a set rate.

The job runs on the driver alone, because the server takes most of the time. It needs no executor.
"""

from __future__ import annotations

from rich.text import Text

from spark_streams.deadletter import transform
from spark_streams.deadletter.criteria import parse_criteria
from spark_streams.deadletter.redrive.redrive import Redrive, Report
from spark_streams.deadletter.redrive.redrive_plan import MAX_REDRIVES, RedriveOptions
from spark_streams.errors import ConfigError
from spark_streams.jobs.job import Job, Program
from spark_streams.jobs.settings.config import FREE
from spark_streams.model.printable import printable
from spark_streams.monitor.groups import view_streams
from spark_streams.monitor.terminal.progress_bar import showing_progress
from spark_streams.wire.connect import connect

SHAPE = {
    "letters": {
        "stream": str,
        "of_streams": list,
        "reasons": list,
        "stages": list,
        "errors": list,
        "fields": FREE,
        "older": str,
        "newer": str,
        "first_id": str,
        "last_id": str,
    },
    "redrive": {
        "to": str,
        "allow": list,
        "limit": int,
        "rate": int,
        "max_redrives": int,
        "parking": str,
        "transform": str,
        "dry_run": bool,
    },
}


def body(job: Job) -> None:
    options = _options(job)
    dry_run = bool(job.get("redrive.dry_run", False))
    _plan(job, options, dry_run)
    with showing_progress(job.console, "dry run" if dry_run else "redrive") as tell:

        def show(report: Report) -> None:
            done = report.moved + report.parked
            tell(done if options.limit else report.looked_at, report.total, "" if options.limit else f"moved {done:,}")

        run = Redrive(job.address, options, show)
        # A page is one transaction, so a dead letter is always in exactly one stream.
        job.stop_with(run.stop)
        report = run.run(dry_run)
    for action, to, letter_count in report.destinations():
        job.console.print(Text(printable(f"  → {to}: {letter_count:,} ({action})")))
    action_texts = {"move": "would move" if dry_run else "moved", "park": "would park" if dry_run else "parked"}
    action_texts["stay"] = action_texts["refuse"] = "would leave" if dry_run else "left"
    for (action, to, _, reason), count in report.counts:
        line = f"  {action_texts[action]} {count.letters:,} × {reason or '-'} → {to}"
        job.console.print(Text(printable(line)))  # no markup
    if report.homeless:
        homeless = f"{report.homeless:,} dead letters name no original stream, or name {options.stream}"
        job.console.print(Text(printable(f"  {homeless}: set redrive.to")))
    if report.refused:
        refused = f"{report.refused:,} dead letters stay: no query has recorded their stream and group as an origin"
        job.console.print(Text(f"  {refused}; name the streams that may receive them (redrive.allow)"))
    facts = report.facts()
    fact_names = ("stream", "dry_run", "moved", "parked", "left", "homeless", "refused")
    job.summarize(**{name: facts[name] for name in (*fact_names, "bound", "goes_on", "stopped", "letters_per_second")})


def _plan(job: Job, options: RedriveOptions, dry_run: bool) -> None:
    """Print the plan of `--check`. Without it do nothing: the run itself checks the options.

    Raises ServerUnreachableError or another error of the server, TransformError.
    """
    if not job.check:
        return
    checked_options = options.checked()
    if checked_options.transform is not None:
        transform.load(checked_options.transform)
    with connect(job.address) as server:
        letter_count = sum(view.length for view in view_streams(server, [checked_options.stream]))
        job.plan(
            read=f"{checked_options.stream} at {server.address} ({letter_count:,} dead letters)",
            do="count dead letters by destination" if dry_run else "move the selected dead letters, each once",
            to=checked_options.to
            or ", ".join(checked_options.allow)
            or "the stream that each came from, if a query has recorded it",
            parking=f"{checked_options.parking}, after {checked_options.max_redrives} redrives",
            at_most=checked_options.limit or "all",
            rate=f"{checked_options.rate:,} dead letters a second" if checked_options.rate else "no limit",
        )


def _options(job: Job) -> RedriveOptions:
    """Return the options of the redrive. Raises ConfigError, InvalidOptionError."""
    lists: dict[str, list[str]] = {}
    allow = job.get("redrive.allow", [])
    if not all(isinstance(name, str) for name in allow):
        raise ConfigError(f"redrive.allow must be a list of streams, not {allow!r}")
    for name in ("of_streams", "reasons", "stages", "errors"):
        lists[name.removeprefix("of_")] = values = job.get(f"letters.{name}", [])
        if not all(isinstance(value, str) for value in values):
            raise ConfigError(f"letters.{name} must be a list of strings, not {values!r}")
    for name, minimum in (("limit", 1), ("rate", 1), ("max_redrives", 0)):
        if job.get(f"redrive.{name}", minimum) < minimum:
            raise ConfigError(f"redrive.{name} must be at least {minimum}")
    criteria = parse_criteria(
        **lists,
        fields=[f"{name}={value}" for name, value in job.plain_options("letters.fields").items()],
        first=job.get("letters.first_id"),
        last=job.get("letters.last_id"),
        older=job.get("letters.older"),
        newer=job.get("letters.newer"),
    )
    return RedriveOptions(
        job.get("letters.stream"),
        criteria,
        job.get("redrive.to"),
        job.get("redrive.limit"),
        job.get("redrive.rate"),
        job.get("redrive.max_redrives", MAX_REDRIVES),
        job.get("redrive.parking"),
        job.get("redrive.transform"),
        tuple(job.get("redrive.allow", [])),
    )


PROGRAM = Program(__doc__, SHAPE, ["letters.stream"], body)
