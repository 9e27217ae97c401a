"""The highest ID of each stream in an archive. A stream that was created again, or restored to an older state, has
given lower IDs: only the archive tells how far its entries reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.connector.source.archive.files import Archive, ArchiveFile
from spark_streams.connector.source.archive.page import id_parts
from spark_streams.connector.source.archive.rows import KEYS, IdBounds, id_bounds, open_parquet, retrying

Matches = Callable[[str], bool]


def highest_ids(archive: Archive, above: Mapping[str, StreamId], matches: Matches | None = None) -> dict[str, StreamId]:
    """Return the highest archived ID of each of these streams that has one above the given ID, and of each other stream
    that `matches`. Raises ArchiveError."""
    after = MIN_ID if matches is not None else min(above.values(), default=MAX_ID)
    return retrying(lambda: _highest_ids(archive, after, above, matches), archive)


def _highest_ids(
    archive: Archive, after: StreamId, above: Mapping[str, StreamId], matches: Matches | None
) -> dict[str, StreamId]:
    store, _root = archive.store()
    highest: dict[str, StreamId] = {}

    def is_wanted(bounds: IdBounds) -> bool:
        """Whether a row group with these bounds may raise an ID. Only one stream of many is known by its bounds."""
        if bounds.streams is None or bounds.streams[0] != bounds.streams[1]:
            return matches is not None or any(bounds.may_hold(stream, after) for stream, after in above.items())
        stream = bounds.streams[0]
        lowest = max(above.get(stream, MIN_ID), highest.get(stream, MIN_ID))
        is_named = stream in above or (matches is not None and matches(stream))
        return is_named and bounds.may_hold(stream, lowest)

    for file in reversed(archive.files(after, MAX_ID)):
        for stream, entry_id in _ids_of(store, file, is_wanted).items():
            is_named = stream in above or (matches is not None and matches(stream))
            if is_named and entry_id > max(above.get(stream, MIN_ID), highest.get(stream, MIN_ID)):
                highest[stream] = entry_id
    return highest


def _ids_of(store: fs.FileSystem, source: ArchiveFile, is_wanted: Callable[[IdBounds], bool]) -> dict[str, StreamId]:
    """Return the highest ID of each stream in the wanted row groups of a file."""
    highest: dict[str, StreamId] = {}
    with store.open_input_file(source.path) as opened:
        file = open_parquet(opened, source.path)
        for number in range(file.num_row_groups):
            if is_wanted(id_bounds(file, number, source)):
                for stream, entry_id in _ids_of_group(file, number).items():
                    highest[stream] = max(entry_id, highest.get(stream, MIN_ID))
    return highest


def _ids_of_group(file: pq.ParquetFile, number: int) -> dict[str, StreamId]:
    keys = file.read_row_group(number, columns=list(KEYS)).combine_chunks()
    streams = keys["stream"].cast(pa.string()).combine_chunks()
    ms, seq = id_parts(keys["id"].combine_chunks())
    highest = {}
    for stream in pc.unique(streams).to_pylist():
        places = np.flatnonzero(pc.equal(streams, stream).to_numpy(zero_copy_only=False))
        last = places[np.lexsort((seq[places], ms[places]))[-1]]
        highest[stream] = StreamId(int(ms[last]), int(seq[last]))
    return highest
