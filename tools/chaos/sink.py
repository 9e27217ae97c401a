"""Where a query writes, and what is there afterwards: files that replace each other batch by batch, or a stream.

`attempts` and `parquet` are exactly-once by construction, through foreachBatch: what a batch wrote replaces what it
wrote before. `attempts` keeps every row of every task attempt for the checker; `parquet` is how a user would do it.
`stream` is the product's own sink (chaos.writer).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tools.chaos.attempts import Attempt, attempts, new_run, recorded
from tools.chaos.clients import client_of
from tools.chaos.history import Place, Row
from tools.chaos.query import Query
from tools.chaos.strike import Strike, stand_still


def write_to_sink(rows: DataFrame, query: Query, options: dict[str, str]) -> DataStreamWriter:
    """The writer of a query's rows (p, n, _stream, _id). options: that give its processes the fault."""
    if query.sink != "stream":
        return rows.writeStream.foreachBatch(_batch_of(query))
    columns = [F.col("p"), F.col("n"), F.col("_stream").alias("source"), F.col("_id").alias("entry")]
    to = {"stream": query.out}
    if query.routed:
        columns.append(F.concat(F.lit(f"{query.out}:"), F.col("_stream")).alias("to"))
        to = {"streamColumn": "to"}
    given = {"url": query.out_at, **to, **query.out_options, **options}
    return rows.select(*columns).writeStream.format("rstream-chaos").options(**given)


def _batch_of(query: Query) -> Callable[[DataFrame, int], None]:
    """What the query gives to foreachBatch."""
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
    # The names of the attempts that count, at once or not at all.
    unfinished = query.path / "batches" / f"{number}.part"
    unfinished.write_text(json.dumps(files))
    os.replace(unfinished, query.path / "batches" / f"{number}.json")


def _write_attempt(values: Iterable[tuple[Any, ...]], number: int, run: int, query: Query) -> Iterator[str]:
    strike = Strike.of(query, "writing")
    with recorded(query, number, run) as record:
        for at, value in enumerate(values):
            if strike is not None and at == strike.rows:
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
    """Every row that reached the query's sink, and those that only a task attempt had (`kept` is False)."""
    return {"parquet": _rows_of_parquet, "attempts": _rows_of_attempts, "stream": _rows_of_streams}[query.sink](query)


def _rows_of_attempts(query: Query) -> list[Row]:
    kept = {name for file in (query.path / "batches").glob("*.json") for name in json.loads(file.read_text())}
    return [replace(row, kept=one.name in kept) for one in attempts(query) for row in one.rows]


def _rows_of_parquet(query: Query) -> list[Row]:
    found: list[Row] = []
    for file in sorted((query.path / "parquet").glob("batch=*/part-*.parquet")):
        batch, partition = int(file.parent.name.removeprefix("batch=")), int(file.name.split("-")[1])
        columns = pq.ParquetFile(file).read().to_pydict()
        found += _rows(zip(*columns.values(), strict=True), batch, partition)
    return found


def _rows(values: Iterable[Sequence[Any]], batch: int, partition: int) -> list[Row]:
    return [
        Row((stream, entry), (p, n), batch, partition, 0, position)
        for position, (p, n, stream, entry) in enumerate(values)
    ]


def _rows_of_streams(query: Query) -> list[Row]:
    """A row for each entry of the sink's streams, beside those of the attempts."""
    tried = attempts(query)
    found = [row for one in tried for row in one.rows]
    with client_of(query.out_at) as client:
        pattern = f"{query.out}:*" if query.routed else query.out
        for out in sorted(client.scan_iter(match=pattern, count=1000)):
            entries = [fields for _, fields in client.xrange(out)]
            found += rows_of_entries(out, entries, tried)
    return found


def rows_of_entries(out: str, entries: Sequence[dict[str, str]], tried: Sequence[Attempt]) -> list[Row]:
    """What the entries of one stream of the sink are as rows: each is of the batch that had it, as that was run last.

    An entry tells nothing of its task; its lane is the partition that had the row in the first run of the batch and the
    one that had it in the last: rows that were in one task both times are in its order.
    """
    had: dict[Place, list[Row]] = {}
    for one in tried:
        for row in one.rows:
            had.setdefault(row.place, []).append(row)
    found = []
    for position, fields in enumerate(entries):
        place, value = (fields["source"], fields["entry"]), (fields["p"], int(fields["n"]))
        if place in had:
            first, last = had[place][0], had[place][-1]
            lane = (out, first.partition, last.partition)
            row = replace(last, value=value, position=position, kept=True, lane=lane)
        else:
            row = Row(place, value, -1, -1, -1, position, lane=(out, -1, -1))
        found.append(row)
    return found
