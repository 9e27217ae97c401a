"""Pending entries of a consumer, page by page: the record of a batch's entries, and the XACK that acknowledges them.

Pages of many streams travel together. A round trip returns at most Limits.pending_round IDs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from spark_streams.errors import ServerReplyError
from spark_streams.model.ids import MIN_ID, StreamId
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.limits import LIMITS, Limits
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Range
from spark_streams.wire.connection.connection import Argument, Connection, ReplyError, pack
from spark_streams.wire.connection.server import Server
from spark_streams.wire.entries.pending_page import PendingPage, decode_pending, last_of_full_page

TIME = pack("TIME")
_TIME_BYTES = 64  # more than its reply has
_ACK = -1  # index of an XACK among commands that have the index of their range


@dataclass(frozen=True)
class PendingRange:
    """Entries of a stream with after < ID ≤ last that are pending for the query's consumer.

    until: only those that were delivered then at the latest, in milliseconds of the server's clock; 0: at any time;
    limit: number of entries, the first ones; None: all."""

    stream: str
    last: StreamId
    after: StreamId = MIN_ID
    until: int = 0
    limit: int | None = None

    @classmethod
    def of(cls, stream: str, part: Range) -> PendingRange:
        """Return the entries of a batch's range that are still pending."""
        return cls(stream, part.last, part.after, part.until)

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
    remaining = {index: pending for index, pending in enumerate(ranges) if not pending.is_empty}
    while remaining:
        round_ranges = dict(list(remaining.items())[: limits.pending_streams])
        counts = [min(size, _page_size(pending, len(round_ranges), limits)) for pending in round_ranges.values()]
        pages = _receive(_send(server, member, list(round_ranges.values()), counts, [])).pages
        for (index, pending), count, page in zip(round_ranges.items(), counts, pages, strict=True):
            del remaining[index]
            if page.last is None:
                continue
            if page.count:
                entries = EntryRange(pending.stream, pending.after, page.last, page.count, False, pending.until)
                ranges_by_index[index].append(replace(entries, ids=page.ids) if keep_ids else entries)
            if page.listed == count:
                remaining.update((index, above) for above in _above(pending, page.last, page.count))
    return [entries for entry_ranges in ranges_by_index.values() for entries in entry_ranges]


def acknowledge(
    server: Server,
    member: Membership,
    ranges: Sequence[PendingRange],
    limits: Limits = LIMITS,
    marks: Sequence[tuple[str, bytes]] = (),
) -> int:
    """Acknowledge the pending entries of these ranges and return their number.

    marks: packed commands that set commit marks, each with its stream; they are executed after the last XACK.

    The XACKs of one round travel with the XPENDINGs of the next. A long list of one consumer is requested ahead: its
    page is decoded while the server executes the next request. A second call acknowledges what remains.
    Raises GroupMissingError, ServerError.
    """
    total = 0
    remaining = list(ranges)
    acks, marks = list[tuple[str, bytes]](), list(marks)
    undecoded: _Answer | None = None
    while remaining or acks or marks:
        round_ranges, remaining = remaining[: limits.pending_streams], remaining[limits.pending_streams :]
        if not round_ranges:  # these are the last XACKs
            acks, marks = [*acks, *marks], []
        counts = [_page_size(pending, len(round_ranges), limits) for pending in round_ranges]
        sent = _send(server, member, round_ranges, counts, acks)
        try:
            acks = [] if undecoded is None else undecoded.acks()
        finally:  # no reply stays in the connection
            answer = _receive(sent)
        total += answer.acknowledged
        if answer.above_page:
            undecoded = answer
            remaining += answer.above_page
        else:
            undecoded = None
            acks += answer.acks()
            remaining += answer.above()
    return total


def _above(pending: PendingRange, end: StreamId, count: int) -> list[PendingRange]:
    """Return the part of a range above `end`, to which a page of `count` entries reaches. Empty: nothing is left."""
    above = replace(pending, after=end, limit=None if pending.limit is None else pending.limit - count)
    return [] if above.is_empty else [above]


