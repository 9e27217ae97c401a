"""Where a scene is played: servers, a folder, a random generator, and the Sparks that run its queries.

A case of a scene is one query on one server: what was sent to it, and what became of that.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from spark_streams.connector.source.limits import LIMITS
from spark_streams.connector.wire.address import DEFAULT_PATIENCE, Address, Patience
from spark_streams.connector.wire.server_url import master_name
from spark_streams.operations.verify.history import Added, Place, Row
from spark_streams.operations.verify.judge import Judgement
from spark_streams.operations.verify.producer import Producer, sender
from spark_streams.operations.verify.running_query import PATIENCE, Driver
from tools.chaos.program import ROOT
from tools.chaos.query import SIGNS, SINKS, Fault, Query
from tools.history import Acknowledged, History, check_history
from tools.servers.cluster import RedisCluster
from tools.servers.sentinels import Sentinels
from tools.servers.server import free_port, redis_server_path
from tools.waiting import until

HASTY = Patience(reply=0.5, first_connection=0.5)  # of a producer that gives replies up

# -- Spark and servers -------------------------------------------------------------------------------------------------


class Spark(Driver):
    """A Spark of its own for queries (tools.chaos.program)."""

    def __init__(self, folder: Path, *queries: Query, threads: int = 4, on_executors: bool = False) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="spark-", dir=folder))
        self._given = 0
        for query in queries:
            self.start(query)
        plan = {"parent": os.getpid(), "threads": threads, "on_executors": on_executors}
        (self._folder / "spark.json").write_text(json.dumps(plan))
        environment = {k: v for k, v in os.environ.items() if k not in ("SPARK_HOME", "SPARK_CONF_DIR")}
        environment |= {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        if on_executors:
            environment["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
        command = [sys.executable, "-m", "tools.chaos.program", str(self._folder)]
        super().__init__(command, self._folder, environment, self._folder / "log.txt")

    def start(self, query: Query) -> None:
        """Start a query soon. Its signals of earlier starts are deleted."""
        query.path.mkdir(parents=True, exist_ok=True)
        for sign in SIGNS:
            query.sign(sign).unlink(missing_ok=True)
        self._given += 1
        unfinished = self._folder / f"{self._given:05}.part"
        unfinished.write_text(query.to_json())
        unfinished.replace(unfinished.with_suffix(".query"))

    def run(self, query: Query, trigger: str = "now") -> str:
        """Run a query to its end. Return the error that ended it, or ''."""
        self.start(replace(query, trigger=trigger))
        return self.end(query)

    def drain(self, *queries: Query) -> None:
        """Run queries without their faults until they have read all entries. Raises AssertionError if one fails."""
        faultless = [replace(query, fault=None, trigger="now") for query in queries]
        for query in faultless:
            self.start(query)
        for query in faultless:
            error = self.end(query)
            assert not error, f"{query.name} fails: {error}"

    def end(self, query: Query) -> str:
        """Wait for the end of a query. Return the error that ended it, or ''."""
        self.wait_for(lambda: query.ended() is not None, f"the end of {query.name}")
        return query.ended() or ""

    def stop(self, query: Query) -> str:
        """Stop a query that has read everything. Return the error that ended it, or ''."""
        query.sign("stop").touch()
        return self.end(query)

    def wait_for(self, condition: Callable[[], bool], awaited: str, *alive: Query) -> None:
        """Wait until the condition is true, also while a server is down.

        Raises AssertionError if Spark or one of these queries ends before.
        """

        def is_alive() -> bool:
            return self.process.poll() is None and all(query.ended() is None for query in alive)

        def log() -> str:
            states = {query.name: (query.logged(), query.committed(), query.ended()) for query in alive}
            return f"(logged, committed, ended): {states}\n{self.log()[-2500:]}"

        until(condition, f"waited for {awaited}", PATIENCE, is_alive, log)


def is_committed(query: Query, batch: int) -> bool:
    """Whether the commit log has this batch."""
    return query.committed() >= batch


def client_of(url: str) -> Any:
    """Return a client that uses RESP2 and decodes text."""
    address, settings = Address.parse(url), dict[str, Any](protocol=2, decode_responses=True)
    if address.is_cluster:
        nodes = [redis.cluster.ClusterNode(*node) for node in address.nodes]  # type: ignore[no-untyped-call]
        return redis.RedisCluster(startup_nodes=nodes, **settings)
    if address.asks_sentinels:
        sentinels = redis.Sentinel(list(address.nodes), sentinel_kwargs={"protocol": 2})  # type: ignore[no-untyped-call]
        return sentinels.master_for(master_name(url), **settings)  # type: ignore[no-untyped-call]
    return redis.Redis.from_url(url, **settings, retry=Retry(NoBackoff(), 0))


class DurableServer:
    """A server that persists every command, on a port of its own: it starts again with its data."""

    def __init__(self, kind: str, folder: Path) -> None:
        folder.mkdir(parents=True)
        port, self._log = free_port(), folder / "log.txt"
        self.url = f"redis://127.0.0.1:{port}/0"
        path = [redis_server_path() or "redis-server", "--bind", "127.0.0.1", "--save", ""]
        self._command = path if kind == "redis" else [sys.executable, "-m", "spark_streams.engine"]
        self._command += ["--port", str(port), "--dir", str(folder), "--appendonly", "yes", "--appendfsync", "always"]
        self.start()

    def start(self) -> None:
        """Start the server, and wait until it replies."""
        with self._log.open("ab") as log:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environment)
        with client_of(self.url) as client:
            until(client.ping, "no reply", alive=lambda: self.process.poll() is None, log=self._log.read_text)

    def kill(self) -> None:
        """SIGKILL the server."""
        self.process.kill()
        self.process.wait()


# -- a case ------------------------------------------------------------------------------------------------------------


class Case:
    """A query on one server. Its stream has the name of the case, unless its options name others."""

    def __init__(self, name: str, url: str, folder: Path, chance: random.Random, sink: str, out_url: str = "") -> None:
        self.name, self.url, self.random, self.sink = name.replace(" ", "-"), url, chance, sink
        self.client = client_of(url)
        self.producer = Producer(sender(Address.parse(url)))
        self.added = self.producer.added  # also by other producers
        self.query = Query(str(folder / self.name), url, out=f"out:{self.name}", out_url=out_url)
        self.removed, self.unordered, self.bad = set[Place](), set[Place](), set[Place]()  # History
        self.history, self.report = History(), Judgement()
        self.wrong: list[str] = []  # faults that are not in the report
        self.choices = ""  # of the random generator

    def reads(self, fault: Fault | None = None, sink: str = "", **options: str) -> Query:
        """Set the query: its fault, where it writes, and the options of its source."""
        ahead = self.random.choice([1, LIMITS.prefetch_entries])
        options = {"streams": self.name, "group": "g", **options}
        self.query = replace(self.query, options=options, fault=fault, ahead=ahead, sink=sink or self.sink)
        if self.query.sink == "stream":
            chunk = str(self.random.choice([3, 10, 5000]))
            self.query = replace(self.query, routed=self.random.random() < 0.3, out_options={"chunkSize": chunk})
        return self.query

    @property
    def streams(self) -> list[str]:
        """Input streams."""
        return self.query.options["streams"].split(",")

    def add(self, count: int, *streams: str) -> list[Added]:
        """Add entries to the streams, by default to all of the query."""
        return [entry for stream in streams or self.streams for entry in self.producer.add(stream, count)]

    def hasty(self, name: str) -> Producer:
        """Return another producer, which gives a reply up after half a second, so that its outcome is unknown."""
        address = Address.parse(self.url)
        patience = DEFAULT_PATIENCE if address.is_cluster or address.asks_sentinels else HASTY
        return Producer(sender(replace(address, patience=patience)), name)

    def pending(self) -> list[Place]:
        """Return the entries that are pending."""
        places = []
        for stream in self.streams:
            groups = self.client.xinfo_groups(stream) if self.client.exists(stream) else []
            if any(group["name"] == self.query.group for group in groups):
                entries = self.client.xpending_range(stream, self.query.group, "-", "+", 1_000_000)
                places += [(stream, entry["message_id"]) for entry in entries]
        return places

    def is_acknowledged(self, *streams: str) -> bool:
        """Whether the group has delivered all entries of the streams, and none is pending."""
        for stream in streams or self.streams:
            last = self.client.xinfo_stream(stream)["last-generated-id"]
            groups = [one for one in self.client.xinfo_groups(stream) if one["name"] == self.query.group]
            if not any(group["pending"] == 0 and group["last-delivered-id"] == last for group in groups):
                return False
        return True

    # -- what must hold at the end ---------------------------------------------------------------------------------

    def judge(self, acks_seen: bool = True) -> Judgement:
        """Compare what was sent with what the sink has."""
        dead = self.query.options.get("deadLetterStream")
        letters = [fields for _, fields in self.client.xrange(dead)] if dead else []
        self.history = History(
            added=self.added,
            rows=rows_of(self.query),
            acknowledged=_acknowledgements(self.query),
            removed=self.removed,
            unordered=self.unordered,
            bad=self.bad,
            pending=self.pending(),
            dead_letters=[(fields["dl.stream"], fields["dl.id"]) for fields in letters],
            acks_seen=acks_seen,
        )
        self.report = check_history(self.history)
        self.expect("a row arrived", bool(self.history.kept()), True)
        return self.report

    def expect(self, name: str, actual: object, expected: object) -> None:
        """Note a fault if both values differ."""
        if actual != expected:
            self.wrong.append(f"{name}: {actual!r}, expected {expected!r}")

    def expect_error(self, error: str, *conditions: str) -> None:
        """Note a fault if the query has not ended with one of these named errors."""
        if not error.startswith(tuple(f"[{condition}]" for condition in conditions)):
            self.wrong.append(f"ended with {error[:300]!r}, expected {' or '.join(conditions)}")

    def is_right(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong and not self.report

    def __str__(self) -> str:
        choices = [f"({self.choices})"] if self.choices else []
        return "\n".join([*choices, *self.wrong, *([str(self.report)] if self.report else [])])


def _acknowledgements(query: Query) -> list[Acknowledged]:
    """Return every XACK that the query sent."""
    file = query.path / "acks.jsonl"
    sent = map(json.loads, file.read_text().splitlines() if file.exists() else [])
    return [Acknowledged((ack["stream"], entry), ack["committed"]) for ack in sent for entry in ack["ids"]]


def rows_of(query: Query) -> list[Row]:
    """Return every row in the query's sink, and the rows of uncommitted task attempts (`kept` is False)."""
    rows = _rows_of_attempts(query)
    for file in sorted((query.path / "parquet").glob("batch=*/part-*.parquet")):
        batch, partition = int(file.parent.name.removeprefix("batch=")), int(file.name.split("-")[1])
        columns = pq.ParquetFile(file).read().to_pydict()
        for position, (p, n, stream, entry) in enumerate(zip(*columns.values(), strict=True)):
            rows.append(Row((stream, entry), (p, n), batch, partition, 0, position))
    if query.sink in ("stream", "retries"):
        tried = list(rows)
        with client_of(query.out_address) as client:
            outs = client.scan_iter(match=f"{query.out}:*", count=1000) if query.routed else [query.out]
            for out in sorted(outs):
                rows += rows_of_entries(out, [fields for _, fields in client.xrange(out)], tried)
    return rows


