"""What a task does: read one run of entries, page by page, as record batches. It only reads (FACTS S7).

An owned run is read with XRANGE; one that others also read from through our own pending list. The next page is asked
for before the last one is decoded, so that the server and this process work at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from spark_streams.errors import DataLossError
from spark_streams.ids import StreamId
from spark_streams.source.columns import Columns
from spark_streams.source.group import Membership
from spark_streams.source.plan import Run
from spark_streams.wire.connection import Connection, pack
from spark_streams.wire.decode import EntryPage, decode_entries, entries_of_read

_FIRST_PAGE = 200  # entries; the size of entries is not known yet
_PAGE_BYTES = 4 << 20
_LARGEST_PAGE = 8_000  # entries
_GROWTH = 4  # a page is at most so many times the one before: entries may suddenly be large


def read_run(
    server: Connection, member: Membership, run: Run, columns: Columns, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """The run's rows. Raises DataLossError when entries that were reserved are gone and that is not allowed."""
    found = 0
    size = _FIRST_PAGE
    server.request(_ask(member, run, run.after, size))
    while True:
        page, reply_bytes = _receive(server, run)
        rows = page.count if run.owned else page.count_up_to(run.last)
        asked, size = size, min(_next_size(page, reply_bytes), _GROWTH * size)
        more = page.last_id is not None and page.last_id < run.last and page.count + page.deleted == asked
        if more and page.last_id is not None:
            server.request(_ask(member, run, page.last_id, size))
        if rows:
            found += rows
            yield columns.batch(page, rows, run.stream).batch
        if not more:
            break
    if found < run.count and fail_on_data_loss:
        raise DataLossError(
            f"stream {run.stream!r}: {run.count - found} of {run.count} entries that group {member.group!r} was given "
            f"above {run.after} up to {run.last} are gone (trimmed, deleted, or claimed by another consumer); keep the "
            "stream longer than the lag of its slowest group, or set failOnDataLoss=false to go on without them"
        )


def _ask(member: Membership, run: Run, after: StreamId, count: int) -> bytes:
    if run.owned:
        return pack("XRANGE", run.stream, b"(" + bytes(after), bytes(run.last), "COUNT", count)
    return pack(
        "XREADGROUP", "GROUP", member.group, member.consumer, "COUNT", count, "STREAMS", run.stream, bytes(after)
    )


def _receive(server: Connection, run: Run) -> tuple[EntryPage, int]:
    reply = server.receive()
    entries = reply if run.owned else entries_of_read(reply, run.stream.encode())
    return decode_entries(entries), len(reply)


def _next_size(page: EntryPage, reply_bytes: int) -> int:
    """How many entries to ask for next, so that a page stays near _PAGE_BYTES."""
    if page.count == 0:
        return _FIRST_PAGE
    return max(1, min(_LARGEST_PAGE, _PAGE_BYTES * page.count // reply_bytes))
