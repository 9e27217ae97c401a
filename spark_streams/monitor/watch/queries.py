"""What is known of the queries that are watched. Pure: events in, counters out; no clock, no socket, no Spark."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from spark_streams.monitor.watch.progress import Progress, SourceProgress


@dataclass(frozen=True)
class Counts:
    """Entries of one stream and group that a query has lost, claimed and given up; bad: per column, its values that
    did not fit."""

    lost: int = 0
    claimed: int = 0
    dead: int = 0
    bad: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.lost + other.lost, self.claimed + other.claimed, self.dead + other.dead, self.bad + other.bad
        )


_RUNS = 3  # whose counts are kept apart


@dataclass
class Query:
    """One query over all its runs in this process.

    Spark tells of a start at once and of everything else a little later: the progress and the end of one run may come
    when the next one has begun. counts: by run, and there by (stream, group); ended: those of older runs, together.
    """

    name: str
    id: str
    run: str = ""
    running: bool = False
    failures: int = 0
    batches: int = 0
    rows: int = 0
    last: Progress | None = None
    counts: dict[str, dict[tuple[str, str], Counts]] = field(default_factory=dict)
    ended: dict[tuple[str, str], Counts] = field(default_factory=dict)

    def started(self, run: str) -> None:
        """A run begins, and counts from nothing."""
        self.run, self.running = run, True

    def progressed(self, progress: Progress) -> None:
        """A micro-batch was made."""
        self.last = progress
        self.batches += 1
        self.rows += progress.rows
        of_run = self.counts.setdefault(progress.run, {})
        for source in progress.sources:
            for one in source.streams:
                of_run[one.stream, source.group] = Counts(one.lost, one.claimed, one.dead, Counter(one.bad))
        while len(self.counts) > _RUNS:
            self.ended = _sum(self.ended, self.counts.pop(next(iter(self.counts))))

    def terminated(self, run: str, failed: bool) -> None:
        """A run is over."""
        if run == self.run:
            self.running = False
        self.failures += failed

    @property
    def sources(self) -> tuple[SourceProgress, ...]:
        """As of the last micro-batch."""
        return () if self.last is None else self.last.sources

    @property
    def groups(self) -> list[tuple[str, str]]:
        """(stream, group) of all that it reads."""
        return [(one.stream, source.group) for source in self.sources for one in source.streams]

    @property
    def totals(self) -> dict[tuple[str, str], Counts]:
        """Of all runs."""
        return _sum(self.ended, *self.counts.values())


def _sum(*some: dict[tuple[str, str], Counts]) -> dict[tuple[str, str], Counts]:
    found: dict[tuple[str, str], Counts] = {}
    for one in some:
        for key, counts in one.items():
            found[key] = found.get(key, Counts()) + counts
    return found
