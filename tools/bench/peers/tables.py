"""K2, K7: rows in a table, bytes of an entry."""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tools.bench.arrival import Table, waited, watching
from tools.bench.peers.client import LONGEST, costs
from tools.bench.peers.events import feeding
from tools.bench.peers.sides import SHAPES, Bench, Flink, Kafka, KafkaAtOnce, Ours, Side, load
from tools.bench.row import NoFigureError, Row
from tools.waiting import until

_ARRIVED = {"p50": "ms", "p99": "ms", "client cores": "", "server cores": "", "client MB": "MB", "server MB": "MB"}
_WARM_UP, _MEASURED, _LATEST = 4.0, 10.0, 4.0  # seconds; the last: that the last row may take


class SparkFiles(Table):
    """The folder of Spark's file sink: a file can be read when the log of the folder names it."""

    def commits(self) -> Iterator[tuple[Path, list[Path]]]:
        for commit in (self.path / "_spark_metadata").glob("[0-9]*"):
            lines = commit.read_text().splitlines()[1:]
            yield commit, [Path(json.loads(line)["path"].removeprefix("file://")) for line in lines]


class FlinkFiles(Table):
    """The folder of Flink's file sink: a file can be read when it has its name."""

    def commits(self) -> Iterator[tuple[Path, list[Path]]]:
        for file in self.path.glob("part-*"):
            yield file, [file]


def arrive(side: Side, rate: int, interval: int) -> dict[str, float]:
    """Return percentiles of the milliseconds from an event to its row in a folder of Parquet."""
    bench, folder = side.bench, side.bench.folder("table")
    stream = folder.name if side.on_redis else bench.topic(folder.name, 4)
    table = FlinkFiles(folder) if isinstance(side, Flink) else SparkFiles(folder)
    measured = (_MEASURED + interval) * max(min(1.0, bench.share), 0.3)
    with watching(table) as seen, side.client() as client:
        with feeding(side, stream, rate, numbered=False):
            side.run(client, stream, SHAPES["event"], "parquet", folder, interval)
            try:
                until(lambda: seen, f"{side.name}: no row arrived", LONGEST)
            except AssertionError as error:
                raise NoFigureError(str(error)) from None
            begin = time.time() + _WARM_UP
            time.sleep(_WARM_UP)
            with costs(client, side.server) as cost:
                time.sleep(measured)
        time.sleep(interval + _LATEST)
    milliseconds = waited(seen, begin, begin + measured)
    missing = max(0, round(rate * measured * 0.95) - len(milliseconds))  # they have waited until now, at least
    milliseconds = np.append(milliseconds, np.full(missing, (time.time() - begin) * 1000))
    if side.on_redis:
        bench.redis.call("DEL", stream)
    cores = {f"{part} cores": cost[part] / cost["seconds"] for part in ("client", "server")}
    return cost | cores | {f"p{one}": float(np.percentile(milliseconds, one)) for one in (50, 99)}


def arrivals(bench: Bench) -> list[Row]:
    """K2."""
    rows = []
    for rate in (1_000, 20_000, 100_000):
        for interval in (0, 1):
            ours = functools.partial(arrive, Ours(bench), rate, interval)
            for side in (Kafka(bench), Flink(bench), KafkaAtOnce(bench)):
                peer = functools.partial(arrive, side, rate, interval)
                rows += [
                    Row("K2", f"event to row in Parquet, {rate:,}/s, interval {interval} s: {name}",
                        f"{_MEASURED:g} s; Flink: checkpoints each second; cores: processor seconds a second", unit,
                        1.0 if unit == "ms" else None, ours, peer, side.name, False, 1, name)
                    for name, unit in _ARRIVED.items()
                ]  # fmt: skip
    return rows


# -- K7: bytes of an entry ---------------------------------------------------------------------------------------------

_AT_REST = 500_000  # entries


def at_rest(bench: Bench, shape: str) -> dict[str, float]:
    """Return bytes of an entry in Redis' memory, in its dump and in its append-only file, and in Kafka's log."""
    count, name = bench.entries(_AT_REST), bench.folder("size").name
    with contextlib.ExitStack() as stack:
        alone = Bench(stack)
        alone.redis.call("CONFIG", "SET", "appendonly", "yes", "auto-aof-rewrite-percentage", "0")
        topic = alone.topic(f"{name}-log")
        with Kafka(alone).client() as client:
            load(client, {name: Ours(alone, "at-least-once"), topic: Kafka(alone)}, SHAPES[shape], count)
        memory = alone.redis.call("MEMORY", "USAGE", name, "SAMPLES", "0")
        home = Path(alone.redis.call("CONFIG", "GET", "dir")[1].decode())
        alone.redis.call("SAVE")
        found = {
            "memory": memory, "dump": (home / "dump.rdb").stat().st_size,
            "append-only file": _size(home / "appendonlydir", "*.incr.aof"),
            "log": _size(alone.kafka.log / f"{topic}-0", "*.log"),
        }  # fmt: skip
    return {kind: value / count for kind, value in found.items()}


def _size(folder: Path, pattern: str) -> int:
    return sum(file.stat().st_size for file in folder.glob(pattern))


def sizes(bench: Bench) -> list[Row]:
    """K7."""
    rows = []
    for shape in ("three", "twenty", "json"):
        run = functools.partial(at_rest, bench, shape)
        ran = f"{bench.entries(_AT_REST):,} entries; the same rows as JSON in one partition"
        rows += [
            Row("K7", f"bytes an entry, {SHAPES[shape].name}: {name}", ran, "B", None, run, run, "Kafka's log", False,
                1, name, "log")
            for name in ("memory", "dump", "append-only file")
        ]  # fmt: skip
    return rows
