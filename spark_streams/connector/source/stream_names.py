"""The streams that a query's options name: the names of shards in place of those of sharded streams, once, when a query
or a read begins; and what a pattern reads, as the tasks of the source report it to the query's sink
(sink.feedback).

The report is a field of `keys.batch_kind_key`. Each task of the source writes it before its first row, so the sink of
the query reads it before it writes a row of these.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from spark_streams.base.pattern import NamesAndPatterns, matches
from spark_streams.connector.deadletter.input_streams import own_dead_letter_streams
from spark_streams.connector.errors import ShardsError
from spark_streams.connector.keys import MicroBatchName, batch_kind_key, is_product_key
from spark_streams.connector.operator_commands import shell_words
from spark_streams.connector.options.source_options import ReadOptions, SourceOptions
from spark_streams.connector.shards.names import Shard
from spark_streams.connector.shards.shard_sets import (
    ensure_shards,
    fetch_shard_sets,
    require_still_plain,
    restore_shard_sets,
)
from spark_streams.connector.wire.connection import Server

Options = TypeVar("Options", bound=ReadOptions)


def with_shards(server: Server, options: Options, count: int | None = None) -> Options:
    """Return the options with the names of shards in place of sharded streams. count: of each stream; missing shards
    are created. With failOnDataLoss=false lost ones are created again, empty. Raises ShardsError."""
    streams = options.streams
    if streams is None:
        return options
    if count is not None:
        sets = {stream: ensure_shards(server, stream, count, None, options.accepts_loss) for stream in streams}
    else:
        sets = restore_shard_sets(server, streams, options.accepts_loss)
    return options.in_shards({stream: shard_set.names for stream, shard_set in sets.items()}) if sets else options


def resolve_shards(server: Server, streams: Sequence[str]) -> tuple[str, ...]:
    """Return these streams, with shards in place of the sharded ones. Creates nothing. Raises ShardsError."""
    sets = fetch_shard_sets(server, streams)
    return tuple(name for stream in streams for name in (sets[stream].names if stream in sets else (stream,)))


def require_shards_of(checkpoint: Iterable[str], options: SourceOptions, sharded_options: SourceOptions) -> None:
    """Raise ShardsError if the checkpoint has shards of a stream that now has another number of shards, or none: no
    shard is left out silently. sharded_options: with the names of shards."""
    streams, read = options.streams or (), set(sharded_options.streams or ())
    for name in checkpoint:
        shard = Shard.parse(name)
        if shard is None or shard.stream not in streams or name in read:
            continue
        shards = map(Shard.parse, sorted(read))
        current = [other for other in shards if other is not None and other.stream == shard.stream]
        if current:
            raise ShardsError(
                f"the checkpoint has {shard.count} shards of stream {shard.stream!r}, but at {options.address} the "
                f"stream has {current[0].count}. It was deleted and created again. Start the query with a new "
                "checkpoint and startingOffsets=earliest"
            )
        quoted = shell_words([shard.stream])
        raise ShardsError(
            f"the checkpoint has {shard.count} shards of stream {shard.stream!r}, but {options.address} has none of "
            "them and no key that registers them. If they were deleted, start the query with a new checkpoint. "
            "Otherwise the server has lost them. If a query has created an empty stream of that name since "
            f"(`redis-cli XLEN {quoted}` prints 0), delete it (`redis-cli DEL {quoted}`). Start the query with option "
            f"shards={shard.count}: it then reports how much is lost (failOnDataLoss)"
        )


def require_not_in_shards_since(server: Server, sharded_options: SourceOptions) -> None:
    """Raise ShardsError if a sink has sharded a stream while the query created it as a plain one."""
    require_still_plain(server, [stream for stream in sharded_options.streams or () if Shard.parse(stream) is None])


_FIELD = b"reads:"
_MILLISECONDS = 7 * 86_400_000


@dataclass(frozen=True)
class PatternRead:
    """What a query with a pattern reads."""

    pattern: str  # of the streams
    excluded: tuple[str, ...]  # words of streamsExcept
    own: tuple[str, ...]  # the query's own dead-letter streams
    run: str  # Spark's ID of the query's run, because a later run may have other options

    def matches(self, stream: str) -> bool:
        """Whether the pattern selects this stream, and no option excludes it."""
        if is_product_key(stream) or stream in self.own or not matches(self.pattern, stream):
            return False
        return not NamesAndPatterns.divide(self.excluded, frozenset()).selects(stream)

    def field(self, group: str, consumer: str) -> tuple[bytes, bytes]:
        """Return field and value of the report of a source. A query may have several sources."""
        name = json.dumps([group, consumer]).encode()
        return _FIELD + name, json.dumps(asdict(self)).encode()


def pattern_reads(flat: Sequence[bytes], run: str) -> list[PatternRead]:
    """Return the reports of a query's run, from the reply to HGETALL. run: empty if Spark does not tell it."""
    found = [json.loads(value) for name, value in zip(flat[0::2], flat[1::2], strict=True) if name.startswith(_FIELD)]
    reads = [PatternRead(one["pattern"], tuple(one["excluded"]), tuple(one["own"]), one["run"]) for one in found]
    return [read for read in reads if run in ("", read.run)]


def report_pattern(server: Server, options: SourceOptions, batch: MicroBatchName | None) -> None:
    """Report to the sink which streams the query reads. batch: of the task, None outside a query."""
    if batch is not None:
        own = own_dead_letter_streams(options.dead_letter_stream)
        read = PatternRead(options.pattern, options.streams_except, tuple(own), batch.query_run)
        key = batch_kind_key(batch.query)
        reported = ("HSET", key, *read.field(options.group, options.consumer))
        server.execute_all([reported, ("PEXPIRE", key, _MILLISECONDS)])
