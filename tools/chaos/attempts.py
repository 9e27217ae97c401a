"""Record of the rows that each task attempt passed to the sink: a file of JSON lines per attempt.

    rows/<batch>-<partition>-<attempt>-<run>-<uuid>.jsonl       `.part` until the attempt has succeeded

run: one execution of the batch by one driver; later runs sort higher. A line is [producer, number, stream, ID].
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from spark_streams.operations.verify.history import Row
from tools.chaos.query import Query


@dataclass(frozen=True)
class Attempt:
    """A task attempt. name: of its file, without the suffix; rows: that it passed to the sink, in order."""

    name: str
    batch: int
    partition: int
    attempt: int
    run: int
    rows: list[Row]


class Record:
    """File of one attempt while it is written."""

    def __init__(self, file: Path) -> None:
        self.name = file.stem
        self._file = file.open("w", buffering=1)  # one write per row: a kill cuts off at most one

    def add(self, value: Sequence[Any]) -> None:
        """Append a row."""
        self._file.write(json.dumps(value) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def new_run() -> int:
    """Return the number of a run that starts now."""
    return time.time_ns()


@contextlib.contextmanager
def record_attempt(query: Query, batch: int, run: int) -> Iterator[Record]:
    """Record the current task attempt. It counts as finished if nothing is raised."""
    context = TaskContext.get()
    assert context is not None
    folder = query.path / "rows"
    folder.mkdir(exist_ok=True)
    name = f"{batch}-{context.partitionId()}-{context.attemptNumber()}-{run}-{uuid.uuid4().hex}"
    record = Record(folder / f"{name}.part")
    try:
        yield record
    finally:
        record.close()
    os.replace(folder / f"{name}.part", folder / f"{name}.jsonl")


def attempts(query: Query) -> list[Attempt]:
    """Return every attempt so far, those of earlier runs first. Its rows are not marked as committed."""
    records = []
    for file in (query.path / "rows").glob("*-*-*-*-*.*"):
        batch, partition, attempt, run = (int(part) for part in file.stem.split("-")[:4])
        lines = file.read_text().split("\n")[:-1]  # a killed attempt leaves an incomplete last line
        rows = [
            Row((stream, entry), (p, n), batch, partition, attempt, position, kept=False)
            for position, (p, n, stream, entry) in enumerate(map(json.loads, lines))
        ]
        records.append(Attempt(file.stem, batch, partition, attempt, run, rows))
    return sorted(records, key=lambda record: (record.run, record.batch, record.partition, record.attempt))
