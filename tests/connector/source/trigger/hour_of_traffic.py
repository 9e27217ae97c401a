"""An hour of traffic through a stream that three groups read at different speeds, with onCommit=delete.

500 entries per second for an hour are 1.8 million; they are added as fast as the machine can. One group reads in
every round, one in every third, one in every tenth. The queries run without Spark: the driver's side of the source and
its tasks. The fast and the slow query are killed several times, before a command that changes the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import redis

from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.sink.chunk_writer import append
from spark_streams.connector.source.limits import LIMITS
from spark_streams.connector.source.rows.columns import Columns
from spark_streams.connector.source.stream_reader import UNLIMITED, StreamReader
from spark_streams.connector.spark.data_source import ReadMaxRows
from tools.sending import KilledError, before_sending, killed

STREAM = "traffic"
ROUND = 10_000  # entries
_SCHEMA = pa.schema([("n", pa.int64())])
_LIMITS = replace(LIMITS, lag_check=0.5)
# (round in percent, group, the command before which it dies)
_KILLS = ((13, "fast", b"XREADGROUP"), (21, "slow", b"XTRIM"), (34, "fast", b"XACK"), (41, "slow", b"XREADGROUP"),
          (55, "fast", b"XTRIM"), (71, "slow", b"XACK"), (88, "fast", b"SET"))  # fmt: skip


class Reading:
    """Query of one group.

    interval: rounds between two visits; batch_size: maximum of entries; reads: committed reads of each number.
    """

    def __init__(self, url: str, group: str, interval: int, batch_size: int, entries: int) -> None:
        self.group, self.interval, self.kills = group, interval, 0
        self._batch_size = batch_size
        self._options = SourceOptions.parse(
            {"url": url, "streams": STREAM, "group": group, "startingOffsets": "earliest", "onCommit": "delete"}
        )
        self.reads = np.zeros(entries, np.int64)
        self._committed: dict[str, Any] = {}  # offset in the commit log
        self._logged: dict[str, Any] | None = None  # offset that is only in the offset log
        self._reader = self._new_reader()

    def _new_reader(self) -> StreamReader:
        return StreamReader(self._options, Columns(_SCHEMA, True, "FAILFAST", ""), limits=_LIMITS)

    def begin(self) -> None:
        """Create the group by a first trigger. A later group would miss the entries that are trimmed by then."""
        self._committed = self._reader.initialOffset()
        self._drain()

    def visit(self, dies_before: bytes | None = None) -> None:
        """Read all entries. With `dies_before`, the process dies at that command, and a new one continues."""
        if dies_before is not None:
            with before_sending(dies_before, act=killed, times=1):
                try:
                    self._drain()
                    self._reader.batches.worker.wait()
                except KilledError:
                    self.kills += 1
            self._reader.stop()
            self._reader = self._new_reader()
        self._drain()

    def _drain(self) -> None:
        while True:
            if self._logged is None:
                end = self._reader.latestOffset(self._committed, ReadMaxRows(self._batch_size))
                if end == self._committed:
                    return
                self._logged = end
            tasks = self._reader.partitions(self._committed, self._logged)
            pages = [batch.column("n").to_numpy() for task in tasks for batch in self._reader.read(task)]
            for page in pages:
                np.add.at(self.reads, page, 1)
            self._committed, self._logged = self._logged, None

    def stop(self) -> None:
        self._reader.stop()


@dataclass(frozen=True)
class Point:
    """State of the stream and the server after some entries."""

    added: int
    length: int
    stream_bytes: int
    used: int


def hour(url: str, entries: int, tell: Callable[[str], None]) -> tuple[list[Point], list[Reading], float]:
    """Run the traffic until all groups are idle. Return the curve, the groups and the seconds."""
    client = redis.Redis.from_url(url, protocol=2)
    client.flushall()
    sink = SinkOptions.parse({"url": url, "stream": STREAM, "delivery": "at-least-once"})
    readings = [
        Reading(url, "fast", 1, UNLIMITED, entries),
        Reading(url, "middle", 3, 20_000, entries),
        Reading(url, "slow", 10, 30_000, entries),
    ]
    for reading in readings:
        reading.begin()
    kills = {(percent * entries // ROUND // 100, group): before for percent, group, before in _KILLS}
    due: dict[str, bytes] = {}
    curve: list[Point] = []
    began = time.monotonic()
    for round_number in range(entries // ROUND):
        numbers = pa.array(np.arange(round_number * ROUND, (round_number + 1) * ROUND))
        rows = pa.RecordBatch.from_arrays([numbers, pa.array(["some text of an order"] * ROUND)], ["n", "text"])
        append([rows], sink, None)
        for reading in readings:
            if (round_number, reading.group) in kills:
                due[reading.group] = kills[round_number, reading.group]
            if round_number % reading.interval == 0:
                reading.visit(due.pop(reading.group, None))
        if round_number % max(1, entries // ROUND // 30) == 0:
            curve.append(_point(client, (round_number + 1) * ROUND))
            tell(_line(curve[-1]))
    for _ in range(2):  # a group that was not the last to read sees the progress of the others
        for reading in readings:
            reading.visit()
        time.sleep(_LIMITS.lag_check)
    for reading in readings:
        reading.visit()
    curve.append(_point(client, entries))
    tell(_line(curve[-1]))
    for reading in readings:
        reading.stop()
    return curve, readings, time.monotonic() - began


def _point(client: redis.Redis, added: int) -> Point:
    usage = int(client.memory_usage(STREAM) or 0)
    return Point(added, client.xlen(STREAM), usage, client.info("memory")["used_memory"])


def _line(point: Point) -> str:
    return (
        f"{point.added:>10,} added  {point.length:>8,} in the stream  {point.stream_bytes / 1e6:>7.2f} MB MEMORY USAGE"
        f"  {point.used / 1e6:>7.2f} MB used_memory"
    )
