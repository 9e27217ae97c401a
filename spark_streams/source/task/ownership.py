"""Entries of ranges held against pending lists of the same ranges: which rows are ours, how often were they delivered.

Pure: pages in, positions and masks out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.model.ids import StreamId
from spark_streams.source.task.range_cursor import LEAST_JUDGED, Asked
from spark_streams.wire.entries.entry_page import EntryPage
from spark_streams.wire.entries.lines import Index, Mask
from spark_streams.wire.entries.pending_page import PendingPage, texts_of

_SPARSE = 4  # a shared range where fewer than one in so many entries are ours is read id by id


@dataclass(frozen=True)
class Matched:
    """ours: per row whether it is; deliveries: int64 per row, null where it is not pending."""

    ours: Mask
    deliveries: pa.Array


def match(asked: Asked, entries: EntryPage, rows: Index, pages: Mapping[int, PendingPage]) -> Matched:
    """Hold the rows of each reading against its pending page, and advance the readings.

    rows: how many each reading has; pages: by position of the reading. A reading without one owns all of its rows.
    """
    where = _positions(entries, rows, pages)
    reached = asked.reached(entries, rows)
    ours = np.ones(entries.count, np.bool_)
    stop = 0
    for index, (reading, count) in enumerate(zip(asked.readings, rows.tolist(), strict=True)):
        start, stop = stop, stop + count
        page = pages.get(index)
        if page is not None:
            # Beyond the end of either reply it is not known what is ours.
            if page.last is not None and page.count == asked.counts[index]:
                reached[index] = min(reached[index], page.last)
            if reading.run.owned:
                ours[start:stop] = _up_to(entries.ids().slice(start, count), reached[index])
            else:
                ours[start:stop] = where.slice(start, count).is_valid().to_numpy(zero_copy_only=False)
                reading.by_id = count >= LEAST_JUDGED and int(ours[start:stop].sum()) * _SPARSE < count
        reading.advance(reached[index], int(ours[start:stop].sum()))
    counted = np.concatenate([np.empty(0, np.int64), *[page.deliveries for page in pages.values()]])
    return Matched(ours, pa.array(counted).take(where))


def _positions(entries: EntryPage, rows: Index, pages: Mapping[int, PendingPage]) -> pa.Array:
    """Per row its place among the pending entries of all these pages (by reading), null where it is in none."""
    owners = np.repeat(np.arange(len(rows)), rows)
    pending = np.repeat(np.array(list(pages), np.int64), [page.count for page in pages.values()])
    texts = texts_of(b"".join([page.ids for page in pages.values()]))
    return pc.index_in(_keys(owners, entries.ids()), value_set=_keys(pending, texts))


def _keys(owners: Index, ids: pa.Array) -> pa.Array:
    """Ids that are told apart by their reading, too: two streams may have the same."""
    return pc.binary_join_element_wise(pa.array(owners).cast(pa.string()).cast(pa.binary()), ids, b"/")


def _up_to(ids: pa.Array, last: StreamId) -> Mask | bool:
    """Which of these ascending ids are not above `last`."""
    if len(ids) == 0 or StreamId.parse(ids[-1].as_py()) <= last:
        return True
    return np.array([StreamId.parse(entry) <= last for entry in ids.to_pylist()], np.bool_)
