"""An hour of traffic through a stream that three groups of different speed read, with onCommit=delete.

    python -m tools.bench.retention --server engine --entries 1800000

500 entries a second for an hour are 1.8 million; they are added as fast as the machine can. One group is at the end of
the stream all the time, one comes by every third round, one every tenth; queries without Spark, by the driver's side of
the source and its tasks. The fast and the slow one are killed on the way, before a request of theirs that changes
something. Printed: the stream and the server's memory, every so many entries; then what each group has read.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import redis

from spark_streams.options.sink_options import SinkOptions
from spark_streams.options.source_options import SourceOptions
from spark_streams.sink.send.write import append
from spark_streams.source.limits import LIMITS
from spark_streams.source.rows.columns import Columns
from spark_streams.source.stream_reader import UNLIMITED, StreamReader
from spark_streams.spark.read_limits import ReadMaxRows
from tools.sending import KilledError, before_sending, killed
from tools.servers.server import KINDS, Server, running_redis, serving

STREAM = "traffic"
ROUND = 10_000  # entries
_SCHEMA = pa.schema([("n", pa.int64())])
_LIMITS = replace(LIMITS, lag_check=0.5)
# (round of a hundred, group, the command before which it dies)
_KILLS = ((13, "fast", b"XREADGROUP"), (21, "slow", b"XTRIM"), (34, "fast", b"XACK"), (41, "slow", b"XREADGROUP"),
          (55, "fast", b"XTRIM"), (71, "slow", b"XACK"), (88, "fast", b"SET"))  # fmt: skip


class Reading:
    """One group's query. every: rounds between two visits; most: entries of a batch; seen: how often each number was
    read by a batch that was committed."""

    def __init__(self, url: str, group: str, every: int, most: int, entries: int) -> None:
        self.group, self.every, self.kills = group, every, 0
        self._most = most
        self._options = SourceOptions.parse(
            {"url": url, "streams": STREAM, "group": group, "startingOffsets": "earliest", "onCommit": "delete"}
        )
        self.seen = np.zeros(entries, np.int64)
        self._at: dict[str, Any] = {}  # what is in the commit log
        self._logged: dict[str, Any] | None = None  # what is in the offset log alone
        self._one = self._reader()

    def _reader(self) -> StreamReader:
        return StreamReader(self._options, Columns(_SCHEMA, True, "FAILFAST", ""), limits=_LIMITS)

    def begin(self) -> None:
        """Make the group, with a first trigger: one that is made later gets what is left."""
        self._at = self._one.initialOffset()
        self._drain()

    def visit(self, dies_before: bytes | None = None) -> None:
        """Read all there is; once the process dies on the way, and another one goes on from the checkpoint."""
        if dies_before is not None:
            with before_sending(dies_before, act=killed, times=1):
                try:
                    self._drain()
                    self._one.batches.worker.wait()
                except KilledError:
                    self.kills += 1
            self._one.stop()
            self._one = self._reader()
        self._drain()

    def _drain(self) -> None:
        while True:
            if self._logged is None:
                end = self._one.latestOffset(self._at, ReadMaxRows(self._most))
                if end == self._at:
                    return
                self._logged = end
            tasks = self._one.partitions(self._at, self._logged)
            pages = [batch.column("n").to_numpy() for task in tasks for batch in self._one.read(task)]
            for page in pages:
                np.add.at(self.seen, page, 1)
            self._at, self._logged = self._logged, None

    def stop(self) -> None:
        self._one.stop()


@dataclass(frozen=True)
class Point:
    """One line of the curve."""

    added: int
    length: int
    stream_bytes: int
    used: int


def hour(url: str, entries: int, tell: Callable[[str], None]) -> tuple[list[Point], list[Reading], float]:
    """The curve, the groups, and seconds. Ends with all groups idle."""
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
    kills = {(at * entries // ROUND // 100, group): before for at, group, before in _KILLS}
    due: dict[str, bytes] = {}
    curve: list[Point] = []
    began = time.monotonic()
    for at in range(entries // ROUND):
        numbers = pa.array(np.arange(at * ROUND, (at + 1) * ROUND))
        rows = pa.RecordBatch.from_arrays([numbers, pa.array(["some text of an order"] * ROUND)], ["n", "text"])
        append([rows], sink, None)
        for reading in readings:
            if (at, reading.group) in kills:
                due[reading.group] = kills[at, reading.group]
            if at % reading.every == 0:
                reading.visit(due.pop(reading.group, None))
        if at % max(1, entries // ROUND // 30) == 0:
            curve.append(_point(client, (at + 1) * ROUND))
            tell(_line(curve[-1]))
    for _ in range(2):  # who was not the last one to read learns that the others have
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


def main() -> int:
    parser = argparse.ArgumentParser("python -m tools.bench.retention", description=__doc__)
    parser.add_argument("--server", choices=KINDS, default="redis")
    parser.add_argument("--entries", type=int, default=1_800_000)
    given = parser.parse_args()
    with serving() if given.server == "engine" else running_redis() as server:
        return report(server, given.entries)


def report(server: Server, entries: int) -> int:
    """Run it and print; exit code 1 where a group has not read each entry once, or something is left."""
    with server.client() as client:
        told = client.info("server")
        print(server.kind, told.get("valkey_version") or told["redis_version"])
        _, readings, seconds = hour(server.url, entries, print)
        is_well = True
        for reading in readings:
            pending = client.xpending(STREAM, reading.group)["pending"]
            once = int((reading.seen == 1).sum())
            is_well &= once == entries and pending == 0
            print(f"{reading.group:>8}: {once:,} of {entries:,} read once, {pending} pending, {reading.kills} kills")
        left = client.xlen(STREAM)
        print(f"{left} entries left; {entries / seconds:,.0f} entries a second through all three groups")
        return int(not is_well or left > 0)


if __name__ == "__main__":
    sys.exit(main())
