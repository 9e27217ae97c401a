"""Claims: taking over pending entries of dead consumers of the group, and released entries (XPENDING … IDLE, XCLAIM).

    → WATCH lease   GET lease   XPENDING … IDLE     a page of one consumer, which is no running query
    → XINFO STREAM   XRANGE …                       reports entries that have left the stream: XCLAIM forgets them
    → MULTI   XCLAIM … JUSTID   EXEC                nil: a query has begun as this consumer

Claimed entries become pending for the query's own consumer. Those at or below its position are old entries: the next
batch takes them. Those above it are taken like reserved entries. So a run that dies between a claim and its offset
loses no entry and reads none twice.

Released entries (XNACK, Redis 8.8) belong to no consumer: every query of the group takes them at once, with or without
claimIdle. An entry is dead if it is marked by XNACK FATAL, or was delivered `maxDeliveries` times. A claim counts as a
delivery, unless it takes entries from another query: queries that die of an outage would pass an entry on until it is
dead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.connector.counters import CLAIMED, DEAD
from spark_streams.connector.deadletter.envelope import ReturnedEntry
from spark_streams.connector.deadletter.post import (
    DEAD_LETTER_LIMITS,
    DeadLetterLimits,
    FailedEntry,
    PageSize,
    now,
    post,
)
from spark_streams.connector.keys import is_returned, origin_of
from spark_streams.connector.operator_commands import command_on
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.commit_mark import committed_key
from spark_streams.connector.source.counting import count_missing
from spark_streams.connector.source.group.recovery import DataLoss, RunCounters, entries_lost
from spark_streams.connector.source.group.snapshot import GroupState, OtherConsumer, read_group_now
from spark_streams.connector.source.group.streams import StreamSet
from spark_streams.connector.source.group_client import GroupClient, Membership, lease_key
from spark_streams.connector.source.limits import Limits
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.pending_list import pending_ids, pending_page
from spark_streams.connector.source.quota import BatchQuota
from spark_streams.connector.wire.connection import Argument, Server
from spark_streams.connector.wire.pending_page import PendingPage, arguments_of, texts_of
from spark_streams.connector.wire.replies import transact
from spark_streams.connector.wire.xinfo import FATAL, RELEASED_IDLE, released_in, stream_states

_log = logging.getLogger("spark_streams.source")

_FIRST_PAGE = 20  # entries of the first page of dead letters; their sizes determine the size of the next pages


@dataclass(frozen=True)
class Holder:
    consumer: str | None  # None: the entries were released
    idle: int  # milliseconds since the last delivery of an entry, at least
    counts: bool = True  # a claim counts as a delivery
    end: StreamId = MAX_ID  # last entry to claim

    def xpending(self, member: Membership, stream: str, start: StreamId, count: int) -> tuple[Argument, ...]:
        """Return the XPENDING that lists its next entries."""
        name = () if self.consumer is None else (self.consumer,)
        return ("XPENDING", stream, member.group, "IDLE", self.idle, bytes(start), bytes(self.end), count, *name)


@dataclass(frozen=True)
class Claims:
    options: SourceOptions  # claimIdle, maxDeliveries, deadLetterStream
    stream_set: StreamSet  # which queries run
    losses: DataLoss  # of entries that were deleted before the claim
    counters: RunCounters  # claimed entries
    dead_letters: DeadLetterWriter  # of entries that were delivered too often or are fatal
    reported_fatal: set[tuple[str, StreamId, int]] = field(default_factory=set)  # stream, first ID and number

    def claim(self, client: GroupClient, groups: Mapping[str, GroupState], quota: BatchQuota) -> list[str]:
        """Claim what the quota admits. Return the streams of which something was claimed. Raises ServerError."""
        claiming = _Claiming(client, self)
        return claiming.claim(claiming.holders(groups), quota)


@dataclass(frozen=True)
class _Claiming:
    """The claims of one trigger."""

    client: GroupClient
    query: Claims

    def holders(self, groups: Mapping[str, GroupState]) -> dict[str, list[Holder]]:
        """Return the holders of entries to claim, per stream, released entries first. What is above the position of a
        group that was set back it delivers again, and a claim would make dead letters of it. Raises ServerError."""
        ends = {stream: group.last_delivered for stream, group in groups.items()}
        released = [stream for stream, group in groups.items() if group.released]
        holders = {stream: [Holder(None, RELEASED_IDLE, end=ends[stream])] for stream in self._with_released(released)}
        idle = self.query.options.claim_idle
        if idle is not None:
            for stream, name in self._dead_consumers(groups):
                is_query = self.client.server.execute("GET", committed_key(stream, self.client.group, name)) is not None
                holders.setdefault(stream, []).append(Holder(name, idle, not is_query, ends[stream]))
        return holders

    def _with_released(self, streams: Sequence[str]) -> list[str]:
        """Return those of these streams whose group has released entries."""
        summaries = self.client.server.execute_all([("XPENDING", stream, self.client.group) for stream in streams])
        return [stream for stream, summary in zip(streams, summaries, strict=True) if released_in(summary)]

    def _dead_consumers(self, groups: Mapping[str, GroupState]) -> list[tuple[str, str]]:
        """Return consumers with pending entries that are no running query, each with its stream."""
        candidates: list[tuple[str, OtherConsumer]] = [
            (stream, other) for stream, group in groups.items() for other in group.others if other.pending
        ]
        if not candidates:
            return []
        alive = self.query.stream_set.live(self.client.server, [(stream, other.name) for stream, other in candidates])
        return [(stream, other.name) for stream, other in candidates if (stream, other.name) not in alive]

    def claim(self, holders: Mapping[str, Sequence[Holder]], quota: BatchQuota) -> list[str]:
        """Claim what the quota admits. Return the streams of which something was claimed."""
        claimed: list[str] = []
        for stream, stream_holders in holders.items():
            before = read_group_now(self.client, stream).ours
            requested_ids: list[bytes] = []
            requested = reported = 0
            for holder in stream_holders:
                ids, count, deleted = self._claim_from(stream, holder, quota.without({stream: requested}))
                requested_ids += ids
                requested += count
                reported += deleted
            if not requested:
                continue
            # Other clients may have acknowledged or claimed some meanwhile, so the pending list decides.
            gained = read_group_now(self.client, stream).ours - before
            if gained < requested - reported:
                first = StreamId.parse(texts_of(requested_ids[0])[0].as_py())
                self._report_deleted(stream, _count_deleted(self.client, stream, requested_ids) - reported, first)
            if gained > 0:
                self.query.counters.entries(CLAIMED)[stream] += gained
                claimed.append(stream)
                quota = quota.without({stream: gained})
        return claimed

    def _report_deleted(self, stream: str, deleted: int, first: StreamId) -> None:
        if deleted > 0:
            detail = f"that other consumers of group {self.client.group!r} had left pending or released"
            self.query.losses.report(entries_lost(stream, deleted, first.previous(), detail))

    def _already_deleted(self, stream: str, page: PendingPage) -> int:
        """Report entries of a page that have left the stream before they are claimed. Return their number."""
        head, ids = stream_states(self.client.server, [stream])[stream], page.parsed_ids()
        suspects = [one for one in ids if head.first is None or one < head.first or one <= head.deleted]
        deleted = count_missing(self.client.server, stream, [bytes(one) for one in suspects])
        self._report_deleted(stream, deleted, min(ids))
        return deleted

    def _claim_from(self, stream: str, holder: Holder, quota: BatchQuota) -> tuple[list[bytes], int, int]:
        """Claim from one holder, page by page. Return the IDs of the requested entries (as `PendingPage.ids`), their
        number, and how many of them are reported as lost."""
        server, member, largest = self.client.server, self.client.member, self.client.limits.claim_page
        ids: list[bytes] = []
        limit = quota.limit_of(stream)
        requested, deleted, start = 0, 0, MIN_ID
        while limit is None or requested < limit:
            page_size = largest if limit is None else min(largest, limit - requested)
            if self._runs_again(stream, holder):
                break
            page = pending_page(server, stream, holder.xpending(member, stream, start, page_size))
            dead_groups, living = _separate_dead(stream, holder, page, self.query.options.max_deliveries)
            deleted += self._already_deleted(stream, living) if living.count else 0
            # Also without a command: EXEC ends the watch.
            if transact(server.connection_for(stream), _claims(member, stream, holder, living)) is None:
                break  # a query has begun as this consumer
            if page.last is None:
                break
            if living.count:
                ids.append(living.ids)
                requested += living.count
            for dead in dead_groups:
                if self.query.options.dead_letter_stream is None:
                    self._warn_of_fatal(dead)
                else:
                    self.query.dead_letters.write(server, dead)
            if page.count < page_size or page.last == MAX_ID:
                break
            start = page.last.next()
        return ids, requested, deleted

    def _runs_again(self, stream: str, holder: Holder) -> bool:
        """Whether a running query is the holder by now. Otherwise watch its lease: if a query takes it, no transaction
        claims anything."""
        if holder.consumer is None:
            return False
        node = self.client.server.connection_for(stream)
        node.execute("WATCH", lease_key(stream, self.client.group, holder.consumer))
        runs = bool(self.query.stream_set.live(self.client.server, [(stream, holder.consumer)]))
        if runs:
            node.execute("UNWATCH")
        return runs

    def _warn_of_fatal(self, dead: DeadEntries) -> None:
        """Log once that fatal entries stay pending because the query has no dead-letter stream."""
        stream, ids, group = dead.stream, dead.ids, self.client.group
        if (stream, ids[0], len(ids)) in self.query.reported_fatal:
            return
        self.query.reported_fatal.add((stream, ids[0], len(ids)))
        _log.warning(
            "stream %r: %d entries of group %r, from %s on, are marked as fatal (XNACK FATAL), and this query has no "
            "deadLetterStream. They stay pending and are not read. To list them: %s. To move them to dead letters, set "
            "deadLetterStream and maxDeliveries",
            stream, len(ids), group, ids[0], command_on(stream, "pending", f"--group={group}", "--entries=20"),
        )  # fmt: skip


def _count_deleted(client: GroupClient, stream: str, requested_ids: Sequence[bytes]) -> int:
    """Return how many entries that a claim requested are no longer in the stream: XCLAIM drops those from the pending
    list. Other clients have acknowledged or claimed the other missing ones."""
    ids = texts_of(b"".join(requested_ids))
    first, last = StreamId.parse(ids[0].as_py()), StreamId.parse(ids[-1].as_py())
    between = Range(stream, min(first, last).previous(), max(first, last))
    held_ids = texts_of(b"".join([ids for _, ids in pending_ids(client, [between], client.limits.claim_page)]))
    missing = ids.filter(pc.invert(pc.is_in(ids, value_set=held_ids))).to_pylist()
    return count_missing(client.server, stream, missing)


def released_above(
    server: Server, member: Membership, stream: str, position: StreamId, end: StreamId, size: int
) -> tuple[int, StreamId]:
    """Return how many entries with position < ID ≤ end are released, and the last one of them (0-0: there are none).
    size: of one page."""
    holder, count, last, start = Holder(None, RELEASED_IDLE), 0, MIN_ID, position
    while start < end:
        page = pending_page(server, stream, holder.xpending(member, stream, start.next(), size))
        ids = [found for found in page.parsed_ids() if found <= end] if page.count else []
        count += len(ids)
        last = max([last, *ids])
        if len(ids) < size:
            break
        start = ids[-1]
    return count, last


def _separate_dead(
    stream: str, holder: Holder, page: PendingPage, max_deliveries: int | None
) -> tuple[list[DeadEntries], PendingPage]:
    """Return the entries of a page that are fatal or were delivered too often, and the page without them. Pure."""
    fatal = page.deliveries == FATAL
    is_dead = fatal if max_deliveries is None else page.deliveries >= max_deliveries
    if not holder.counts or not is_dead.any():
        return [], page
    ids = page.parsed_ids()
    fatal_entries, exhausted_entries = [
        DeadEntries(stream, holder.consumer, [ids[row] for row in rows], page.deliveries[rows].tolist())
        for rows in (np.flatnonzero(fatal), np.flatnonzero(is_dead & ~fatal))
    ]
    fatal_entries = replace(fatal_entries, reason="fatal", message="marked as fatal (XNACK FATAL)")
    living = b"".join(arguments_of(page.ids).filter(pa.array(~is_dead)).to_pylist())
    dead_groups = [dead for dead in (fatal_entries, exhausted_entries) if dead.ids]
    return dead_groups, replace(
        page, count=int((~is_dead).sum()), ids=living, deliveries=page.deliveries[~is_dead], idle=page.idle[~is_dead]
    )


def _claims(member: Membership, stream: str, holder: Holder, page: PendingPage) -> list[tuple[Argument, ...]]:
    """Return the XCLAIMs of the entries of a page for the query's consumer, without the entries in their replies. The
    server checks the idle time again. JUSTID counts no delivery (FACTS R8), so RETRYCOUNT does."""
    head = ("XCLAIM", stream, member.group, member.consumer, holder.idle)
    ids = texts_of(page.ids)
    if not holder.counts:
        return [(*head, *ids.to_pylist(), "JUSTID")] if page.count else []
    return [
        (*head, *ids.filter(pa.array(page.deliveries == count)).to_pylist(), "RETRYCOUNT", count + 1, "JUSTID")
        for count in np.unique(page.deliveries).tolist()
    ]


# -- dead letters ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeadEntries:
    """Entries of one stream that become dead letters: delivered too often, fatal, or they kill the query."""

    stream: str  # that has them
    consumer: str | None  # that the entries are pending for, None: they were released (XNACK)
    ids: Sequence[StreamId]  # of the entries
    deliveries: Sequence[int]  # of each entry
    # Of the dead letters:
    stage: str = "claim"
    reason: str = "deliveries"  # a word
    error: str = ""  # class of the error, if it is known
    message: str = ""  # empty: the number of deliveries


@dataclass(frozen=True)
class DeadLetterWriter:
    options: SourceOptions  # group and deadLetterStream
    losses: DataLoss  # of entries that were deleted before
    counters: RunCounters  # dead letters
    limits: Limits  # of dead letters
    written: Callable[[Server, str], None]  # called after those of a stream

    def write(self, server: Server, dead: DeadEntries) -> None:
        group, to = self.options.group, self.options.dead_letter_stream
        assert to is not None  # maxDeliveries needs it
        posted, deleted = dead_letter(server, group, dead, to, self.limits.dead_letters)
        self.written(server, dead.stream)
        self.counters.entries(DEAD)[origin_of(dead.stream)] += posted
        if deleted:
            above = min(dead.ids).previous()
            # They cannot become dead letters any more, and are acknowledged.
            detail = "before they became dead letters"
            self.losses.report(entries_lost(dead.stream, deleted, above, detail, is_harmless=True))


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
