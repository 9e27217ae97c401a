"""How many dead letters there are of each kind. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.deadletter.envelope import text
from spark_streams.wire.entries.lines import Index

_OTHERS = "(others)"

Kind = tuple[str, ...]


@dataclass
class KindCount:
    """So many dead letters of a kind, and the ids of the first and the last one; the names are those of its JSON."""

    letters: int
    first: str
    last: str


@dataclass
class KindCounts:
    """Counts by kind; a kind is a text for each of some columns. Beyond `most` kinds, the others are one."""

    counts: dict[Kind, KindCount] = field(default_factory=dict)
    most: int = 1_000

    def add(self, ids: pa.Array, columns: Sequence[pa.Array | str], rows: Index) -> None:
        """Count these rows. columns: binary, or a text for all; null counts as empty."""
        if not len(rows):
            return
        kept = pa.array(rows)
        code = np.zeros(len(rows), np.int64)
        known: list[list[str]] = []
        for column in columns:
            if isinstance(column, str):
                known.append([column])
                continue
            coded = pc.fill_null(column.take(kept), b"").dictionary_encode()
            known.append([text(value) for value in coded.dictionary.to_pylist()])
            code = code * len(known[-1]) + coded.indices.to_numpy()
        kinds, first, numbers = np.unique(code, return_index=True, return_counts=True)
        last = len(code) - 1 - np.unique(code[::-1], return_index=True)[1]
        for kind, begin, end, number in zip(kinds.tolist(), first, last, numbers.tolist(), strict=True):
            texts: list[str] = []
            for values in reversed(known):
                kind, at = divmod(kind, len(values)) if len(values) > 1 else (kind, 0)  # noqa: PLW2901
                texts.insert(0, values[at])
            self._count(tuple(texts), number, text(ids[int(rows[begin])].as_py()), text(ids[int(rows[end])].as_py()))

    def _count(self, kind: Kind, number: int, first: str, last: str) -> None:
        if kind not in self.counts and len(self.counts) >= self.most:
            kind = (_OTHERS,) * len(kind)
        have = self.counts.setdefault(kind, KindCount(0, first, last))
        have.letters += number
        have.last = last

    def merge(self, other: KindCounts) -> None:
        """Add what another one has counted, of later dead letters."""
        for kind, count in other.counts.items():
            self._count(kind, count.letters, count.first, count.last)

    @property
    def letters(self) -> int:
        """All of them."""
        return sum(count.letters for count in self.counts.values())

    def __iter__(self) -> Iterator[tuple[Kind, KindCount]]:
        """Most frequent first."""
        return iter(sorted(self.counts.items(), key=lambda one: (-one[1].letters, one[0])))