def _rows_of_attempts(query: Query) -> list[Row]:
    """Return the rows that task attempts wrote, those of earlier runs first."""
    committed = {name for file in (query.path / "batches").glob("*.json") for name in json.loads(file.read_text())}
    attempts = []
    for file in (query.path / "rows").glob("*-*-*-*-*.*"):
        batch, partition, attempt, run = map(int, file.stem.split("-")[:4])
        lines = file.read_text().split("\n")[:-1]  # a killed attempt leaves an incomplete last line
        rows = [
            Row((stream, entry), (p, n), batch, partition, attempt, position, kept=file.stem in committed)
            for position, (p, n, stream, entry) in enumerate(map(json.loads, lines))
        ]
        attempts.append(((run, batch, partition, attempt, file.stem), rows))
    return [row for _, rows in sorted(attempts, key=itemgetter(0)) for row in rows]


def rows_of_entries(out: str, entries: Sequence[Mapping[str, str]], tried: Iterable[Row]) -> list[Row]:
    """Return the entries of one output stream as rows. Each belongs to the last run of the batch that contains it.

    An entry does not name its task. Its lane is the partition of the row in the first run of the batch, and the one in
    the last run: rows that were in one task both times are in its order.
    """
    tried_at: dict[Place, list[Row]] = {}
    for row in tried:
        tried_at.setdefault(row.place, []).append(row)
    rows = []
    for position, fields in enumerate(entries):
        place, value = (fields["source"], fields["entry"]), (fields["p"], int(fields["n"]))
        runs = tried_at.get(place, [Row(place, value, -1, -1, -1, position)])
        lane = (out, runs[0].partition, runs[-1].partition)
        rows.append(replace(runs[-1], value=value, position=position, kept=True, lane=lane))
    return rows


