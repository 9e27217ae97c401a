"""Numbers of dead letters by kind. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.connector.deadletter.envelope import text
from spark_streams.connector.wire.entries.lines import Index

_OTHER_KINDS = "(others)"

Kind = tuple[str, ...]


@dataclass
class KindCount:
    """Dead letters of a kind: their number, and the IDs of the first and the last one. The names are JSON fields."""

    letters: int
    first: str
    last: str


@dataclass
class KindCounts:
    """Counts by kind; a kind has a text for each column. Beyond max_kinds, all other kinds are counted together."""

    counts: dict[Kind, KindCount] = field(default_factory=dict)
    max_kinds: int = 1_000

    def add(self, ids: pa.Array, columns: Sequence[pa.Array | str], rows: Index) -> None:
        """Count these rows. columns: binary, or one text for all rows; null counts as empty."""
        if not len(rows):
            return
        indices = pa.array(rows)
        code = np.zeros(len(rows), np.int64)
        texts_of: list[list[str]] = []
        for column in columns:
            if isinstance(column, str):
                texts_of.append([column])
                continue
            coded = pc.fill_null(column.take(indices), b"").dictionary_encode()
            texts_of.append([text(value) for value in coded.dictionary.to_pylist()])
            code = code * len(texts_of[-1]) + coded.indices.to_numpy()
        kinds, first, numbers = np.unique(code, return_index=True, return_counts=True)
        last = len(code) - 1 - np.unique(code[::-1], return_index=True)[1]
        for kind, begin, end, number in zip(kinds.tolist(), first, last, numbers.tolist(), strict=True):
            texts: list[str] = []
            for values in reversed(texts_of):
                kind, index = divmod(kind, len(values)) if len(values) > 1 else (kind, 0)  # noqa: PLW2901
                texts.insert(0, values[index])
            self._count(tuple(texts), number, text(ids[int(rows[begin])].as_py()), text(ids[int(rows[end])].as_py()))

    def _count(self, kind: Kind, number: int, first: str, last: str) -> None:
        if kind not in self.counts and len(self.counts) >= self.max_kinds:
            kind = (_OTHER_KINDS,) * len(kind)
        have = self.counts.setdefault(kind, KindCount(0, first, last))
        have.letters += number
        have.last = last

    def merge(self, other: KindCounts) -> None:
        """Add the counts of later dead letters."""
        for kind, count in other.counts.items():
            self._count(kind, count.letters, count.first, count.last)

    @property
    def letters(self) -> int:
        """Number of all dead letters."""
        return sum(count.letters for count in self.counts.values())

    def __iter__(self) -> Iterator[tuple[Kind, KindCount]]:
        """Yield the most frequent kind first."""
        return iter(sorted(self.counts.items(), key=lambda kind_count: (-kind_count[1].letters, kind_count[0])))
