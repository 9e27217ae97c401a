"""A scene for a query in this process's Spark: a folder, a server and a random generator."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import redis
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_streams.connector.running.run import may_have_more
from spark_streams.connector.source.limits import LIMITS
from spark_streams.operations.verify.history import Acknowledged, Added, History, Place, Report, check_history
from tools.chaos.job import TOO_SLOW, error_of, start
from tools.chaos.producer import Producer, client_of
from tools.chaos.query import Fault, Query, into_a_stream
from tools.chaos.sink import rows_of


def gather(query: Query, added: Iterable[Added]) -> History:
    """Return the history of a drained query."""
    added = list(added)
    streams = sorted({entry.stream for entry in added})
    return History(
        added=added,
        rows=rows_of(query),
        acknowledged=acknowledgements(query),
        pending=[place for stream in streams for place in pending(query, stream)],
        dead_letters=dead_letters(query),
    )


def acknowledgements(query: Query) -> list[Acknowledged]:
    """Return every XACK that the query sent."""
    file = query.path / "acks.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [
        Acknowledged((ack["stream"], entry), ack["committed"]) for ack in map(json.loads, lines) for entry in ack["ids"]
    ]


def pending(query: Query, stream: str) -> list[Place]:
    """Return the entries of a stream that are pending."""
    with client_of(query.url) as client:
        try:
            entries = client.xpending_range(stream, query.group, "-", "+", 1_000_000)
        except redis.ResponseError as error:
            if "NOGROUP" in str(error):
                return []
            raise
    return [(stream, entry["message_id"]) for entry in entries]


def dead_letters(query: Query) -> list[Place]:
    """Return the original entries of the query's dead letters."""
    stream = query.options.get("deadLetterStream")
    if stream is None:
        return []
    with client_of(query.url) as client:
        return [(fields["dl.stream"], fields["dl.id"]) for _, fields in client.xrange(stream)]


# -- a scene -----------------------------------------------------------------------------------------------------------


PATIENCE = 300.0  # seconds that any step may take on a busy machine


@dataclass
class Outcome:
    """Outcome of a query. wrong: faults that are not in the report; choices: of the random generator."""

    history: History
    report: Report
    wrong: list[str] = field(default_factory=list)
    choices: str = ""

    def expect(self, name: str, actual: object, expected: object) -> None:
        """Add a fault if both values differ."""
        if actual != expected:
            self.wrong.append(f"{name}: {actual!r}, expected {expected!r}")

    def expect_error(self, error: str, condition: str) -> None:
        """Add a fault if the query has not ended with this named error."""
        if not error.startswith(f"[{condition}]"):
            self.wrong.append(f"ended with {error[:300]!r}, expected [{condition}]")

    def __bool__(self) -> bool:
        """Whether rows arrived, and nothing is wrong."""
        return bool(self.history.kept()) and not self.wrong and not self.report

    def __str__(self) -> str:
        choices = [f"({self.choices})"] if self.choices else []
        return "\n".join(
            choices + [*self.wrong, str(self.report)] + ([] if self.history.kept() else ["no row arrived"])
        )


# Signal files of a query and its fault.
SIGNS = ("up", "held", "go", "struck", "asleep", "wake", "zombie")


