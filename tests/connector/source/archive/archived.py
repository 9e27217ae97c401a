"""A table as the job `archive` writes it, without Spark."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import redis

from spark_streams.base.ids import StreamId

SCHEMA = pa.schema([
    ("stream", pa.string()), ("id", pa.string()), ("timestamp", pa.timestamp("us", "UTC")),
    ("fields", pa.map_(pa.string(), pa.string())),
])  # fmt: skip

Row = tuple[str, str, list[tuple[str, str]]]


def write_batch(path: Path, number: int, rows: Sequence[Row]) -> list[Path]:
    """Write one batch: a file for each date."""
    by_date: dict[str, list[Row]] = {}
    for row in rows:
        moment = datetime.datetime.fromtimestamp(StreamId.parse(row[1]).ms / 1000, datetime.UTC)
        by_date.setdefault(f"{moment:%Y-%m-%d}", []).append(row)
    written = []
    for date, found in by_date.items():
        folder = path / f"date={date}" / f"batch=b12345678-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        values = [{"stream": stream, "id": one, "timestamp": None, "fields": fields} for stream, one, fields in found]
        written.append(folder / "part-00000.snappy.parquet")
        pq.write_table(pa.Table.from_pylist(values, SCHEMA), written[-1], row_group_size=50)
    return written


class Archiver:
    """What the job does, step by step: its group reads, writes a batch, acknowledges it, and trims."""

    def __init__(self, client: redis.Redis, path: Path, stream: str = "s") -> None:
        self.client, self.path, self.stream = client, path, stream
        self.number = 0
        self.batch: list[Row] = []
        path.mkdir(exist_ok=True)
        client.xgroup_create(stream, "archive", "0", mkstream=True)

    def read(self, count: int) -> None:
        reply: Any = self.client.xreadgroup("archive", "c", {self.stream: ">"}, count=count)
        self.batch = [(self.stream, one, list(fields.items())) for _, page in reply for one, fields in page]

    def write(self) -> list[Path]:
        return write_batch(self.path, self.number, self.batch)

    def acknowledge(self) -> None:
        self.client.xack(self.stream, "archive", *[one for _, one, _ in self.batch])
        self.number += 1

    def trim(self) -> None:
        self.client.xtrim(self.stream, minid=str(StreamId.parse(self.batch[-1][1]).next()), approximate=False)

    def archive(self, count: int, trim: bool = True) -> None:
        self.read(count)
        self.write()
        self.acknowledge()
        if trim:
            self.trim()
