"""The sides of a comparison: each reads streams or topics with the same events, and writes where it can."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.bench.peers import program
from tools.bench.peers.client import Client
from tools.bench.row import NoFigureError
from tools.bench.servers import Running, running
from tools.servers.jars import ROOT, fetched, java
from tools.servers.kafka import Broker, running_kafka

_numbers = itertools.count()
_KINDS = ("INT", "STRING", "DOUBLE", "BOOLEAN", "TIMESTAMP")
_MADE = (
    "CAST(id % 1000000 AS INT)", "concat('text ', id)", "id / 7", "id % 3 = 0",
    "timestamp_seconds(1767225600 + id % 1000000)",
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Events of one shape. made: expressions of `id`."""

    name: str
    columns: Mapping[str, str]
    made: Sequence[str]

    @property
    def schema(self) -> str:
        """For Spark."""
        return ", ".join(f"{name} {kind}" for name, kind in self.columns.items())

    @property
    def flink(self) -> str:
        """For Flink."""
        schema = self.schema.replace("STRUCT<", "ROW<").replace(": ", " ")
        return schema.replace("TIMESTAMP", "TIMESTAMP_LTZ(3)")

    @property
    def rows(self) -> list[list[str]]:
        """Selections from `id`."""
        return [[f"{made} AS {name}" for name, made in zip(self.columns, self.made, strict=True)]]


SHAPES = {
    "three": Shape(
        "3 fields",
        {"carrier": "STRING", "flight": "INT", "delay": "DOUBLE"},
        ("element_at(array('UA', 'AA', 'B6', 'DL', 'EV'), CAST(id % 5 + 1 AS INT))", "CAST(id * 7919 % 8500 AS INT)",
         "id % 2200 / 10 - 20"),
    ),
    "twenty": Shape(
        "20 fields",
        {f"f{place}": _KINDS[place % len(_KINDS)] for place in range(20)},
        [_MADE[place % len(_MADE)] for place in range(20)],
    ),
    "json": Shape(
        "JSON of 1 kB",
        {
            "purchase": "STRUCT<id: BIGINT, customer: STRING, "
            "items: ARRAY<STRUCT<sku: STRING, price: DOUBLE, tags: ARRAY<STRING>>>>"
        },
        ("named_struct('id', id, 'customer', concat('c', id), 'items', transform(sequence(0, 16), place -> "
         "named_struct('sku', concat('s', id, '-', place), 'price', place + id % 1000 / 100, 'tags', "
         "array('a', 'b'))))",),
    ),
    "event": Shape("an event", {"t": "BIGINT", "n": "BIGINT"}, ("0L", "id")),
}  # fmt: skip


class Bench:
    """Servers, started when they are first needed, and a folder for everything that is written."""

    def __init__(self, stack: contextlib.ExitStack, share: float = 1.0) -> None:
        self.stack, self.share = stack, share
        self.loaded: set[str] = set()  # streams that have their entries
        self.home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rstream-peers-")))

    def entries(self, count: int) -> int:
        """Return how many entries a run has that has `count` in a whole measurement."""
        return max(100, round(count * self.share))

    @functools.cached_property
    def redis(self) -> Running:
        """The server of ours, and of spark-redis."""
        return self.stack.enter_context(running("redis-server"))

    @functools.cached_property
    def kafka(self) -> Broker:
        """The broker of the others."""
        return self.stack.enter_context(running_kafka())

    def folder(self, name: str) -> Path:
        """Return a new empty folder."""
        made = self.home / f"{name}-{next(_numbers)}"
        made.mkdir()
        return made

    def topic(self, name: str, partitions: int = 1) -> str:
        """Create a topic, if it is not there. Return its name."""
        admin = importlib.import_module("confluent_kafka.admin")  # an environment without it is type-checked, too
        client = admin.AdminClient({"bootstrap.servers": self.kafka.url})
        if name not in client.list_topics(timeout=30).topics:
            try:
                client.create_topics([admin.NewTopic(name, partitions, 1)], request_timeout=120)[name].result(120)
            except (admin.KafkaException, TimeoutError) as error:
                raise NoFigureError(f"Kafka: no topic of {partitions:,} partitions within 120 s: {error}") from None
        return name

    def producer(self) -> Any:
        """Return a producer for any topic."""
        settings = {"linger.ms": 1, "queue.buffering.max.messages": 1_000_000}
        return importlib.import_module("confluent_kafka").Producer({"bootstrap.servers": self.kafka.url, **settings})


