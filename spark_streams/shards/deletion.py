"""Deletion of a stream in shards: the shards, what waits or has come back beside them, and the key."""

from __future__ import annotations

from collections.abc import Iterable

from spark_streams.model.keys import RetryStream, delays_key, read_retry_stream, shards_key
from spark_streams.shards.registry import ShardSet
from spark_streams.shards.survey import Survey
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.scan import list_streams


def retry_streams_of(server: Server, known: ShardSet) -> dict[str, RetryStream]:
    """The streams in which entries of the shards wait for another try, or have come back from there."""
    shards = set(known.names)
    names = [name.decode("utf-8", "replace") for name in list_streams(server)]
    return {name: told for name in names if (told := read_retry_stream(name)) is not None and told.stream in shards}


def delete(server: Server, found: Survey, known: ShardSet, beside: Iterable[tuple[str, RetryStream]]) -> None:
    """Delete all shards with what they hold and these streams beside them, then the key, if it tells of this number."""
    for name in known.names:
        server.execute("DEL", name)
    for name, told in beside:
        server.execute("DEL", name)
        server.execute("DEL", delays_key(told.stream, told.group))
    # Last: it says what is to be deleted.
    if found.registered is not None and found.registered.count == known.count:
        server.execute("DEL", shards_key(known.stream))
