"""Plan the tasks of a batch read: a few round trips for all streams together. Nothing on the server changes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from spark_streams.deadletter.envelope import is_dead_letter
from spark_streams.deadletter.inspect.input_streams import fetch_recorded, warn_of_dead_letters
from spark_streams.model.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.model.keys import is_product_key
from spark_streams.model.pattern import matches
from spark_streams.options.per_stream import PerStream
from spark_streams.options.source_options import BatchSourceOptions
from spark_streams.shards.names import Shard
from spark_streams.source.archive.files import Archive
from spark_streams.source.archive.highest import highest_ids
from spark_streams.source.batch.probe_streams import ProbeTarget, may_be_large, probe_streams
from spark_streams.source.batch.split_points import cut
from spark_streams.source.batch.stream_bounds import Head, Narrowing, range_of
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.limits import LIMITS, Limits
from spark_streams.source.partitioning import Task, divide_into_tasks, task_size
from spark_streams.source.shard_sets import with_shards
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.absent_streams import SILENT, lines_of, missing, nothing_matches
from spark_streams.wire.replies.reply_errors import is_no_such_key
from spark_streams.wire.replies.scan import matching_streams
from spark_streams.wire.replies.xinfo import StreamEnds, ends_in, stream_in

_log = logging.getLogger("spark_streams.source")


def plan_tasks(
    server: Server, options: BatchSourceOptions, narrowing: Narrowing, limits: Limits = LIMITS
) -> list[Task]:
    """Return what each task reads: disjoint, together all that the options and the narrowing ask for, up to the newest
    entries at this moment.

    Raises StreamMissingError if a stream of `streams` does not exist, ShardsError, WrongKeyTypeError.
    """
    options = with_shards(server, options)
    return _tasks(server, options, narrowing, fetch_inputs(server, options, narrowing), limits)


def plan_with_archive(
    server: Server, options: BatchSourceOptions, narrowing: Narrowing, limits: Limits = LIMITS
) -> tuple[list[Task], list[EntryRange]]:
    """Return what each task reads from the stream and its archive, and the ranges that are in the archive only.

    The border between both is the first entry of the stream at this moment. Entries below it were trimmed, so they are
    in the archive. Entries above it may be trimmed before a task reads them, or between others (XTRIM … ACKED): those
    tasks read the archive after the stream, up to the last ID that the stream has given. Above that, the archive has
    what the stream has lost, if it was created again or restored to an older state. Raises as `plan_tasks`, except for
    a missing stream of which the archive has entries, and ArchiveError.
    """
    options = with_shards(server, options)
    heads, archived = _fetch_with_archive(server, options, narrowing)
    history: list[EntryRange] = []
    for stream, head in heads.items():
        after = max(_position(options.starting_offsets, stream), narrowing.after)
        last = min(_position(options.ending_offsets, stream), narrowing.last)
        border = head.generated if head.first is None else head.first.previous()
        lost = archived.get(stream, MIN_ID)
        for begin, end in ((after, min(last, border)), (max(after, head.generated), min(last, lost))):
            if begin < end:
                history.append(EntryRange(stream, begin, end, 1, owned=True, counted=False))
    with_removed = {
        stream: head if head.last is None else replace(head, last=max(head.last, head.generated))
        for stream, head in heads.items()
    }
    return _tasks(server, options, narrowing, with_removed, limits), history


def _fetch_with_archive(
    server: Server, options: BatchSourceOptions, narrowing: Narrowing
) -> tuple[dict[str, Head], dict[str, StreamId]]:
    """Return the streams to read, and the archive's highest ID of those that have lost it."""
    assert options.archive_path is not None
    archive, is_pattern = Archive(options.archive_path), options.streams is None

    def is_input(stream: str) -> bool:
        return not is_product_key(stream) and matches(options.pattern, stream) and bool(narrowing.among([stream]))

    inputs = fetch_inputs(server, options, narrowing, must_exist=False)
    generated = {stream: head.generated for stream, head in inputs.items()}
    archived = highest_ids(archive, generated, is_input if is_pattern else None)
    # The streams are asked again: the archive may have an entry that a stream was given after the first time.
    heads = fetch_heads(server, [stream for stream in inputs if stream not in archived], must_exist=not is_pattern)
    others = fetch_heads(server, list(archived), must_exist=False)
    # A stream with entries that matches and is no input holds dead letters.
    return heads | {s: head for s, head in others.items() if s in inputs or head.first is None}, archived


