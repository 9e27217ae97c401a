"""Pending entries of a consumer, page by page: the record of a batch's entries, and the XACK that acknowledges them.

Pages of many streams travel together. A round trip returns at most Limits.pending_round IDs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from types import MappingProxyType

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import ServerReplyError
from spark_streams.connector.source.group_client import GroupClient, Membership
from spark_streams.connector.source.limits import Limits
from spark_streams.connector.source.offset import Range
from spark_streams.connector.wire.connection import Argument, Connection, ReplyError, Server, pack
from spark_streams.connector.wire.pending_page import PendingPage, decode_pending, last_of_full_page

TIME = pack("TIME")
NO_LIMIT: Mapping[str, int] = MappingProxyType({})
_TIME_BYTES = 64  # more than its reply has
_ASKED_AGAIN = 100  # requests: a millisecond has a few; a clock that has gone back since the snapshot may need seconds
_ACK = -1  # index of an XACK among commands that have the index of their range


def pending_ranges(
    client: GroupClient,
    ranges: Sequence[Range],
    size: int,
    at_most: Mapping[str, int] = NO_LIMIT,
    asks_again: bool = False,
) -> list[Range]:
    """Return the entries of these ranges that are pending for the query's consumer, in order, as ranges of up to `size`
    entries. The stream may hold other entries between them. at_most: by stream, how many of each range; asks_again:
    `until` is the time of a snapshot, not of a delivery: ask until it is over. Raises GroupMissingError,
    ServerError."""
    pages = _pages(client, ranges, size, at_most, asks_again)
    found = [(index, entries) for index, entries, _ in pages]
    return [entries for _, entries in sorted(found, key=itemgetter(0))]


def pending_ids(
    client: GroupClient,
    ranges: Sequence[Range],
    size: int,
    at_most: Mapping[str, int] = NO_LIMIT,
) -> list[tuple[Range, bytes]]:
    """Return the same, each range with the IDs of its entries, as in `PendingPage.ids`."""
    pages = _pages(client, ranges, size, at_most)
    found = [(index, entries, page.ids) for index, entries, page in pages]
    return [(entries, ids) for _, entries, ids in sorted(found, key=itemgetter(0))]


def _pages(
    client: GroupClient,
    ranges: Sequence[Range],
    size: int,
    at_most: Mapping[str, int],
    asks_again: bool = False,
) -> Iterator[tuple[int, Range, PendingPage]]:
    """Yield each page that has entries, with the part of a range that it shows, and the index of the range."""
    asked = 0
    allowed = {index: at_most.get(entries.stream, sys.maxsize) for index, entries in enumerate(ranges)}
    remaining = {index: entries for index, entries in enumerate(ranges) if not entries.is_empty and allowed[index]}
    while remaining:
        requested = dict(list(remaining.items())[: client.limits.pending_streams])
        fair = min(size, _page_size(len(requested), client.limits))
        counts = [min(fair, allowed[index]) for index in requested]
        pages = _receive(_send(client, list(requested.values()), counts, [])).pages
        asked += asks_again and any(page.is_unknown for page in pages)
        for (index, entries), count, page in zip(requested.items(), counts, pages, strict=True):
            if asks_again and page.is_unknown and asked < _ASKED_AGAIN:
                continue
            del remaining[index]
            if page.last is None:
                continue
            if page.count:
                allowed[index] -= page.count
                yield index, replace(entries, last=page.last, count=page.count), page
            if page.listed == count and allowed[index]:
                remaining.update((index, above) for above in _above(entries, page.last))


def acknowledge(
    client: GroupClient,
    ranges: Sequence[Range],
    marks: Sequence[tuple[str, bytes]] = (),
) -> int:
    """Acknowledge the pending entries of these ranges and return their number. marks: packed commands that set commit
    marks, each with its stream, sent after the replies of all XACKs: a mark proves that none was refused.

    The XACKs of one round travel with the XPENDINGs of the next. A long list of one consumer is requested ahead: its
    page is decoded while the server executes the next request. Raises GroupMissingError, ServerError."""
    total = 0
    remaining = list(ranges)
    acks, marks = list[tuple[str, bytes]](), list(marks)
    undecoded: _Answer | None = None
    while remaining or acks or marks:
        round_ranges, remaining = remaining[: client.limits.pending_streams], remaining[client.limits.pending_streams :]
        if not round_ranges and not acks:
            acks, marks = marks, []
        counts = [_page_size(len(round_ranges), client.limits) for _ in round_ranges]
        sent = _send(client, round_ranges, counts, acks)
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


def _above(entries: Range, end: StreamId) -> list[Range]:
    above = replace(entries, after=end)
    return [] if above.is_empty else [above]


def _page_size(streams: int, limits: Limits) -> int:
    """Return how many entries to request if this number of streams share a round trip."""
    return max(1, min(limits.pending_page, limits.pending_round // streams))


@dataclass(frozen=True)
class _Sent:
    """A request: the next page of each range, and XACKs."""

    member: Membership
    ranges: Sequence[Range]
    counts: Sequence[int]  # entries of each page
    # per connection, each command's stream and the index of its range, or _ACK
    parts: Sequence[tuple[Connection, list[tuple[str, int]]]]


@dataclass(frozen=True)
class _Answer:
    sent: _Sent
    # per connection, the indexes of its ranges, the server's time before it listed entries, and the replies to XPENDING
    replies: Sequence[tuple[Connection, list[int], int, memoryview]]
    acknowledged: int  # number of entries
    above_page: Sequence[Range]  # the rest of the range, if there is one range and its page is full

    @cached_property
    def pages(self) -> list[PendingPage]:
        """The page of each range. Raises the named error of the first reply that is one."""
        pages: dict[int, PendingPage] = {}
        for connection, indexes, now, replies in self.replies:
            for index, reply in zip(indexes, decode_pending(replies, len(indexes)), strict=True):
                command = ("XPENDING", self.sent.ranges[index].stream, self.sent.member.group)
                page: PendingPage = connection.answer(command, reply)
                pages[index] = page.delivered_until(self.sent.ranges[index].until, now)
        return [pages[index] for index in range(len(pages))]

    def acks(self) -> list[tuple[str, bytes]]:
        """Return the XACKs of the pages, each with its stream. Raises as `pages` does."""
        group = self.sent.member.group.encode()
        return [
            (pending.stream, ack)
            for pending, page in zip(self.sent.ranges, self.pages, strict=True)
            if page.count
            for ack in page.acks(pending.stream.encode(), group)
        ]

    def above(self) -> list[Range]:
        """Return the rest of each range whose page is full. Raises as `pages` does."""
        requested = zip(self.sent.ranges, self.sent.counts, self.pages, strict=True)
        return [
            above
            for pending, count, page in requested
            if page.last is not None and page.listed == count
            for above in _above(pending, page.last)
        ]


def _send(
    client: GroupClient,
    ranges: Sequence[Range],
    counts: Sequence[int],
    acks: Sequence[tuple[str, bytes]],
) -> _Sent:
    """Send the XACKs, each with its stream, and request the next page of each range."""
    member = client.member
    requests = [(pending.stream, i, pack_pending(member, pending, counts[i])) for i, pending in enumerate(ranges)]
    commands = [*[(stream, _ACK, ack) for stream, ack in acks], *requests]
    parts: list[tuple[Connection, list[tuple[str, int]]]] = []
    for connection, part in client.server.parts(commands, lambda command: command[0]):
        kinds = [[packed for _, index, packed in part if (index == _ACK) == is_ack] for is_ack in (True, False)]
        connection.request_separately([b"".join(kinds[0]), TIME + b"".join(kinds[1]) if kinds[1] else b""])
        parts.append((connection, [(stream, index) for stream, index, _ in part]))
    return _Sent(member, ranges, counts, parts)


def _receive(sent: _Sent) -> _Answer:
    """Receive the replies. Raises the named error of the first XACK that failed."""
    replies: list[tuple[Connection, list[int], int, memoryview]] = []
    acknowledged = 0
    for connection, part in sent.parts:
        acks_reply, pages_reply = connection.split_replies(connection.receive())
        now, pages_reply = split_time(connection, pages_reply) if len(pages_reply) else (0, pages_reply)
        replies.append((connection, [index for _, index in part if index != _ACK], now, pages_reply))
        acknowledged += _sum_of(connection, sent.member.group, acks_reply, [s for s, index in part if index == _ACK])
    return _Answer(
        sent, replies, acknowledged, _above_page(sent, [pages for _, indexes, _, pages in replies if indexes])
    )


def _above_page(sent: _Sent, replies: Sequence[memoryview]) -> list[Range]:
    """Return the rest of the range, if one was requested and its page is full: only the end of the reply is decoded."""
    if len(sent.ranges) != 1:
        return []
    pending, count = sent.ranges[0], sent.counts[0]
    last = last_of_full_page(replies[0], count, sent.member.consumer)
    return [] if last is None else _above(pending, last)


def pending_page(server: Server, stream: str, command: Sequence[Argument]) -> PendingPage:
    """Send one XPENDING that lists entries of a stream and return its reply. Raises GroupMissingError, ServerError."""
    connection = server.connection_for(stream)
    connection.request(pack(*command))
    page: PendingPage = server.answer(command[:3], decode_pending(connection.receive(), 1)[0])
    return page


def pack_pending(member: Membership, pending: Range, count: int) -> bytes:
    """Return the packed XPENDING of the first `count` entries of a range."""
    after, last = b"(" + bytes(pending.after), bytes(pending.last)
    return pack("XPENDING", pending.stream, member.group, after, last, count, member.consumer)


def split_time(server: Server, replies: memoryview) -> tuple[int, memoryview]:
    """Return the server's time in milliseconds, and the replies after that to TIME. Raises its named error."""
    lines = bytes(replies[:_TIME_BYTES]).split(b"\r\n", 5)
    if lines[0].startswith(b"-"):
        raise server.error_of(ReplyError(lines[0][1:].decode("utf-8", "replace")), ("TIME",))
    seconds, microseconds = lines[2], lines[4]
    return int(seconds) * 1000 + int(microseconds) // 1000, replies[sum(len(line) + 2 for line in lines[:5]) :]


def _sum_of(server: Server, group: str, replies: memoryview, streams: Sequence[str]) -> int:
    """Return the sum of the replies to XACK. streams: of each. Other commands reply `+OK`."""
    total = 0
    lines = bytes(replies).split(b"\r\n")[:-1]
    if len(lines) != len(streams):
        raise ServerReplyError(f"{server.address} answered {len(streams)} XACKs with {len(lines)} replies")
    for line, stream in zip(lines, streams, strict=True):
        if line == b"+OK":
            continue
        if not line.startswith(b":"):
            raise server.error_of(ReplyError(line[1:].decode("utf-8", "replace")), ("XACK", stream, group))
        total += int(line[1:])
    return total
