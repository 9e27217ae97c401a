"""IDs of the entries that a task has read from streams. Rows of the archive with these IDs are not read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.connector.source.group_client import Membership
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.source.partitioning import Part
from spark_streams.connector.source.task.fetcher import FetchedPage, Fetcher
from spark_streams.connector.wire.session import Session

NO_GROUP = Membership("", "")  # reading ranges needs no group


class SeenIds:
    """IDs (binary) by stream."""

    def __init__(self) -> None:
        self._parts: dict[str, list[pa.Array]] = {}

    def add(self, page: FetchedPage) -> None:
        """Add the IDs of a page."""
        ids = page.entries.ids().slice(0, page.rows)
        if isinstance(page.streams, str):
            self._parts.setdefault(page.streams, []).append(ids)
            return
        streams = page.streams.slice(0, page.rows)
        for stream in pc.unique(streams).to_pylist():
            self._parts.setdefault(stream, []).append(ids.filter(pc.equal(streams, stream)))

    def by_stream(self) -> Mapping[str, pa.Array]:
        """Return the IDs of each stream."""
        return {stream: pa.concat_arrays(parts) for stream, parts in self._parts.items()}


def read_ids(session: Session, parts: Sequence[Part], limits: Limits = LIMITS) -> Mapping[str, pa.Array]:
    """Return the IDs of the entries that the streams have of these parts."""
    seen = SeenIds()
    for page in Fetcher(session, NO_GROUP, parts, deliveries=False, limits=limits).pages():
        if page.rows:
            seen.add(page)
    return seen.by_stream()
