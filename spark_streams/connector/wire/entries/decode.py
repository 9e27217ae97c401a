"""Reply bytes of XRANGE to columns.

There are two ways with the same result, and tests compare them. The vectorised one (walk.py) reads all entries at once
and proves its reading. The exact one (parsed_page.py) parses entry by entry what the first cannot prove, and replies
that are too small for arrays to be faster.
"""

from __future__ import annotations

from spark_streams.connector.errors import UnsupportedError
from spark_streams.connector.wire.entries.entry_page import EntryPage
from spark_streams.connector.wire.entries.lines import ShapeError
from spark_streams.connector.wire.entries.parsed_page import ExactPage, parse_entries
from spark_streams.connector.wire.entries.vector_page import VectorPage

__all__ = ["EntryPage", "decode_entries", "decode_replies"]

_SMALL = 32 << 10  # bytes of replies below which the exact way is faster: about 300 small entries
_MOST_BYTES = 2**31 - 1  # of a page: Arrow's offsets are 32 bits wide


def decode_entries(reply: memoryview | bytes) -> EntryPage:
    """Decode one XRANGE reply to columns.

    Raises ServerReplyError if the reply is an error, UnsupportedError if it has 2 GiB or more.
    """
    return decode_replies(reply, 1)[0]


def decode_replies(data: memoryview | bytes, count: int) -> tuple[EntryPage, list[int]]:
    """Decode `count` XRANGE replies in a row, as one `receive` returns them.

    Returns one page of all entries, and the number of entries of each reply. Many small replies thus cost one
    vectorised pass. The page's `last_id` is that of the last entry of all replies, and rows ascend within each reply
    only. If entries are deleted, `EntryPage.rows_of` returns the rows per reply. Raises as decode_entries does.
    """
    if len(data) > _MOST_BYTES:
        raise UnsupportedError(
            f"entries that take {len(data):,} bytes together cannot be read as one page, which holds less than 2 GiB; "
            "write smaller values, or store large values elsewhere and their names in the stream"
        )
    if len(data) > _SMALL:
        try:
            page = VectorPage(data, count)
            return page, page.counts
        except ShapeError:
            pass  # the exact way reads every reply
    replies = parse_entries(data, count)
    return ExactPage([entry for reply in replies for entry in reply]), [len(reply) for reply in replies]