class Side:
    """A client of Spark with its server. name: as the rows name it; on_redis: whether it reads from Redis, not from
    Kafka; python, jars: of the client, the latter by their name in tools.servers.jars."""

    name: str
    on_redis = False
    python, jars = sys.executable, ""
    kills = 20  # of K4, in which a client of ours or of Kafka's starts in less time than the others

    def __init__(self, bench: Bench, delivery: str = "exactly-once") -> None:
        """delivery: of the sink, where there is a choice."""
        self.bench, self.delivery = bench, delivery

    @property
    def server(self) -> int:
        """PID of its server."""
        return self.bench.redis.pid if self.on_redis else self.bench.kafka.pid

    def loaded(self, shape: Shape, partitions: int, counts: Sequence[int]) -> list[str]:
        """Return streams with so many entries, which this side can read. They are written once."""
        bench = self.bench
        writer = self if isinstance(self, Kafka) else Ours(bench) if self.on_redis else Kafka(bench)
        names = [f"{len(shape.columns)}-{type(writer).__name__}-{partitions}-{count}" for count in counts]
        if names[-1] not in bench.loaded:
            with Kafka(bench).client() as client:
                for name, count in zip(names, counts, strict=True):
                    load(client, {name if self.on_redis else bench.topic(name, partitions): writer}, shape, count)
            bench.loaded.add(names[-1])
        return names

    def client(self, recover: Path | None = None) -> Client:
        """Start a client. recover: the checkpoints of one that was killed, where those of a query are not enough."""
        jars = ",".join(str(jar) for jar in fetched(self.jars) if jar.suffix == ".jar") if self.jars else ""
        command = [self.python, program.__file__, jars, str(self.bench.redis.port)]
        variables = {"PYSPARK_PYTHON": self.python, "PYSPARK_DRIVER_PYTHON": self.python, "PYTHONPATH": str(ROOT)}
        return Client(command, variables)

    def source(self, stream: str, schema: str, group: str) -> dict[str, Any]:
        """Return the source as `program` takes it. group: of consumers, where there are groups."""
        raise NotImplementedError

    def sink(self, stream: str) -> dict[str, Any]:
        """Return the sink likewise."""
        raise NotImplementedError

    def run(
        self, client: Client, stream: str, shape: Shape, sink: str, folder: Path, interval: int | None = None
    ) -> Mapping[str, float]:
        """Read a stream into `noop`, into `parquet`, or into a stream of another name: to its end; or, with an interval
        (seconds), start to read for ever. Return rows and milliseconds, if they are known."""
        files = {name: {"format": name, "options": {"path": str(folder / "table")}} for name in ("noop", "parquet")}
        trigger = {"availableNow": True} if interval is None else {"processingTime": f"{interval} seconds"}
        answer: Mapping[str, float] = client.ask({
            "do": "query", "sources": {"input": self.source(stream, shape.schema, folder.name)},
            "sql": "SELECT * FROM input", "sink": files.get(sink) or self.sink(sink),
            "checkpoint": str(folder / "checkpoint"), "trigger": trigger,
        })  # fmt: skip
        return answer

    def make(self, client: Client, count: int) -> None:
        """Make rows of three fields, if that can be done before they are written."""
        client.ask({"do": "rows", "count": count, "select": SHAPES["three"].rows, "keep": True})

    def write(self, client: Client, stream: str, count: int) -> None:
        """Write them."""
        client.ask({"do": "write", "sink": self.sink(stream)})


