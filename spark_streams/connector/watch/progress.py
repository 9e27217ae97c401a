"""Progress of rstream sources, parsed from Spark's progress of a query. Pure: JSON in, values out.

Spark's progress contains the source's offsets (source.offset). `latestOffset` is the source's report: the ends of the
streams, the counters of this run so far (model.counters), and the limit of the batch if the query has targetBatchTime.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from spark_streams.base.untyped import Json
from spark_streams.connector.counters import Counts
from spark_streams.connector.source.offset import Range, position_in

_OURS = frozenset({"format", "group", "consumer", "streams"})


@dataclass(frozen=True)
class StreamProgress:
    """One stream of a source. position: the last entry that was read, 0-0 if the query has only read claimed entries;
    entries: of the batch; counts: of this run so far; waiting: entries that wait for a retry; due: when the next one is
    returned, in milliseconds since the epoch."""

    stream: str
    position: str
    entries: int
    counts: Counts = field(default_factory=Counts)
    waiting: int = 0
    due: int | None = None


@dataclass(frozen=True)
class SourceProgress:
    """One rstream source of the query. offset: its end offset, as JSON; is_current: whether the counts are those of the
    current run. They are not if a batch of an earlier run is repeated. Before Spark 4.2 there is no separate report,
    and the counts in an offset are those of the run that created it. limit: most entries of the batch, of all streams;
    None without targetBatchTime."""

    group: str
    consumer: str
    streams: tuple[StreamProgress, ...]
    offset: Mapping[str, Json]
    is_current: bool = True
    limit: int | None = None


@dataclass(frozen=True)
class Progress:
    """One micro-batch. began: time of its trigger, ISO-8601, UTC; query: the query's name, or its ID without a name."""

    began: str
    query: str
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
    end = _offset(source_progress.get("endOffset"))
    if end is None:
        return None
    latest, is_current = _report(source_progress)
    streams = []
    for stream, text in sorted(end["streams"].items()):
        position = position_in(text)
        parts = [*end.get("old", {}).get(stream, ()), *([new] if (new := end.get("batch", {}).get(stream)) else [])]
        taken = sum(Range.parse(stream, part).count for part in parts)
        waits = latest.get("waiting", {}).get(stream, {})
        streams.append(
            StreamProgress(
                stream,
                position,
                taken,
                Counts.of_stream(stream, latest),
                waits.get("entries", 0),
                waits.get("due"),
            )
        )
    return SourceProgress(end["group"], end["consumer"], tuple(streams), end, is_current, latest.get("limit"))


def _report(source_progress: Mapping[str, Json]) -> tuple[Mapping[str, Json], bool]:
    """Return the counts, and whether they are those of the current run."""
    latest = _offset(source_progress.get("latestOffset"))
    if latest is None:
        return {}, False
    if "report" not in latest:
        return latest, True
    # If Spark does not ask for a report, it is in the offset (spark/batch_starts.py), also when another run begins
    # with this offset.
    is_current = latest != _offset(source_progress.get("startOffset"))
    return (latest["report"] if is_current else {}), is_current


def _offset(value: Json) -> dict[str, Json] | None:
    """Return an offset of an rstream source, None for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, dict) and value.keys() >= _OURS else None


def offsets_in(text: str) -> Iterator[dict[str, Json]]:
    """Yield the rstream offsets inside a longer text, such as a StreamingQueryException, in their order."""
    decoder = json.JSONDecoder()
    start = text.find('{"')
    while start >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except ValueError:
            value, end = None, start + 1
        offset = _offset(value)
        if offset is not None:
            yield offset
        start = text.find('{"', end)
