"""An entry as it is sent: its id, and its field section, byte for byte as in the XADD that brought it.

A field section has the form of a command: an array of bulk strings.
"""

from __future__ import annotations

import hiredis

from spark_streams.engine.resp.replies import HEADERS
from spark_streams.engine.store import entryid


def fields_of(wire: bytes) -> list[bytes]:
    """Fields and values, alternating, of an entry's reply bytes."""
    reader = hiredis.Reader()
    reader.feed(wire)
    pairs: list[bytes] = reader.gets()[1]
    return pairs


def entry_wire(entry_id: int, fields: bytes) -> bytes:
    """The reply bytes of an entry from its id and its field section `*<n>\\r\\n$…`."""
    text = entryid.text(entry_id)
    return b"*2\r\n$%d\r\n%b\r\n%b" % (len(text), text, fields)


def fields_wire(pairs: list[bytes]) -> bytes:
    """`*<n>\\r\\n$<length>\\r\\n<bytes>\\r\\n…`: the field section of an entry. TypeError for anything but bytes."""
    lines: list[bytes] = [b""] * (2 * len(pairs) + 2)
    lines[0] = b"*%d" % len(pairs)
    lines[1:-1:2] = map(HEADERS.__getitem__, map(len, pairs))
    lines[2:-1:2] = pairs
    return b"\r\n".join(lines)
