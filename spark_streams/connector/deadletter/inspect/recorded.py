"""Record of the streams to which queries have written dead letters. It is read without Arrow: commands need it."""

from __future__ import annotations

from collections.abc import Iterable

from spark_streams.connector.keys import origins_key
from spark_streams.connector.wire.connection.server import Server


def fetch_recorded(server: Server, streams: Iterable[str]) -> set[str]:
    """Return those of these streams to which queries have written dead letters. Raises ServerError."""
    names = sorted(streams)
    replies = server.execute_all([("EXISTS", origins_key(name)) for name in names])
    return {name for name, exists in zip(names, replies, strict=True) if exists}
