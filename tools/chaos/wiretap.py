"""Record of the XACKs that the planner's process sends, and kill points between two of its commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import hiredis

from spark_streams.connector.source.trigger.roles import Bookmarked
from spark_streams.connector.wire.connection.connection import Connection
from tools.chaos.query import Query
from tools.chaos.strike import stand_still


def record_acknowledgements(query: Query) -> None:
    """Record every XACK that this process sends from now on, with the last batch that is committed before it.

    The query stands still at stage `looked` before the first XREADGROUP (noAck: before it selects new entries) when the
    batch before the fault's is logged, and at stage `acknowledging` after the first XACK.
    """
    send, choose = Connection.send, Bookmarked.take
    file = query.path / "acks.jsonl"

    def stand_still_before_it_reserves() -> None:
        if query.fault is not None and query.logged() + 1 >= query.fault.batch:
            # Entries reserved ahead may belong to the first or second batch after the last logged one.
            stand_still(query, "looked", query.fault.batch)

    def choosing(self: Bookmarked, *arguments: Any) -> Any:
        stand_still_before_it_reserves()
        return choose(self, *arguments)

    def recording(self: Connection, data: bytes | memoryview) -> None:
        sent = bytes(data)
        if b"XREADGROUP" in sent:
            stand_still_before_it_reserves()
        acknowledgements = acknowledged_in(sent) if b"XACK" in sent else []
        if acknowledgements:
            committed = query.committed()
            with file.open("a") as lines:
                for stream, group, ids in acknowledgements:
                    if group == query.group:
                        lines.write(json.dumps({"stream": stream, "ids": ids, "committed": committed}) + "\n")
        send(self, data)
        if acknowledgements:
            stand_still(query, "acknowledging", query.committed())

    Connection.send = recording  # type: ignore[method-assign]
    Bookmarked.take = choosing  # type: ignore[method-assign, assignment]


def acknowledged_in(requests: bytes) -> list[tuple[str, str, list[str]]]:
    """Return (stream, group, IDs) of every XACK in a sequence of complete requests."""
    acknowledgements = []
    for words in _commands_in(requests):
        if words[0] in (b"XACK", b"XACKDEL"):
            ids = words[3:] if words[0] == b"XACK" else words[words.index(b"IDS") + 2 :]
            acknowledgements.append((words[1].decode(), words[2].decode(), [entry_id.decode() for entry_id in ids]))
    return acknowledgements


def claimed_in(requests: bytes) -> list[tuple[str, list[str]]]:
    """Return (stream, IDs) of every XCLAIM in a sequence of complete requests."""
    return [
        (words[1].decode(), [word.decode() for word in words[5:] if word[:1].isdigit() and b"-" in word])
        for words in _commands_in(requests)
        if words[0] == b"XCLAIM"
    ]


def _commands_in(requests: bytes) -> Iterator[list[bytes]]:
    reader = hiredis.Reader()
    reader.feed(requests)
    while (words := reader.gets()) is not False:
        if isinstance(words, list) and words:
            yield words
