"""How many archived entries a batch has at most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from spark_streams.connector.source.archive.files import Archive
from spark_streams.connector.source.archive.rows import first_row_group
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.quota import BatchQuota


@dataclass(frozen=True)
class BatchLimit:
    """How many entries a batch has at most. entries: of all streams; of_stream: by stream."""

    entries: int | None
    quota: BatchQuota = field(repr=False)

    @classmethod
    def from_quota(cls, archive: Archive, ranges: Sequence[Range], quota: BatchQuota) -> BatchLimit | None:
        """Return the limit; None: there is none. Bytes count by the average size of the first entries."""
        entries = [quota.entries] if quota.entries is not None else []
        if quota.size is not None and (group := first_row_group(archive, ranges)) is not None:
            entries.append(max(1, math.floor(quota.size / group.entry_bytes)))
        quota = replace(quota, size=None)
        if not entries and all(quota.limit_of(part.stream) is None for part in ranges):
            return None
        return cls(min(entries, default=None), quota)

    def fitting(self, streams: pa.Array, taken: Mapping[str, int]) -> int:
        """Return how many of the next entries fit into a batch that has `taken`. streams: of the entries."""
        fitting = len(streams) if self.entries is None else max(0, self.entries - sum(taken.values()))
        encoded = streams.dictionary_encode()
        numbers = encoded.indices.to_numpy(zero_copy_only=False)
        for number, stream in enumerate(encoded.dictionary.to_pylist()):
            limit = self.quota.limit_of(stream)
            if limit is not None:
                places = np.flatnonzero(numbers == number)
                remaining = max(0, limit - taken.get(stream, 0))
                fitting = min(fitting, int(places[remaining]) if remaining < len(places) else len(streams))
        return min(fitting, len(streams))
