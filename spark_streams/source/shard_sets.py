"""Streams in shards, as the options name them: logical names become those of their shards, once, when a query or a
read begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spark_streams.errors import ShardsError
from spark_streams.options.parse import Options
from spark_streams.options.per_stream import PerStream
from spark_streams.shards.names import Shard
from spark_streams.shards.registry import ShardSet
from spark_streams.shards.settling import known_shards, require_still, settle, shards_among
from spark_streams.wire.server import Server

# Options that may be given by stream.
_BY_STREAM = ("startingOffsets", "endingOffsets", "maxEntriesPerTrigger", "streamWeights")


def with_shards(server: Server, options: Options, count: int | None = None) -> Options:
    """The options with the shards' names in place of the streams that are in shards. count: each of the streams is in
    so many, which are created if they do not exist. With failOnDataLoss=false lost shards are created again, empty.

    Raises ShardsError.
    """
    streams = options["streams"]
    if streams is None:
        return options
    accepts_loss = "failOnDataLoss" in options and not options["failOnDataLoss"]
    if count is not None:
        sets = {stream: settle(server, stream, count, None, accepts_loss) for stream in streams}
    else:
        sets = shards_among(server, streams, accepts_loss)
    if not sets:
        return options
    names = [name for stream in streams for name in (sets[stream].names if stream in sets else (stream,))]
    named = {which: _of_shards(options[which], sets) for which in _BY_STREAM if which in options}
    if "maxEntriesPerTrigger" in named:
        named["maxEntriesPerTrigger"] = _of_shards(options["maxEntriesPerTrigger"], sets, divided=True)
    return options.but(streams=tuple(dict.fromkeys(names)), **named)


def names_of(server: Server, streams: Sequence[str]) -> tuple[str, ...]:
    """These streams, the shards' names in place of those that are in shards. It only looks. Raises ShardsError."""
    sets = known_shards(server, streams)
    return tuple(name for stream in streams for name in (sets[stream].names if stream in sets else (stream,)))


def _of_shards(given: PerStream[Any], sets: Mapping[str, ShardSet], divided: bool = False) -> PerStream[Any]:
    """What is said of a stream is said of each of its shards that is not named itself. divided: in equal parts."""
    named: dict[str, Any] = {}
    for stream, known in sets.items():
        if given.unmeant((stream,)) != list(given.named):
            value = given.of(stream)
            named |= dict.fromkeys(known.names, -(-value // known.count) if divided and value is not None else value)
    return PerStream(given.otherwise, named | dict(given.named))


def require_shards_of(checkpoint: Iterable[str], options: Options, wanted: Options) -> None:
    """Hold a checkpoint's streams against those that are read. options, wanted: without and with the shards' names.
    Raises ShardsError where it has shards of a stream that is in others now, or in none: none may be left out in
    silence."""
    names, read = options["streams"] or (), set(wanted["streams"] or ())
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


def require_not_in_shards_since(server: Server, wanted: Options) -> None:
    """Raises ShardsError where a sink has put a stream in shards while the query made it, as a plain one."""
    require_still(server, [stream for stream in wanted["streams"] or () if Shard.named(stream) is None])
