"""Our consumer's pending entries, page by page: the log of what a batch holds, and the XACK that acknowledges it.

Of however many streams: their pages travel together, and a round trip brings no more than Limits.pending_round ids.
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


@dataclass(frozen=True)
class PendingRange:
    """Entries of a stream with after < id ≤ last that are pending for `consumer` ("": the membership's own); most:
    only so many, the first ones."""

    stream: str
    last: StreamId
    after: StreamId = MIN_ID
    consumer: str = ""
    most: int | None = None


def pending_ranges(
    server: Server,
    member: Membership,
    ranges: Sequence[PendingRange],
    size: int,
    keep_ids: bool = False,
    limits: Limits = LIMITS,
) -> list[EntryRange]:
    """What is pending in these ranges, as ranges of up to `size` entries, one after the other.

    What else the stream holds between them is not known, so the ranges are not owned. keep_ids: with `EntryRange.ids`,
    for entries that are acknowledged before they are read. Raises GroupMissingError, ServerError.
    """
    found: dict[int, list[EntryRange]] = {at: [] for at in range(len(ranges))}
    left = dict(enumerate(ranges))
    while left := {at: one for at, one in left.items() if one.after < one.last and one.most != 0}:
        now = dict(list(left.items())[: limits.pending_streams])
        counts = [min(size, _share_of_round(one, len(now), limits)) for one in now.values()]
        pages, _ = _round_trip(server, member, list(now.values()), counts, [])
        for (at, one), count, page in zip(now.items(), counts, pages, strict=True):
            end = one.last if page.last is None or page.count < count else page.last
            if page.last is not None:
                entries = EntryRange(one.stream, one.after, page.last, page.count, False, one.consumer)
                found[at].append(replace(entries, ids=page.ids) if keep_ids else entries)
            left[at] = replace(one, after=end, most=None if one.most is None else one.most - page.count)
    return [entries for of_range in found.values() for entries in of_range]


def acknowledge(server: Server, member: Membership, ranges: Sequence[PendingRange], limits: Limits = LIMITS) -> int:
    """XACK what is pending in these ranges; how many entries that were.

    The acknowledgements of one round travel with the questions of the next. Doing it again acknowledges what is left.
    Raises GroupMissingError, ServerError.
    """
    total = 0
    left = list(ranges)
    acks: list[tuple[str, bytes]] = []
    while left or acks:
        now, left = left[: limits.pending_streams], left[limits.pending_streams :]
        counts = [_share_of_round(one, len(now), limits) for one in now]
        pages, acknowledged = _round_trip(server, member, now, counts, acks)
        total += acknowledged
        acks = []
        for one, count, page in zip(now, counts, pages, strict=True):
            if page.last is None:
                continue
            acks.append((one.stream, page.ack(one.stream.encode(), member.group.encode())))
            more = None if one.most is None else one.most - page.count
            if page.count == count and page.last < one.last and more != 0:
                left.append(replace(one, after=page.last, most=more))
    return total


def _share_of_round(one: PendingRange, streams: int, limits: Limits) -> int:
    """How many entries to ask for where so many streams are asked."""
    fair = max(1, min(limits.pending_page, limits.pending_round // streams))
    return fair if one.most is None else min(fair, one.most)


def _round_trip(
    server: Server,
    member: Membership,
    ranges: Sequence[PendingRange],
    counts: Sequence[int],
    acks: Sequence[tuple[str, bytes]],
) -> tuple[list[PendingPage], int]:
    """Send the XACKs (each with its stream) and ask for the next page of each range: (the pages, entries acknowledged).

    Raises the named error of the first reply that is one.
    """
    asks = [(one.stream, at, ask_pending(member, one, counts[at])) for at, one in enumerate(ranges)]
    sent: list[tuple[Connection, list[tuple[str, int, bytes]]]] = []
    # An XACK stands before the questions, at the place -1.
    for there, some in server.parts([*[(stream, -1, ack) for stream, ack in acks], *asks], lambda one: one[0]):
        kinds = [[words for _, at, words in some if (at < 0) == is_ack] for is_ack in (True, False)]
        there.request_apart([b"".join(words) for words in kinds])
        sent.append((there, some))
    pages: dict[int, PendingPage] = {}
    total = 0
    for there, some in sent:
        acknowledged, pending = there.apart(there.receive())
        asked = [at for _, at, _ in some if at >= 0]
        for at, page in zip(asked, decode_pending(pending, len(asked)), strict=True):
            if isinstance(page, ReplyError):
                raise there.error_of(page, ("XPENDING", ranges[at].stream, member.group))
            pages[at] = page
        total += _sum_of(there, member, acknowledged, [stream for stream, at, _ in some if at < 0])
    return [pages[at] for at in range(len(ranges))], total


def pending_page(server: Server, stream: str, question: Sequence[Argument]) -> PendingPage:
    """The reply to one XPENDING that lists entries of a stream. Raises GroupMissingError, ServerError."""
    there = server.of(stream)
    there.request(pack(*question))
    page = decode_pending(there.receive(), 1)[0]
    if isinstance(page, ReplyError):
        raise server.error_of(page, question[:3])
    return page


def ask_pending(member: Membership, one: PendingRange, count: int) -> bytes:
    """The packed XPENDING of the first `count` entries."""
    after, last = b"(" + bytes(one.after), bytes(one.last)
    return pack("XPENDING", one.stream, member.group, after, last, count, one.consumer or member.consumer)


def _sum_of(server: Server, member: Membership, replies: memoryview, streams: Sequence[str]) -> int:
    """The sum of the replies of XACK, one a stream."""
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
    """All that the consumers of claims hold."""
    return [PendingRange(stream, MAX_ID, consumer=one.consumer) for stream, some in claimed.items() for one in some]
