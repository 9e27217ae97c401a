"""Progress of rstream sources, parsed from Spark's progress of a query. Pure: JSON in, values out.

Spark's progress contains the source's offsets (source.offset). `latestOffset` is the source's report: the ends of the
streams, the counters of this run so far (connector.counters), and the limit of the batch if the query has
targetBatchTime.
"""

from __future__ import annotations

import ast
import datetime
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from spark_streams.base.given_text import duration, moment
from spark_streams.base.ids import StreamId
from spark_streams.base.printable import printable
from spark_streams.base.untyped import Json
from spark_streams.connector.counters import DEAD, Counts
from spark_streams.connector.source.offset import Range, position_in
from spark_streams.connector.watch.latency import Latency

_OURS = frozenset({"format", "group", "consumer", "streams"})


@dataclass(frozen=True)
class StreamProgress:
    stream: str
    position: str  # the last entry that was read; 0-0: the query has only read claimed entries
    entries: int  # of the batch
    counts: Counts = field(default_factory=Counts)  # of this run so far
    waiting: int = 0  # entries that wait for a retry
    due: int | None = None  # when the next one is returned, in milliseconds since the epoch
    ranges: tuple[Range, ...] = ()  # of the batch


@dataclass(frozen=True)
class SourceProgress:
    group: str
    consumer: str
    streams: tuple[StreamProgress, ...]
    offset: Mapping[str, Json]  # its end offset, as JSON
    # The counts are those of the current run. They are not if a batch of an earlier run is repeated. Before Spark 4.2
    # there is no separate report, and the counts in an offset are those of the run that created it.
    is_current: bool = True
    limit: int | None = None  # most entries of the batch, of all streams; None without targetBatchTime


@dataclass(frozen=True)
class Progress:
    began: str  # time of its trigger, ISO-8601, UTC
    query: str  # the query's name, or its ID without a name
    id: str
    run: str
    batch: int
    batch_ms: int
    rows: int
    rows_per_second: float
    sources: tuple[SourceProgress, ...]


def read_progress(progress: Mapping[str, Json]) -> Progress:
    """Parse StreamingQueryProgress.json. Sources of other formats are left out."""
    sources = [source for source_progress in progress["sources"] if (source := _source(source_progress)) is not None]
    return Progress(
        progress["timestamp"],
        progress.get("name") or progress["id"],
        progress["id"],
        progress["runId"],
        progress["batchId"],
        progress["batchDuration"],
        progress["numInputRows"],
        progress.get("processedRowsPerSecond") or 0.0,
        tuple(sources),
    )


def _source(source_progress: Mapping[str, Json]) -> SourceProgress | None:
    end = offset_in(source_progress.get("endOffset"))
    if end is None:
        return None
    latest, is_current = _report(source_progress)
    streams = []
    for stream, text in sorted(end["streams"].items()):
        parts = [*end.get("old", {}).get(stream, ()), *([new] if (new := end.get("batch", {}).get(stream)) else [])]
        ranges = tuple(Range.parse(stream, part) for part in parts)
        waits = latest.get("waiting", {}).get(stream, {})
        streams.append(
            StreamProgress(
                stream,
                position_in(text),
                sum(part.count for part in ranges),
                Counts.of_stream(stream, latest),
                waits.get("entries", 0),
                waits.get("due"),
                ranges,
            )
        )
    return SourceProgress(end["group"], end["consumer"], tuple(streams), end, is_current, latest.get("limit"))


def _report(source_progress: Mapping[str, Json]) -> tuple[Mapping[str, Json], bool]:
    """Return the counts, and whether they are those of the current run."""
    latest = offset_in(source_progress.get("latestOffset"))
    if latest is None:
        return {}, False
    if "report" not in latest:
        return latest, True
    # If Spark does not ask for a report, it is in the offset (spark/data_source.py), also when another run begins
    # with this offset.
    is_current = latest != offset_in(source_progress.get("startOffset"))
    return (latest["report"] if is_current else {}), is_current


