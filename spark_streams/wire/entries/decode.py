"""Reply bytes of XRANGE to columns.

Two ways that give the same, and tests hold them against each other: the vectorised one (walk.py) reads all entries at
once and proves what it reads; the exact one (parsed_page.py) parses entry by entry whatever the first cannot prove, and
replies so small that arrays do not pay.
"""

from __future__ import annotations

from spark_streams.errors import UnsupportedError
from spark_streams.wire.entries.entry_page import EntryPage
from spark_streams.wire.entries.lines import ShapeError
from spark_streams.wire.entries.parsed_page import ExactPage, parse_entries
from spark_streams.wire.entries.vector_page import VectorPage

__all__ = ["EntryPage", "decode_entries", "decode_replies"]

_SMALL = 32 << 10  # bytes of replies that the exact way reads sooner: some 300 small entries
_MOST_BYTES = 2**31 - 1  # of a page: Arrow's offsets are 32 bits wide


def decode_entries(reply: memoryview | bytes) -> EntryPage:
    """One XRANGE reply to columns.

    Raises ServerReplyError when the reply is an error, UnsupportedError when it has 2 GiB or more.
    """
    return decode_replies(reply, 1)[0]


def decode_replies(data: memoryview | bytes, count: int) -> tuple[EntryPage, list[int]]:
    """So many XRANGE replies back to back, as one `receive` hands them over: (one page of all entries, how many
    entries each reply has).

    So many small replies cost one vectorised pass. The page's `last_id` is the last entry's of all, and rows ascend
    within each reply only; `EntryPage.rows_of` tells rows per reply where entries are deleted.
    Raises as decode_entries does.
    """
    if len(data) > _MOST_BYTES:
        raise UnsupportedError(
            f"entries that take {len(data):,} bytes together cannot be read as one page, which holds less than 2 GiB; "
            "write smaller values, or keep large ones elsewhere and their names in the stream"
        )
    if len(data) > _SMALL:
        try:
            page = VectorPage(data, count)
            return page, page.counts
        except ShapeError:
            pass  # the exact way reads everything
    replies = parse_entries(data, count)
    return ExactPage([entry for reply in replies for entry in reply]), [len(reply) for reply in replies]
