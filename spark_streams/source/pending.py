"""Our consumer's pending entries, page by page: the log of what a batch holds, and the XACK that settles it."""

from __future__ import annotations

from collections.abc import Iterator

from spark_streams.errors import ServerReplyError
from spark_streams.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.source.group import Membership
from spark_streams.source.plan import Run
from spark_streams.wire.connection import Connection, ReplyError, pack
from spark_streams.wire.pending import PendingPage, decode_pending

PAGE = 10_000  # pending entries a round trip


def pending_runs(
    server: Connection, member: Membership, stream: str, after: StreamId, last: StreamId, most: int | None, size: int
) -> Iterator[Run]:
    """Our pending entries with after < id ≤ last, as runs of up to `size`, at most `most` entries in all.

    What else the stream holds between them is not known, so the runs are not owned.
    """
    left = most
    while after < last and (left is None or left > 0):
        count = min(PAGE, size) if left is None else min(PAGE, size, left)
        server.request(_ask(member, stream, after.next(), last, count))
        page = _decode(server, member, stream, server.receive())
        if page.last is None:
            return
        yield Run(stream, after, page.last, page.count, owned=False)
        after = page.last
        if left is not None:
            left -= page.count


def settle(server: Connection, member: Membership, stream: str, up_to: StreamId) -> int:
    """XACK our pending entries with id ≤ up_to; how many there were.

    One round trip a page: the acknowledgement of a page travels with the question for the next.
    """
    settled = 0
    ask = _ask(member, stream, MIN_ID, up_to, PAGE)
    server.request(ask)
    reply = server.receive()
    while True:
        page = _decode(server, member, stream, reply)
        if page.count == 0:
            return settled
        settled += page.count
        ack = page.ack(stream.encode(), member.group.encode())
        if page.count < PAGE:
            server.request(ack)
            _acknowledged(server, member, stream, server.receive())
            return settled
        server.request(ack, ask)
        reply = _acknowledged(server, member, stream, server.receive())


def _ask(member: Membership, stream: str, start: StreamId, last: StreamId, count: int) -> bytes:
    end = "+" if last == MAX_ID else bytes(last)
    return pack("XPENDING", stream, member.group, bytes(start), end, count, member.consumer)


def _decode(server: Connection, member: Membership, stream: str, reply: memoryview) -> PendingPage:
    try:
        return decode_pending(reply)
    except ServerReplyError as error:
        raise server.error_of(ReplyError(error.message), ("XPENDING", stream, member.group)) from None


def _acknowledged(server: Connection, member: Membership, stream: str, reply: memoryview) -> memoryview:
    """Check the reply of XACK; what follows it."""
    head = bytes(reply[:256])
    end = head.find(b"\r\n")
    if not head.startswith(b":"):
        text = head[1:end].decode("utf-8", "replace")
        raise server.error_of(ReplyError(text), ("XACK", stream, member.group))
    return reply[end + 2 :]