class Ours(Side):
    """This package."""

    name, on_redis = "ours", True

    def source(self, stream: str, schema: str, group: str) -> dict[str, Any]:
        names = {"streamsPattern" if "*" in stream else "streams": stream}
        options = {"url": self.bench.redis.url, "group": group, "startingOffsets": "earliest", **names}
        return {"format": "rstream", "schema": schema, "options": options}

    def sink(self, stream: str) -> dict[str, Any]:
        options = {"url": self.bench.redis.url, "stream": stream, "delivery": self.delivery}
        return {"format": "rstream", "options": options}


class OursNoAck(Ours):
    """The same without a pending list, as all the others read: the checkpoint alone has the position."""

    name = "ours, noAck"

    def source(self, stream: str, schema: str, group: str) -> dict[str, Any]:
        source = super().source(stream, schema, group)
        return source | {"options": source["options"] | {"noAck": "true", "minPartitions": "2"}}


class Kafka(Side):
    """Spark's Kafka connector, with values of JSON."""

    name, jars = "Kafka connector", "spark-kafka"

    def source(self, stream: str, schema: str, group: str) -> dict[str, Any]:
        options = {"kafka.bootstrap.servers": self.bench.kafka.url, "subscribe": stream, "startingOffsets": "earliest"}
        decoded = f"from_json(CAST(value AS STRING), '{schema}') AS v"
        return {"format": "kafka", "options": options, "select": [[decoded], ["v.*"]]}

    def sink(self, stream: str) -> dict[str, Any]:
        options = {"kafka.bootstrap.servers": self.bench.kafka.url, "topic": stream}
        return {"format": "kafka", "options": options, "select": [["to_json(struct(*)) AS value"]]}


class KafkaAtOnce(Kafka):
    """The same, without a wait of half a second (the default) for each task that has read its part of a partition."""

    name = "Kafka connector, fetch.max.wait.ms=10"

    def source(self, stream: str, schema: str, group: str) -> dict[str, Any]:
        source = super().source(stream, schema, group)
        return source | {"options": source["options"] | {"kafka.fetch.max.wait.ms": "10"}}


class KafkaAvro(Kafka):
    """The same, with values of Avro."""

    name = "Kafka connector, Avro"

    def source(self, stream: str, schema: str, group: str) -> dict[str, Any]:
        decoded = [[f"from_avro(value, '{avro(schema)}', map()) AS v"], ["v.*"]]
        return super().source(stream, schema, group) | {"select": decoded}

    def sink(self, stream: str) -> dict[str, Any]:
        return super().sink(stream) | {"select": [[f"to_avro(struct(*), '{avro(SHAPES['three'].schema)}') AS value"]]}


def avro(schema: str) -> str:
    """Return the Avro schema that Spark writes for columns of these types."""
    kinds = {"STRING": "string", "INT": "int", "BIGINT": "long", "DOUBLE": "double"}
    fields = [{"name": name, "type": [kinds[kind], "null"]} for name, kind in map(str.split, schema.split(", "))]
    return json.dumps({"type": "record", "name": "topLevelRecord", "fields": fields})


