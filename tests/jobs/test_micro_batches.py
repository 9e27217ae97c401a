"""The progress of a job's run: each completed batch is counted once, and a poll asks Spark for new batches alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_streams.jobs.parts.query import RunProgress


class Durations(dict[str, int]):
    """Java's map of durations."""

    def containsKey(self, name: str) -> bool:
        return name in self


@dataclass
class Progress:
    """Spark's progress of a batch. asked: names of the values that were read."""

    number: int
    rows: int
    ran: bool = True
    asked: list[str] = field(default_factory=list)

    def batchId(self) -> int:
        self.asked.append("batchId")
        return self.number

    def numInputRows(self) -> int:
        self.asked.append("numInputRows")
        return self.rows

    def durationMs(self) -> Durations:
        self.asked.append("durationMs")
        return Durations(addBatch=1) if self.ran else Durations(triggerExecution=1)


def test_each_completed_batch_is_counted_once_at_whatever_poll_it_is_seen() -> None:
    """An idle trigger before a batch has the number of that batch."""
    idle, first, second, third = Progress(0, 0, ran=False), Progress(0, 10), Progress(1, 20), Progress(2, 30)
    progress = RunProgress()
    for recent in ([], [idle], [idle, first], [idle, first], [first, second, third], [second, third]):
        progress = progress.with_batches(recent)
    assert (progress.last, progress.entries) == (2, 60)


def test_a_poll_reads_nothing_but_the_number_of_a_batch_that_is_counted_already() -> None:
    """A job polls five times a second, and Spark keeps 100 batches."""
    old, counted, new = Progress(3, 10), Progress(4, 10), Progress(5, 10)
    assert RunProgress(last=4, entries=7).with_batches([old, counted, new]).entries == 17
    assert (old.asked, counted.asked) == ([], ["batchId"])
