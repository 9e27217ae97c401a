"""Entries that are given up: delivered too often without being acknowledged, or killing the query (maxDeliveries)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_streams.deadletter.limits import DEAD_LETTER_LIMITS, DeadLetterLimits
from spark_streams.deadletter.page_reader import PageSize
from spark_streams.deadletter.retry.returned_entry import ReturnedEntry
from spark_streams.deadletter.write.failed_entry import FailedEntry, now
from spark_streams.deadletter.write.post import post
from spark_streams.model.ids import StreamId
from spark_streams.model.keys import is_returned
from spark_streams.wire.connection.server import Server

_FIRST_LOOK = 20  # entries that are asked for at once; how large they are shows how many more


@dataclass(frozen=True)
class DeadEntries:
    """Such entries of one stream: their ids, how often each was delivered, and why they go. consumer: the one that they
    are pending for, None: they were released (XNACK)."""

    stream: str
    consumer: str | None
    ids: Sequence[StreamId]
    deliveries: Sequence[int]
    stage: str = "claim"
    reason: str = "deliveries"
    error: str = ""
    message: str = ""


def dead_letter(
    server: Server, group: str, dead: DeadEntries, to: str, limits: DeadLetterLimits = DEAD_LETTER_LIMITS
) -> tuple[int, int]:
    """Post a letter for each that is still pending, acknowledged in the same transaction; (letters, entries that are
    gone from the stream).

    Raises ServerError; letters that were posted by then stay.
    """
    posted, gone, start = 0, 0, 0
    size = PageSize(limits, _FIRST_LOOK)
    while start < len(dead.ids):
        asked = slice(start, start + size.next())
        letters, missing = _look(server, group, dead, asked)
        posted += post(server, to, group, letters, limits)
        if missing:
            gone += server.execute("XACK", dead.stream, group, *missing)
        size.learn(len(letters), sum(letter.size for letter in letters), len(letters))
        start = asked.stop
    return posted, gone


def _look(server: Server, group: str, dead: DeadEntries, asked: slice) -> tuple[list[FailedEntry], list[bytes]]:
    """The letters for some of the entries, and the ids of those that are gone from the stream."""
    ids, deliveries = dead.ids[asked], dead.deliveries[asked]
    replies = server.execute_all([("XRANGE", dead.stream, bytes(entry), bytes(entry)) for entry in ids])
    when = now()
    letters = []
    for reply, entry, delivered in zip(replies, ids, deliveries, strict=True):
        if not reply:
            continue
        envelope = {
            "stream": dead.stream,
            "id": str(entry),
            "group": group,
            "consumer": dead.consumer or "",
            "stage": dead.stage,
            "reason": dead.reason,
            "error": dead.error,
            "message": dead.message or f"delivered {delivered} times and not acknowledged",
            "deliveries": str(delivered),
            "first-failed": when,
            "last-failed": when,
        }
        fields = reply[0][1]
        if is_returned(dead.stream):
            again = ReturnedEntry.of(fields)
            if again is not None:
                fields, envelope = again.fields, {**envelope, **again.told()}
        released = dead.consumer is None
        letter = FailedEntry(dead.stream, bytes(entry), fields, envelope, None, dead.consumer, released)
        letters.append(letter)
    return letters, [bytes(entry) for entry, reply in zip(ids, replies, strict=True) if not reply]