# -- the stage ---------------------------------------------------------------------------------------------------------

Replicated = RedisCluster | Sentinels


@dataclass
class Stage:
    """Where one scene is played, once."""

    folder: Path
    servers: Mapping[str, str]  # kind → URL
    random: random.Random
    sink: str = ""  # of its queries; "": by chance for each
    shared: Callable[[], Spark] | None = None  # the Spark of scenes that kill none
    replicated: Replicated | None = None  # all servers behind the URL
    cases: dict[str, Case] = field(default_factory=dict)
    _closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> Stage:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.folder.glob("*/*up"):  # of each driver
            file.with_name(f"{file.name.removesuffix('up')}stop").touch()
        for case in self.cases.values():
            case.client.close()
        self._closing.close()

    @property
    def kind(self) -> str:
        """The first kind of server."""
        return next(iter(self.servers))

    def case(self, name: str = "s", kind: str = "", url: str = "", out_url: str = "") -> Case:
        """Return a new case."""
        kind = kind or self.kind
        sink = self.sink or self.random.choice(SINKS)
        case = Case(f"{name} {kind}", url or self.servers[kind], self.folder, self.random, sink, out_url)
        self.cases[f"{name}, {kind}"] = case
        return case

    def case_of_each(self, names: Iterable[str]) -> Iterator[tuple[str, Case]]:
        """Yield names, each with a new case on each server."""
        for name in names:
            for kind in self.servers:
                yield name, self.case(name, kind)

    def spark(self) -> Spark:
        """Return a running Spark, which the scene does not kill."""
        assert self.shared is not None, "this scene needs a Spark that it does not kill"
        return self.shared()

    def durable_server(self) -> DurableServer:
        """Return a server for this scene only."""
        server = DurableServer(self.kind, Path(tempfile.mkdtemp(dir=self.folder)) / "server")
        self._closing.callback(server.kill)
        return server

    def is_right(self) -> bool:
        """Whether nothing is wrong."""
        return all(case.is_right() for case in self.cases.values())

    def __str__(self) -> str:
        return "\n".join(str(case) for case in self.cases.values())
