"""Sinks that are exactly-once by construction, through foreachBatch: what a batch wrote replaces what it wrote before.

`attempts` keeps every row of every task attempt for the checker; `parquet` is how a user would do it.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame

from chaos.history import Row
from chaos.query import Query
from chaos.source import Strike, hold


def sink_of(query: Query) -> Callable[[DataFrame, int], None]:
    """What the query gives to foreachBatch."""
    write = {"attempts": _write_attempts, "parquet": _write_parquet}[query.sink]

    def batch(rows: DataFrame, number: int) -> None:
        write(rows, number, query)
        fault = query.fault
        if fault is not None and (fault.kind, fault.stage, fault.batch) == ("hold", "written", number):
            hold(query)

    return batch


def _write_attempts(rows: DataFrame, number: int, query: Query) -> None:
    (query.path / "rows").mkdir(exist_ok=True)
    (query.path / "batches").mkdir(exist_ok=True)
    files = rows.rdd.mapPartitions(lambda values: _write_attempt(values, number, query)).collect()
    # The names of the attempts that count, at once or not at all.
    unfinished = query.path / "batches" / f"{number}.part"
    unfinished.write_text(json.dumps(files))
    os.replace(unfinished, query.path / "batches" / f"{number}.json")


def _write_attempt(values: Iterable[tuple[Any, ...]], number: int, query: Query) -> Iterator[str]:
    context = TaskContext.get()
    assert context is not None
    name = f"{number}-{context.partitionId()}-{context.attemptNumber()}-{uuid.uuid4().hex}"
    unfinished = query.path / "rows" / f"{name}.part"
    strike = Strike.of(query, "write")
    with unfinished.open("w", buffering=1) as lines:  # a row a write: a kill tears one at most
        for at, value in enumerate(values):
            if strike is not None and at == strike.rows:
                strike.now()
                strike = None
            lines.write(json.dumps(value) + "\n")
        if strike is not None:
            strike.now()
    os.replace(unfinished, unfinished.with_suffix(".jsonl"))
    yield name


def _write_parquet(rows: DataFrame, number: int, query: Query) -> None:
    rows.write.mode("overwrite").parquet(str(query.path / "parquet" / f"batch={number}"))


def rows_of(query: Query) -> list[Row]:
    """Every row that reached the query's sink."""
    return _rows_of_parquet(query) if query.sink == "parquet" else _rows_of_attempts(query)


def _rows_of_attempts(query: Query) -> list[Row]:
    kept = {name for file in (query.path / "batches").glob("*.json") for name in json.loads(file.read_text())}
    found: list[Row] = []
    for file in sorted((query.path / "rows").glob("*-*-*-*.*")):
        batch, partition, attempt, _ = file.stem.split("-")
        whole = file.read_text().split("\n")[:-1]  # an attempt that was killed leaves a torn end
        rows = [json.loads(line) for line in whole]
        found += _rows(rows, int(batch), int(partition), int(attempt), file.stem in kept)
    return found


def _rows_of_parquet(query: Query) -> list[Row]:
    found: list[Row] = []
    for file in sorted((query.path / "parquet").glob("batch=*/part-*.parquet")):
        batch, partition = int(file.parent.name.removeprefix("batch=")), int(file.name.split("-")[1])
        columns = pq.ParquetFile(file).read().to_pydict()
        found += _rows(zip(*columns.values(), strict=True), batch, partition, 0, True)
    return found


def _rows(values: Iterable[Sequence[Any]], batch: int, partition: int, attempt: int, kept: bool) -> list[Row]:
    return [
        Row((stream, entry), (p, n), batch, partition, attempt, position, kept)
        for position, (p, n, stream, entry) in enumerate(values)
    ]
