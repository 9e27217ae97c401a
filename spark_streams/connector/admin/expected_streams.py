"""Streams that a job is to read and its server lacks: what a start does about them, and when it is refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from spark_streams.connector.deadletter.input_streams import own_dead_letter_streams
from spark_streams.connector.errors import StreamMissingError
from spark_streams.connector.lag.survey import StreamView
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.shards.names import Shard
from spark_streams.connector.wire import scan
from spark_streams.connector.wire.connection import Server


def absent_stream_notes(
    server: Server, source: SourceOptions, streams: Sequence[str], views_by_stream: Mapping[str, StreamView]
) -> list[str]:
    """Return a line for each of these streams without entries. The query itself logs them when it starts."""
    own_streams = own_dead_letter_streams(source.dead_letter_stream)
    if not streams:
        return [scan.nothing_matches(server, source.pattern, own_streams)]
    filled_streams = {
        s for s in streams if s in views_by_stream and (views_by_stream[s].last != "0-0" or Shard.parse(s))
    }
    states = {s: scan.SILENT if s in views_by_stream else scan.ABSENT for s in streams if s not in filled_streams}
    refused_streams = [] if source.create_streams else [s for s, state in states.items() if state == scan.ABSENT]
    refusals = [scan.missing(server, stream, scan.CREATE).message for stream in refused_streams]
    return refusals + scan.lines_of(
        server, {s: state for s, state in states.items() if s not in refused_streams}, scan.WAITING, own_streams
    )


def require_each(server: Server, source: SourceOptions, streams: Sequence[str], existing: Collection[str]) -> None:
    """Raise StreamMissingError if the server lacks one of the streams, or if a pattern matches none."""
    remedy = "set source.must_exist = false, which waits for it"
    if not streams:
        own_streams = own_dead_letter_streams(source.dead_letter_stream)
        raise StreamMissingError(
            f"{scan.nothing_matches(server, source.pattern, own_streams)}; check the pattern and the url, or {remedy}"
        )
    for stream in streams:
        if stream not in existing:
            raise scan.missing(server, stream, remedy)


def require_one(server: Server, read: Sequence[str], existing: Collection[str], checkpoint: str) -> None:
    """Raise StreamMissingError if the server has none of the streams that a checkpoint has read: it is another one."""
    if read and not any(stream in existing for stream in read):
        raise scan.missing(
            server,
            read[0],
            f"set source.must_exist = false if it was deleted: checkpoint {checkpoint} has read entries of it",
        )
