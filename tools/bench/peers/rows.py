"""The rows: each a run of ours and of a peer. The runs of K1, K3, K4, K6 are here."""

from __future__ import annotations

import contextlib
import functools
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from examples.nexmark.queries import QUERIES
from tools.bench.peers.client import MOVED, Client, costs, moved
from tools.bench.peers.events import Arrived, feeding
from tools.bench.peers.queries import EVENTS, nexmark, trigger
from tools.bench.peers.sides import (
    SHAPES,
    Bench,
    Flink,
    Kafka,
    KafkaAtOnce,
    KafkaAvro,
    Ours,
    OursNoAck,
    Side,
    SparkRedis,
)
from tools.bench.peers.tables import arrivals, sizes
from tools.bench.row import NoFigureError, Row

_MANY = 2_000_000  # entries of K1 and K3
_WARM = 10  # a run before the measured one has one entry of so many
# Rounds of K1 by shape and sink, at most; the others take long: one.
_ROUNDS = {("three", "noop"): 5, ("three", "parquet"): 2, ("twenty", "noop"): 2, ("json", "noop"): 2}

Figures = Callable[[], Mapping[str, float]]


def _rows(number: str, measure: str, ran: str, ours: Figures, peer: Figures, side: Side, rounds: int | None,
          units: Mapping[str, str] = MOVED, targets: Mapping[str, float] = {}) -> list[Row]:  # fmt: skip
    """Return a row for each figure of two runs."""
    return [
        Row(number, f"{measure}: {name}", ran, unit, targets.get(name), ours, peer, side.name, unit == "/s", rounds,
            name)
        for name, unit in units.items()
    ]  # fmt: skip


# -- K1: read ----------------------------------------------------------------------------------------------------------


