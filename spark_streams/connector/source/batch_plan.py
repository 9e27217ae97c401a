"""Plan the tasks of a batch read: a few round trips for all streams together.

    filters of Spark ──► Narrowing ─┐
    options ──► first, last ID ─────┼─► part of each stream ──► tasks, cut where entries lie (partitioning.py)
    XINFO STREAM ──► StreamHead ────┘

Nothing on the server changes.
"""

from __future__ import annotations

import datetime
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from spark_streams.base.ids import MAX_ID, MIN_ID, U64_MAX, InvalidStreamId, StreamId
from spark_streams.base.numbers import parse_number
from spark_streams.connector.deadletter.envelope import is_dead_letter
from spark_streams.connector.deadletter.input_streams import warn_of_dead_letters
from spark_streams.connector.deadletter.post import fetch_recorded
from spark_streams.connector.options.parsers import PerStream
from spark_streams.connector.options.source_options import BatchSourceOptions
from spark_streams.connector.shards.names import Shard
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.partitioning import (
    ALL,
    Part,
    Task,
    cut_large_parts,
    divide_into_tasks,
    task_size,
)
from spark_streams.connector.source.stream_names import with_shards
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.replies import is_no_such_key
from spark_streams.connector.wire.scan import SILENT, bounded, lines_of, matching_streams, missing, nothing_matches
from spark_streams.connector.wire.xinfo import StreamEnds, ends_in, stream_in

_log = logging.getLogger("spark_streams.source")
_T = TypeVar("_T")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_TEXT_OF_ID = re.compile(r"([1-9][0-9]{0,19})(-.*)?", re.DOTALL)


# -- filters -----------------------------------------------------------------------------------------------------------
# Spark's filters on the metadata columns become a Narrowing. A narrowing may hold more than the filter keeps, never
# less, because Spark applies every filter again. Filters of other kinds narrow nothing.


@dataclass(frozen=True)
class TextBound:
    """Bound of a filter such as `id >= '1700000000000'`, which compares texts. Texts have the order of IDs only if the
    milliseconds have equally many digits, and only up to the dash ('5-10' < '5-9')."""

    digits: int  # of the milliseconds: the bound is about such IDs
    lowest: int = 0  # the filter keeps none with fewer milliseconds
    highest: int = U64_MAX  # nor with more


@dataclass(frozen=True)
class Narrowing:
    """Entries that filters may keep: an entry outside of the narrowing matches no filter."""

    streams: frozenset[str] | None = None  # only these, None: all
    ids: frozenset[StreamId] | None = None  # only these, None: all
    after: StreamId = MIN_ID  # after < ID ≤ last
    last: StreamId = MAX_ID  # newest ID
    text: tuple[TextBound, ...] = ()  # bounds of filters that compare texts

    def meet(self, other: Narrowing) -> Narrowing:
        """Return the narrowing that holds what both hold."""
        return Narrowing(
            _intersection(self.streams, other.streams),
            _intersection(self.ids, other.ids),
            max(self.after, other.after),
            min(self.last, other.last),
            self.text + other.text,
        )

    def among(self, streams: Iterable[str]) -> tuple[str, ...]:
        return tuple(stream for stream in streams if self.streams is None or stream in self.streams)


def _intersection(first: frozenset[_T] | None, second: frozenset[_T] | None) -> frozenset[_T] | None:
    if first is None or second is None:
        return second if first is None else first
    return first & second


_NOTHING = Narrowing(ids=frozenset())


def narrowing_of(filters: Iterable[object], columns: Mapping[str, str]) -> Narrowing:
    """Return the narrowing of all filters, joined by AND. filters: pyspark.sql.datasource.Filter; columns: name →
    `stream`, `id` or `timestamp`, for the columns that hold only that."""
    narrowing = Narrowing()
    for condition in filters:
        attribute: tuple[str, ...] = getattr(condition, "attribute", ())
        meaning = columns.get(attribute[0]) if len(attribute) == 1 else None
        if meaning is not None:
            narrower = _NARROWINGS[meaning](type(condition).__name__, getattr(condition, "value", None))
            narrowing = narrowing.meet(narrower)
    return narrowing


def _on_stream(kind: str, value: object) -> Narrowing:
    names = _values(kind, value)
    return Narrowing() if names is None else Narrowing(streams=frozenset(n for n in names if isinstance(n, str)))


def _on_id(kind: str, value: object) -> Narrowing:
    named = _values(kind, value)
    if named is not None:
        return Narrowing(ids=frozenset(entry_id for entry_id in map(_id_of, named) if entry_id is not None))
    match = _TEXT_OF_ID.fullmatch(value) if isinstance(value, str) else None
    prefix = None if match is None else parse_number(match[1])
    if match is None or prefix is None:
        return Narrowing()
    if kind in ("GreaterThan", "GreaterThanOrEqual"):
        return Narrowing(text=(TextBound(len(match[1]), lowest=prefix),))
    if kind in ("LessThan", "LessThanOrEqual"):
        return Narrowing(text=(TextBound(len(match[1]), highest=prefix),))
    return Narrowing()


