"""Collect everything that is known about a query after its run, as a History."""

from __future__ import annotations

import json
from collections.abc import Iterable

import redis

from spark_streams.operations.verify.history import Acknowledged, Added, History, Place
from tools.chaos.clients import client_of
from tools.chaos.query import Query
from tools.chaos.sink import rows_of


def gather(query: Query, added: Iterable[Added]) -> History:
    """Return the history of a drained query."""
    added = list(added)
    streams = sorted({entry.stream for entry in added})
    return History(
        added=added,
        rows=rows_of(query),
        acknowledged=acknowledgements(query),
        pending=[place for stream in streams for place in pending(query, stream)],
        dead_letters=dead_letters(query),
    )


def acknowledgements(query: Query) -> list[Acknowledged]:
    """Return every XACK that the query sent."""
    file = query.path / "acks.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [
        Acknowledged((ack["stream"], entry), ack["committed"]) for ack in map(json.loads, lines) for entry in ack["ids"]
    ]


def pending(query: Query, stream: str) -> list[Place]:
    """Return the entries of a stream that are pending."""
    with client_of(query.url) as client:
        try:
            entries = client.xpending_range(stream, query.group, "-", "+", 1_000_000)
        except redis.ResponseError as error:
            if "NOGROUP" in str(error):
                return []
            raise
    return [(stream, entry["message_id"]) for entry in entries]


def dead_letters(query: Query) -> list[Place]:
    """Return the original entries of the query's dead letters."""
    stream = query.options.get("deadLetterStream")
    if stream is None:
        return []
    with client_of(query.url) as client:
        return [(fields["dl.stream"], fields["dl.id"]) for _, fields in client.xrange(stream)]
