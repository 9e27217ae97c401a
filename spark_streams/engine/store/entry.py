"""The reply bytes of an entry: its ID, and its field section, byte for byte as in its XADD.

A field section has the form of a command: an array of bulk strings.
"""

from __future__ import annotations

import hiredis

from spark_streams.engine.resp.replies import HEADERS
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
