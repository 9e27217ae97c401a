"""A thousand keys over eight shards: who writes them and who reads them is killed in the midst of batches, again and
again, and in a cluster a master, too. Each key's numbers stay in their order, none is lost and none is there twice.

    feed ── writer ──> out:writer, 8 shards ── reader, ordered ──> out:reader, 8 shards

Both queries are of one Spark, which gets SIGKILL. `python -m tools.chaos.keyed` shows it, with figures.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from spark_streams.options.sink_options import SinkOptions
from spark_streams.shards.names import shards_of
from spark_streams.sink.send.write import append
from spark_streams.wire.address.address import Address
from spark_streams.wire.session import Session
from tools.chaos.process import PATIENCE, Job
from tools.chaos.query import Query
from tools.chaos.replaced_masters import running
from tools.servers.cluster import RedisCluster
from tools.servers.sentinels import until
from tools.servers.server import running_engine, running_redis

SHARDS, KEYS = 8, 1_000
NAME = "shards: writers and readers killed"
KINDS = ("engine", "redis", "cluster")
_PROGRAM = "tools.chaos.keyed_job"


@dataclass
class Judged:
    """What is in the last shards. lost, twice: rows; reordered: that come behind a later one of their key; kills: how
    many, and how many of them in the midst of a batch of the writer, of the reader; ended: errors of queries that were
    started again."""

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
        """Whether all is as it should be."""
        return bool(self.rows) and not (self.lost or self.twice or self.reordered)

    def __str__(self) -> str:
        amid = ", ".join(f"{count} amid a batch of the {name}" for name, count in sorted(self.amid.items()))
        return (
            f"{self.rows:,} rows of {self.keys:,} keys in {SHARDS} shards; drivers killed {self.kills} times ({amid}), "
            f"masters {self.masters_killed}; started again after errors: {len(self.ended)}; "
            f"lost {self.lost}, twice {self.twice}, out of their key's order {self.reordered}"
        )

    def faults(self) -> list[str]:
        """What is wrong, for the table."""
        return [] if self else [str(self), *self.ended]


def run(
    folder: Path,
    url: str,
    seed: int,
    rows: int = 20_000,
    kills: int = 4,
    cluster: RedisCluster | None = None,
    tell: Callable[[str], object] = lambda line: None,
) -> Judged:
    """One run. cluster: whose master is killed in one of the rounds."""
    chance, judged = random.Random(seed), Judged()
    feed(url, rows)
    writer, reader = queries(folder, url, rows, chance)
    master_at = chance.randrange(kills) if cluster is not None else -1
    for number in range(kills):
        with Job(folder, [writer, reader], program=_PROGRAM) as job:
            _wait_until_amid(job, writer, reader, rows, chance)
            if cluster is not None and number == master_at:
                judged.masters_killed += _kill_a_master(cluster, chance)
                time.sleep(chance.uniform(0, 2))
            amid = [query.name for query in (writer, reader) if query.logged() > query.committed()]
            judged.ended += [text for query in (writer, reader) if (text := query.ended())]
            job.kill()
        judged.kills += 1
        judged.amid.update(amid)
        tell(f"killed {number + 1} of {kills}, amid a batch of: {', '.join(amid) or 'none'}; "
             f"{held(url, writer.out):,} rows in the first shards, {held(url, reader.out):,} in the last")  # fmt: skip
        if cluster is not None:
            cluster.healthy()
    _to_the_end(folder, url, rows, writer, reader, judged)
    judge(url, reader.out, rows, judged)
    return judged


def feed(url: str, rows: int) -> None:
    """Rows of all keys in turns, each key's from 0 on, in one stream."""
    options = SinkOptions.parse({"url": url, "stream": "feed", "delivery": "at-least-once"})

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, rows, 10_000):
            some = range(start, min(start + 10_000, rows))
            keys, numbers = [f"key-{n % KEYS}" for n in some], [n // KEYS for n in some]
            yield pa.RecordBatch.from_pydict({"key": keys, "n": numbers})

    append(batches(), options, None)


def queries(folder: Path, url: str, rows: int, chance: random.Random) -> tuple[Query, Query]:
    """The writer and the reader."""
    most = str(max(500, rows // 25))
    into = {"shards": str(SHARDS), "shardBy": "key", "chunkSize": str(chance.choice([100, 500, 5_000]))}
    ordered = {"ordered": "true", "maxEntriesPerTrigger": most}
    writer = Query("writer", str(folder / "writer"), url, {"streams": "feed", **ordered}, out_options=into)
    shards = {"streams": writer.out, "shards": str(SHARDS)}
    return writer, Query("reader", str(folder / "reader"), url, {**shards, **ordered}, out_options=into)


def _wait_until_amid(job: Job, writer: Query, reader: Query, rows: int, chance: random.Random) -> None:
    """Until one of both queries, in turns by chance, is in the midst of a batch that this Spark has begun, or all
    rows are there."""
    chosen = chance.choice([writer, reader])
    job.wait_for(lambda: writer.sign("up").exists() and reader.sign("up").exists(), "both queries are up", job.queries)
    first = max(chosen.logged(), 0)
    job.wait_for(
        lambda: (
            (chosen.logged() > first and chosen.logged() > chosen.committed())
            or bool(writer.ended() or reader.ended())
            or held(reader.url, reader.out) >= rows
        ),
        f"a batch of the {chosen.name}",
        job.queries,
    )
    time.sleep(chance.uniform(0, 0.3))


def _kill_a_master(cluster: RedisCluster, chance: random.Random) -> int:
    before = cluster.owner(chance.choice(shards_of("out:writer", SHARDS)))
    cluster.kill(before)
    until(lambda: before not in cluster.masters(), "no failover")
    return 1


def _to_the_end(folder: Path, url: str, rows: int, writer: Query, reader: Query, judged: Judged) -> None:
    """Run both until the last shards have all rows, or more, and nothing comes any more; again where an error ends one,
    as whoever runs queries does."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with Job(folder, [writer, reader], program=_PROGRAM) as job:
            job.wait_for(
                lambda: held(url, reader.out) >= rows or bool(writer.ended() or reader.ended()), "the end", job.queries
            )
            failed = [text for query in (writer, reader) if (text := query.ended())]
            if not failed:
                quiet = [query.committed() for query in (writer, reader)]
                time.sleep(2)
                job.wait_for(lambda: all(q.logged() == q.committed() for q in (writer, reader)), "the last commit")
                if quiet == [query.committed() for query in (writer, reader)]:
                    return
        judged.ended += failed
        if time.monotonic() > deadline:
            return  # what is lost is said


def held(url: str, stream: str) -> int:
    """How many entries the shards have; 0 while nobody can say."""
    asked = [("XLEN", name) for name in shards_of(stream, SHARDS)]
    with Session(Address.parse(url), is_known=True) as session:
        return sum(session.run(lambda server: server.execute_all(asked)))


def judge(url: str, stream: str, rows: int, judged: Judged) -> None:
    """Hold what is in the shards against what was fed."""
    numbers: dict[bytes, list[int]] = {}
    with Session(Address.parse(url), is_known=True) as session:
        for name in shards_of(stream, SHARDS):
            for _, fields in session.execute("XRANGE", name, "-", "+"):
                pair = dict(zip(fields[0::2], fields[1::2], strict=True))
                numbers.setdefault(pair[b"key"], []).append(int(pair[b"n"]))
    judged.rows, judged.keys = sum(map(len, numbers.values())), len(numbers)
    for key in range(KEYS):
        wanted, found = range(key, rows, KEYS), numbers.get(b"key-%d" % key, [])
        judged.lost += len(set(range(len(wanted))) - set(found))
        judged.twice += len(found) - len(set(found))
        judged.reordered += sum(one < before for before, one in itertools.pairwise(found))


def main() -> int:
    """Show it."""
    parser = argparse.ArgumentParser(prog="python -m tools.chaos.keyed", description=__doc__)
    parser.add_argument("--server", choices=KINDS, default="cluster")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    begun = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - begun:6.1f} s  {line}", flush=True)

    with tempfile.TemporaryDirectory(prefix="rstream-keyed-") as folder:
        if chosen.server == "cluster":
            with running("cluster") as cluster:
                assert isinstance(cluster, RedisCluster)
                judged = run(Path(folder), cluster.url, chosen.seed, chosen.rows, chosen.kills, cluster, tell)
        else:
            with running_engine() if chosen.server == "engine" else running_redis() as server:
                judged = run(Path(folder), server.url, chosen.seed, chosen.rows, chosen.kills, tell=tell)
    tell(str(judged))
    for error in judged.ended:
        print(error)
    return 0 if judged else 1


if __name__ == "__main__":
    sys.exit(main())
