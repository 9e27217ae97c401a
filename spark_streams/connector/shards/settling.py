"""Create, find and delete the shards of streams. If shards are lost, the error names them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from spark_streams.connector.errors import NotPermittedError, ShardsError
from spark_streams.connector.keys import RetryStream, delays_key, read_retry_stream, shards_key
from spark_streams.connector.operator_commands import delete_shards_command
from spark_streams.connector.shards.names import may_be_in_shards
from spark_streams.connector.shards.shards_snapshot import (
    ShardSet,
    ShardsSnapshot,
    fetch_shards_snapshots,
    plain_and_shards,
    require_complete,
)
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.replies import is_busy_group, transact
from spark_streams.connector.wire.scan import list_streams

_MAKING = "rstream:making"  # a group that exists for a moment: only XGROUP creates an empty stream
_PAGE = "rstream help order-by-key, on the number of shards"
_log = logging.getLogger("spark_streams.shards")


def ensure_shards(
    server: Server, stream: str, count: int, key_column: str | None = None, accepts_loss: bool = False
) -> ShardSet:
    """Create the shards of a stream, unless they exist, and return them. key_column: None for a reader, which does not
    know it; accepts_loss: lost shards are created again, empty, with a warning. May be run again.

    Raises ShardsError if the stream is plain or in another number of shards, if another column is the key, or if shards
    are lost; WrongKeyTypeError.
    """
    home = server.connection_for(shards_key(stream))
    while True:
        home.execute("WATCH", shards_key(stream), stream)
        try:
            snapshot = fetch_shards_snapshots(server, [stream])[stream]
            if snapshot.refusal is not None:
                raise server.error_of(snapshot.refusal, ("HGETALL", shards_key(stream)))
            shard_set = _plan(server, snapshot, count, key_column, accepts_loss)
        except (ShardsError, NotPermittedError):
            home.execute("UNWATCH")
            raise
        if snapshot.registered == shard_set:
            home.execute("UNWATCH")
            break
        if transact(home, [("HSET", shards_key(stream), *shard_set.to_fields())]) is not None:
            break
    return _create_missing(server, shard_set)


def restore_shard_sets(server: Server, streams: Sequence[str], accepts_loss: bool = False) -> dict[str, ShardSet]:
    """Return the shards of these streams, without plain streams. A lost key is written again.

    Empty if the user may not read the keys. Raises the errors of ensure_shards.
    """
    snapshots = fetch_shards_snapshots(server, [stream for stream in streams if may_be_in_shards(stream)])
    sets: dict[str, ShardSet] = {}
    for stream, snapshot in snapshots.items():
        require_complete(server, snapshot, accepts_loss)
        shard_set = snapshot.shard_set
        if shard_set is not None and not snapshot.is_complete:
            shard_set = ensure_shards(server, stream, shard_set.count, None, accepts_loss)
        if shard_set is not None:
            sets[stream] = shard_set
    return sets


def fetch_shard_sets(server: Server, streams: Sequence[str]) -> dict[str, ShardSet]:
    """Return the same without changing anything. Raises ShardsError if shards are lost, or if there is a plain stream,
    too."""
    snapshots = fetch_shards_snapshots(server, [stream for stream in streams if may_be_in_shards(stream)])
    for snapshot in snapshots.values():
        require_complete(server, snapshot)
    return {stream: snapshot.shard_set for stream, snapshot in snapshots.items() if snapshot.shard_set is not None}


def require_plain(server: Server, stream: str) -> None:
    """Raise ShardsError if the stream is in shards: no query would read rows that are written to the stream itself."""
    shard_set = fetch_shard_sets(server, [stream]).get(stream)
    if shard_set is not None:
        raise ShardsError(
            f"stream {stream!r} at {server.address} is in {shard_set.count} shards, so no query would read rows that "
            f"are written to {stream!r} itself. Set options shards={shard_set.count} and "
            f"shardBy={shard_set.key_column or 'the key'}, or write to another name"
        )


def require_still_plain(server: Server, streams: Sequence[str]) -> None:
    """Raise ShardsError if one of these streams, which were plain or missing, is in shards now."""
    for snapshot in fetch_shards_snapshots(server, [stream for stream in streams if may_be_in_shards(stream)]).values():
        if snapshot.registered is not None:
            raise plain_and_shards(server, snapshot)


def _plan(server: Server, snapshot: ShardsSnapshot, count: int, key_column: str | None, accepts_loss: bool) -> ShardSet:
    """Return the set that is to exist. Raises ShardsError."""
    shard_set, stream = snapshot.shard_set, snapshot.stream
    require_complete(server, snapshot, accepts_loss)
    if snapshot.plain is not None:
        raise _plain(server, stream, snapshot.plain)
    if shard_set is None:
        return ShardSet(stream, count, key_column=key_column)
    if snapshot.registered is None:
        _log.warning(
            "key %r at %s was evicted or deleted; there are %d shards of %r, so the key is written again",
            shards_key(stream).decode(), server.address, shard_set.count, stream,
        )  # fmt: skip
    if shard_set.count != count:
        raise ShardsError(
            f"stream {stream!r} at {server.address} is in {shard_set.count} shards, but option shards={count}. The "
            "shard of a key depends on this number, so it cannot change while the stream has rows. Set "
            f"shards={shard_set.count}, or write to another name. Or let the query read the stream to its end, stop "
            f"all writers and readers, and delete it (`{delete_shards_command(stream)}`) ({_PAGE})"
        )
    if key_column is not None and shard_set.key_column not in (None, key_column):
        raise ShardsError(
            f"stream {stream!r} at {server.address} is in shards by column {shard_set.key_column!r}, but option "
            f"shardBy={key_column!r}: rows of one key would be in two shards. Set shardBy={shard_set.key_column}, or "
            "write to another name"
        )
    if snapshot.lost:
        _log.warning(
            "shards of %r at %s are lost, and are created again, empty: %s",
            stream, server.address, ", ".join(snapshot.lost),
        )  # fmt: skip
    is_created = shard_set.is_created and not snapshot.lost
    return ShardSet(stream, count, key_column=shard_set.key_column or key_column, is_created=is_created)


def _create_missing(server: Server, shard_set: ShardSet) -> ShardSet:
    """Create the missing shards, empty. Return the set with all its shards."""
    if shard_set.is_created:
        return shard_set
    for name in shard_set.names:
        create: tuple[str, ...] = ("XGROUP", "CREATE", name, _MAKING, "0", "MKSTREAM")
        server.execute_all([create], is_busy_group)
        server.execute("XGROUP", "DESTROY", name, _MAKING)
    server.execute("HSET", shards_key(shard_set.stream), "made", 1)
    return ShardSet(shard_set.stream, shard_set.count, shard_set.rule, shard_set.key_column, is_created=True)


def _plain(server: Server, stream: str, length: int) -> ShardsError:
    if length:
        return ShardsError(
            f"stream {stream!r} at {server.address} is a plain stream with {length:,} entries, so it cannot be in "
            "shards. Write to another name. Or let the query read the stream to its end, stop the query, and delete "
            f"the stream (`redis-cli DEL {stream}`)"
        )
    return ShardsError(
        f"stream {stream!r} at {server.address} is a plain stream without entries: a query that waits for it has "
        f"created it. Stop the query, delete the stream (`redis-cli DEL {stream}`), and start the query with "
        "option shards, or after the writer"
    )


def retry_streams_of(server: Server, shard_set: ShardSet) -> dict[str, RetryStream]:
    """Return the streams in which entries of the shards wait for a retry, and those with returned entries."""
    shards = set(shard_set.names)
    names = [name.decode("utf-8", "replace") for name in list_streams(server)]
    parsed = {name: read_retry_stream(name) for name in names}
    return {name: retry for name, retry in parsed.items() if retry is not None and retry.stream in shards}


def delete_shards(
    server: Server, snapshot: ShardsSnapshot, shard_set: ShardSet, retry_streams: Iterable[tuple[str, RetryStream]]
) -> None:
    """Delete all shards with their entries and these retry streams, then the key, if it holds this number of shards."""
    for name in shard_set.names:
        server.execute("DEL", name)
    for name, retry_stream in retry_streams:
        server.execute("DEL", name)
        server.execute("DEL", delays_key(retry_stream.stream, retry_stream.group))
    # Last: if the deletion is interrupted, the key still shows which shards to delete.
    if snapshot.registered is not None and snapshot.registered.count == shard_set.count:
        server.execute("DEL", shards_key(shard_set.stream))
