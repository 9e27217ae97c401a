"""What is known of the queries that are watched. Pure: events in, counters out; no clock, no socket, no Spark."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from spark_streams.monitor.watch.progress import Progress, SourceProgress, StreamProgress


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
    failed: bool = False  # the newest run that has ended
    failures: int = 0
    batches: int = 0
    rows: int = 0
    last: Progress | None = None
    counts: dict[str, dict[tuple[str, str], Counts]] = field(default_factory=dict)
    ended: dict[tuple[str, str], Counts] = field(default_factory=dict)

    def started(self, run: str) -> None:
        """A run begins, and counts from nothing."""
        self.run, self.running = run, True

    def progressed(self, progress: Progress) -> Progress:
        """A micro-batch was made. The progress, with what its run has counted so far."""
        of_run = self.counts.setdefault(progress.run, {})
        sources = [self._with_counts(source, of_run) for source in progress.sources]
        self.last = progress = replace(progress, sources=tuple(sources))
        self.batches += 1
        self.rows += progress.rows
        while len(self.counts) > _RUNS:
            self.ended = _sum(self.ended, self.counts.pop(next(iter(self.counts))))
        return progress

    @staticmethod
    def _with_counts(source: SourceProgress, of_run: dict[tuple[str, str], Counts]) -> SourceProgress:
        """of_run: what is known of the run, which learns what is told."""

        def known(one: StreamProgress) -> StreamProgress:
            key = one.stream, source.group
            if source.is_told or key not in of_run:
                of_run[key] = Counts(one.lost, one.claimed, one.dead, Counter(one.bad))
            counts = of_run[key]
            return replace(one, lost=counts.lost, claimed=counts.claimed, dead=counts.dead, bad=counts.bad)

        return replace(source, streams=tuple(map(known, source.streams)))

    def terminated(self, run: str, failed: bool) -> None:
        """A run is over."""
        if run == self.run:
            self.running = False
        self.failed = failed
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
