"""Plan the tasks of a batch read that reads streams and their archive as one table.

             0-0             border                generated         lost       IDs
    stream    |- - trimmed - -|== entries ==- - -====|                |
    archive   |===============|                      |================|
                 history         tasks: the stream,      history
                                 then the archive

`border` is the ID before the first entry of the stream at this moment: what is below was trimmed, so it is in the
archive. Entries above it may be trimmed before a task reads them, or between others (XTRIM … ACKED): those tasks read
the archive after the stream, up to `generated`, the last ID that the stream has given. Above that, up to `lost`, the
archive has what the stream has lost, if it was created again or restored to an older state.
"""

from __future__ import annotations

from dataclasses import replace

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.base.pattern import matches
from spark_streams.connector.keys import is_product_key
from spark_streams.connector.options.source_options import BatchSourceOptions
from spark_streams.connector.source.archive.files import Archive
from spark_streams.connector.source.archive.highest import highest_ids
from spark_streams.connector.source.batch.plan import fetch_heads, fetch_inputs, position_of, tasks_within
from spark_streams.connector.source.batch.stream_bounds import Narrowing, StreamHead
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.source.partitioning import Task
from spark_streams.connector.source.range import Range
from spark_streams.connector.source.shard_sets import with_shards
from spark_streams.connector.wire.connection.server import Server


def plan_with_archive(
    server: Server, options: BatchSourceOptions, narrowing: Narrowing, limits: Limits = LIMITS
) -> tuple[list[Task], list[Range]]:
    """Return what each task reads from the stream and its archive, and the ranges that are in the archive only.

    Raises as `plan_tasks`, except for a missing stream of which the archive has entries, and ArchiveError.
    """
    options = with_shards(server, options)
    heads, archived = _fetch_with_archive(server, options, narrowing)
    history: list[Range] = []
    for stream, head in heads.items():
        after = max(position_of(options.starting_offsets, stream), narrowing.after)
        last = min(position_of(options.ending_offsets, stream), narrowing.last)
        border = head.generated if head.first is None else head.first.previous()
        lost = archived.get(stream, MIN_ID)
        for begin, end in ((after, min(last, border)), (max(after, head.generated), min(last, lost))):
            if begin < end:
                history.append(Range(stream, begin, end, 1))
    with_removed = {
        stream: head if head.last is None else replace(head, last=max(head.last, head.generated))
        for stream, head in heads.items()
    }
    return tasks_within(server, options, narrowing, with_removed, limits), history


def _fetch_with_archive(
    server: Server, options: BatchSourceOptions, narrowing: Narrowing
) -> tuple[dict[str, StreamHead], dict[str, StreamId]]:
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
