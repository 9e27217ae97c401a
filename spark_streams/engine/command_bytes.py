"""Commands as bytes, for writing and loading the append-only file."""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.engine.store.entry import fields_wire

MULTI = fields_wire([b"MULTI"])


EXEC = fields_wire([b"EXEC"])


def number(value: int) -> bytes:
    """Return a number as an argument."""
    return b"%d" % value


def xadd_head(key: bytes, count: bytes) -> bytes:
    """Return the bytes before the entry ID of an XADD with this number of fields and values."""
    return b"*%d%b" % (int(count) + 3, fields_wire([b"XADD", key])[2:])


def claim_command(
    key: bytes, group: bytes, consumer: bytes, texts: Sequence[bytes], tail: Sequence[bytes]
) -> list[bytes]:
    """Return an XCLAIM of these entry IDs, in pieces."""
    head = fields_wire([b"XCLAIM", key, group, consumer, b"0"])[2:]
    end = fields_wire(list(tail))
    return [b"*%d%b" % (5 + len(texts) + len(tail), head), bulks(texts), end[end.index(b"\r\n") + 2 :]]


def bulks(texts: Sequence[bytes]) -> bytes:
    """Return bulk strings in a row. Entry IDs mostly have one length: then one join is enough."""
    lengths = set(map(len, texts))
    if len(lengths) != 1:
        return b"".join([b"$%d\r\n%b\r\n" % (len(text), text) for text in texts])
    head = b"$%d\r\n" % lengths.pop()
    return head + (b"\r\n" + head).join(texts) + b"\r\n"
