"""Everything that is known of a query after its run, as a History."""

from __future__ import annotations

import json
from collections.abc import Iterable

import redis

from tools.chaos.clients import client_of
from tools.chaos.history import Acknowledged, Added, History, Place
from tools.chaos.query import Query
from tools.chaos.sink import rows_of


def gather(query: Query, added: Iterable[Added], foreign: Iterable[str] = ()) -> History:
    """The history of a query that has drained. foreign: consumers of its group that are not the query's own."""
    added = list(added)
    streams = sorted({one.stream for one in added})
    return History(
        added=added,
        rows=rows_of(query),
        acknowledged=acknowledgements(query),
        pending=[place for stream in streams for place in pending(query, stream, foreign)],
        letters=letters(query),
    )


def acknowledgements(query: Query) -> list[Acknowledged]:
    """Every XACK that the query sent."""
    file = query.path / "acks.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [
        Acknowledged((ack["stream"], entry), ack["committed"]) for ack in map(json.loads, lines) for entry in ack["ids"]
    ]


def pending(query: Query, stream: str, foreign: Iterable[str] = ()) -> list[Place]:
    """What the group still holds on a stream for consumers that are not foreign."""
    with client_of(query.url) as client:
        try:
            found = client.xpending_range(stream, query.group, "-", "+", 1_000_000)
        except redis.ResponseError as error:
            if "NOGROUP" in str(error):
                return []
            raise
    return [(stream, one["message_id"]) for one in found if one["consumer"] not in set(foreign)]


def letters(query: Query) -> list[Place]:
    """The originals of the query's dead letters."""
    to = query.options.get("deadLetterStream")
    if to is None:
        return []
    with client_of(query.url) as client:
        return [(fields["dl.stream"], fields["dl.id"]) for _, fields in client.xrange(to)]
