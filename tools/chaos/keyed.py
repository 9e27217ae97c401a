"""A thousand keys over eight shards: the driver of writer and reader is killed during batches, several times.

In a cluster a master is killed, too. The numbers of each key keep their order, and each is there once.

    feed ── writer ──> out:writer, 8 shards ── reader, ordered ──> out:reader, 8 shards

Both queries run in one Spark, which gets SIGKILL.

`python -m tools.chaos.keyed FILE` is that Spark: FILE has the format of tools.chaos.job. A query is ordered, and writes
from its streams into shards by key.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import spark_streams
from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.shards.names import shards_of
from spark_streams.connector.sink.chunk_writer import append
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.session import Session
from spark_streams.operations.verify.running_query import PATIENCE
from tools.chaos.job import Job, error_of, session
from tools.chaos.query import Query
from tools.servers.cluster import RedisCluster
from tools.waiting import until

SHARDS, KEYS = 8, 1_000
NAME = "shards: writers and readers killed"
KINDS = ("engine", "redis", "cluster")
_PROGRAM = "tools.chaos.keyed"


@dataclass
class Judged:
    """Content of the last shards.

    lost, twice: rows; reordered: rows that follow a later row of their key; kills: of the driver; amid: kills during a
    batch, by query; ended: errors of queries that were restarted.
    """

    rows: int = 0
    keys: int = 0
    lost: int = 0
    twice: int = 0
    reordered: int = 0
    kills: int = 0
    amid: Counter[str] = field(default_factory=Counter)
    masters_killed: int = 0
    ended: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether nothing is wrong."""
        return bool(self.rows) and not (self.lost or self.twice or self.reordered)

    def __str__(self) -> str:
        amid = ", ".join(f"{count} during a batch of the {name}" for name, count in sorted(self.amid.items()))
        return (
            f"{self.rows:,} rows of {self.keys:,} keys in {SHARDS} shards; drivers killed {self.kills} times ({amid}), "
            f"masters {self.masters_killed}; restarts after errors: {len(self.ended)}; "
            f"lost {self.lost}, twice {self.twice}, out of order {self.reordered}"
        )

    def faults(self) -> list[str]:
        """Return what is wrong, for the table."""
        return [] if self else [str(self), *self.ended]


def run(
    folder: Path,
    url: str,
    seed: int,
    rows: int = 20_000,
    kills: int = 4,
    cluster: RedisCluster | None = None,
) -> Judged:
    """Run once. cluster: one of its masters is killed in one of the rounds."""
    chance, judged = random.Random(seed), Judged()
    feed(url, rows)
    writer, reader = queries(folder, url, rows, chance)
    master_round = chance.randrange(kills) if cluster is not None else -1
    for number in range(kills):
        with Job(folder, [writer, reader], program=_PROGRAM) as job:
            _wait_for_batch(job, writer, reader, rows, chance)
            if cluster is not None and number == master_round:
                judged.masters_killed += _kill_a_master(cluster, chance)
                time.sleep(chance.uniform(0, 2))
            amid = [query.name for query in (writer, reader) if query.logged() > query.committed()]
            judged.ended += [text for query in (writer, reader) if (text := query.ended())]
            job.kill()
        judged.kills += 1
        judged.amid.update(amid)
        if cluster is not None:
            cluster.healthy()
    _run_to_end(folder, url, rows, writer, reader, judged)
    judge(url, reader.out, rows, judged)
    return judged


