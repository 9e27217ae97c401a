"""Commands as bytes, for the file and for whoever loads it."""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.engine.store.entry import fields_wire

MULTI = fields_wire([b"MULTI"])


EXEC = fields_wire([b"EXEC"])


def number(value: int) -> bytes:
    """An argument."""
    return b"%d" % value


def xadd_head(key: bytes, count: bytes) -> bytes:
    """What stands before the id of an XADD with so many fields and values."""
    return b"*%d%b" % (int(count) + 3, fields_wire([b"XADD", key])[2:])


def claim_command(
    key: bytes, group: bytes, consumer: bytes, texts: Sequence[bytes], tail: Sequence[bytes]
) -> list[bytes]:
    """XCLAIM of these ids, in pieces."""
    head = fields_wire([b"XCLAIM", key, group, consumer, b"0"])[2:]
    end = fields_wire(list(tail))
    return [b"*%d%b" % (5 + len(texts) + len(tail), head), bulks(texts), end[end.index(b"\r\n") + 2 :]]


def bulks(texts: Sequence[bytes]) -> bytes:
    """Bulk strings in a row. Ids are mostly of one length: then one join does it."""
    lengths = set(map(len, texts))
    if len(lengths) != 1:
        return b"".join([b"$%d\r\n%b\r\n" % (len(text), text) for text in texts])
    head = b"$%d\r\n" % lengths.pop()
    return head + (b"\r\n" + head).join(texts) + b"\r\n"
