"""The query's consumer in its group."""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.connector.keys import key_beside


@dataclass(frozen=True)
class Membership:
    """Consumer of a group on some streams."""

    streams: tuple[str, ...]
    group: str
    consumer: str


def lease_key(stream: str, group: str, consumer: str) -> bytes:
    """Return the key of one stream's lease."""
    return key_beside(stream, "lease", group, consumer)
