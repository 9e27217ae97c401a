"""A place to put a query through something, inside this process's Spark: its folder, its server, its own randomness."""

from __future__ import annotations

import ast
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import redis
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_streams.running.run_until_drained import may_have_more
from spark_streams.source.limits import LIMITS
from spark_streams.spark.batch_starts import REPORT
from spark_streams.spark.read_limits import HAS_READ_LIMITS
from tools.chaos.checker import Report, check
from tools.chaos.gather import gather
from tools.chaos.history import History, Place
from tools.chaos.job import TOO_SLOW, error_of, start
from tools.chaos.producer import Producer
from tools.chaos.query import Fault, Query, into_a_stream

PATIENCE = 300.0  # seconds that anything may take on a busy machine


@dataclass
class Outcome:
    """What became of a query: the history, the judgement, what else was not as it should be, and what chance chose."""

    history: History
    report: Report
    wrong: list[str] = field(default_factory=list)
    chosen: str = ""

    def expect(self, what: str, found: object, wanted: object) -> None:
        """Note it where it is not so."""
        if found != wanted:
            self.wrong.append(f"{what}: {found!r}, not {wanted!r}")

    def expect_error(self, found: str, condition: str) -> None:
        """The query must have ended with this named error."""
        if not found.startswith(f"[{condition}]"):
            self.wrong.append(f"ended with {found[:300]!r}, not with [{condition}]")

    def __bool__(self) -> bool:
        """Whether all is as it should be, and anything has happened at all."""
        return bool(self.history.kept()) and not self.wrong and not self.report

    def __str__(self) -> str:
        chosen = [f"({self.chosen})"] if self.chosen else []
        return "\n".join(chosen + [*self.wrong, str(self.report)] + ([] if self.history.kept() else ["no row arrived"]))


# What a query and its fault say by files.
SIGNS = ("up", "held", "go", "struck", "asleep", "wake", "zombie")


@dataclass
class Scene:
    """kind: `engine` or `redis`; url: of the server; name: of this scene's streams and folder; sink: of its queries;
    out_url: the server that they write to, if it is another one."""

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
        self._before: dict[str, list[StreamingQuery]] = {}  # by the last run: those that it went on from

    def query(self, fault: Fault | None = None, /, suffix: str = "", **options: str) -> Query:
        """A query of this scene, over the stream that is named after it unless the options say otherwise."""
        given = {"group": "g", **options}
        if "streamsPattern" not in given:
            given.setdefault("streams", self.name)
        name = self.name + suffix
        ahead = self.random.choice([1, LIMITS.prefetch_entries])
        query = Query(name, str(self.folder / name), self.url, given, fault=fault, ahead=ahead, out_url=self.out_url)
        return into_a_stream(query, self.random) if self.sink == "stream" else query

    def start(self, query: Query) -> StreamingQuery:
        """Start it here, and again where its Python process came too late for Spark; it is up, or has ended."""
        for left in SIGNS:
            query.sign(left).unlink(missing_ok=True)
        return self._start(query)

    def _start(self, query: Query) -> StreamingQuery:
        query.sign("up").unlink(missing_ok=True)
        # A loss that the last trigger finds, which has no rows, is told, too.
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
        """Run it to the end of what is there: the error that ended it, or ''."""
        now = replace(query, trigger=trigger)
        running, before = self.start(now), list[StreamingQuery]()
        while True:
            self.wait_for(partial(_has_ended, running), f"the end of {query.name}")
            if error_of(running) or not may_have_more(running):
                self._before[running.runId] = before
                return error_of(running), running
            before.append(running)
            running = self._start(now)  # goes on, and leaves the signs of its fault

    def drain(self, query: Query, **options: str) -> StreamingQuery:
        """Run it to the end of what is there, without its fault. Raises where it fails."""
        error, running = self.run(replace(query, fault=None, options={**query.options, **options}))
        if error:
            raise AssertionError(f"{query.name} fails: {error}")
        return running

    def wait_for(self, condition: Callable[[], bool], what: str, running: StreamingQuery | None = None) -> None:
        """Wait until it is so. A server that is away is waited for. Raises if `running` ends with an error before."""
        deadline = time.monotonic() + PATIENCE
        while not _holds(condition):
            if running is not None and not running.isActive and not _holds(condition):
                raise AssertionError(f"the query ended before {what}: {error_of(running)}")
            if time.monotonic() > deadline:
                raise AssertionError(f"it takes too long: {what}")
            time.sleep(0.02)

    def told(self, running: StreamingQuery, what: str) -> Counter[str]:
        """What was `lost` (or `claimed`, `dead`) by a run, and those it went on from, as they say themselves, per
        stream."""
        runs = [*self._before.get(running.runId, []), running]
        return sum((Counter(_told(one, what)) for one in runs), Counter[str]())

    def let_go(self, query: Query) -> None:
        """End its pause."""
        query.sign("go").touch()

    @contextlib.contextmanager
    def elsewhere(self, url: str, out_url: str = "") -> Iterator[Scene]:
        """The same scene on another server, which is left at the end."""
        with contextlib.closing(replace(self, url=url, out_url=out_url)) as there:
            yield there

    def close(self) -> None:
        """Stop what still runs, and leave no stream behind."""
        for running in self._running:
            if running.isActive:
                running.stop()
        with contextlib.suppress(redis.RedisError):  # a server that is gone has no streams
            for stream in {one.stream for one in self.producer.added} | set(self.client.scan_iter(f"out:{self.name}*")):
                self.client.delete(stream)
        self.client.close()

    def outcome(self, query: Query, foreign: Iterable[str] = (), **known: Iterable[Place]) -> Outcome:
        """Judge the query. foreign: other consumers of its group; known: the sets of History that the scene knows."""
        history = gather(query, self.producer.added, foreign)
        for name, of in known.items():
            setattr(history, name, set(of))
        return Outcome(history, check(history))

    def is_settled(self, query: Query, stream: str | None = None) -> bool:
        """Whether the group has delivered all that there is and nothing is pending."""
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


def _told(running: StreamingQuery, what: str) -> Mapping[str, int]:
    """What the last progress of one run says of it."""
    for progress in reversed(running.recentProgress):
        if not progress.sources or progress.sources[0].latestOffset in (None, "null", "None"):
            continue
        source = progress.sources[0]
        latest = _offset(source.latestOffset)
        if not HAS_READ_LIMITS:  # it is in the offset, which another run may have made
            latest = {} if source.latestOffset == source.startOffset else latest.get(REPORT, {})
        if latest:
            found: dict[str, int] = latest.get(what, {})
            return found
    return {}


def _offset(text: str) -> dict[str, Any]:
    """One of the source's as a progress has it: JSON, or before Spark 4.2 as Python writes it."""
    found: dict[str, Any] = json.loads(text) if HAS_READ_LIMITS else ast.literal_eval(text)
    return found
