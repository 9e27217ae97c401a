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

import contextlib
import itertools
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import ServerReplyError
from spark_streams.connector.wire import parts
from spark_streams.connector.wire.connection import ReplyError, each_reply, pack
from spark_streams.connector.wire.entry_page import slices_of
from spark_streams.connector.wire.lines import COLON, DOLLAR, STAR, Index, Lines, ShapeError

_LINES_PER_ENTRY = 7
_SMALL = 8 << 10  # bytes of replies below which the exact way is faster: about 170 entries
_ENTRY_BYTES = 128  # more than an entry has beside the name of its consumer


@dataclass(frozen=True)
class PendingPage:
    count: int  # pending entries
    last: StreamId | None  # ID of the last entry in the reply; None: it is empty
    ids: bytes  # their IDs as packed arguments in a row
    deliveries: Index  # delivery count of each, int64
    idle: Index  # milliseconds since the last delivery of each, int64
    listed: int  # entries in the reply: more than `count` after `delivered_until`
    is_unknown: bool = False  # entries that `delivered_until` has kept may be delivered later

    def parsed_ids(self) -> list[StreamId]:
        """Return the IDs one by one, for a few entries."""
        return [StreamId.parse(text) for text in self.ids.split(b"\r\n")[1::2]]

    def delivered_until(self, until: int, now: int) -> PendingPage:
        """Return the entries that were delivered at `until` at the latest; 0: at any time. now: milliseconds of the
        server's clock when it answered, or just before.

        No idle time means: delivered within this millisecond, or later by the server's clock, which has gone back since
        then. A millisecond after `until`, the former has an idle time."""
        if not until or not self.count:
            return self
        if now - int(self.idle.min()) <= until:
            return replace(self, is_unknown=now <= until and not self.idle.all())
        is_older = now - self.idle <= until
        ids = b"".join(arguments_of(self.ids).filter(pa.array(is_older)).to_pylist())
        count = int(is_older.sum())
        return replace(self, count=count, ids=ids, deliveries=self.deliveries[is_older], idle=self.idle[is_older])

    def acks(self, stream: bytes, group: bytes) -> list[bytes]:
        """Return the packed XACKs of all entries on this page."""
        head = pack("XACK", stream, group).split(b"\r\n", 1)[1]
        return [b"*%d\r\n%b%b" % (3 + count, head, ids) for count, ids in packed_parts(self.ids, self.count, 3)]


_NONE = np.empty(0, np.int64)
NOTHING_PENDING = PendingPage(0, None, b"", _NONE, _NONE, 0)


def texts_of(packed: bytes) -> pa.Array:
    """Return the IDs that are packed as arguments in a row (binary)."""
    if not packed:
        return pa.array([], pa.binary())
    lines = Lines.split(packed)
    return slices_of(packed, lines.begin[1::2], lines.end[1::2])


def packed_parts(packed: bytes, count: int, head: int) -> list[tuple[int, bytes]]:
    """Return these packed arguments, and their number, in parts that fit into a request behind `head` others."""
    most = parts.MOST_ARGUMENTS - head
    if count <= most:
        return [(count, packed)]
    feeds = np.flatnonzero(np.frombuffer(packed, np.uint8) == ord("\n"))  # two of each argument
    cuts = [0, *(feeds[2 * most - 1 : -1 : 2 * most] + 1).tolist(), len(packed)]
    counts = [*[most] * (len(cuts) - 2), count - most * (len(cuts) - 2)]
    return [(some, packed[start:stop]) for some, (start, stop) in zip(counts, itertools.pairwise(cuts), strict=True)]


def arguments_of(packed: bytes) -> pa.Array:
    """Return one-line arguments that are packed in a row, each in its packed form (binary)."""
    if not packed:
        return pa.array([], pa.binary())
    lines = Lines.split(packed)
    return slices_of(packed, lines.begin[0::2], lines.end[1::2] + 2)


def decode_pending(replies: memoryview | bytes, count: int) -> list[PendingPage | ReplyError]:
    """Decode `count` replies in a row, as one `receive` returns them; error replies stay values.

    Raises ServerReplyError if a reply is neither.
    """
    if len(replies) > _SMALL:
        with contextlib.suppress(ShapeError):
            return _vectorised(replies, count)
    return _exact(replies, count)


