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
what it does to them is for source.recovery.suspects to judge. Reading counts nothing (FACTS R8).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.source.group.group_state import GroupState
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Claimed, Offset
from spark_streams.source.pending_list import PendingRange, pending_ranges
from spark_streams.source.recovery.claim_consumers import claim_consumer, delete_claim_consumers
from spark_streams.source.recovery.dead_entries import DeadEntries
from spark_streams.source.recovery.holders import Holder, Live, holders_of
from spark_streams.source.recovery.left_claims import left_claims, that_fit
from spark_streams.source.room import Room
from spark_streams.source.sampled_size import sampled_sizes
from spark_streams.wire.connection import ReplyError, pack
from spark_streams.wire.entries.pending_page import PendingPage, arguments_of, decode_pending, texts_of
from spark_streams.wire.released import FATAL
from spark_streams.wire.server import Server
from spark_streams.wire.xinfo import consumers_in

_SKIP = pack("CLIENT", "REPLY", "SKIP")


@dataclass(frozen=True)
class Rules:
    """idle: milliseconds that an entry must have been left alone, None: no consumer's are claimed; released: whether
    released entries are taken; most: deliveries after which an entry is dead, None: any number; dead_letter: what to do
    with dead entries, None: there is no dead-letter stream; leave: told of a stream and its fatal entries that stay
    released for want of one; lose: told of a stream, how many entries of it are gone, what became of them, and what is
    to be done; live: which of some (stream, consumer) are queries that run."""

    idle: int | None
    released: bool
    most: int | None
    dead_letter: Callable[[DeadEntries], None] | None
    leave: Callable[[str, Sequence[StreamId]], None]
    lose: Callable[[str, int, str, str], None]
    live: Live
    limits: Limits


def take_over(
    server: Server,
    member: Membership,
    states: Mapping[str, GroupState],
    begin: Offset,
    token: str,
    rules: Rules,
    room: Room,
) -> tuple[dict[str, list[Claimed]], Room]:
    """Claim what there is room for: per stream the consumers that now hold some, and the room that is left.

    begin: the offset before this batch, whose own claims are left alone.
    """
    claimed, room = that_fit(server, member, left_claims(member, states, begin), room, rules.limits)
    if room.is_full:
        return claimed, room
    ours = claim_consumer(member.consumer, token)
    for stream, holders in holders_of(server, member, states, rules.idle, rules.released, rules.live).items():
        asked: list[bytes] = []
        taken = 0
        for holder in holders:
            ids, count, size = _claim(server, member, stream, holder, ours, rules, room.without({stream: taken}))
            room = replace(room, size=size)
            asked += ids
            taken += count
        if taken:
            # Others may have acknowledged or claimed in between: what counts is what is pending for it now.
            held = _held_by(server, member, stream, ours)
            if held:
                claimed.setdefault(stream, []).append(Claimed(ours, held))
            else:
                delete_claim_consumers(server, member, {stream: [Claimed(ours, 0)]})
            room = room.without({stream: held})
            gone = _gone(server, member, stream, ours, asked, rules.limits) if held < taken else 0
            if gone:
                problem = (
                    f"that other consumers of group {member.group!r} had left pending or released were trimmed or "
                    "deleted before they were claimed"
                )
                remedy = "they are pending no more, and the next run goes on without them"
                rules.lose(stream, gone, problem, remedy)
    return claimed, room


