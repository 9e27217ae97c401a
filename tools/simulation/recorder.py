"""A sink that keeps the last run of each batch, as an idempotent foreachBatch does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from tools.chaos.history import Row
from tools.simulation.tasks import rows_of
from tools.simulation.world import World


class Recorder:
    """kept: the rows of each batch, by checkpoint and number; may_repeat: rows may come twice."""

    may_repeat = False

    def __init__(self, world: World) -> None:
        self._world = world
        self._epoch = 0
        self._tasks: dict[int, tuple[int, list[Row]]] = {}  # by partition: attempt, rows
        self._late: list[Row] = []
        self.kept: dict[tuple[int, int], list[Row]] = {}

    def begin(self, epoch: int) -> None:
        """A run of a batch begins. epoch: of the checkpoint."""
        self._epoch = epoch
        self._tasks = {}

    def write(self, batches: Iterator[pa.RecordBatch], number: int, partition: int, attempt: int) -> None:
        """One execution of a task; where it ends well, the last one counts."""
        tasks, rows = self._tasks, list[Row]()
        for batch in batches:
            rows += rows_of(batch, number, partition, attempt, len(rows))
        if tasks is self._tasks:  # the run that it belongs to has not ended
            tasks[partition] = (attempt, rows)

    def read(self, number: int) -> set[int]:
        """The numbers that the tasks of this run have read."""
        return {row.value[1] for _, rows in self._tasks.values() for row in rows}

    def close(self, number: int) -> None:
        """All tasks have ended well."""
        self.kept[self._epoch, number] = [row for _, rows in self._tasks.values() for row in rows]
        self._tasks = {}
        self._world.tick()

    def committed(self, number: int) -> None:
        """The commit log has the batch."""
        self._world.model.sunk = {row.value[1] for rows in self.kept.values() for row in rows}

    def forget_after(self, epoch: int, number: int) -> None:
        """The sink is set back with the checkpoint."""
        self.kept = {key: rows for key, rows in self.kept.items() if key[0] != epoch or key[1] <= number}
        self.committed(number)

    def rows(self) -> list[Row]:
        """All that it holds, batches numbered in their order."""
        numbered = enumerate(sorted(self.kept))
        return [replace(row, batch=at) for at, key in numbered for row in self.kept[key]]
