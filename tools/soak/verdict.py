"""What became of every entry of a soak: in the table once, in the archive once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import redis

from tools.soak.configs import ARCHIVE, DEAD, ETL, STREAM


@dataclass(frozen=True)
class Verdict:
    """Counts of entries. lost, twice: rows of the table; not_archived, archived_twice: entries of the stream, and
    what a redrive has added; left: pending entries and dead letters."""

    added: int
    rows: int
    lost: int
    twice: int
    entries: int
    not_archived: int
    archived_twice: int
    left: int

    @property
    def is_right(self) -> bool:
        """Whether nothing is lost, twice or left."""
        return not any((self.lost, self.twice, self.not_archived, self.archived_twice, self.left))

    def __str__(self) -> str:
        return (
            f"{self.added:,} numbers added · {self.rows:,} rows in the table: lost {self.lost} · twice {self.twice}\n"
            f"{self.entries:,} entries in the stream with redriven ones: not archived {self.not_archived} · "
            f"archived twice {self.archived_twice}\n"
            f"pending or dead at the end: {self.left}"
        )


def judge(client: redis.Redis, folder: Path, added: int) -> Verdict:
    """Compare table and archive with what was added. Both jobs have ended."""
    from deltalake import DeltaTable

    numbers = DeltaTable(folder / "table").to_pyarrow_dataset().to_table(columns=["number"]).column("number")
    lost, twice = _lost_and_twice(np.asarray(numbers), np.arange(added))
    archived = ds.dataset(folder / "archive", partitioning="hive", format="parquet").to_table(columns=["id"])
    ids = np.asarray(archived.column("id").cast("string"), dtype="U40")
    distinct = len(np.unique(ids))
    entries = int(client.xinfo_stream(STREAM)["entries-added"])
    pending = sum(int(client.xpending(STREAM, group)["pending"]) for group in (ETL, ARCHIVE))
    return Verdict(
        added, len(numbers), lost, twice, entries, entries - distinct, len(ids) - distinct,
        pending + int(client.xlen(DEAD)),
    )  # fmt: skip


def _lost_and_twice(found: np.ndarray, wanted: Sequence[int] | np.ndarray) -> tuple[int, int]:
    """Return how many wanted numbers were not found, and how many were found more than once or were not wanted."""
    distinct, times = np.unique(found, return_counts=True)
    lost = len(np.setdiff1d(wanted, distinct))
    return lost, int((times - 1).sum()) + len(np.setdiff1d(distinct, wanted))
