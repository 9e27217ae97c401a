"""The query's consumer in its group."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Membership:
    """Consumer of a group on some streams."""

    streams: tuple[str, ...]
    group: str
    consumer: str