def offset_in(value: Json) -> dict[str, Json] | None:
    """Return an offset of an rstream source, None for anything else. PySpark 4.0 gives the text of a Python dict."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value) if value.startswith("{'") else json.loads(value)
        except (ValueError, SyntaxError):
            return None
    return value if isinstance(value, dict) and value.keys() >= _OURS else None


def offsets_in(text: str) -> Iterator[dict[str, Json]]:
    """Yield the rstream offsets inside a longer text, such as a StreamingQueryException, in their order."""
    decoder = json.JSONDecoder()
    start = text.find('{"')
    while start >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            value, end = None, start + 1
        if (offset := offset_in(value)) is not None:
            yield offset
        start = text.find('{"', end)


# -- state and counters of the watched queries -------------------------------------------------------------------------

_RUNS = 3  # that are counted separately


@dataclass
class WatchedQuery:
    """One query over all its runs in this process.

    Spark reports a start at once and other events a little later, so events of one run may arrive when the next run has
    begun.
    """

    name: str
    id: str
    run: str = ""
    running: bool = False
    failed: bool = False  # the newest run that has ended
    failures: int = 0
    batches: int = 0
    rows: int = 0
    last: Progress | None = None
    counts: dict[str, dict[tuple[str, str], Counts]] = field(default_factory=dict)  # by run, then by (stream, group)
    # That a job has written itself, in the same form.
    dead_letters: dict[str, dict[tuple[str, str], Counts]] = field(default_factory=dict)
    ended: dict[tuple[str, str], Counts] = field(default_factory=dict)  # the sum of older runs
    latencies: dict[tuple[str, str], Latency] = field(default_factory=dict)  # in the same form

    def started(self, run: str) -> None:
        """Record the start of a run, which counts from zero."""
        self.run, self.running = run, True

    def progressed(self, progress: Progress) -> Progress:
        """Record a micro-batch, and return its progress with the counts of its run so far."""
        of_run = self.counts.setdefault(progress.run, {})
        of_job = self.dead_letters.get(progress.run, {})
        sources = [self._with_counts(source, of_run, of_job) for source in progress.sources]
        self.last = progress = replace(progress, sources=tuple(sources))
        self.batches += 1
        self.rows += progress.rows
        for by_run in (self.counts, self.dead_letters):
            while len(by_run) > _RUNS:
                self.ended = _sum(self.ended, by_run.pop(next(iter(by_run))))
        return progress

    def wrote_dead_letters(self, group: str, counts: Mapping[str, int]) -> None:
        """Record dead letters of the newest run. counts: by stream."""
        of_run = self.dead_letters.get(self.run, {})
        self.dead_letters[self.run] = _sum(
            of_run, {(stream, group): Counts.read({DEAD.name: count}) for stream, count in counts.items()}
        )

    @staticmethod
    def _with_counts(
        source: SourceProgress, of_run: dict[tuple[str, str], Counts], of_job: Mapping[tuple[str, str], Counts]
    ) -> SourceProgress:
        """Return the source with the counts of its run. of_run: these counts, updated; of_job: dead letters."""

        def with_run_counts(stream: StreamProgress) -> StreamProgress:
            key = stream.stream, source.group
            if source.is_current or key not in of_run:
                of_run[key] = stream.counts
            return replace(stream, counts=of_run[key] + of_job.get(key, Counts()))

        return replace(source, streams=tuple(map(with_run_counts, source.streams)))

    def terminated(self, run: str, failed: bool) -> None:
        if run == self.run:
            self.running = False
        self.failed = failed
        self.failures += failed

    def committed(self, progress: Progress, first: Mapping[Range, StreamId]) -> None:
        """Record how old the entries of a micro-batch are. first: entries of ranges."""
        at = moment(progress.began) + progress.batch_ms
        for source in progress.sources:
            for stream in source.streams:
                for part in stream.ranges:
                    self.latencies.setdefault((stream.stream, source.group), Latency()).add(part, first, at)

    @property
    def sources(self) -> tuple[SourceProgress, ...]:
        return () if self.last is None else self.last.sources

    @property
    def groups(self) -> list[tuple[str, str]]:
        """(stream, group) of everything that the query reads."""
        return [(stream.stream, source.group) for source in self.sources for stream in source.streams]

    @property
    def totals(self) -> dict[tuple[str, str], Counts]:
        return _sum(self.ended, *self.counts.values(), *self.dead_letters.values())


def _sum(*summands: dict[tuple[str, str], Counts]) -> dict[tuple[str, str], Counts]:
    total: dict[tuple[str, str], Counts] = {}
    for summand in summands:
        for key, counts in summand.copy().items():  # Spark's thread adds streams
            total[key] = total.get(key, Counts()) + counts
    return total


# -- whether the watched queries are alive, for `/healthz`: events of Spark in, a reason out ---------------------------

# Spark reports each micro-batch, and an idle query every ten seconds, when a trigger ends. A trigger that waits for its
# server does not end, nor does one whose batch hangs. So a query is alive if its last trigger ended within the limit,
# or if the next one has not begun, because it is not due.

LEAST = 30.0  # seconds: three reports of an idle query
Activity = tuple[bool, str]  # whether a trigger has begun and not ended, and what Spark says of the query


def limit_of(text: str) -> float:
    """Parse `unhealthy_after` into seconds. Raises ValueError."""
    seconds = duration(text) / 1000
    if seconds < LEAST:
        raise ValueError(f"must be at least {LEAST:.0f}s, because an idle query reports only every 10 s")
    return seconds


class Health:
    """The last event of each running query. Events and questions may come from any thread.

    limit: seconds; activity: asks Spark about a run, None if it does not know it; now: a monotonic clock, in seconds.
    """

    def __init__(
        self, limit: float, activity: Callable[[str], Activity | None], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit, self._activity, self._now = limit, activity, now
        self._last: dict[str, tuple[str, str, float]] = {}  # by run: name of the query, event, time
        self._none_since = now()  # since when no query runs

    def seen(self, run: str, query: str, event: str) -> None:
        """Record an event of a run, such as the end of a trigger."""
        self._last[run] = query, event, self._now()

    def ended(self, run: str) -> None:
        self._none_since = self._now()
        self._last.pop(run, None)

    def trouble(self) -> str | None:
        """Return what is wrong, since when, and what to do; None: nothing is."""
        last = dict(self._last)
        if not last and (since := self._since(self._none_since)):
            return f"no query runs {since}. Read the program's log, and start the program again.\n"
        for run, (query, event, at) in last.items():
            is_active, said = (self._activity(run) or (True, "nothing")) if (since := self._since(at)) else (False, "")
            if is_active:
                return printable(
                    f"query {query!r} has ended no trigger {since}. Its last event is {event!r}, and Spark says: {said}"
                    ". Its server does not answer (rstream doctor), or its batch hangs or takes longer. Start the "
                    "program again: it continues where it was. If a batch may take longer, raise unhealthy_after."
                ) + "\n"  # fmt: skip
        return None

    def _since(self, at: float) -> str:
        """Return the time of this moment, empty within the limit."""
        seconds = self._now() - at
        began = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)
        text = f"since {began:%Y-%m-%dT%H:%M:%SZ} ({seconds:.0f} s, unhealthy_after is {self._limit:.0f} s)"
        return text if seconds > self._limit else ""
