"""Streams in shards, as the options name them: logical names become those of their shards, once, when a query or a
read begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from spark_streams.errors import ShardsError
from spark_streams.options.source_options import ReadOptions, SourceOptions
from spark_streams.shards.names import Shard
from spark_streams.shards.settling import known_shards, require_still, settle, shards_among
from spark_streams.wire.connection.server import Server

Reading = TypeVar("Reading", bound=ReadOptions)


def with_shards(server: Server, options: Reading, count: int | None = None) -> Reading:
    """The options with the shards' names in place of the streams that are in shards. count: each of the streams is in
    so many, which are created if they do not exist. With failOnDataLoss=false lost shards are created again, empty.

    Raises ShardsError.
    """
    streams = options.streams
    if streams is None:
        return options
    if count is not None:
        sets = {stream: settle(server, stream, count, None, options.accepts_loss) for stream in streams}
    else:
        sets = shards_among(server, streams, options.accepts_loss)
    return options.in_shards({stream: known.names for stream, known in sets.items()}) if sets else options


def names_of(server: Server, streams: Sequence[str]) -> tuple[str, ...]:
    """These streams, the shards' names in place of those that are in shards. It only looks. Raises ShardsError."""
    sets = known_shards(server, streams)
    return tuple(name for stream in streams for name in (sets[stream].names if stream in sets else (stream,)))


def require_shards_of(checkpoint: Iterable[str], options: SourceOptions, wanted: SourceOptions) -> None:
    """Hold a checkpoint's streams against those that are read. options, wanted: without and with the shards' names.
    Raises ShardsError where it has shards of a stream that is in others now, or in none: none may be left out in
    silence."""
    names, read = options.streams or (), set(wanted.streams or ())
    for name in checkpoint:
        shard = Shard.named(name)
        if shard is None or shard.stream not in names or name in read:
            continue
        now = [one for one in map(Shard.named, sorted(read)) if one is not None and one.stream == shard.stream]
        if now:
            raise ShardsError(
                f"the checkpoint has {shard.count} shards of stream {shard.stream!r}, and at {options.address} it is "
                f"in {now[0].count}: it was deleted and begun anew; start with a new checkpoint and "
                "startingOffsets=earliest"
            )
        raise ShardsError(
            f"the checkpoint has {shard.count} shards of stream {shard.stream!r}, and at {options.address} there are "
            f"none, nor a key that tells of them: the server has lost them. Delete the stream of that name if a query "
            f"has made it since (`redis-cli DEL {shard.stream}`), and go on with option shards={shard.count}: the "
            "query says then what is lost (failOnDataLoss)"
        )


def require_not_in_shards_since(server: Server, wanted: SourceOptions) -> None:
    """Raises ShardsError where a sink has put a stream in shards while the query made it, as a plain one."""
    require_still(server, [stream for stream in wanted.streams or () if Shard.named(stream) is None])