def feed(url: str, rows: int) -> None:
    """Add rows to stream `feed`. The keys take turns; the numbers of each key start at 0."""
    options = SinkOptions.parse({"url": url, "stream": "feed", "delivery": "at-least-once"})

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, rows, 10_000):
            row_numbers = range(start, min(start + 10_000, rows))
            keys, numbers = [f"key-{n % KEYS}" for n in row_numbers], [n // KEYS for n in row_numbers]
            yield pa.RecordBatch.from_pydict({"key": keys, "n": numbers})

    append(batches(), options, None)


def queries(folder: Path, url: str, rows: int, chance: random.Random) -> tuple[Query, Query]:
    """Return the writer and the reader."""
    batch_size = str(max(500, rows // 25))
    sharding = {"shards": str(SHARDS), "shardBy": "key", "chunkSize": str(chance.choice([100, 500, 5_000]))}
    ordered = {"ordered": "true", "maxEntriesPerTrigger": batch_size}
    writer = Query("writer", str(folder / "writer"), url, {"streams": "feed", **ordered}, out_options=sharding)
    shards = {"streams": writer.out, "shards": str(SHARDS)}
    return writer, Query("reader", str(folder / "reader"), url, {**shards, **ordered}, out_options=sharding)


def _wait_for_batch(job: Job, writer: Query, reader: Query, rows: int, chance: random.Random) -> None:
    """Wait until a randomly selected query runs a batch that this Spark has started, or until all rows are there."""
    target = chance.choice([writer, reader])
    job.wait_for(lambda: writer.sign("up").exists() and reader.sign("up").exists(), "both queries are up", job.queries)
    first = max(target.logged(), 0)
    job.wait_for(
        lambda: (
            (target.logged() > first and target.logged() > target.committed())
            or bool(writer.ended() or reader.ended())
            or held(reader.url, reader.out) >= rows
        ),
        f"a batch of the {target.name}",
        job.queries,
    )
    time.sleep(chance.uniform(0, 0.3))


def _kill_a_master(cluster: RedisCluster, chance: random.Random) -> int:
    before = cluster.owner(chance.choice(shards_of("out:writer", SHARDS)))
    cluster.kill(before)
    until(lambda: before not in cluster.masters(), "no failover")
    return 1


def _run_to_end(folder: Path, url: str, rows: int, writer: Query, reader: Query, judged: Judged) -> None:
    """Run both queries until the last shards have all rows and no batch follows.

    If an error ends a query, start both again, as an operator does.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        with Job(folder, [writer, reader], program=_PROGRAM) as job:
            job.wait_for(
                lambda: held(url, reader.out) >= rows or bool(writer.ended() or reader.ended()), "the end", job.queries
            )
            failed = [text for query in (writer, reader) if (text := query.ended())]
            if not failed:
                committed = [query.committed() for query in (writer, reader)]
                time.sleep(2)
                job.wait_for(lambda: all(q.logged() == q.committed() for q in (writer, reader)), "the last commit")
                if committed == [query.committed() for query in (writer, reader)]:
                    return
        judged.ended += failed
        if time.monotonic() > deadline:
            return  # judge reports the missing rows


def held(url: str, stream: str) -> int:
    """Return the number of entries in the shards."""
    commands = [("XLEN", name) for name in shards_of(stream, SHARDS)]
    with Session(Address.parse(url), is_known=True) as session:
        return sum(session.run(lambda server: server.execute_all(commands)))


def judge(url: str, stream: str, rows: int, judged: Judged) -> None:
    """Compare the rows in the shards with the rows of the feed."""
    numbers: dict[bytes, list[int]] = {}
    with Session(Address.parse(url), is_known=True) as session:
        for name in shards_of(stream, SHARDS):
            for _, fields in session.execute("XRANGE", name, "-", "+"):
                pair = dict(zip(fields[0::2], fields[1::2], strict=True))
                numbers.setdefault(pair[b"key"], []).append(int(pair[b"n"]))
    judged.rows, judged.keys = sum(map(len, numbers.values())), len(numbers)
    for key in range(KEYS):
        expected, numbers_of_key = range(key, rows, KEYS), numbers.get(b"key-%d" % key, [])
        judged.lost += len(set(range(len(expected))) - set(numbers_of_key))
        judged.twice += len(numbers_of_key) - len(set(numbers_of_key))
        judged.reordered += sum(number < before for before, number in itertools.pairwise(numbers_of_key))


# -- the job -----------------------------------------------------------------------------------------------------------


def start(spark: SparkSession, query: Query) -> StreamingQuery:
    """Start one query."""
    settings = {"url": query.url, "group": query.group, "startingOffsets": "earliest", **query.options}
    rows = spark.readStream.format("rstream").schema("key STRING, n LONG").options(**settings).load()
    writer = rows.writeStream.format("rstream").queryName(query.name)
    writer = writer.options(url=query.url, stream=query.out, **query.out_options)
    return writer.option("checkpointLocation", str(query.path / "checkpoint")).start()


def main(file: str) -> None:
    """Run the queries of the file until each has ended or its file `stop` exists."""
    plan = json.loads(Path(file).read_text())
    spark = session(plan["master"], plan["conf"])
    spark_streams.register(spark)
    running = [(query, start(spark, query)) for query in map(Query.from_json, plan["queries"])]
    for query, _ in running:
        query.sign("up").touch()
    while running:
        for query, streaming in list(running):
            if query.sign("stop").exists() and streaming.isActive:
                streaming.stop()
            if not streaming.isActive:
                query.sign("ended").write_text(error_of(streaming))
                running.remove((query, streaming))
        time.sleep(0.02)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
