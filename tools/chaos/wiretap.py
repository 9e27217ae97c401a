"""What the planner's process sends to the server: a record of its XACKs, and moments between two commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import hiredis

from spark_streams.source.microbatch.next_ranges import NextRanges
from spark_streams.wire.connection.connection import Connection
from tools.chaos.query import Query
from tools.chaos.strike import stand_still


def listen(query: Query) -> None:
    """From now on note every XACK that this process sends, with the last batch that is committed before it.

    The query stands still at stage `looked` before the first XREADGROUP (noAck: before it chooses what to read) once
    the batch before its fault's is logged, and at `acknowledging` behind the first XACK.
    """
    send, choose = Connection.send, NextRanges.new_entries
    file = query.path / "acks.jsonl"

    def stand_still_before_it_reserves() -> None:
        if query.fault is not None and query.logged() + 1 >= query.fault.batch:
            # What is reserved ahead may be for a batch or two after the last one that is logged.
            stand_still(query, "looked", query.fault.batch)

    def choosing(self: NextRanges, *given: Any) -> Any:
        stand_still_before_it_reserves()
        return choose(self, *given)

    def recording(self: Connection, data: bytes | memoryview) -> None:
        sent = bytes(data)
        if b"XREADGROUP" in sent:
            stand_still_before_it_reserves()
        found = acknowledged_in(sent) if b"XACK" in sent else []
        if found:
            committed = query.committed()
            with file.open("a") as lines:
                for stream, group, ids in found:
                    if group == query.group:
                        lines.write(json.dumps({"stream": stream, "ids": ids, "committed": committed}) + "\n")
        send(self, data)
        if found:
            stand_still(query, "acknowledging", query.committed())

    Connection.send = recording  # type: ignore[method-assign]
    NextRanges.new_entries = choosing  # type: ignore[method-assign, assignment]


def acknowledged_in(requests: bytes) -> list[tuple[str, str, list[str]]]:
    """(stream, group, ids) of every XACK in a run of whole requests."""
    found = []
    for words in _commands_in(requests):
        if words[0] in (b"XACK", b"XACKDEL"):
            ids = words[3:] if words[0] == b"XACK" else words[words.index(b"IDS") + 2 :]
            found.append((words[1].decode(), words[2].decode(), [one.decode() for one in ids]))
    return found


def _commands_in(requests: bytes) -> Iterator[list[bytes]]:
    reader = hiredis.Reader()
    reader.feed(requests)
    while (words := reader.gets()) is not False:
        if isinstance(words, list) and words:
            yield words
