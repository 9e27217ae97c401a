"""Plan the tasks of a batch read: a few round trips for all streams together. Nothing on the server changes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.connector.deadletter.envelope import is_dead_letter
from spark_streams.connector.deadletter.failed_entry import fetch_recorded
from spark_streams.connector.deadletter.input_streams import warn_of_dead_letters
from spark_streams.connector.options.parsers import PerStream
from spark_streams.connector.options.source_options import BatchSourceOptions
from spark_streams.connector.shards.names import Shard
from spark_streams.connector.source.batch.probe_streams import ProbeTarget, may_be_large, probe_streams
from spark_streams.connector.source.batch.split_points import cut
from spark_streams.connector.source.batch.stream_bounds import Narrowing, StreamHead, part_of
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.source.part import ALL, Part
from spark_streams.connector.source.partitioning import Task, divide_into_tasks, task_size
from spark_streams.connector.source.shard_sets import with_shards
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.absent_streams import SILENT, lines_of, missing, nothing_matches
from spark_streams.connector.wire.replies.reply_errors import is_no_such_key
from spark_streams.connector.wire.replies.scan import bounded, matching_streams
from spark_streams.connector.wire.replies.xinfo import StreamEnds, ends_in, stream_in

_log = logging.getLogger("spark_streams.connector.source")


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
    """Return what each task reads of these streams."""
    bounded = [
        part_of(
            stream,
            head,
            position_of(options.starting_offsets, stream),
            position_of(options.ending_offsets, stream),
            narrowing,
        )
        for stream, head in heads.items()
    ]
    parts = [part for part in bounded if part is not None]
    if options.ordered:
        return divide_into_tasks(parts, options.entries_per_partition, ordered=True, limits=limits)
    total = sum(part.count for part in parts)
    entries = task_size(total, options.entries_per_partition, limits)
    if options.min_partitions is not None:
        entries = max(1, min(entries, total // options.min_partitions))
    return divide_into_tasks(_cut(server, heads, parts, entries), entries, limits=limits)


def fetch_inputs(
    server: Server, options: BatchSourceOptions, narrowing: Narrowing, must_exist: bool = True
) -> dict[str, StreamHead]:
    """Return the streams to read: those of `streams`, or those that match the pattern. Recorded dead-letter
    streams are not among these.

    Raises StreamMissingError if a stream of `streams` does not exist, WrongKeyTypeError.
    """
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


def position_of(positions: PerStream[str], stream: str) -> StreamId:
    """Return the ID of a position. `$` is the highest ID: the newest entry bounds the range."""
    position = positions.value_for(stream)
    return MAX_ID if position == "$" else StreamId.parse(position)


def fetch_heads(server: Server, streams: Sequence[str], must_exist: bool) -> dict[str, StreamHead]:
    """Return each stream's ends and length (XINFO STREAM), in one round trip.

    must_exist: if False, a missing stream counts as empty.
    Raises StreamMissingError, WrongKeyTypeError.
    """
    commands = [("XINFO", "STREAM", stream) for stream in streams]
    heads: dict[str, StreamHead] = {}
    absent: list[str] = []
    silent: dict[str, str] = {}
    for stream, reply in zip(streams, server.execute_each(commands, is_no_such_key), strict=True):
        if is_no_such_key(reply):
            heads[stream] = StreamHead(None, None, 0)
            absent.append(stream)
        else:
            generated = stream_in(reply).last
            heads[stream] = replace(_head(ends_in(reply)), generated=generated)
            if heads[stream].last is None and generated == MIN_ID:
                silent[stream] = SILENT
    if must_exist and absent:
        raise missing(server, absent[0], "use streamsPattern to read what is there")
    # A shard is created before it has entries.
    silent = {stream: why for stream, why in silent.items() if Shard.parse(stream) is None}
    for line in lines_of(server, silent if must_exist else {}, "nothing is read of it"):
        _log.warning("%s", line)
    return heads


def _head(ends: StreamEnds | None) -> StreamHead:
    if ends is None:
        return StreamHead(None, None, 0)
    (first, first_fields), (last, last_fields) = ends.first, ends.last
    size = max(sum(len(part) + 8 for part in fields) for fields in (first_fields, last_fields))
    return StreamHead(first, last, ends.length, size, is_dead_letter(first_fields))


def _cut(server: Server, heads: Mapping[str, StreamHead], parts: Sequence[Part], entries: int) -> list[Part]:
    """Return the parts, with those that are too large for a task cut up. Those with known IDs are not cut."""
    targets = [
        ProbeTarget(part.range, entries, heads[part.stream].length, heads[part.stream].entry_bytes)
        for part in parts
        if part.by == ALL and may_be_large(part.range, heads[part.stream].length, entries)
    ]
    probes = dict(zip([target.range for target in targets], probe_streams(server, targets), strict=True))
    smaller: list[Part] = []
    for part in parts:
        if probes.get(part.range):
            pieces = cut(part.range, probes[part.range], entries, heads[part.stream].length)
            smaller += [replace(part, range=piece) for piece in pieces]
        else:
            smaller.append(part)
    return smaller
