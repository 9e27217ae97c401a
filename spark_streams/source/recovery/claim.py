"""Taking over what dead consumers of the group have left pending, and what was released (XPENDING … IDLE, XCLAIM).

Claimed entries have ids below the position of the batch, so a range of ids cannot name them. Each claim moves them to a
consumer made for it, `<consumer>~claim~<token>`; the offset of the batch names that consumer and how many entries it
has, and a replay reads its pending list. When the batch is committed they are acknowledged and the consumer is deleted.

Released entries (XNACK, Redis 8.8) belong to no consumer, so every query of the group takes them at once, with or
without claimIdle. XNACK FATAL says that an entry must not be read again: it becomes a dead letter, or stays pending if
the query has no dead-letter stream.

A claim that a crash left before the offset was logged is found by its consumer's name, and is the next batch's.

An entry that consumers were given too often (`maxDeliveries`, by the server's counter) is dead. A claim is one more
delivery and counts as such, but not where it takes over what another query had claimed or held apart: queries that die
of an outage would pass an entry on until it is dead. So one that only queries have had is given twice at the most, and
what it does to them is for source.recovery.poison_state to judge. Reading counts nothing (FACTS R8).
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
from spark_streams.source.recovery.holders import Holder, holders_of
from spark_streams.source.recovery.left_claims import left_claims, that_fit
from spark_streams.source.run_counters import RunCounters
from spark_streams.source.sampled_size import sampled_sizes
from spark_streams.wire.connection.connection import pack
from spark_streams.wire.connection.server import Server
from spark_streams.wire.entries.pending_page import PendingPage, arguments_of, texts_of
from spark_streams.wire.replies.released import FATAL
from spark_streams.wire.replies.xinfo import consumers_in

_SKIP = pack("CLIENT", "REPLY", "SKIP")
_log = logging.getLogger("spark_streams.source")


class Claims:
    """The claims of one query. dead_letter: what to do with entries that were delivered too often."""

    def __init__(
        self,
        options: SourceOptions,
        subscription: Subscription,
        losses: DataLoss,
        counters: RunCounters,
        dead_letter: Callable[[DeadEntries], None],
        limits: Limits,
    ) -> None:
        self._idle = options.claim_idle  # milliseconds that an entry must have been left alone
        self._most = options.max_deliveries  # after which an entry is dead
        self._subscription = subscription
        self._losses = losses
        self._counters = counters
        self._dead_letter = None if options.dead_letter_stream is None else dead_letter
        self._limits = limits
        self._left_fatal: set[tuple[str, StreamId, int]] = set()

    @property
    def _member(self) -> Membership:
        return self._subscription.member

    def take(
        self,
        server: Server,
        states: Mapping[str, GroupState],
        begin: Offset,
        consumer: str,
        room: BatchQuota,
        released: bool,
    ) -> tuple[dict[str, list[Claimed]], BatchQuota]:
        """Claim what there is room for: per stream the consumers that now hold some, and the room that is left.

        begin: the offset before this batch, whose own claims are left alone; consumer: to claim for; released: whether
        released entries are taken.
        """
        member, limits = self._member, self._limits
        claimed, room = that_fit(server, member, left_claims(member, states, begin), room, limits)
        if not room.is_full:
            holders = holders_of(server, member, states, self._idle, released, self._subscription.live)
            for stream, some in holders.items():
                held, room = self._claim_all(server, stream, some, consumer, room)
                if held:
                    claimed.setdefault(stream, []).append(Claimed(consumer, held))
        for stream, claims in claimed.items():
            self._counters.claimed[stream] += sum(one.count for one in claims)
        return claimed, room

    def ranges(self, server: Server, claimed: Mapping[str, Sequence[Claimed]], size: int) -> list[EntryRange]:
        """What these consumers hold, which have it for a batch, as ranges of up to `size` entries. Raises
        DataLossError."""
        found = pending_ranges(server, self._member, claimed_ranges(claimed), size, limits=self._limits)
        for stream, some in claimed.items():
            for one in some:
                held = sum(r.count for r in found if (r.stream, r.consumer) == (stream, one.consumer))
                if held < one.count:
                    what = f"of {one.count} that {one.consumer!r} had claimed"
                    self._losses.report(Finding(Kind.PENDING_TAKEN, stream, lost=one.count - held, what=what))
        return found

    def _claim_all(
        self, server: Server, stream: str, holders: Sequence[Holder], to: str, room: BatchQuota
    ) -> tuple[int, BatchQuota]:
        """Claim from all holders of a stream: how many entries are pending for the consumer then, and the room that is
        left."""
        member = self._member
        asked: list[bytes] = []
        taken = 0
        for holder in holders:
            ids, count, size = self._claim(server, stream, holder, to, room.without({stream: taken}))
            room = replace(room, size=size)
            asked += ids
            taken += count
        if not taken:
            return 0, room
        # Others may have acknowledged or claimed in between: what counts is what is pending for it now.
        held = _held_by(server, member, stream, to)
        if not held:
            delete_claim_consumers(server, member, {stream: [Claimed(to, 0)]})
        gone = _gone(server, member, stream, to, asked, self._limits) if held < taken else 0
        if gone:
            what = f"that other consumers of group {member.group!r} had left pending or released"
            self._losses.report(Finding(Kind.PENDING_REMOVED, stream, lost=gone, what=what))
        return held, room.without({stream: held})

    def _claim(
        self, server: Server, stream: str, holder: Holder, to: str, room: BatchQuota
    ) -> tuple[list[bytes], int, float | None]:
        """Claim from one holder, a page at a time: the entries that were asked for (as `PendingPage.ids`), how many,
        and the bytes that there is still room for."""
        member, limits = self._member, self._limits
        ids: list[bytes] = []
        limit = room.limit_of(stream)
        asked, start, most = 0, MIN_ID, limits.claim_page
        while (limit is None or asked < limit) and not room.is_full:
            count = most if limit is None else min(most, limit - asked)
            page = pending_page(server, stream, holder.question(member, stream, start, count))
            if page.last is None:
                break
            dead, left, packed = _sorted_out(stream, holder, page, self._most)
            for one in dead:
                (self._dead_letter or self._leave)(one)
            last, is_all = page.last, True
            if left and room.size is not None:
                sizes = sampled_sizes(server, {stream: _ids(packed)[0].previous()}, limits)
                fitting = sizes[stream].fitting(room.size)
                if fitting < left:
                    left, packed, is_all = fitting, b"".join(arguments_of(packed)[:fitting].to_pylist()), False
                    last = _ids(packed)[-1]
                room = room.without({stream: left}, sizes)
            if left:
                send_claim(server, member, stream, To(to, holder.idle, holder.counts), left, packed)
                ids.append(packed)
                asked += left
            if (is_all and page.count < count) or last == MAX_ID:
                break
            start = last.next()
        return ids, asked, room.size

    def _leave(self, dead: DeadEntries) -> None:
        """Fatal entries stay pending if there is no dead-letter stream. One warning says so."""
        stream, ids = dead.stream, dead.ids
        news = (stream, ids[0], len(ids))
        if news in self._left_fatal:
            return
        self._left_fatal.add(news)
        group = self._member.group
        _log.warning(
            "stream %r: %d entries of group %r, from %s on, are marked as fatal (XNACK FATAL), and this query has no "
            "deadLetterStream. They stay pending and are not read. To have them as dead letters, set deadLetterStream "
            "and maxDeliveries; rstream pending %s --group %s --entries 20 lists them",
            stream, len(ids), group, ids[0], stream, group,
        )  # fmt: skip


def _sorted_out(
    stream: str, holder: Holder, page: PendingPage, most: int | None
) -> tuple[list[DeadEntries], int, bytes]:
    """(what of a page is fatal, or was delivered too often; how many others there are; their packed ids). Pure."""
    fatal = page.deliveries == FATAL
    over = fatal if most is None else page.deliveries >= most
    if not holder.counts or not over.any():
        return [], page.count, page.ids
    ids = page.parsed_ids()
    dead = [
        DeadEntries(stream, holder.consumer, [ids[row] for row in rows], page.deliveries[rows].tolist())
        for rows in (np.flatnonzero(fatal), np.flatnonzero(over & ~fatal))
    ]
    dead[0] = replace(dead[0], reason="fatal", message="marked as fatal (XNACK FATAL)")
    left = arguments_of(page.ids).filter(pa.array(~over))
    return [one for one in dead if one.ids], len(left), b"".join(left.to_pylist())


def _ids(packed: bytes) -> list[StreamId]:
    return [StreamId.parse(one) for one in texts_of(packed).to_pylist()]


@dataclass(frozen=True)
class To:
    """Whom entries are claimed for. idle: milliseconds that they must have been left alone, which the server checks
    again; counts: whether it is one more delivery (FACTS R8)."""

    consumer: str
    idle: int = 0
    counts: bool = True


def send_claim(server: Server, member: Membership, stream: str, to: To, count: int, packed: bytes) -> None:
    """XCLAIM of so many packed ids, with its reply suppressed."""
    there = server.of(stream)
    there.require_silence()
    head = pack("XCLAIM", stream, member.group, to.consumer, to.idle).split(b"\r\n", 1)[1]
    words, tail = (5, b"") if to.counts else (6, b"$6\r\nJUSTID\r\n")
    there.send(b"%b*%d\r\n%b%b%b" % (_SKIP, words + count, head, packed, tail))


def _gone(server: Server, member: Membership, stream: str, to: str, asked: Sequence[bytes], limits: Limits) -> int:
    """How many of the entries that a claim asked for are no longer in the stream: the server has dropped them then.
    What it does not have for any other reason, others have acknowledged or claimed."""
    all_of_it = [PendingRange(stream, MAX_ID, consumer=to)]
    ranges = pending_ranges(server, member, all_of_it, limits.claim_page, keep_ids=True, limits=limits)
    held = texts_of(b"".join([entries.ids for entries in ranges]))
    ids = texts_of(b"".join(asked))
    missed = ids.filter(pc.invert(pc.is_in(ids, value_set=held))).to_pylist()
    return count_missing(server, stream, missed)


def _held_by(server: Server, member: Membership, stream: str, consumer: str) -> int:
    """How many entries are pending for a consumer. Raises GroupMissingError."""
    consumers = consumers_in(server.execute("XINFO", "CONSUMERS", stream, member.group))
    return next((info.pending for info in consumers if info.name == consumer.encode()), 0)
