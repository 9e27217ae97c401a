"""A sink that keeps the last run of each batch, as an idempotent foreachBatch does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from spark_streams.operations.verify.history import Row
from tools.simulation.tasks import rows_of
from tools.simulation.world import World


class Recorder:
    """Sink in memory. kept: rows of each batch, by checkpoint and number; may_repeat: rows may be duplicated."""

    may_repeat = False

    def __init__(self, world: World) -> None:
        self._world = world
        self._epoch = 0
        self._tasks: dict[int, tuple[int, list[Row]]] = {}  # partition → attempt, rows
        self._late: list[Row] = []
        self.kept: dict[tuple[int, int], list[Row]] = {}

    def begin(self, epoch: int) -> None:
        """Start a run of a batch. epoch: of the checkpoint."""
        self._epoch = epoch
        self._tasks = {}

    def write(self, batches: Iterator[pa.RecordBatch], number: int, partition: int, attempt: int) -> None:
        """Execute a task. The last successful execution counts."""
        tasks, rows = self._tasks, list[Row]()
        for batch in batches:
            rows += rows_of(self._world.model, batch, number, partition, attempt, len(rows))
        if tasks is self._tasks:  # the run that it belongs to has not ended
            tasks[partition] = (attempt, rows)

    def read(self, number: int) -> set[int]:
        """Return the numbers that the tasks of this run have read."""
        return {row.value[1] for _, rows in self._tasks.values() for row in rows}

    def close(self, number: int) -> None:
        """Keep the rows of the batch after all tasks have succeeded."""
        self.kept[self._epoch, number] = [row for _, rows in self._tasks.values() for row in rows]
        self._tasks = {}
        self._world.tick()

    def committed(self, number: int) -> None:
        """Record that the batch is in the commit log."""
        self._world.model.sunk = {row.value[1] for rows in self.kept.values() for row in rows}

    def forget_after(self, epoch: int, number: int) -> None:
        """Set the sink back with the checkpoint."""
        self.kept = {key: rows for key, rows in self.kept.items() if key[0] != epoch or key[1] <= number}
        self.committed(number)

    def rows(self) -> list[Row]:
        """Return all rows. Batches are numbered in their order."""
        numbered = enumerate(sorted(self.kept))
        return [replace(row, batch=number) for number, key in numbered for row in self.kept[key]]


class Skipping(Recorder):
    """The same as a foreachBatch does that reads nothing of a batch that it has written."""

    def write(self, batches: Iterator[pa.RecordBatch], number: int, partition: int, attempt: int) -> None:
        """Execute a task."""
        if (self._epoch, number) not in self.kept:
            super().write(batches, number, partition, attempt)

    def read(self, number: int) -> set[int]:
        """Return the numbers that the tasks of this run have read, or an earlier one that has written the batch."""
        kept = self.kept.get((self._epoch, number))
        return super().read(number) if kept is None else {row.value[1] for row in kept}

    def close(self, number: int) -> None:
        """Keep the rows of the batch."""
        if (self._epoch, number) not in self.kept:
            super().close(number)
