"""The values of a field where they lie in the reply, without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spark_streams.connector.wire.entries.lines import Bytes, Index


@dataclass(frozen=True)
class Spans:
    """data: the bytes of replies; begin, end: the bounds of each row's value in it."""

    data: Bytes
    begin: Index
    end: Index

    @classmethod
    def concatenate(cls, parts: Sequence[Spans]) -> Spans:
        """Return the values of all parts, which lie in the same data."""
        if len(parts) == 1:
            return parts[0]
        begin = np.concatenate([part.begin for part in parts])
        return cls(parts[0].data, begin, np.concatenate([part.end for part in parts]))

    def first(self) -> bytes:
        """Return the first value."""
        return self.data[self.begin[0] : self.end[0]].tobytes()

    def windows(self, begin: Index, size: int) -> Bytes:
        """Return (rows × size) bytes that begin there. Raises IndexError if they exceed the data."""
        windows = np.ndarray((max(0, len(self.data) - size + 1),), f"V{size}", self.data, 0, (1,))[begin]
        matrix: Bytes = windows.view(np.uint8).reshape(len(begin), size)
        return matrix
