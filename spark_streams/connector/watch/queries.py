"""State and counters of the watched queries. Pure: events in, counters out; no clock, no socket, no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from spark_streams.connector.counters import DEAD, Counts
from spark_streams.connector.watch.progress import Progress, SourceProgress, StreamProgress

_RUNS = 3  # that are counted separately


@dataclass
class Query:
    """One query over all its runs in this process.

    Spark reports a start at once and other events a little later, so events of one run may arrive when the next run has
    begun. counts: by run, then by (stream, group); dead_letters: those that a job has written itself, in the same
    form; ended: the sum of older runs.
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
    dead_letters: dict[str, dict[tuple[str, str], Counts]] = field(default_factory=dict)
    ended: dict[tuple[str, str], Counts] = field(default_factory=dict)

    def started(self, run: str) -> None:
        """Record the start of a run, which counts from zero."""
        self.run, self.running = run, True

    def progressed(self, progress: Progress) -> Progress:
        """Record a micro-batch, and return its progress with the counts of its run so far."""
        of_run = self.counts.setdefault(progress.run, {})
        of_job = self.dead_letters.get(progress.run, {})
        sources = [self._with_counts(source, of_run, of_job) for source in progress.sources]
        self.last = progress = replace(progress, sources=tuple(sources))
        self.batches += 1
        self.rows += progress.rows
        for by_run in (self.counts, self.dead_letters):
            while len(by_run) > _RUNS:
                self.ended = _sum(self.ended, by_run.pop(next(iter(by_run))))
        return progress

    def wrote_dead_letters(self, group: str, counts: Mapping[str, int]) -> None:
        """Record dead letters of the newest run. counts: by stream."""
        of_run = self.dead_letters.get(self.run, {})
        self.dead_letters[self.run] = _sum(
            of_run, {(stream, group): Counts.read({DEAD.name: count}) for stream, count in counts.items()}
        )

    @staticmethod
    def _with_counts(
        source: SourceProgress, of_run: dict[tuple[str, str], Counts], of_job: Mapping[tuple[str, str], Counts]
    ) -> SourceProgress:
        """Return the source with the counts of its run. of_run: these counts, updated; of_job: dead letters."""

        def with_run_counts(stream: StreamProgress) -> StreamProgress:
            key = stream.stream, source.group
            if source.is_current or key not in of_run:
                of_run[key] = stream.counts
            return replace(stream, counts=of_run[key] + of_job.get(key, Counts()))

        return replace(source, streams=tuple(map(with_run_counts, source.streams)))

    def terminated(self, run: str, failed: bool) -> None:
        """Record the end of a run."""
        if run == self.run:
            self.running = False
        self.failed = failed
        self.failures += failed

    @property
    def sources(self) -> tuple[SourceProgress, ...]:
        """The sources, as of the last micro-batch."""
        return () if self.last is None else self.last.sources

    @property
    def groups(self) -> list[tuple[str, str]]:
        """(stream, group) of everything that the query reads."""
        return [(stream.stream, source.group) for source in self.sources for stream in source.streams]

    @property
    def totals(self) -> dict[tuple[str, str], Counts]:
        """The counts over all runs."""
        return _sum(self.ended, *self.counts.values(), *self.dead_letters.values())


def _sum(*summands: dict[tuple[str, str], Counts]) -> dict[tuple[str, str], Counts]:
    total: dict[tuple[str, str], Counts] = {}
    for summand in summands:
        for key, counts in summand.items():
            total[key] = total.get(key, Counts()) + counts
    return total