def _tasks(
    server: Server, options: BatchSourceOptions, narrowing: Narrowing, heads: Mapping[str, Head], limits: Limits
) -> list[Task]:
    bounded = [
        range_of(
            stream,
            head,
            _position(options.starting_offsets, stream),
            _position(options.ending_offsets, stream),
            narrowing,
        )
        for stream, head in heads.items()
    ]
    ranges = [entries for entries in bounded if entries is not None]
    if options.ordered:
        return divide_into_tasks(ranges, options.entries_per_partition, ordered=True, limits=limits)
    entries = task_size(ranges, options.entries_per_partition, limits)
    if options.min_partitions is not None:
        entries = max(1, min(entries, sum(part.count for part in ranges) // options.min_partitions))
    return divide_into_tasks(_cut(server, heads, ranges, entries), entries, limits=limits)


def fetch_inputs(
    server: Server, options: BatchSourceOptions, narrowing: Narrowing, must_exist: bool = True
) -> dict[str, Head]:
    """Return the streams to read: those of `streams`, or those that match the pattern. Recorded dead-letter
    streams are not among these.

    Raises StreamMissingError if a stream of `streams` does not exist, WrongKeyTypeError.
    """
    if options.streams is not None:
        return fetch_heads(server, narrowing.among(options.streams), must_exist)
    matching = options.without_excluded(matching_streams(server, options.pattern, but=()))
    if not matching:
        _log.warning("%s; nothing is read", nothing_matches(server, options.pattern))
    heads = fetch_heads(server, narrowing.among(matching), must_exist=False)
    dead = {stream for stream, head in heads.items() if head.has_dead_letters}
    recorded = fetch_recorded(server, dead)
    warn_of_dead_letters(dead - recorded)
    return {stream: head for stream, head in heads.items() if stream not in recorded}


def _position(positions: PerStream[str], stream: str) -> StreamId:
    """Return the ID of a position. `$` is the highest ID: the newest entry bounds the range."""
    position = positions.value_for(stream)
    return MAX_ID if position == "$" else StreamId.parse(position)


def fetch_heads(server: Server, streams: Sequence[str], must_exist: bool) -> dict[str, Head]:
    """Return each stream's ends and length (XINFO STREAM), in one round trip.

    must_exist: if False, a missing stream counts as empty.
    Raises StreamMissingError, WrongKeyTypeError.
    """
    commands = [("XINFO", "STREAM", stream) for stream in streams]
    heads: dict[str, Head] = {}
    absent: list[str] = []
    silent: dict[str, str] = {}
    for stream, command, reply in zip(streams, commands, server.execute_each(commands), strict=True):
        if not isinstance(reply, ReplyError):
            generated = stream_in(reply).last
            heads[stream] = replace(_head(ends_in(reply)), generated=generated)
            if heads[stream].last is None and generated == MIN_ID:
                silent[stream] = SILENT
        elif not is_no_such_key(reply):
            raise server.error_of(reply, command)
        else:
            heads[stream] = Head(None, None, 0)
            absent.append(stream)
    if must_exist and absent:
        raise missing(server, absent[0], "use streamsPattern to read what is there")
    # A shard is created before it has entries.
    silent = {stream: why for stream, why in silent.items() if Shard.parse(stream) is None}
    for line in lines_of(server, silent if must_exist else {}, "nothing is read of it"):
        _log.warning("%s", line)
    return heads


def _head(ends: StreamEnds | None) -> Head:
    if ends is None:
        return Head(None, None, 0)
    (first, first_fields), (last, last_fields) = ends.first, ends.last
    size = max(sum(len(part) + 8 for part in fields) for fields in (first_fields, last_fields))
    return Head(first, last, ends.length, size, is_dead_letter(first_fields))


def _cut(server: Server, heads: Mapping[str, Head], ranges: Sequence[EntryRange], entries: int) -> list[EntryRange]:
    """Return the ranges, with those in parts that are too large for a task."""
    targets = [
        ProbeTarget(whole_range, entries, heads[whole_range.stream].length, heads[whole_range.stream].entry_bytes)
        for whole_range in ranges
        if may_be_large(whole_range, heads[whole_range.stream].length, entries)
    ]
    probes = dict(zip([target.range for target in targets], probe_streams(server, targets), strict=True))
    parts: list[EntryRange] = []
    for whole_range in ranges:
        if probes.get(whole_range):
            parts += cut(whole_range, probes[whole_range], entries, heads[whole_range.stream].length)
        else:
            parts.append(whole_range)
    return parts