def drain(side: Side, partitions: int, shape: str, sink: str) -> dict[str, float]:
    """Read a stream to its end, in a new process that has read a shorter one."""
    count = side.bench.entries(_MANY)
    short, stream = side.loaded(SHAPES[shape], partitions, (count // _WARM, count))
    with side.client() as client:
        side.run(client, short, SHAPES[shape], sink, side.bench.folder("warm"))
        folder = side.bench.folder("drain")
        with costs(client, side.server) as cost:
            read = side.run(client, stream, SHAPES[shape], sink, folder).get("rows", count)
    if sink == "parquet":
        read = _rows_in(folder / "table")
    if read != count:
        raise NoFigureError(f"{side.name}: {read} of {count} rows")
    return moved(cost, count)


def _rows_in(folder: Path) -> int:
    import pyarrow.parquet as pq

    return sum(pq.ParquetFile(file).metadata.num_rows for file in folder.rglob("part-*") if ".crc" not in file.suffixes)


def drained(bench: Bench) -> list[Row]:
    """K1."""
    rows: list[Row] = []
    four = Kafka(bench), 4
    of_shape: dict[str, Sequence[tuple[Side, int]]] = {
        "three": (four, (Kafka(bench), 1), (KafkaAvro(bench), 4), (Flink(bench), 4), (SparkRedis(bench), 1)),
        "twenty": (four, (Flink(bench), 4)),
        "json": (four, (Flink(bench), 4)),
    }
    for shape, peers in of_shape.items():
        for sink in ("noop", "parquet"):
            of_ours = [Ours(bench), OursNoAck(bench)] if (shape, sink) == ("three", "noop") else [Ours(bench)]
            runs = [(mine, functools.partial(drain, mine, 1, shape, sink)) for mine in of_ours]
            for side, partitions in peers:
                peer = functools.partial(drain, side, partitions, shape, sink)
                rounds = 1 if isinstance(side, SparkRedis) else _ROUNDS.get((shape, sink), 1)
                if isinstance(side, KafkaAvro) or partitions == 1:
                    rounds = min(rounds, 2)
                for mine, ours in runs:
                    read = "read with noAck" if isinstance(mine, OursNoAck) else "drain"
                    measure = f"{read}, {SHAPES[shape].name}, into {sink}, {side.name}, partitions {partitions}"
                    ran = (f"{bench.entries(_MANY):,} entries, availableNow, local[2], after a first run of a tenth; "
                           "rate: from start() to the end of the query")  # fmt: skip
                    targets = {"rate of a client core": 0.8} if isinstance(side, Kafka) else {}
                    targets |= {"rate": 5.0} if isinstance(side, SparkRedis) else {}
                    rows += _rows("K1", measure, ran, ours, peer, side, rounds, targets=targets)
    return rows


# -- K3: write ---------------------------------------------------------------------------------------------------------


def write(side: Side) -> dict[str, float]:
    """Write rows to a new stream, in a process that has written a tenth."""
    bench = side.bench
    count = bench.entries(_MANY)
    with side.client() as client:
        for many in (count // _WARM, count):
            name = bench.folder("written").name
            side.make(client, many)
            stream = name if side.on_redis else bench.topic(name, 4)
            with costs(client, side.server) as cost:
                side.write(client, stream, many)
    if side.on_redis:
        written = bench.redis.call("XLEN", name)
        bench.redis.call("DEL", name)
        if written != count:
            raise NoFigureError(f"{side.name}: {written} of {count} rows")
    return moved(cost, count)


def written(bench: Bench) -> list[Row]:
    """K3."""
    flink, flink_at_least = Flink(bench), Flink(bench, "at-least-once")
    sides = Ours(bench), Ours(bench, "at-least-once"), Kafka(bench)
    once, at_least, kafka = (functools.partial(write, side) for side in sides)
    ran = f"df.write of {bench.entries(_MANY):,} rows of 3 columns from memory, local[2], into 4 partitions"
    of_flink = f"{ran}; Flink makes its rows with datagen"
    target = {"rate": 0.8}
    return [
        *_rows("K3", "write, exactly once (the connector: at least once)", ran, once, kafka, Kafka(bench), 3,
               targets=target),
        *_rows("K3", "write, at least once", ran, at_least, kafka, Kafka(bench), 3),
        *_rows("K3", "write, exactly once", of_flink, once, functools.partial(write, flink), flink, 3),
        *_rows("K3", "write, at least once", of_flink, at_least, functools.partial(write, flink_at_least),
               flink_at_least, 3),
    ]  # fmt: skip


# -- K4, K6: a query that goes on --------------------------------------------------------------------------------------

_RATE = 2_000  # events a second
_IDLE = 20.0  # seconds


def _stream_and_target(side: Side) -> list[str]:
    name = side.bench.folder("in").name
    return [one if side.on_redis else side.bench.topic(one) for one in (name, f"{name}-out")]


def kill(side: Side) -> dict[str, float]:
    """Kill a client of a stream that goes on, again and again. Return the seconds to the next row, and how many events
    were lost, and how many rows are there twice."""
    stream, target = _stream_and_target(side)
    folder, chance, seconds = side.bench.folder("killed"), random.Random(4), []
    arrived = Arrived(side, target)
    with feeding(side, stream, _RATE) as fed, contextlib.ExitStack() as clients:

        def start() -> Client:
            client = clients.enter_context(side.client(folder / "flink"))
            side.run(client, stream, SHAPES["event"], target, folder, 0)
            return client

        client = start()
        for _ in range(max(2, round(side.kills * min(1.0, side.bench.share)))):
            arrived.wait(fed[0])
            time.sleep(chance.random() * 2)
            client.kill()
            killed = time.monotonic()
            arrived.all()
            newest = max(arrived.numbers)
            client = start()
            seconds.append(arrived.wait(newest + 1) - killed)
        last = fed[0]
        arrived.wait(last - 1)
        time.sleep(10)
        client.kill()  # a client that goes on writes rows for ever
        arrived.all()
    found = set(arrived.numbers)
    lost = sum(number not in found for number in range(last))
    twice = len(arrived.numbers) - len(found)
    return {"seconds to the next row": statistics.median(seconds), "rows lost": lost, "rows twice": twice}


def _beside_all(number: str, measure: str, ran: str, run: Callable[[Side], Mapping[str, float]], bench: Bench,
                rounds: int | None, units: Mapping[str, str], targets: Mapping[str, float],
                peers: Sequence[type[Side]] = (Kafka, Flink, SparkRedis)) -> list[Row]:  # fmt: skip
    ours, rows = functools.partial(run, Ours(bench)), list[Row]()
    for side in (kind(bench) for kind in peers):
        said = ran.format(ours=Ours.kills, peers=side.kills)
        rows += _rows(number, measure, said, ours, functools.partial(run, side), side, rounds, units, targets)
    return rows


def killed(bench: Bench) -> list[Row]:
    """K4."""
    ran = (f"{_RATE:,} events/s from stream to stream, trigger 0 s, SIGKILL of the driver and its JVM: {{ours}} times, "
           "of the peer {peers} times")  # fmt: skip
    units = {"seconds to the next row": "s", "rows lost": "", "rows twice": ""}
    return _beside_all("K4", "kill", ran, kill, bench, 1, units, {"seconds to the next row": 1.0})


def start(side: Side) -> dict[str, float]:
    """Start a client of a stream with one event. Return the seconds to its row, and what both sides cost without more:
    processor seconds an hour."""
    stream, target = _stream_and_target(side)
    with feeding(side, stream, 100) as fed:
        while not fed[0]:
            time.sleep(0.01)
    arrived = Arrived(side, target)
    begun = time.monotonic()
    with side.client() as client:
        side.run(client, stream, SHAPES["event"], target, side.bench.folder("started"), 0)
        first = arrived.wait(0) - begun
        time.sleep(5)
        with costs(client, side.server) as cost:
            time.sleep(_IDLE * min(1.0, side.bench.share * 5))
    hours = cost["seconds"] / 3600
    idle = {f"idle {part}": cost[part] / hours for part in ("client", "server")}
    return {"first row": first, **idle, "client MB": cost["client MB"]}


def cold(bench: Bench) -> list[Row]:
    """K6."""
    ran = f"a new process: from its start to the first row in the next stream; then {_IDLE:g} s idle, trigger 0 s"
    targets = {"first row": 1.1, "idle client": 0.5, "idle server": 0.5}
    units = {"first row": "s", "idle client": "s/h", "idle server": "s/h", "client MB": "MB"}
    return _beside_all("K6", "start, idle", ran, start, bench, 3, units, targets)


# -- K5, K8 ------------------------------------------------------------------------------------------------------------


def many(bench: Bench) -> list[Row]:
    """K5."""
    units = {"seconds": "s", "client": "s", "server": "s", "client MB": "MB", "server MB": "MB"}
    rows = []
    # Kafka refuses a topic of 10,000 partitions.
    for whole, triggers, peers in ((100, 4, [Kafka, KafkaAtOnce]), (1_000, 4, [KafkaAtOnce]), (10_000, 2, [])):
        count = bench.entries(whole)
        ran = (f"10 new entries in each, availableNow, triggerExecution: median of {triggers - 1} after a first; "
               "processor seconds and memory of the last; peer: partitions of a topic")  # fmt: skip
        run = functools.partial(trigger, streams=count, triggers=triggers)
        measure = f"a batch over {count:,} streams"
        rows += _beside_all("K5", measure, ran, run, bench, 1, units, {"seconds": 1.0}, peers)
        if not peers:
            ours = functools.partial(run, Ours(bench))
            rows += [Row("K5", f"{measure}: {name}", ran, unit, None, ours, rounds=1, name=name)
                     for name, unit in units.items()]  # fmt: skip
    return rows


def queries(bench: Bench) -> list[Row]:
    """K8."""
    ran = f"{bench.entries(EVENTS):,} events, availableNow, local[2], into nothing, all in one process"
    units = {f"{name}: {figure}": unit for name in QUERIES for figure, unit in MOVED.items()}
    return _beside_all("K8", "Nexmark", ran, nexmark, bench, 1, units, {}, [Kafka, Flink])


def peers_rows(stack: contextlib.ExitStack, share: float = 1.0) -> list[Row]:
    """Return all rows of the group. share: of the entries of a whole measurement."""
    bench = Bench(stack, share)
    groups = (drained, arrivals, written, killed, many, cold, sizes, queries)
    return [row for rows in groups for row in rows(bench)]
