"""[letters] and [redrive]: which dead letters of a stream are sent back to their streams, or to others, each once."""

from __future__ import annotations

from rich.text import Text

from spark_streams.base.given_text import assignment
from spark_streams.base.printable import printable
from spark_streams.connector.deadletter import redrive, transform
from spark_streams.connector.deadletter.letter_page import parse_criteria
from spark_streams.connector.deadletter.redrive_plan import MAX_REDRIVES, RedriveOptions
from spark_streams.connector.errors import ConfigError
from spark_streams.connector.lag.survey import view_streams
from spark_streams.connector.running.progress_bar import showing_progress
from spark_streams.connector.wire.connect import connect
from spark_streams.jobs.job import Facts, Job, JobPart
from spark_streams.jobs.job_config import FREE


class Letters(JobPart):
    """Selection of the dead letters of a stream.

    Attributes:
        stream: The stream of dead letters.
        criteria: What a dead letter must fulfil.

    Raises:
        ConfigError: A key of `[letters]` has the wrong type.
        InvalidOptionError: A value cannot be used.
    """

    KEYS = {
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
    }
    REQUIRED = ("letters.stream",)

    def __init__(self, job: Job) -> None:
        self._job = job
        self.stream: str = job.get("letters.stream")
        lists: dict[str, list[str]] = {}
        for name in ("of_streams", "reasons", "stages", "errors"):
            lists[name.removeprefix("of_")] = values = job.get(f"letters.{name}", [])
            if not all(isinstance(value, str) for value in values):
                raise ConfigError(f"letters.{name} must be a list of strings, not {values!r}")
        self.criteria = parse_criteria(
            **lists,
            fields=[assignment(name, value) for name, value in job.plain_options("letters.fields").items()],
            first=job.get("letters.first_id"),
            last=job.get("letters.last_id"),
            older=job.get("letters.older"),
            newer=job.get("letters.newer"),
        )

    def plan(self) -> Facts:
        with connect(self._job.address) as server:
            count = sum(view.length for view in view_streams(server, [self.stream]))
            return {"read": f"{self.stream} at {server.address} ({count:,} dead letters)"}


_FACTS = (
    *("stream", "dry_run", "moved", "parked", "left", "homeless", "refused"),
    *("bound", "goes_on", "stopped", "letters_per_second"),
)


class Redrive(JobPart):
    """Sends dead letters back. It runs on the driver alone, because the server takes most of the time.
    Raises ConfigError if a key of `[redrive]` cannot be used."""

    KEYS = {
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

    def __init__(self, job: Job, letters: Letters) -> None:
        self._job = job
        self._options = _options(job, letters)
        self._is_dry = bool(job.get("redrive.dry_run", False))
        self._report: redrive.RedriveReport | None = None

    def plan(self) -> Facts:
        checked = self._options.checked()
        if checked.transform is not None:
            transform.load(checked.transform)
        return {
            "do": "count dead letters by destination" if self._is_dry else "move the selected dead letters, each once",
            "to": checked.to
            or ", ".join(checked.allow)
            or "the stream that each came from, if a query has recorded it",
            "parking": f"{checked.parking}, after {checked.max_redrives} redrives",
            "at_most": checked.limit or "all",
            "rate": f"{checked.rate:,} dead letters a second" if checked.rate else "no limit",
        }

    def run(self) -> None:
        """Move the dead letters, until all are moved or the job is to stop, and print where they went.

        Raises:
            RStreamError: The server does not answer, or the options cannot be used.
        """
        options = self._options
        with showing_progress(self._job.console, "dry run" if self._is_dry else "redrive") as tell:

            def show(report: redrive.RedriveReport) -> None:
                done = report.moved + report.parked
                moved = "" if options.limit else f"moved {done:,}"
                tell(done if options.limit else report.looked_at, report.total, moved)

            run = redrive.DeadLetterRedrive(self._job.address, options, show)
            # A page is one transaction, so a dead letter is always in exactly one stream.
            self._job.stop_with(run.stop)
            self._report = run.run(self._is_dry)
        for line in self._lines(self._report):
            self._job.console.print(Text(printable(line)))  # no markup

    def _lines(self, report: redrive.RedriveReport) -> list[str]:
        verbs = {"move": "would move" if self._is_dry else "moved", "park": "would park" if self._is_dry else "parked"}
        verbs["stay"] = verbs["refuse"] = "would leave" if self._is_dry else "left"
        lines = [f"  → {to}: {letter_count:,} ({action})" for action, to, letter_count in report.destinations()]
        for (action, to, _, reason), count in report.counts:
            lines.append(f"  {verbs[action]} {count.letters:,} × {reason or '-'} → {to}")
        if report.homeless:
            homeless = f"{report.homeless:,} dead letters name no original stream, or name {self._options.stream}"
            lines.append(f"  {homeless}: set redrive.to")
        if report.refused:
            refused = f"{report.refused:,} dead letters stay: no query has recorded their stream and group as an origin"
            lines.append(f"  {refused}; name the streams that may receive them (redrive.allow)")
        return lines

    def summary(self) -> Facts:
        facts = {} if self._report is None else self._report.facts()
        return {name: facts[name] for name in _FACTS if name in facts}


def _options(job: Job, letters: Letters) -> RedriveOptions:
    """Return the options of the redrive. Raises ConfigError, InvalidOptionError."""
    allow = job.get("redrive.allow", [])
    if not all(isinstance(name, str) for name in allow):
        raise ConfigError(f"redrive.allow must be a list of streams, not {allow!r}")
    for name, minimum in (("limit", 1), ("rate", 1), ("max_redrives", 0)):
        if job.get(f"redrive.{name}", minimum) < minimum:
            raise ConfigError(f"redrive.{name} must be at least {minimum}")
    return RedriveOptions(
        letters.stream,
        letters.criteria,
        job.get("redrive.to"),
        job.get("redrive.limit"),
        job.get("redrive.rate"),
        job.get("redrive.max_redrives", MAX_REDRIVES),
        job.get("redrive.parking"),
        job.get("redrive.transform"),
        tuple(allow),
    )
