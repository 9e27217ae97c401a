"""Entries that become dead letters: delivered too often without being acknowledged, or killing the query."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spark_streams.base.ids import StreamId
from spark_streams.connector.counters import DEAD
from spark_streams.connector.deadletter.envelope import ReturnedEntry
from spark_streams.connector.deadletter.failed_entry import FailedEntry, now
from spark_streams.connector.deadletter.page_reader import DEAD_LETTER_LIMITS, DeadLetterLimits, PageSize
from spark_streams.connector.deadletter.post import post
from spark_streams.connector.keys import is_returned, origin_of
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.group.findings import Finding, Kind
from spark_streams.connector.source.group.remedies import DataLoss
from spark_streams.connector.source.limits import Limits
from spark_streams.connector.source.run_counters import RunCounters
from spark_streams.connector.wire.connection.server import Server

_FIRST_PAGE = 20  # entries of the first page; their sizes determine the size of the next pages


@dataclass(frozen=True)
class DeadEntries:
    """Such entries of one stream.

    consumer: that the entries are pending for, None: they were released (XNACK); deliveries: of each entry; stage,
    reason, error, message: for the dead letters.
    """

    stream: str
    consumer: str | None
    ids: Sequence[StreamId]
    deliveries: Sequence[int]
    stage: str = "claim"
    reason: str = "deliveries"
    error: str = ""
    message: str = ""


class DeadLetters:
    """The dead letters that the driver of one query writes. written: called after those of a stream."""

    def __init__(
        self,
        options: SourceOptions,
        losses: DataLoss,
        counters: RunCounters,
        limits: Limits,
        written: Callable[[Server, str], None],
    ) -> None:
        self._group, self._to = options.group, options.dead_letter_stream
        self._losses = losses
        self._counters = counters
        self._limits = limits.dead_letters
        self._written = written

    def write(self, server: Server, dead: DeadEntries) -> None:
        """Write entries to the dead-letter stream, and count them."""
        assert self._to is not None  # maxDeliveries needs it
        posted, deleted = dead_letter(server, self._group, dead, self._to, self._limits)
        self._written(server, dead.stream)
        self._counters.entries(DEAD)[origin_of(dead.stream)] += posted
        if deleted:
            above = min(dead.ids).previous()
            finding = Finding(Kind.ENTRIES_LOST, dead.stream, above=above, lost=deleted, is_harmless=True)
            # They cannot become dead letters any more, and are acknowledged.
            self._losses.report(replace(finding, detail="before they became dead letters"))


def dead_letter(
    server: Server, group: str, dead: DeadEntries, to: str, limits: DeadLetterLimits = DEAD_LETTER_LIMITS
) -> tuple[int, int]:
    """Write a dead letter for each entry that is still pending, and acknowledge it in the same transaction (in a
    cluster maybe in two, with an outbox: write.post). Return the number of dead letters, and of entries that are no
    longer in the stream.

    Raises ServerError; dead letters that are written by then stay.
    """
    posted, deleted, start = 0, 0, 0
    size = PageSize(limits, _FIRST_PAGE)
    while start < len(dead.ids):
        page = slice(start, start + size.next())
        failed, missing = _fetch_entries(server, group, dead, page)
        posted += post(server, to, group, failed, limits)
        if missing:
            deleted += server.execute("XACK", dead.stream, group, *missing)
        size.learn(len(failed), sum(entry.size for entry in failed), len(failed))
        start = page.stop
    return posted, deleted


def _fetch_entries(server: Server, group: str, dead: DeadEntries, page: slice) -> tuple[list[FailedEntry], list[bytes]]:
    """Return the entries of a page that the stream still has, and the IDs of the others."""
    ids, deliveries = dead.ids[page], dead.deliveries[page]
    replies = server.execute_all([("XRANGE", dead.stream, bytes(entry_id), bytes(entry_id)) for entry_id in ids])
    when = now()
    failed = []
    for reply, entry_id, delivered in zip(replies, ids, deliveries, strict=True):
        if not reply:
            continue
        envelope = {
            "stream": dead.stream,
            "id": str(entry_id),
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
            returned = ReturnedEntry.parse(fields)
            if returned is not None:
                fields, envelope = returned.fields, {**envelope, **returned.to_envelope()}
        released = dead.consumer is None
        entry = FailedEntry(dead.stream, bytes(entry_id), fields, envelope, None, dead.consumer, released)
        failed.append(entry)
    return failed, [bytes(entry_id) for entry_id, reply in zip(ids, replies, strict=True) if not reply]
