"""Compare the entries of ranges with pending lists of the same ranges: which rows are ours, and their delivery counts.

Pure: pages in, positions and masks out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.model.ids import StreamId
from spark_streams.source.task.range_cursor import MIN_JUDGED, PageRequest
from spark_streams.wire.entries.entry_page import EntryPage
from spark_streams.wire.entries.lines import Index, Mask
from spark_streams.wire.entries.pending_page import PendingPage, texts_of

_SPARSE = 4  # if fewer than one in four entries of a shared range are ours, it is read entry by entry


@dataclass(frozen=True)
class Ownership:
    """ours: mask of our rows; deliveries: int64 per row, null if the entry is not pending."""

    ours: Mask
    deliveries: pa.Array


def match_pending(request: PageRequest, entries: EntryPage, rows: Index, pages: Mapping[int, PendingPage]) -> Ownership:
    """Compare the rows of each cursor with its pending page, and advance the cursors.

    rows: number of rows per cursor; pages: by index of the cursor. A cursor without a page owns all its rows.
    """
    positions = _pending_positions(entries, rows, pages)
    ends = request.read_up_to(entries, rows)
    ours = np.ones(entries.count, np.bool_)
    stop = 0
    for index, (cursor, count) in enumerate(zip(request.cursors, rows.tolist(), strict=True)):
        start, stop = stop, stop + count
        page = pages.get(index)
        if page is not None:
            # Beyond the end of either reply it is unknown which entries are ours.
            if page.last is not None and page.count == request.counts[index]:
                ends[index] = min(ends[index], page.last)
            if cursor.range.owned:
                ours[start:stop] = _up_to(entries.ids().slice(start, count), ends[index])
            else:
                ours[start:stop] = positions.slice(start, count).is_valid().to_numpy(zero_copy_only=False)
                cursor.by_id = count >= MIN_JUDGED and int(ours[start:stop].sum()) * _SPARSE < count
        cursor.advance(ends[index], int(ours[start:stop].sum()))
    deliveries = np.concatenate([np.empty(0, np.int64), *[page.deliveries for page in pages.values()]])
    return Ownership(ours, pa.array(deliveries).take(positions))


def _pending_positions(entries: EntryPage, rows: Index, pages: Mapping[int, PendingPage]) -> pa.Array:
    """Return the position of each row among the pending entries of all pages, null if it is not pending."""
    owners = np.repeat(np.arange(len(rows)), rows)
    pending = np.repeat(np.array(list(pages), np.int64), [page.count for page in pages.values()])
    texts = texts_of(b"".join([page.ids for page in pages.values()]))
    return pc.index_in(_keys(owners, entries.ids()), value_set=_keys(pending, texts))


def _keys(owners: Index, ids: pa.Array) -> pa.Array:
    """Return keys of the cursor's index and the ID: two streams may have the same ID."""
    return pc.binary_join_element_wise(pa.array(owners).cast(pa.string()).cast(pa.binary()), ids, b"/")


def _up_to(ids: pa.Array, last: StreamId) -> Mask | bool:
    """Return which of these ascending IDs are not above `last`."""
    if len(ids) == 0 or StreamId.parse(ids[-1].as_py()) <= last:
        return True
    return np.array([StreamId.parse(entry) <= last for entry in ids.to_pylist()], np.bool_)
