"""Claims: taking over pending entries of dead consumers of the group, and released entries (XPENDING … IDLE, XCLAIM).

Claimed entries have IDs below the position of the batch, so a range of IDs cannot name them. Each claim moves them to a
consumer of its own, `<consumer>~claim~<token>`. The offset of the batch names that consumer and its number of entries,
and a replay reads its pending list. After the commit, the entries are acknowledged and the consumer is deleted.

Released entries (XNACK, Redis 8.8) belong to no consumer: every query of the group takes them at once, with or without
claimIdle. XNACK FATAL marks an entry that must not be read again. It becomes a dead letter, or stays pending if the
query has no dead-letter stream.

If a run dies between a claim and its offset, the next run finds the claim by its consumer's name (unlogged_claims).

An entry that was delivered `maxDeliveries` times, by the server's counter, is dead. A claim counts as a delivery,
unless it takes entries from a claim or piece of another query: queries that die of an outage would pass an entry on
until it is dead. So queries add two deliveries at most. source.recovery.poison_state finds entries that kill
queries. Reading counts no delivery (FACTS R8).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.model.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.findings.count_entries import count_missing
from spark_streams.source.findings.data_loss import DataLoss
from spark_streams.source.findings.finding import Finding, Kind
from spark_streams.source.findings.group_state import GroupState
from spark_streams.source.group.subscription import Subscription
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Claimed, Offset
from spark_streams.source.pending_list import PendingRange, claimed_ranges, pending_page, pending_ranges
from spark_streams.source.quota import BatchQuota
from spark_streams.source.recovery.claim_consumers import delete_claim_consumers
from spark_streams.source.recovery.dead_entries import DeadEntries
from spark_streams.source.recovery.holders import Holder, find_holders
from spark_streams.source.recovery.unlogged_claims import fitting_claims, unlogged_claims
from spark_streams.source.run_counters import RunCounters
from spark_streams.wire.connection.connection import SKIP, pack
from spark_streams.wire.connection.server import Server
from spark_streams.wire.entries.pending_page import PendingPage, arguments_of, texts_of
from spark_streams.wire.replies.released import FATAL
from spark_streams.wire.replies.xinfo import consumers_in

_log = logging.getLogger("spark_streams.source")


class Claims:
    """The claims of one query. dead_letter: receives entries that were delivered too often or are fatal."""

    def __init__(
        self,
        options: SourceOptions,
        subscription: Subscription,
        losses: DataLoss,
        counters: RunCounters,
        dead_letter: Callable[[DeadEntries], None],
        limits: Limits,
    ) -> None:
        self._idle = options.claim_idle
        self._max_deliveries = options.max_deliveries
        self._subscription = subscription
        self._losses = losses
        self._counters = counters
        self._dead_letter = None if options.dead_letter_stream is None else dead_letter
        self._limits = limits
        self._reported_fatal: set[tuple[str, StreamId, int]] = set()

    @property
    def _member(self) -> Membership:
        return self._subscription.member

    def take(
        self,
        server: Server,
        states: Mapping[str, GroupState],
        begin: Offset,
        consumer: str,
        quota: BatchQuota,
        take_released: bool,
    ) -> tuple[dict[str, list[Claimed]], BatchQuota]:
        """Claim what the quota admits. Return the consumers that hold the claims, per stream, and the remaining quota.

        begin: the offset before this batch, whose claims are left out; consumer: to claim for.
        """
        member, limits = self._member, self._limits
        claimed, quota = fitting_claims(server, member, unlogged_claims(member, states, begin), quota, limits)
        if not quota.is_full:
            holders = find_holders(server, member, states, self._idle, take_released, self._subscription.live)
            for stream, stream_holders in holders.items():
                held, quota = self._claim_from_all(server, stream, stream_holders, consumer, quota)
                if held:
                    claimed.setdefault(stream, []).append(Claimed(consumer, held))
        for stream, claims in claimed.items():
            self._counters.claimed[stream] += sum(claim.count for claim in claims)
        return claimed, quota

    def ranges(self, server: Server, claimed: Mapping[str, Sequence[Claimed]], size: int) -> list[EntryRange]:
        """Return the entries of these claims as ranges of up to `size` entries. Raises DataLossError."""
        ranges = pending_ranges(server, self._member, claimed_ranges(claimed), size, limits=self._limits)
        for stream, claims in claimed.items():
            for claim in claims:
                held = sum(r.count for r in ranges if (r.stream, r.consumer) == (stream, claim.consumer))
                if held < claim.count:
                    origin = f"of {claim.count} that {claim.consumer!r} had claimed"
                    self._losses.report(Finding(Kind.PENDING_TAKEN, stream, lost=claim.count - held, detail=origin))
        return ranges

    def _claim_from_all(
        self, server: Server, stream: str, holders: Sequence[Holder], consumer: str, quota: BatchQuota
    ) -> tuple[int, BatchQuota]:
        """Claim from all holders of a stream. Return how many entries are then pending for the consumer, and the
        remaining quota."""
        member = self._member
        requested_ids: list[bytes] = []
        requested = 0
        for holder in holders:
            ids, count = self._claim_from(server, stream, holder, consumer, quota.without({stream: requested}))
            requested_ids += ids
            requested += count
        if not requested:
            return 0, quota
        # Other clients may have acknowledged or claimed some meanwhile, so the pending list decides.
        held = _count_pending(server, member, stream, consumer)
        if not held:
            delete_claim_consumers(server, member, {stream: [Claimed(consumer, 0)]})
        if held < requested:
            deleted = _count_deleted(server, member, stream, consumer, requested_ids, self._limits)
            if deleted:
                origin = f"that other consumers of group {member.group!r} had left pending or released"
                self._losses.report(Finding(Kind.PENDING_REMOVED, stream, lost=deleted, detail=origin))
        return held, quota.without({stream: held})

    def _claim_from(
        self, server: Server, stream: str, holder: Holder, consumer: str, quota: BatchQuota
    ) -> tuple[list[bytes], int]:
        """Claim from one holder, page by page. Return the IDs of the requested entries (as `PendingPage.ids`), and
        their number."""
        member, limits = self._member, self._limits
        ids: list[bytes] = []
        limit = quota.limit_of(stream)
        requested, start = 0, MIN_ID
        while limit is None or requested < limit:
            page_size = limits.claim_page if limit is None else min(limits.claim_page, limit - requested)
            page = pending_page(server, stream, holder.xpending(member, stream, start, page_size))
            if page.last is None:
                break
            dead_groups, count, packed = _separate_dead(stream, holder, page, self._max_deliveries)
            for dead in dead_groups:
                (self._dead_letter or self._warn_of_fatal)(dead)
            if count:
                send_claim(server, member, stream, ClaimTarget(consumer, holder.idle, holder.counts), count, packed)
                ids.append(packed)
                requested += count
            if page.count < page_size or page.last == MAX_ID:
                break
            start = page.last.next()
        return ids, requested

    def _warn_of_fatal(self, dead: DeadEntries) -> None:
        """Log once that fatal entries stay pending because the query has no dead-letter stream."""
        stream, ids = dead.stream, dead.ids
        warning_key = (stream, ids[0], len(ids))
        if warning_key in self._reported_fatal:
            return
        self._reported_fatal.add(warning_key)
        group = self._member.group
        _log.warning(
            "stream %r: %d entries of group %r, from %s on, are marked as fatal (XNACK FATAL), and this query has no "
            "deadLetterStream. They stay pending and are not read. To list them: rstream pending %s --group %s "
            "--entries 20. To move them to dead letters, set deadLetterStream and maxDeliveries",
            stream, len(ids), group, ids[0], stream, group,
        )  # fmt: skip


def _separate_dead(
    stream: str, holder: Holder, page: PendingPage, max_deliveries: int | None
) -> tuple[list[DeadEntries], int, bytes]:
    """Return the entries of a page that are fatal or were delivered too often, the number of other entries, and the
    packed IDs of those. Pure."""
    fatal = page.deliveries == FATAL
    is_dead = fatal if max_deliveries is None else page.deliveries >= max_deliveries
    if not holder.counts or not is_dead.any():
        return [], page.count, page.ids
    ids = page.parsed_ids()
    fatal_entries, exhausted_entries = [
        DeadEntries(stream, holder.consumer, [ids[row] for row in rows], page.deliveries[rows].tolist())
        for rows in (np.flatnonzero(fatal), np.flatnonzero(is_dead & ~fatal))
    ]
    fatal_entries = replace(fatal_entries, reason="fatal", message="marked as fatal (XNACK FATAL)")
    living = arguments_of(page.ids).filter(pa.array(~is_dead))
    dead_groups = [dead for dead in (fatal_entries, exhausted_entries) if dead.ids]
    return dead_groups, len(living), b"".join(living.to_pylist())


@dataclass(frozen=True)
class ClaimTarget:
    """The consumer that entries are claimed for.

    idle: milliseconds since the last delivery of an entry, at least; the server checks it again; counts: whether the
    claim counts as a delivery (FACTS R8).
    """

    consumer: str
    idle: int = 0
    counts: bool = True


def send_claim(server: Server, member: Membership, stream: str, target: ClaimTarget, count: int, packed: bytes) -> None:
    """Send XCLAIM of this number of packed IDs, with its reply suppressed."""
    connection = server.connection_for(stream)
    connection.require_silence()
    head = pack("XCLAIM", stream, member.group, target.consumer, target.idle).split(b"\r\n", 1)[1]
    words, tail = (5, b"") if target.counts else (6, b"$6\r\nJUSTID\r\n")
    connection.send(b"%b*%d\r\n%b%b%b" % (SKIP, words + count, head, packed, tail))


def _count_deleted(
    server: Server, member: Membership, stream: str, consumer: str, requested_ids: Sequence[bytes], limits: Limits
) -> int:
    """Return how many entries that a claim requested are no longer in the stream: XCLAIM drops those from the pending
    list. Other clients have acknowledged or claimed the other missing ones."""
    all_pending = [PendingRange(stream, MAX_ID, consumer=consumer)]
    ranges = pending_ranges(server, member, all_pending, limits.claim_page, keep_ids=True, limits=limits)
    held_ids = texts_of(b"".join([entries.ids for entries in ranges]))
    ids = texts_of(b"".join(requested_ids))
    missing = ids.filter(pc.invert(pc.is_in(ids, value_set=held_ids))).to_pylist()
    return count_missing(server, stream, missing)


def _count_pending(server: Server, member: Membership, stream: str, consumer: str) -> int:
    """Return how many entries are pending for a consumer. Raises GroupMissingError."""
    consumers = consumers_in(server.execute("XINFO", "CONSUMERS", stream, member.group))
    return next((info.pending for info in consumers if info.name == consumer.encode()), 0)
