"""Entries and commands as bytes: an entry's reply, its field section, and commands of the append-only file.

The reply bytes of an entry are its ID, and its field section, byte for byte as in its XADD. A field section has the
form of a command: an array of bulk strings.
"""

from __future__ import annotations

from collections.abc import Sequence

import hiredis

from spark_streams.engine.resp.wire_replies import HEADERS
from spark_streams.engine.store import entryid


def fields_of(wire: bytes) -> list[bytes]:
    """Return the fields and values, alternating, of an entry's reply bytes."""
    reader = hiredis.Reader()
    reader.feed(wire)
    pairs: list[bytes] = reader.gets()[1]
    return pairs


def entry_wire(entry_id: int, fields: bytes) -> bytes:
    """Return the reply bytes of an entry from its ID and its field section `*<n>\\r\\n$…`."""
    text = entryid.text(entry_id)
    return b"*2\r\n$%d\r\n%b\r\n%b" % (len(text), text, fields)


def fields_wire(pairs: list[bytes]) -> bytes:
    """Return the field section `*<n>\\r\\n$<length>\\r\\n<bytes>\\r\\n…` of an entry.

    Raises TypeError for other types.
    """
    lines: list[bytes] = [b""] * (2 * len(pairs) + 2)
    lines[0] = b"*%d" % len(pairs)
    lines[1:-1:2] = map(HEADERS.__getitem__, map(len, pairs))
    lines[2:-1:2] = pairs
    return b"\r\n".join(lines)


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