def _page_size(pending: PendingRange, streams: int, limits: Limits) -> int:
    """Return how many entries to request if this number of streams share a round trip."""
    fair = max(1, min(limits.pending_page, limits.pending_round // streams))
    return fair if pending.limit is None else min(fair, pending.limit)


@dataclass(frozen=True)
class _Sent:
    """A request: the next page of each range, and XACKs. parts: per connection, each command's stream and the index of
    its range, or _ACK."""

    member: Membership
    ranges: Sequence[PendingRange]
    counts: Sequence[int]
    parts: Sequence[tuple[Connection, list[tuple[str, int]]]]


@dataclass(frozen=True)
class _Answer:
    """The answer to a request. replies: per connection, the indexes of its ranges, the server's time before it listed
    entries, and the replies to XPENDING; acknowledged: number of entries; above_page: the rest of the range, if there
    is one range and its page is full."""

    sent: _Sent
    replies: Sequence[tuple[Connection, list[int], int, memoryview]]
    acknowledged: int
    above_page: Sequence[PendingRange]

    @cached_property
    def pages(self) -> list[PendingPage]:
        """The page of each range. Raises the named error of the first reply that is one."""
        pages: dict[int, PendingPage] = {}
        for connection, indexes, now, replies in self.replies:
            for index, page in zip(indexes, decode_pending(replies, len(indexes)), strict=True):
                if isinstance(page, ReplyError):
                    command = ("XPENDING", self.sent.ranges[index].stream, self.sent.member.group)
                    raise connection.error_of(page, command)
                pages[index] = page.delivered_until(self.sent.ranges[index].until, now)
        return [pages[index] for index in range(len(pages))]

    def acks(self) -> list[tuple[str, bytes]]:
        """Return the XACKs of the pages, each with its stream. Raises as `pages` does."""
        group = self.sent.member.group.encode()
        return [
            (pending.stream, page.ack(pending.stream.encode(), group))
            for pending, page in zip(self.sent.ranges, self.pages, strict=True)
            if page.count
        ]

    def above(self) -> list[PendingRange]:
        """Return the rest of each range whose page is full. Raises as `pages` does."""
        requested = zip(self.sent.ranges, self.sent.counts, self.pages, strict=True)
        return [
            above
            for pending, count, page in requested
            if page.last is not None and page.listed == count
            for above in _above(pending, page.last, page.count)
        ]


def _send(
    server: Server,
    member: Membership,
    ranges: Sequence[PendingRange],
    counts: Sequence[int],
    acks: Sequence[tuple[str, bytes]],
) -> _Sent:
    """Send the XACKs, each with its stream, and request the next page of each range."""
    requests = [(pending.stream, i, pack_pending(member, pending, counts[i])) for i, pending in enumerate(ranges)]
    commands = [*[(stream, _ACK, ack) for stream, ack in acks], *requests]
    parts: list[tuple[Connection, list[tuple[str, int]]]] = []
    for connection, part in server.parts(commands, lambda command: command[0]):
        kinds = [[packed for _, index, packed in part if (index == _ACK) == is_ack] for is_ack in (True, False)]
        connection.request_separately([b"".join(kinds[0]), TIME + b"".join(kinds[1])])
        parts.append((connection, [(stream, index) for stream, index, _ in part]))
    return _Sent(member, ranges, counts, parts)


def _receive(sent: _Sent) -> _Answer:
    """Receive the replies. Raises the named error of the first XACK that failed."""
    replies: list[tuple[Connection, list[int], int, memoryview]] = []
    acknowledged = 0
    for connection, part in sent.parts:
        acks_reply, pages_reply = connection.split_replies(connection.receive())
        now, pages_reply = split_time(connection, pages_reply)
        replies.append((connection, [index for _, index in part if index != _ACK], now, pages_reply))
        acknowledged += _sum_of(connection, sent.member, acks_reply, [s for s, index in part if index == _ACK])
    return _Answer(
        sent, replies, acknowledged, _above_page(sent, [pages for _, indexes, _, pages in replies if indexes])
    )


def _above_page(sent: _Sent, replies: Sequence[memoryview]) -> list[PendingRange]:
    """Return the rest of the range, if one was requested and its page is full: only the end of the reply is decoded."""
    if len(sent.ranges) != 1:
        return []
    pending, count = sent.ranges[0], sent.counts[0]
    last = last_of_full_page(replies[0], count, sent.member.consumer)
    return [] if last is None else _above(pending, last, count)


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
    return pack("XPENDING", pending.stream, member.group, after, last, count, member.consumer)


def split_time(server: Server, replies: memoryview) -> tuple[int, memoryview]:
    """Return the time of the server in milliseconds, and the other replies. replies: they begin with that to TIME.
    Raises the named error if TIME was refused."""
    lines = bytes(replies[:_TIME_BYTES]).split(b"\r\n", 5)
    if lines[0].startswith(b"-"):
        raise server.error_of(ReplyError(lines[0][1:].decode("utf-8", "replace")), ("TIME",))
    seconds, microseconds = lines[2], lines[4]
    return int(seconds) * 1000 + int(microseconds) // 1000, replies[sum(len(line) + 2 for line in lines[:5]) :]


def _sum_of(server: Server, member: Membership, replies: memoryview, streams: Sequence[str]) -> int:
    """Return the sum of the replies to XACK, one per stream. Other commands reply `+OK`."""
    total = 0
    lines = bytes(replies).split(b"\r\n")[:-1]
    if len(lines) != len(streams):
        raise ServerReplyError(f"{server.address} answered {len(streams)} XACKs with {len(lines)} replies")
    for line, stream in zip(lines, streams, strict=True):
        if line == b"+OK":
            continue
        if not line.startswith(b":"):
            raise server.error_of(ReplyError(line[1:].decode("utf-8", "replace")), ("XACK", stream, member.group))
        total += int(line[1:])
    return total
