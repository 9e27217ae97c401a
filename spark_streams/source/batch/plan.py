"""What a batch reads, found out on the server: a handful of round trips for all streams together. It only looks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from spark_streams.deadletter.envelope import is_dead_letter
from spark_streams.model.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.options.per_stream import PerStream
from spark_streams.options.source_options import BatchSourceOptions
from spark_streams.shards.names import Shard
from spark_streams.source.batch.looks import Aim, look_around, may_be_large
from spark_streams.source.batch.split_points import cut
from spark_streams.source.batch.stream_bounds import Head, Narrowing, run_of
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.limits import LIMITS, Limits
from spark_streams.source.partitioning import Task, task_size, tasks
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
    """What each task reads, disjoint and together all that the options and the narrowing ask for, up to the newest
    entries of this moment.

    Raises StreamMissingError where a stream that is named does not exist, ShardsError, WrongKeyTypeError.
    """
    options = with_shards(server, options)
    heads = look_at_inputs(server, options, narrowing)
    bounded = [
        run_of(
            stream,
            head,
            _position(options.starting_offsets, stream),
            _position(options.ending_offsets, stream),
            narrowing,
        )
        for stream, head in heads.items()
    ]
    ranges = [span for span in bounded if span is not None]
    if options.ordered:
        return tasks(ranges, options.entries_per_partition, ordered=True, limits=limits)
    entries = task_size(ranges, options.entries_per_partition, limits)
    if options.min_partitions is not None:
        entries = max(1, min(entries, sum(span.count for span in ranges) // options.min_partitions))
    return tasks(_cut(server, heads, ranges, entries), entries, limits=limits)


def look_at_inputs(server: Server, options: BatchSourceOptions, narrowing: Narrowing) -> dict[str, Head]:
    """The streams that are read: those that are named, or those that match the pattern and hold no dead letters.

    Raises StreamMissingError where one that is named does not exist, WrongKeyTypeError.
    """
    if options.streams is not None:
        return look_at_heads(server, narrowing.among(options.streams), must_exist=True)
    matching = matching_streams(server, options.pattern, but=())
    if not matching:
        _log.warning("%s; nothing is read", nothing_matches(server, options.pattern))
    heads = look_at_heads(server, narrowing.among(matching), must_exist=False)
    return {stream: head for stream, head in heads.items() if not head.letters}


def _position(positions: PerStream[str], stream: str) -> StreamId:
    """`$` is the end of all ids: the newest entry bounds it."""
    position = positions.of(stream)
    return MAX_ID if position == "$" else StreamId.parse(position)


def look_at_heads(server: Server, streams: Sequence[str], must_exist: bool) -> dict[str, Head]:
    """Each stream's ends and length (XINFO STREAM), in one round trip; without must_exist a missing stream is empty.

    Raises StreamMissingError, WrongKeyTypeError.
    """
    commands = [("XINFO", "STREAM", stream) for stream in streams]
    heads: dict[str, Head] = {}
    absent: list[str] = []
    silent: dict[str, str] = {}
    for stream, command, reply in zip(streams, commands, server.each(commands), strict=True):
        if not isinstance(reply, ReplyError):
            heads[stream] = _head(ends_in(reply))
            if heads[stream].last is None and stream_in(reply).last == MIN_ID:
                silent[stream] = SILENT
        elif not is_no_such_key(reply):
            raise server.error_of(reply, command)
        else:
            heads[stream] = Head(None, None, 0)
            absent.append(stream)
    if must_exist and absent:
        raise missing(server, absent[0], "use streamsPattern to read what is there")
    silent = {stream: why for stream, why in silent.items() if Shard.named(stream) is None}  # made before it has rows
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
    """The ranges, those that are too large for a task in parts."""
    aims = [
        Aim(span, entries, heads[span.stream].length, heads[span.stream].entry_bytes)
        for span in ranges
        if may_be_large(span, heads[span.stream].length, entries)
    ]
    looks = {aim.span: found for aim, found in zip(aims, look_around(server, aims), strict=True)}
    parts: list[EntryRange] = []
    for span in ranges:
        known = looks.get(span)
        parts += cut(span, known, entries, heads[span.stream].length) if known else [span]
    return parts