def _on_timestamp(kind: str, value: object) -> Narrowing:
    moments = _values(kind, value)
    if moments is not None:
        micros = [_microseconds(moment) for moment in moments if moment is not None]
        exact = [moment // 1000 for moment in micros if moment is not None and moment % 1000 == 0 and moment >= 0]
        if None in micros:
            return Narrowing()
        return _between(min(exact), max(exact)) if exact else _NOTHING
    micro = _microseconds(value)
    if micro is None:
        return Narrowing()
    # The column has whole milliseconds: a bound between two of them is rounded to the millisecond inside.
    lowest = {"GreaterThan": micro // 1000 + 1, "GreaterThanOrEqual": -(-micro // 1000)}.get(kind, 0)
    highest = {"LessThan": -(-micro // 1000) - 1, "LessThanOrEqual": micro // 1000}.get(kind, U64_MAX)
    return _between(lowest, highest)


_NARROWINGS: Mapping[str, Callable[[str, object], Narrowing]] = {
    "stream": _on_stream,
    "id": _on_id,
    "timestamp": _on_timestamp,
}


def _values(kind: str, value: object) -> list[object] | None:
    """Return the values of an equality; None for another kind of filter. Spark evaluates a comparison with NULL."""
    if kind in ("EqualTo", "EqualNullSafe") and value is not None:
        return [value]
    return list(value) if kind == "In" and isinstance(value, tuple) else None


def _id_of(value: object) -> StreamId | None:
    """Return the ID with this text; None if no ID has this text (`5`, `05-0`)."""
    try:
        entry_id = StreamId.parse(value) if isinstance(value, str) else None
    except InvalidStreamId:
        return None
    return entry_id if entry_id is not None and str(entry_id) == value and entry_id > MIN_ID else None


def _microseconds(value: object) -> int | None:
    """Return microseconds since the epoch; None if the value is no moment (a time without a zone)."""
    if not isinstance(value, datetime.datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // datetime.timedelta(microseconds=1)


def _between(lowest: int, highest: int) -> Narrowing:
    """Return the narrowing to these milliseconds, both included."""
    if highest < 0 or lowest > U64_MAX:
        return _NOTHING
    after = StreamId(lowest, 0).previous() if lowest > 0 else MIN_ID
    return Narrowing(after=after, last=StreamId(min(highest, U64_MAX), U64_MAX))


# -- tasks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StreamHead:
    """State of a stream when the read is planned."""

    first: StreamId | None  # ID of its oldest entry, None if it is empty
    last: StreamId | None  # ID of its newest entry
    length: int  # in entries
    entry_bytes: int = 0  # estimated size of an entry
    has_dead_letters: bool = False  # its oldest entry is a dead letter
    generated: StreamId = MIN_ID  # ID of the last entry ever added

    @property
    def border(self) -> StreamId:
        """The highest ID up to which the stream has no entry."""
        return self.generated if self.first is None else self.first.previous()


def plan_tasks(
    server: Server, options: BatchSourceOptions, narrowing: Narrowing, limits: Limits = LIMITS
) -> list[Task]:
    """Return what each task reads: disjoint, together all that the options and the narrowing ask for, up to the newest
    entries at this moment.

    Raises StreamMissingError if a stream of `streams` does not exist, ShardsError, WrongKeyTypeError.
    """
    options = with_shards(server, options)
    return tasks_within(server, options, narrowing, fetch_inputs(server, options, narrowing), limits)


def tasks_within(
    server: Server, options: BatchSourceOptions, narrowing: Narrowing, heads: Mapping[str, StreamHead], limits: Limits
) -> list[Task]:
    parts = []
    for stream, head in heads.items():
        after, last = (position_of(of, stream) for of in (options.starting_offsets, options.ending_offsets))
        part = part_of(stream, head, after, last, narrowing)
        parts += [] if part is None else [part]
    if options.ordered:
        return divide_into_tasks(parts, options.entries_per_partition, ordered=True, limits=limits)
    total = sum(part.count for part in parts)
    entries = task_size(total, options.entries_per_partition, limits)
    if options.min_partitions is not None:
        entries = max(1, min(entries, total // options.min_partitions))
    lengths = {stream: head.length for stream, head in heads.items()}
    entry_bytes = {stream: head.entry_bytes for stream, head in heads.items()}
    parts = cut_large_parts(server, parts, entries, lengths, entry_bytes)
    return divide_into_tasks(parts, entries, limits=limits)


def position_of(positions: PerStream[str], stream: str) -> StreamId:
    """Return the ID of a position. `$` is the highest ID: the newest entry bounds the range."""
    position = positions.value_for(stream)
    return MAX_ID if position == "$" else StreamId.parse(position)


def fetch_inputs(
    server: Server, options: BatchSourceOptions, narrowing: Narrowing, must_exist: bool = True
) -> dict[str, StreamHead]:
    """Return the streams to read: those of `streams`, or those that match the pattern without recorded dead-letter
    streams. Raises StreamMissingError if a stream of `streams` does not exist, WrongKeyTypeError."""
    if options.streams is not None:
        return fetch_heads(server, narrowing.among(options.streams), must_exist)
    found = bounded(options.without_excluded(matching_streams(server, options.pattern, but=())))
    matching = found.streams
    if found.left_out:
        _log.warning("streamsPattern %r matches streams that are not read: %s", options.pattern, found.left_out)
    if not matching:
        _log.warning("%s; nothing is read", nothing_matches(server, options.pattern))
    heads = fetch_heads(server, narrowing.among(matching), must_exist=False)
    dead = {stream for stream, head in heads.items() if head.has_dead_letters}
    recorded = fetch_recorded(server, dead)
    warn_of_dead_letters(dead - recorded)
    return {stream: head for stream, head in heads.items() if stream not in recorded}


def fetch_heads(server: Server, streams: Sequence[str], must_exist: bool) -> dict[str, StreamHead]:
    """Return each stream's ends and length (XINFO STREAM), in one round trip. must_exist: if False, a missing stream
    counts as empty. Raises StreamMissingError, WrongKeyTypeError."""
    commands = [("XINFO", "STREAM", stream) for stream in streams]
    heads: dict[str, StreamHead] = {}
    absent: list[str] = []
    silent: dict[str, str] = {}
    for stream, reply in zip(streams, server.execute_each(commands, is_no_such_key), strict=True):
        if is_no_such_key(reply):
            heads[stream] = StreamHead(None, None, 0)
            absent.append(stream)
        else:
            heads[stream] = _head(ends_in(reply), stream_in(reply).last)
            if heads[stream].last is None and heads[stream].generated == MIN_ID:
                silent[stream] = SILENT
    if must_exist and absent:
        raise missing(server, absent[0], "use streamsPattern to read what is there")
    # A shard is created before it has entries.
    silent = {stream: why for stream, why in silent.items() if Shard.parse(stream) is None}
    for line in lines_of(server, silent if must_exist else {}, "nothing is read of it"):
        _log.warning("%s", line)
    return heads


def _head(ends: StreamEnds | None, generated: StreamId) -> StreamHead:
    if ends is None:
        return StreamHead(None, None, 0, generated=generated)
    (first, first_fields), (last, last_fields) = ends.first, ends.last
    size = max(sum(len(part) + 8 for part in fields) for fields in (first_fields, last_fields))
    return StreamHead(first, last, ends.length, size, is_dead_letter(first_fields), generated)


def part_of(stream: str, head: StreamHead, after: StreamId, last: StreamId, narrowing: Narrowing) -> Part | None:
    """Return what to read between two positions, after < ID ≤ last; None if it is empty.

    The newest entry bounds the range: entries that are added later are never part of it. The count is an estimate,
    unless the range is the whole stream.
    """
    if head.first is None or head.last is None:
        return None
    after = max(after, narrowing.after, head.first.previous())
    last = min(last, narrowing.last, head.last)
    for bound in narrowing.text:
        if after < last and len(str(after.next().ms)) == len(str(last.ms)) == bound.digits:
            after = max(after, StreamId(bound.lowest, 0).previous() if bound.lowest > 0 else MIN_ID)
            last = min(last, StreamId(bound.highest, U64_MAX))
    if not after < last:
        return None
    if narrowing.ids is None:
        return Part(Range(stream, after, last, _share_of(head, head.first, head.last, after, last)), ALL)
    ids = sorted(entry_id for entry_id in narrowing.ids if after < entry_id <= last)
    if not ids:
        return None
    packed = b"".join(b"$%d\r\n%b\r\n" % (len(bytes(entry_id)), bytes(entry_id)) for entry_id in ids)
    return Part(Range(stream, ids[0].previous(), ids[-1], len(ids)), packed)


def _share_of(head: StreamHead, first: StreamId, newest: StreamId, after: StreamId, last: StreamId) -> int:
    """Estimate how many of the stream's entries lie in (after, last], as if they were spread evenly; exact for all."""
    if after < first and last >= newest:
        return head.length
    width, part = newest.ms - first.ms, last.ms - after.ms
    if width == 0:
        width, part = newest.seq - first.seq, min(last.seq - after.seq, newest.seq - first.seq)
    return max(1, min(head.length, round(head.length * part / max(1, width))))
