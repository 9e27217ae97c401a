"""Entries that are given up: delivered too often without being acknowledged, or killing the query (maxDeliveries)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_streams.deadletter.letter import Letter, now, post
from spark_streams.ids import StreamId
from spark_streams.wire.connection import Connection, ReplyError


@dataclass(frozen=True)
class Overdue:
    """Such entries of one stream, pending for `consumer`: their ids, how often each was delivered, and why they go."""

    stream: str
    consumer: str
    ids: Sequence[StreamId]
    deliveries: Sequence[int]
    stage: str = "claim"
    reason: str = "deliveries"
    error: str = ""
    message: str = ""


def bury(server: Connection, group: str, overdue: Overdue, to: str) -> tuple[int, int]:
    """Post a letter for each, acknowledged in the same transaction; (letters, entries that are gone from the stream).

    Raises ServerError; letters that were posted by then stay.
    """
    commands = [("XRANGE", overdue.stream, bytes(entry), bytes(entry)) for entry in overdue.ids]
    letters, gone = [], []
    found = server.pipeline(commands)
    for command, reply, entry, deliveries in zip(commands, found, overdue.ids, overdue.deliveries, strict=True):
        if isinstance(reply, ReplyError):
            raise server.error_of(reply, command)
        if not reply:
            gone.append(bytes(entry))
            continue
        when = now()
        envelope = {
            "stream": overdue.stream,
            "id": str(entry),
            "group": group,
            "consumer": overdue.consumer,
            "stage": overdue.stage,
            "reason": overdue.reason,
            "error": overdue.error,
            "message": overdue.message or f"delivered {deliveries} times and not acknowledged",
            "deliveries": str(deliveries),
            "first-failed": when,
            "last-failed": when,
        }
        letters.append(Letter(overdue.stream, bytes(entry), reply[0][1], envelope))
    post(server, to, group, letters)
    if gone:
        server.execute("XACK", overdue.stream, group, *gone)
    return len(letters), len(gone)
