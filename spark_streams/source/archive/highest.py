"""The highest ID that an archive has of a stream.

A stream that was deleted, emptied or restored to an older state does not know the IDs that it has given. The archive
does: its entries above the stream's last ID are in the archive alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow.compute as pc
from pyarrow import fs

from spark_streams.model.ids import MAX_ID, StreamId
from spark_streams.source.archive.files import Archive
from spark_streams.source.archive.rows import days_of, groups_of_day, matching_keys, retrying
from spark_streams.source.entry_range import EntryRange


def highest_ids(archive: Archive, above: Mapping[str, StreamId]) -> dict[str, StreamId]:
    """Return the highest archived ID of each stream that has one above the given ID. Raises ArchiveError.

    The newest day is read first, and only the columns with stream and ID of row groups that may have such an ID. For a
    stream that works, these are the newest row groups at most.
    """
    store, _root = archive.store()
    return retrying(lambda: _highest(archive, store, above), archive)


def _highest(archive: Archive, store: fs.FileSystem, above: Mapping[str, StreamId]) -> dict[str, StreamId]:
    highest: dict[str, StreamId] = {}
    ranges = [EntryRange(stream, after, MAX_ID, 1, owned=True, counted=False) for stream, after in above.items()]
    for day in reversed(days_of(archive, ranges)):
        # Earlier days have lower IDs. IDs that are no time are in a folder of their own, named 0 here.
        open_ranges = [part for part in ranges if not day or part.stream not in highest]
        for group in groups_of_day(archive, store, day, open_ranges) if open_ranges else ():
            streams, ms, seq = matching_keys(store, group, open_ranges)
            for stream in pc.unique(streams).to_pylist():
                rows = pc.equal(streams, stream).to_numpy(zero_copy_only=False)
                newest = ms[rows].max()
                entry_id = StreamId(int(newest), int(seq[rows][ms[rows] == newest].max()))
                highest[stream] = max(entry_id, highest.get(stream, entry_id))
    return highest