@dataclass
class Scene:
    """A scene.

    kind: `engine` or `redis`; url: of the server; name: of this scene's streams and folder; sink: of its queries;
    out_url: server of the sink, if it is another one.
    """

    spark: SparkSession
    folder: Path
    kind: str
    url: str
    name: str
    random: random.Random
    sink: str = "attempts"
    out_url: str = ""

    def __post_init__(self) -> None:
        self.producer = Producer(self.url)
        self.client = self.producer.client
        self._running: list[StreamingQuery] = []

    def query(self, fault: Fault | None = None, /, suffix: str = "", **options: str) -> Query:
        """Return a query of this scene. By default it reads the stream with the scene's name."""
        settings = {"group": "g", **options}
        if "streamsPattern" not in settings:
            settings.setdefault("streams", self.name)
        name = self.name + suffix
        ahead = self.random.choice([1, LIMITS.prefetch_entries])
        query = Query(name, str(self.folder / name), self.url, settings, fault=fault, ahead=ahead, out_url=self.out_url)
        return into_a_stream(query, self.random) if self.sink == "stream" else query

    def start(self, query: Query) -> StreamingQuery:
        """Start a query, again if its Python process was too slow for Spark. It then runs, or has ended."""
        for sign in SIGNS:
            query.sign(sign).unlink(missing_ok=True)
        return self._start(query)

    def _start(self, query: Query) -> StreamingQuery:
        query.sign("up").unlink(missing_ok=True)
        # Spark must also report progress of the last trigger, which may find a loss but no rows.
        self.spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "0" if query.trigger == "now" else "100")
        running = start(self.spark, query)
        while not query.sign("up").exists():
            if not running.isActive:
                if TOO_SLOW not in error_of(running):
                    break
                running = start(self.spark, query)
            time.sleep(0.02)
        self._running.append(running)
        return running

    def run(self, query: Query, trigger: str = "now") -> tuple[str, StreamingQuery]:
        """Run a query until it has read all entries. Return the error that ended it, or '', and the query."""
        now = replace(query, trigger=trigger)
        running = self.start(now)
        while True:
            self.wait_for(partial(_has_ended, running), f"the end of {query.name}")
            if error_of(running) or not may_have_more(running):
                return error_of(running), running
            running = self._start(now)  # continues, and keeps the signal files of its fault

    def drain(self, query: Query) -> None:
        """Run a query without its fault until it has read all entries. Raises AssertionError if it fails."""
        error, _ = self.run(replace(query, fault=None))
        if error:
            raise AssertionError(f"{query.name} fails: {error}")

    def wait_for(self, condition: Callable[[], bool], awaited: str, running: StreamingQuery | None = None) -> None:
        """Wait until the condition is true, also while the server is down. Raises if `running` ends before."""
        deadline = time.monotonic() + PATIENCE
        while not _holds(condition):
            if running is not None and not running.isActive and not _holds(condition):
                raise AssertionError(f"the query ended before {awaited}: {error_of(running)}")
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {PATIENCE:g} s for: {awaited}")
            time.sleep(0.02)

    def resume(self, query: Query) -> None:
        """Let a paused query continue."""
        query.sign("go").touch()

    @contextlib.contextmanager
    def on_server(self, url: str, out_url: str = "") -> Iterator[Scene]:
        """Return the same scene on another server, and close it at the end."""
        with contextlib.closing(replace(self, url=url, out_url=out_url)) as other_scene:
            yield other_scene

    def close(self) -> None:
        """Stop running queries, and delete all streams of the scene."""
        for running in self._running:
            if running.isActive:
                running.stop()
        with contextlib.suppress(redis.RedisError):  # a server that is down
            for stream in {entry.stream for entry in self.producer.added} | set(
                self.client.scan_iter(f"out:{self.name}*")
            ):
                self.client.delete(stream)
        self.client.close()

    def outcome(self, query: Query, **expected: Iterable[Place]) -> Outcome:
        """Judge the query. expected: sets of History that the scene knows."""
        history = gather(query, self.producer.added)
        for name, places in expected.items():
            setattr(history, name, set(places))
        return Outcome(history, check_history(history))

    def is_settled(self, query: Query, stream: str | None = None) -> bool:
        """Whether the group has delivered all entries and none is pending."""
        stream = stream or self.name
        group = next((g for g in self.client.xinfo_groups(stream) if g["name"] == query.group), None)
        last = self.client.xinfo_stream(stream)["last-generated-id"]
        return group is not None and group["pending"] == 0 and group["last-delivered-id"] == last


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except redis.ConnectionError:
        return False


def _has_ended(running: StreamingQuery) -> bool:
    return not running.isActive


# -- moments of a query at which something happens to its server -------------------------------------------------------


STAGES = ("started", "looked", "reserved", "logged", "reading", "writing", "closing", "written", "committed")


@dataclass(frozen=True)
class Moment:
    """Moment of a query. stage: a kill point; rows: that its task has processed by then."""

    stage: str
    batch: int = 1
    rows: int = 0

    @classmethod
    def by_chance(cls, scene: Scene, *stages: str) -> Moment:
        """Return a random moment in one of these stages."""
        stage = scene.random.choice(stages)
        batch = 0 if stage == "started" else scene.random.randint(0, 1)
        return cls(stage, batch, scene.random.choice([0, 5, 20]))

    @property
    def fault(self) -> Fault:
        """The fault that makes a query stand still at this moment."""
        return Fault("pause", self.batch, self.stage, self.rows)

    def __str__(self) -> str:
        return f"{self.stage}, batch {self.batch}"


def run_to_moment(scene: Scene, query: Query, moment: Moment, act: Callable[[], None]) -> StreamingQuery:
    """Run the query up to the moment, and act. Return the running query.

    Raises AssertionError if the moment does not come.
    """
    running = scene.start(query)
    scene.wait_for(query.held, f"the moment ({moment})", running)
    act()
    scene.resume(query)
    return running
