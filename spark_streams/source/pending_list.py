"""Pending entries of a consumer, page by page: the record of a batch's entries, and the XACK that acknowledges them.

Pages of many streams travel together. A round trip returns at most Limits.pending_round IDs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spark_streams.errors import ServerReplyError
from spark_streams.model.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.limits import LIMITS, Limits
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Claimed
from spark_streams.wire.connection.connection import Argument, Connection, ReplyError, pack
from spark_streams.wire.connection.server import Server
from spark_streams.wire.entries.pending_page import PendingPage, decode_pending

_ACK = -1  # index of an XACK among commands that have the index of their range


@dataclass(frozen=True)
class PendingRange:
    """Entries of a stream with after < ID ≤ last that are pending for `consumer` ("": the membership's consumer).
    limit: number of entries, the first ones; None: all."""

    stream: str
    last: StreamId
    after: StreamId = MIN_ID
    consumer: str = ""
    limit: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it can have no entry."""
        return self.last <= self.after or self.limit == 0


def pending_ranges(
    server: Server,
    member: Membership,
    ranges: Sequence[PendingRange],
    size: int,
    keep_ids: bool = False,
    limits: Limits = LIMITS,
) -> list[EntryRange]:
    """Return the pending entries of these ranges, in order, as ranges of up to `size` entries.

    The stream may hold other entries between them, so the ranges are not owned. keep_ids: fill `EntryRange.ids`, for
    entries that are acknowledged before they are read. Raises GroupMissingError, ServerError.
    """
    ranges_by_index: dict[int, list[EntryRange]] = {index: [] for index in range(len(ranges))}
    remaining = dict(enumerate(ranges))
    while remaining := {index: pending for index, pending in remaining.items() if not pending.is_empty}:
        round_ranges = dict(list(remaining.items())[: limits.pending_streams])
        counts = [min(size, _page_size(pending, len(round_ranges), limits)) for pending in round_ranges.values()]
        pages, _ = _round_trip(server, member, list(round_ranges.values()), counts, [])
        for (index, pending), count, page in zip(round_ranges.items(), counts, pages, strict=True):
            end = pending.last if page.last is None or page.count < count else page.last
            if page.last is not None:
                entries = EntryRange(pending.stream, pending.after, page.last, page.count, False, pending.consumer)
                ranges_by_index[index].append(replace(entries, ids=page.ids) if keep_ids else entries)
            remaining[index] = _above(pending, end, page)
    return [entries for entry_ranges in ranges_by_index.values() for entries in entry_ranges]


def acknowledge(server: Server, member: Membership, ranges: Sequence[PendingRange], limits: Limits = LIMITS) -> int:
    """Acknowledge the pending entries of these ranges and return their number.

    The XACKs of one round travel with the XPENDINGs of the next. A second call acknowledges what remains.
    Raises GroupMissingError, ServerError.
    """
    total = 0
    remaining = list(ranges)
    acks: list[tuple[str, bytes]] = []
    while remaining or acks:
        round_ranges, remaining = remaining[: limits.pending_streams], remaining[limits.pending_streams :]
        counts = [_page_size(pending, len(round_ranges), limits) for pending in round_ranges]
        pages, acknowledged = _round_trip(server, member, round_ranges, counts, acks)
        total += acknowledged
        acks = []
        for pending, count, page in zip(round_ranges, counts, pages, strict=True):
            if page.last is None:
                continue
            acks.append((pending.stream, page.ack(pending.stream.encode(), member.group.encode())))
            if page.count == count and not (above := _above(pending, page.last, page)).is_empty:
                remaining.append(above)
    return total


def _above(pending: PendingRange, end: StreamId, page: PendingPage) -> PendingRange:
    """Return the part of a range above `end`, to which the page reaches."""
    return replace(pending, after=end, limit=None if pending.limit is None else pending.limit - page.count)


def _page_size(pending: PendingRange, streams: int, limits: Limits) -> int:
    """Return how many entries to request if this number of streams share a round trip."""
    fair = max(1, min(limits.pending_page, limits.pending_round // streams))
    return fair if pending.limit is None else min(fair, pending.limit)


def _round_trip(
    server: Server,
    member: Membership,
    ranges: Sequence[PendingRange],
    counts: Sequence[int],
    acks: Sequence[tuple[str, bytes]],
) -> tuple[list[PendingPage], int]:
    """Send the XACKs, each with its stream, and request the next page of each range. Return the pages and the number of
    acknowledged entries.

    Raises the named error of the first reply that is one.
    """
    requests = [(pending.stream, i, pack_pending(member, pending, counts[i])) for i, pending in enumerate(ranges)]
    commands = [*[(stream, _ACK, ack) for stream, ack in acks], *requests]
    sent: list[tuple[Connection, list[tuple[str, int, bytes]]]] = []
    for connection, part in server.parts(commands, lambda command: command[0]):
        kinds = [[packed for _, index, packed in part if (index == _ACK) == is_ack] for is_ack in (True, False)]
        connection.request_separately([b"".join(packed) for packed in kinds])
        sent.append((connection, part))
    pages: dict[int, PendingPage] = {}
    total = 0
    for connection, part in sent:
        acknowledged, pages_reply = connection.split_replies(connection.receive())
        indexes = [index for _, index, _ in part if index != _ACK]
        for index, page in zip(indexes, decode_pending(pages_reply, len(indexes)), strict=True):
            if isinstance(page, ReplyError):
                raise connection.error_of(page, ("XPENDING", ranges[index].stream, member.group))
            pages[index] = page
        total += _sum_of(connection, member, acknowledged, [stream for stream, index, _ in part if index == _ACK])
    return [pages[index] for index in range(len(ranges))], total


def pending_page(server: Server, stream: str, command: Sequence[Argument]) -> PendingPage:
    """Send one XPENDING that lists entries of a stream and return its reply. Raises GroupMissingError, ServerError."""
    connection = server.connection_for(stream)
    connection.request(pack(*command))
    page = decode_pending(connection.receive(), 1)[0]
    if isinstance(page, ReplyError):
        raise server.error_of(page, command[:3])
    return page


def pack_pending(member: Membership, pending: PendingRange, count: int) -> bytes:
    """Return the packed XPENDING of the first `count` entries of a range."""
    after, last = b"(" + bytes(pending.after), bytes(pending.last)
    return pack("XPENDING", pending.stream, member.group, after, last, count, pending.consumer or member.consumer)


def _sum_of(server: Server, member: Membership, replies: memoryview, streams: Sequence[str]) -> int:
    """Return the sum of the replies of XACK, one per stream."""
    total = 0
    lines = bytes(replies).split(b"\r\n")[:-1]
    if len(lines) != len(streams):
        raise ServerReplyError(f"{server.address} answered {len(streams)} XACKs with {len(lines)} replies")
    for line, stream in zip(lines, streams, strict=True):
        if not line.startswith(b":"):
            raise server.error_of(ReplyError(line[1:].decode("utf-8", "replace")), ("XACK", stream, member.group))
        total += int(line[1:])
    return total


def claimed_ranges(claimed: Mapping[str, Sequence[Claimed]]) -> list[PendingRange]:
    """Return all pending entries of the consumers of these claims."""
    return [
        PendingRange(stream, MAX_ID, consumer=claim.consumer) for stream, claims in claimed.items() for claim in claims
    ]
