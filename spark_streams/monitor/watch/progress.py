"""What Spark's progress of a query says about its rstream sources. Pure: JSON in, values out.

The source's offsets are in it as it returned them (source.offset), and as `latestOffset` what it reported: where the
streams end, and what this run of the query has lost, claimed and given up so far, and how many values did not fit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from spark_streams.model.untyped import Json

_OURS = frozenset({"version", "group", "consumer", "streams"})


@dataclass(frozen=True)
class StreamProgress:
    """One stream of a source. position: the last entry that has been read, 0-0 if the query has read entries of it
    through claims alone; entries: how many the batch took from it;
    lost, claimed, dead, retried: entries of this run so far; bad: per column, its values that did not fit; waiting: how
    many entries wait for another try, and due: when the next one comes back, milliseconds since the epoch."""

    stream: str
    position: str
    entries: int
    lost: int
    claimed: int
    dead: int
    bad: Mapping[str, int] = field(default_factory=dict)
    retried: int = 0
    waiting: int = 0
    due: int | None = None


@dataclass(frozen=True)
class SourceProgress:
    """One rstream source of the query. offset: its end offset, as JSON; is_told: whether the run's counts are those of
    now. A batch of an earlier run that is run again tells none, and where Spark has no report of its own (before 4.2)
    the counts in an offset are those of the run that made it, maybe an earlier one."""

    group: str
    consumer: str
    streams: tuple[StreamProgress, ...]
    offset: Mapping[str, Json]
    is_told: bool = True


@dataclass(frozen=True)
class Progress:
    """One micro-batch. began: its trigger, ISO-8601, UTC; query: the query's name, its id where it has none."""

    began: str
    query: str
    id: str
    run: str
    batch: int
    batch_ms: int
    rows: int
    rows_per_second: float
    sources: tuple[SourceProgress, ...]


def read_progress(told: Mapping[str, Json]) -> Progress:
    """From StreamingQueryProgress.json; sources of other formats are left out."""
    sources = [source for one in told["sources"] if (source := _source(one)) is not None]
    return Progress(
        told["timestamp"],
        told.get("name") or told["id"],
        told["id"],
        told["runId"],
        told["batchId"],
        told["batchDuration"],
        told["numInputRows"],
        told.get("processedRowsPerSecond") or 0.0,
        tuple(sources),
    )


def _source(told: Mapping[str, Json]) -> SourceProgress | None:
    end = _offset(told.get("endOffset"))
    if end is None:
        return None
    latest, is_told = _report(told)
    streams = []
    for stream, position in sorted({**dict.fromkeys(end.get("claimed", {}), "0-0"), **end["streams"]}.items()):
        taken = end.get("batch", {}).get(stream, {}).get("count", 0)
        taken += sum(one["count"] for one in end.get("claimed", {}).get(stream, ()))
        counts = [latest.get(kind, {}).get(stream, 0) for kind in ("lost", "dead", "retried")]
        # In an offset, `claimed` holds lists of entries that the batch took over; in a report, counts of the run.
        claimed = latest.get("claimed", {}).get(stream, 0)
        claimed = claimed if isinstance(claimed, int) else 0
        bad = latest.get("bad", {}).get(stream, {})
        waits = latest.get("waiting", {}).get(stream, {})
        streams.append(
            StreamProgress(
                stream,
                position,
                taken,
                counts[0],
                claimed,
                counts[1],
                bad,
                counts[2],
                waits.get("entries", 0),
                waits.get("due"),
            )
        )
    return SourceProgress(end["group"], end["consumer"], tuple(streams), end, is_told)


def _report(told: Mapping[str, Json]) -> tuple[Mapping[str, Json], bool]:
    """What the run has counted, and whether that is of now."""
    latest = _offset(told.get("latestOffset"))
    if latest is None:
        return {}, False
    if "report" not in latest:
        return latest, True
    # Where Spark does not ask for a report it stands in the offset (spark/batch_starts.py), and stays there when
    # another run begins with it.
    is_told = latest != _offset(told.get("startOffset"))
    return (latest["report"] if is_told else {}), is_told


def _offset(value: Json) -> dict[str, Json] | None:
    """One of our offsets, None for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, dict) and value.keys() >= _OURS else None


def offsets_in(text: str) -> Iterator[dict[str, Json]]:
    """The rstream offsets inside a longer text, such as that of a StreamingQueryException, in the order they stand."""
    decoder = json.JSONDecoder()
    at = text.find('{"')
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except ValueError:
            value, end = None, at + 1
        found = _offset(value)
        if found is not None:
            yield found
        at = text.find('{"', end)
