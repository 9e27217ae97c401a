"""A record of what each task attempt handed to the sink: a file of JSON lines an attempt, in the query's folder.

    rows/<batch>-<partition>-<attempt>-<run>-<anything>.jsonl       `.part` until the attempt has ended well

run: one execution of the batch by one driver; later ones sort higher. A line is [producer, number, stream, id].
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

from tools.chaos.history import Row
from tools.chaos.query import Query


@dataclass(frozen=True)
class Attempt:
    """name: of its file, without the ending; rows: what it handed over, in order."""

    name: str
    batch: int
    partition: int
    attempt: int
    run: int
    rows: list[Row]


class Record:
    """One attempt's file, while it is written."""

    def __init__(self, file: Path) -> None:
        self.name = file.stem
        self._file = file.open("w", buffering=1)  # a row a write: a kill tears one at most

    def add(self, value: Sequence[Any]) -> None:
        """One more row."""
        self._file.write(json.dumps(value) + "\n")

    def close(self) -> None:
        """No more rows."""
        self._file.close()


def new_run() -> int:
    """A run that begins now."""
    return time.time_ns()


@contextlib.contextmanager
def recorded(query: Query, batch: int, run: int) -> Iterator[Record]:
    """The record of the task that this is. It counts as finished where nothing is raised."""
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
    """Every attempt so far, those of earlier runs first. Its rows count for nothing yet."""
    found = []
    for file in (query.path / "rows").glob("*-*-*-*-*.*"):
        batch, partition, attempt, run = (int(part) for part in file.stem.split("-")[:4])
        whole = file.read_text().split("\n")[:-1]  # an attempt that was killed leaves a torn end
        rows = [
            Row((stream, entry), (p, n), batch, partition, attempt, position, kept=False)
            for position, (p, n, stream, entry) in enumerate(map(json.loads, whole))
        ]
        found.append(Attempt(file.stem, batch, partition, attempt, run, rows))
    return sorted(found, key=lambda one: (one.run, one.batch, one.partition, one.attempt))
