"""Runs a batch of XADDs as one, with the same entries, replies and journal as one by one.

All entries get consecutive IDs. The texts of the IDs are joined from a table of endings, so an entry costs three
elements of one join, and its reply one element of another:

    *2\r\n$15\r\n1526919030474-  │ 7\r\n*4\r\n │ $1\r\nf\r\n$3\r\n123\r\n …     head, ending, section

Within MULTI a batch is queued as one, and EXEC runs it as one.

Cases that need each command by itself (suppressed replies, a client that waits for this key, a missing stream) are not
handled here.
"""

from __future__ import annotations

from functools import lru_cache

from spark_streams.engine.client import REPLY_ON, Client
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.xadd_batch import BatchShape, XaddBatch
from spark_streams.engine.store import entryid
from spark_streams.engine.store.entryid import DIGITS, Block, blocks
from spark_streams.engine.store.stream import StoredStream


def add_batch(engine: Engine, client: Client, batch: XaddBatch) -> bytes | None:
    """Return the replies of all commands; None if nothing was done because they must run one by one."""
    db, shape, count = client.db, batch.shape, len(batch.sections)
    key = shape.key
    if client.queue is not None or client.reply_mode != REPLY_ON or (db.waiting and key in db.waiting):
        return None
    if engine.journal is not None and engine.journal.refusal:
        return None
    if db.expires:
        db.expire_if_due(key)
    stream = db.values.get(key)
    if type(stream) is not StoredStream or not stream.takes_batches:
        return None
    first = max(engine.now << 64, stream.last_id + 1)
    if first + count > entryid.HIGHEST:
        return None
    replies: list[bytes] = []
    start = 0
    for block in blocks(first, count):
        sections = batch.sections[start : start + block.size]
        start += block.size
        head = b"$%d\r\n%b" % (block.width, block.head)
        endings = _endings(block.padded, b"\r\n")[block.low : block.low + block.size]
        replies.append(head + head.join(endings))
        _append(stream, shape, block, head, sections)
        if engine.journal is not None:
            engine.journal.added_batch(db, key, len(shape.names), head, endings, sections)
    if shape.keep is not None:
        removed = stream.trim_approximately(shape.keep, count)
        if removed and engine.journal is not None:
            engine.journal.trimmed(db, key, stream.length)
    db.touch(key, count)
    return b"".join(replies)


def _append(stream: StoredStream, shape: BatchShape, block: Block, head: bytes, sections: list[bytes]) -> None:
    """Append the entries of one block, each time as many as fit into the newest node."""
    head = b"*2\r\n" + head
    table = _endings(block.padded, b"\r\n*%d\r\n" % (2 * len(shape.names)))
    shared = len(head) + len(table[block.low])
    start = 0
    while start < block.size:
        node = stream.open_node()
        upto = min(block.size, start + stream.limits.entries - node.slots)
        taken = sections[start:upto]
        pieces = [head] * (3 * len(taken))
        pieces[1::3] = table[block.low + start : block.low + upto]
        pieces[2::3] = taken
        lengths = [shared + length for length in map(len, taken)]
        stream.extend(block.first + start, b"".join(pieces), lengths, shape.names)
        start = upto


@lru_cache(maxsize=64)
def _endings(padded: bool, after: bytes) -> list[bytes]:
    """Return the last digits of IDs, each followed by `after`."""
    return [digits + after for digits in DIGITS[padded]]
