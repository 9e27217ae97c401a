"""Reply bytes of XPENDING key group start end count, as columns (FACTS R6).

*4               ← one pending entry
$15              ┐
1700000000000-0  ┘ these two lines are, byte for byte, an argument of XACK
$5
spark
:1234            ← ms since it was delivered
:1               ← how many times
"""

from __future__ import annotations

from dataclasses import dataclass

import hiredis
import numpy as np
import pyarrow as pa

from spark_streams.errors import ServerReplyError
from spark_streams.ids import StreamId
from spark_streams.wire.connection import ReplyError, pack
from spark_streams.wire.lines import COLON, DOLLAR, STAR, Index, Lines, ShapeError
from spark_streams.wire.page import slices_of

_LINES_PER_ENTRY = 7


@dataclass(frozen=True)
class PendingPage:
    """count: pending entries in the reply; last: the last one's id (None if empty); ids: their ids as packed
    arguments, back to back; deliveries: how many times each was delivered, int64."""

    count: int
    last: StreamId | None
    ids: bytes
    deliveries: Index

    def texts(self) -> pa.Array:
        """binary: their ids as text."""
        return texts_of(self.ids)

    def ack(self, stream: bytes, group: bytes) -> bytes:
        """The packed XACK of all entries on this page."""
        head = pack("XACK", stream, group).split(b"\r\n", 1)[1]
        return b"*%d\r\n%b%b" % (3 + self.count, head, self.ids)


def texts_of(packed: bytes) -> pa.Array:
    """binary: the ids that are packed as arguments, back to back."""
    if not packed:
        return pa.array([], pa.binary())
    lines = Lines.split(packed)
    return slices_of(packed, lines.begin[1::2], lines.end[1::2])


def arguments_of(packed: bytes) -> pa.Array:
    """binary: arguments of one line each that are packed back to back, each as it is packed."""
    if not packed:
        return pa.array([], pa.binary())
    lines = Lines.split(packed)
    return slices_of(packed, lines.begin[0::2], lines.end[1::2] + 2)


def decode_pending(reply: memoryview | bytes) -> PendingPage:
    """Raises ServerReplyError, carrying the server's text, when the reply is an error."""
    if bytes(reply[:1]) == b"-":
        raise ServerReplyError(bytes(reply[1:]).decode("utf-8", "replace").strip())
    try:
        return _vectorised(reply)
    except ShapeError:
        return _exact(reply)


def _vectorised(reply: memoryview | bytes) -> PendingPage:
    lines = Lines.split(reply)
    first_byte = lines.first_byte()
    if first_byte[0] != STAR:
        raise ShapeError
    count = int(lines.numbers(slice(0, 1))[0])
    if len(first_byte) != 1 + count * _LINES_PER_ENTRY or count == 0:
        raise ShapeError
    entry = np.arange(1, len(first_byte), _LINES_PER_ENTRY)
    for offset, byte in ((0, STAR), (1, DOLLAR), (3, DOLLAR), (5, COLON), (6, COLON)):
        if (first_byte[entry + offset] != byte).any():
            raise ShapeError
    if (lines.numbers(entry) != 4).any() or not lines.headers_match(np.concatenate([entry + 1, entry + 3])):
        raise ShapeError
    last = bytes(lines.data[lines.begin[entry[-1] + 2] : lines.end[entry[-1] + 2]])
    arguments = slices_of(reply, lines.begin[entry + 1], lines.end[entry + 2] + 2)
    return PendingPage(count, StreamId.parse(last), bytes(arguments.buffers()[2]), lines.numbers(entry + 6))


def _exact(reply: memoryview | bytes) -> PendingPage:
    reader = hiredis.Reader(replyError=ReplyError)
    reader.feed(bytes(reply))
    entries = reader.gets()
    if not isinstance(entries, list):
        raise ServerReplyError(f"expected pending entries, the server answered with {str(entries)[:200]}")
    ids = [entry[0] for entry in entries]
    return PendingPage(
        count=len(ids),
        last=StreamId.parse(ids[-1]) if ids else None,
        ids=b"".join([b"$%d\r\n%b\r\n" % (len(i), i) for i in ids]),
        deliveries=np.array([entry[3] for entry in entries], np.int64),
    )