def _claim(
    server: Server, member: Membership, stream: str, holder: Holder, to: str, rules: Rules, room: Room
) -> tuple[list[bytes], int, float | None]:
    """Claim from one holder, a page at a time: the entries that were asked for (as `PendingPage.ids`), how many, and
    the bytes that there is still room for."""
    ids: list[bytes] = []
    limit = room.of(stream)
    asked, start, most = 0, MIN_ID, rules.limits.claim_page
    while (limit is None or asked < limit) and not room.is_full:
        count = most if limit is None else min(most, limit - asked)
        question = holder.question(member, stream, start, count)
        there = server.of(stream)
        there.request(pack(*question))
        page = decode_pending(there.receive(), 1)[0]
        if isinstance(page, ReplyError):
            raise server.error_of(page, question[:3])
        if page.last is None:
            break
        left, packed = _without_dead(stream, holder, page, rules) if holder.counts else (page.count, page.ids)
        last, is_all = page.last, True
        if left and room.size is not None:
            sizes = sampled_sizes(server, {stream: _ids(packed)[0].previous()}, rules.limits)
            fitting = sizes[stream].fitting(room.size)
            if fitting < left:
                left, packed, is_all = fitting, b"".join(arguments_of(packed)[:fitting].to_pylist()), False
                last = _ids(packed)[-1]
            room = room.without({stream: left}, sizes)
        if left:
            send_claim(server, member, stream, to, holder.idle, left, packed, holder.counts)
            ids.append(packed)
            asked += left
        if (is_all and page.count < count) or last == MAX_ID:
            break
        start = last.next()
    return ids, asked, room.size


def _ids(packed: bytes) -> list[StreamId]:
    return [StreamId.parse(one) for one in texts_of(packed).to_pylist()]


def _without_dead(stream: str, holder: Holder, page: PendingPage, rules: Rules) -> tuple[int, bytes]:
    """Hand over the entries of a page that were delivered too often, or are fatal; the others: how many, and their
    packed ids."""
    fatal = page.deliveries == FATAL
    over = fatal if rules.most is None else page.deliveries >= rules.most
    if not over.any():
        return page.count, page.ids
    ids = page.parsed_ids()
    for is_fatal, rows in ((True, np.flatnonzero(fatal)), (False, np.flatnonzero(over & ~fatal))):
        some = [ids[row] for row in rows]
        if not some:
            continue
        if rules.dead_letter is None:
            rules.leave(stream, some)
            continue
        dead = DeadEntries(stream, holder.consumer, some, page.deliveries[rows].tolist())
        told = replace(dead, reason="fatal", message="marked as fatal (XNACK FATAL)") if is_fatal else dead
        rules.dead_letter(told)
    left = arguments_of(page.ids).filter(pa.array(~over))
    return len(left), b"".join(left.to_pylist())


def send_claim(
    server: Server,
    member: Membership,
    stream: str,
    to: str,
    idle: int,
    count: int,
    packed: bytes,
    counts: bool = True,
) -> None:
    """XCLAIM of so many ids with its reply suppressed. The idle time is checked again by the server. counts: whether it
    is one more delivery (FACTS R8)."""
    there = server.of(stream)
    there.require_silence()
    head = pack("XCLAIM", stream, member.group, to, idle).split(b"\r\n", 1)[1]
    words, tail = (5, b"") if counts else (6, b"$6\r\nJUSTID\r\n")
    there.send(b"%b*%d\r\n%b%b%b" % (_SKIP, words + count, head, packed, tail))


def _gone(server: Server, member: Membership, stream: str, to: str, asked: Sequence[bytes], limits: Limits) -> int:
    """How many of the entries that a claim asked for are no longer in the stream: the server has dropped them then.
    What it does not have for any other reason, others have acknowledged or claimed."""
    all_of_it = [PendingRange(stream, MAX_ID, consumer=to)]
    ranges = pending_ranges(server, member, all_of_it, limits.claim_page, keep_ids=True, limits=limits)
    held = texts_of(b"".join([entries.ids for entries in ranges]))
    ids = texts_of(b"".join(asked))
    missed = ids.filter(pc.invert(pc.is_in(ids, value_set=held))).to_pylist()
    return server.pipeline([("XRANGE", stream, entry, entry) for entry in missed]).count([])


def _held_by(server: Server, member: Membership, stream: str, consumer: str) -> int:
    """How many entries are pending for a consumer. Raises GroupMissingError."""
    consumers = consumers_in(server.execute("XINFO", "CONSUMERS", stream, member.group))
    return next((info.pending for info in consumers if info.name == consumer.encode()), 0)