class Flink(Side):
    """Flink SQL, in one process with as many slots as the others have cores, and a checkpoint each second."""

    name, kills = "Flink", 10

    def client(self, recover: Path | None = None) -> Client:
        settings = {
            "parallelism.default": "2",
            "execution.checkpointing.interval": "1s",
            "rest.port": "0",
            "restart-strategy.type": "disable",
        }
        # The default, the job manager's memory, holds 5 MB.
        settings["execution.checkpointing.dir"] = f"file://{recover or self.bench.folder('flink')}"
        if recover:
            settings["execution.checkpointing.externalized-checkpoint-retention"] = "RETAIN_ON_CANCELLATION"
            done = sorted(recover.glob("*/chk-*/_metadata"), key=lambda file: file.stat().st_mtime)
            if done:
                settings["execution.state-recovery.path"] = f"file://{done[-1].parent}"
        command = java("flink", "-Xmx2g", "--add-opens=java.base/java.util=ALL-UNNAMED")
        return Client([*command, "FlinkSql", *(f"{name}={value}" for name, value in settings.items())], {})

    def run(
        self, client: Client, stream: str, shape: Shape, sink: str, folder: Path, interval: int | None = None
    ) -> Mapping[str, float]:
        name = folder.name.replace("-", "_")
        self.create(client, f"in_{name}", shape.flink, self.read(stream, interval is None))
        files = {
            "noop": "'connector' = 'blackhole'",
            "parquet": f"'connector' = 'filesystem', 'path' = 'file://{folder}/table', 'format' = 'parquet'",
        }
        self.create(client, f"out_{name}", shape.flink, files.get(sink) or self._written(sink, name))
        client.ask(f"{'' if interval is None else '--'}INSERT INTO out_{name} SELECT * FROM in_{name}")
        return {}

    def make(self, client: Client, count: int) -> None:
        pass  # a source makes them

    def write(self, client: Client, stream: str, count: int) -> None:
        name = stream.replace("-", "_")
        self.create(client, f"ids_{name}", "id BIGINT", "'connector' = 'datagen', "
                    "'rows-per-second' = '1000000000', 'fields.id.kind' = 'sequence', "
                    f"'fields.id.start' = '0', 'fields.id.end' = '{count - 1}'")  # fmt: skip
        self.create(client, f"out_{name}", SHAPES["three"].flink, self._written(stream, name))
        client.ask(
            f"INSERT INTO out_{name} SELECT ELT(CAST(MOD(id, 5) AS INT) + 1, 'UA', 'AA', 'B6', 'DL', 'EV'), "
            f"CAST(MOD(id * 7919, 8500) AS INT), CAST(MOD(id, 2200) AS DOUBLE) / 10 - 20 FROM ids_{name}"
        )

    def create(self, client: Client, name: str, columns: str, options: str) -> None:
        """Create a table."""
        client.ask(f"CREATE TABLE {name} ({columns}) WITH ({options})")

    def read(self, stream: str, to_end: bool) -> str:
        """Return the options of a topic that is read, to its end or for ever."""
        bounded = ", 'scan.bounded.mode' = 'latest-offset'" if to_end else ""
        return f"{self._topic(stream)}, 'scan.startup.mode' = 'earliest-offset'{bounded}"

    def _topic(self, stream: str) -> str:
        return (
            f"'connector' = 'kafka', 'topic' = '{stream}', 'properties.bootstrap.servers' = '{self.bench.kafka.url}', "
            "'format' = 'json', 'json.timestamp-format.standard' = 'ISO-8601'"
        )

    def _written(self, stream: str, name: str) -> str:
        transactional = (
            f", 'sink.transactional-id-prefix' = '{name}', 'properties.transaction.timeout.ms' = '600000'"
            if self.delivery == "exactly-once" else ""
        )  # fmt: skip
        return f"{self._topic(stream)}, 'sink.delivery-guarantee' = '{self.delivery}'{transactional}"


class SparkRedis(Side):
    """spark-redis, on the newest Spark where it reads streams, with redis-py for what it cannot write."""

    name, jars, on_redis, kills = "spark-redis", "spark-redis", True, 10
    python = str(Path(sys.prefix).parent / "spark-redis" / "bin" / "python")

    def source(self, stream: str, schema: str, group: str) -> dict[str, Any]:
        offsets = {"offsets": {stream: {"groupName": group, "offset": "0-0"}}}
        options = {
            "stream.keys": stream, "stream.group.name": group, "stream.offsets": json.dumps(offsets),
            "stream.parallelism": "2", "stream.read.batch.size": "1000",
        }  # fmt: skip
        return {"format": "redis", "schema": schema, "options": options}

    def sink(self, stream: str) -> dict[str, Any]:
        return {"format": "redis-py", "options": {"port": self.bench.redis.port, "stream": stream}}


def load(client: Client, streams: Mapping[str, Side], shape: Shape, count: int) -> None:
    """Write the same rows to the streams of these sides."""
    client.ask({"do": "rows", "count": count, "select": shape.rows, "keep": False})
    for stream, side in streams.items():
        client.ask({"do": "write", "sink": side.sink(stream)})
