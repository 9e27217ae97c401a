"""Deletion of a stream in shards: the shards, their retry streams and returned entries, and the key."""

from __future__ import annotations

from collections.abc import Iterable

from spark_streams.connector.keys import RetryStream, delays_key, read_retry_stream, shards_key
from spark_streams.connector.shards.registry import ShardSet
from spark_streams.connector.shards.survey import Survey
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.scan import list_streams


def retry_streams_of(server: Server, shard_set: ShardSet) -> dict[str, RetryStream]:
    """Return the streams in which entries of the shards wait for a retry, and those with returned entries."""
    shards = set(shard_set.names)
    names = [name.decode("utf-8", "replace") for name in list_streams(server)]
    parsed = {name: read_retry_stream(name) for name in names}
    return {name: retry for name, retry in parsed.items() if retry is not None and retry.stream in shards}


def delete_shards(
    server: Server, survey: Survey, shard_set: ShardSet, retry_streams: Iterable[tuple[str, RetryStream]]
) -> None:
    """Delete all shards with their entries and these retry streams, then the key, if it holds this number of shards."""
    for name in shard_set.names:
        server.execute("DEL", name)
    for name, retry_stream in retry_streams:
        server.execute("DEL", name)
        server.execute("DEL", delays_key(retry_stream.stream, retry_stream.group))
    # Last: if the deletion is interrupted, the key still shows which shards to delete.
    if survey.registered is not None and survey.registered.count == shard_set.count:
        server.execute("DEL", shards_key(shard_set.stream))