def last_of_full_page(reply: memoryview, count: int, consumer: str) -> StreamId | None:
    """Return the ID of the last entry of one reply to XPENDING … count consumer, without decoding the others.

    None: the reply has fewer entries, is an error, or does not end as expected.
    """
    name = consumer.encode()
    if bytes(reply[:12]).partition(b"\r\n")[0] != b"*%d" % count:
        return None
    lines = bytes(reply[-(len(name) + _ENTRY_BYTES) :]).split(b"\r\n")
    if len(lines) < _LINES_PER_ENTRY or lines[-4] != name or lines[-1]:
        return None
    return StreamId.parse(lines[-6])


def _vectorised(replies: memoryview | bytes, count: int) -> list[PendingPage | ReplyError]:
    lines = Lines.split(replies)
    heads, counts = _heads(lines, count)
    if not any(counts):
        return [_page(entries, b"", _NONE, _NONE) for entries in counts]
    first_byte = lines.first_byte()
    if count == 1:
        entry = np.arange(1, len(first_byte), _LINES_PER_ENTRY)
    else:
        entry = np.delete(np.arange(len(first_byte)), heads)[::_LINES_PER_ENTRY]
    for offset, byte in ((0, STAR), (1, DOLLAR), (3, DOLLAR), (5, COLON), (6, COLON)):
        if (first_byte[entry + offset] != byte).any():
            raise ShapeError
    if (lines.numbers(entry) != 4).any() or not lines.headers_match(np.concatenate([entry + 1, entry + 3])):
        raise ShapeError
    arguments = slices_of(replies, lines.begin[entry + 1], lines.end[entry + 2] + 2)
    packed = memoryview(arguments.buffers()[2])
    deliveries, idle = lines.numbers(entry + 6), lines.numbers(entry + 5)
    bounds = np.frombuffer(arguments.buffers()[1], np.int32)
    pages: list[PendingPage | ReplyError] = []
    stop = 0
    for entries in counts:
        start, stop = stop, stop + (entries if isinstance(entries, int) else 0)
        ids = bytes(packed[bounds[start] : bounds[stop]])
        pages.append(_page(entries, ids, deliveries[start:stop], idle[start:stop]))
    return pages


def _heads(lines: Lines, count: int) -> tuple[list[int], list[int | ReplyError]]:
    """Return the first line of each reply, and the number of entries it announces."""
    heads: list[int] = []
    counts: list[int | ReplyError] = []
    line = 0
    for _ in range(count):
        if line >= len(lines.begin):
            raise ShapeError
        head = bytes(lines.data[lines.begin[line] : lines.end[line]])
        if head[:1] == b"-":
            entries: int | ReplyError = ReplyError(head[1:].decode("utf-8", "replace"))
        elif head[:1] == b"*" and head[1:].isdigit():
            entries = int(head[1:])
        else:
            raise ShapeError
        heads.append(line)
        counts.append(entries)
        line += 1 + _LINES_PER_ENTRY * (entries if isinstance(entries, int) else 0)
    if line != len(lines.begin):
        raise ShapeError
    return heads, counts


def _page(entries: int | ReplyError, packed: bytes, deliveries: Index, idle: Index) -> PendingPage | ReplyError:
    if isinstance(entries, ReplyError):
        return entries
    last = StreamId.parse(packed[packed.rfind(b"\n", 0, -1) + 1 : -2]) if entries else None
    return PendingPage(entries, last, packed, deliveries, idle, entries)


def _exact(replies: memoryview | bytes, count: int) -> list[PendingPage | ReplyError]:
    parsed = each_reply(replies)
    pages: list[PendingPage | ReplyError] = []
    for _ in range(count):
        entries = next(parsed, False)
        if isinstance(entries, ReplyError):
            pages.append(entries)
        elif isinstance(entries, list):
            packed = b"".join([b"$%d\r\n%b\r\n" % (len(entry[0]), entry[0]) for entry in entries])
            idle, deliveries = (np.array([entry[place] for entry in entries], np.int64) for place in (2, 3))
            pages.append(_page(len(entries), packed, deliveries, idle))
        else:
            raise ServerReplyError(f"expected pending entries, the server answered with {str(entries)[:200]}")
    return pages
