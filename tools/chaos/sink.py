"""The sinks of a query, and their rows afterwards: files that a batch replaces, or a stream.

`attempts` and `parquet` are exactly-once by construction, through foreachBatch: a repeated batch replaces its files.
`attempts` keeps every row of every task attempt for the checker, as JSON lines in a file of its own:

    rows/<batch>-<partition>-<attempt>-<run>-<uuid>.jsonl       `.part` until the attempt has succeeded

run: one execution of the batch by one driver; later runs sort higher. A line is [producer, number, stream, ID].
`parquet` writes as a user would. `stream` is the Redis Streams sink (chaos.source).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_streams.operations.verify.history import Place, Row
from tools.chaos.producer import client_of
from tools.chaos.query import Query
from tools.chaos.strike import Strike, stand_still


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


# -- the sinks ---------------------------------------------------------------------------------------------------------


def write_to_sink(rows: DataFrame, query: Query, options: dict[str, str]) -> DataStreamWriter:
    """Return the writer of a query's rows (p, n, _stream, _id). options: pass the fault to its processes."""
    if query.sink != "stream":
        return rows.writeStream.foreachBatch(_batch_of(query))
    columns = [F.col("p"), F.col("n"), F.col("_stream").alias("source"), F.col("_id").alias("entry")]
    target = {"stream": query.out}
    if query.routed:
        columns.append(F.concat(F.lit(f"{query.out}:"), F.col("_stream")).alias("to"))
        target = {"streamColumn": "to"}
    settings = {"url": query.out_address, **target, **query.out_options, **options}
    return rows.select(*columns).writeStream.format("rstream-chaos").options(**settings)


def _batch_of(query: Query) -> Callable[[DataFrame, int], None]:
    """Return the function for foreachBatch."""
    write = {"attempts": _write_attempts, "parquet": _write_parquet}[query.sink]

    def batch(rows: DataFrame, number: int) -> None:
        write(rows, number, query)
        stand_still(query, "written", number)

    return batch


def _write_attempts(rows: DataFrame, number: int, query: Query) -> None:
    (query.path / "batches").mkdir(exist_ok=True)
    run = new_run()
    files = rows.rdd.mapPartitions(lambda values: _write_attempt(values, number, run, query)).collect()
    stand_still(query, "closing", number)
    # The names of the committed attempts, written atomically.
    unfinished = query.path / "batches" / f"{number}.part"
    unfinished.write_text(json.dumps(files))
    os.replace(unfinished, query.path / "batches" / f"{number}.json")


def _write_attempt(values: Iterable[tuple[Any, ...]], number: int, run: int, query: Query) -> Iterator[str]:
    strike = Strike.for_task(query, "writing")
    with record_attempt(query, number, run) as record:
        for index, value in enumerate(values):
            if strike is not None and index == strike.rows:
                strike.now()
                strike = None
            record.add(value)
        if strike is not None:
            strike.now()
    yield record.name


def _write_parquet(rows: DataFrame, number: int, query: Query) -> None:
    rows.write.mode("overwrite").parquet(str(query.path / "parquet" / f"batch={number}"))
    stand_still(query, "closing", number)


def rows_of(query: Query) -> list[Row]:
    """Return every row in the query's sink, and the rows of uncommitted task attempts (`kept` is False)."""
    return {"parquet": _rows_of_parquet, "attempts": _rows_of_attempts, "stream": _rows_of_streams}[query.sink](query)


def _rows_of_attempts(query: Query) -> list[Row]:
    committed = {name for file in (query.path / "batches").glob("*.json") for name in json.loads(file.read_text())}
    return [replace(row, kept=attempt.name in committed) for attempt in attempts(query) for row in attempt.rows]


def _rows_of_parquet(query: Query) -> list[Row]:
    rows: list[Row] = []
    for file in sorted((query.path / "parquet").glob("batch=*/part-*.parquet")):
        batch, partition = int(file.parent.name.removeprefix("batch=")), int(file.name.split("-")[1])
        columns = pq.ParquetFile(file).read().to_pydict()
        rows += _rows(zip(*columns.values(), strict=True), batch, partition)
    return rows


def _rows(values: Iterable[Sequence[Any]], batch: int, partition: int) -> list[Row]:
    return [
        Row((stream, entry), (p, n), batch, partition, 0, position)
        for position, (p, n, stream, entry) in enumerate(values)
    ]


def _rows_of_streams(query: Query) -> list[Row]:
    """Return a row for each entry of the output streams, and the rows of the attempts."""
    tried = attempts(query)
    rows = [row for attempt in tried for row in attempt.rows]
    with client_of(query.out_address) as client:
        pattern = f"{query.out}:*" if query.routed else query.out
        for out in sorted(client.scan_iter(match=pattern, count=1000)):
            entries = [fields for _, fields in client.xrange(out)]
            rows += rows_of_entries(out, entries, tried)
    return rows


def rows_of_entries(out: str, entries: Sequence[dict[str, str]], tried: Sequence[Attempt]) -> list[Row]:
    """Return the entries of one output stream as rows. Each belongs to the last run of the batch that contains it.

    An entry does not name its task. Its lane is the partition of the row in the first run of the batch, and the one in
    the last run: rows that were in one task both times are in its order.
    """
    rows_by_place: dict[Place, list[Row]] = {}
    for attempt in tried:
        for row in attempt.rows:
            rows_by_place.setdefault(row.place, []).append(row)
    rows = []
    for position, fields in enumerate(entries):
        place, value = (fields["source"], fields["entry"]), (fields["p"], int(fields["n"]))
        if place in rows_by_place:
            first, last = rows_by_place[place][0], rows_by_place[place][-1]
            lane = (out, first.partition, last.partition)
            row = replace(last, value=value, position=position, kept=True, lane=lane)
        else:
            row = Row(place, value, -1, -1, -1, position, lane=(out, -1, -1))
        rows.append(row)
    return rows
