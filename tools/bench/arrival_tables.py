"""Tables whose rows hold the microsecond at which they were made, and when each of their files could be read."""

from __future__ import annotations

import json
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

_EVERY = 0.01  # seconds between two looks at a table


class Table(ABC):
    """A table below a folder. `name` is its key in TABLES; `settings` are the keys of [table] of the job."""

    name: str
    settings: Mapping[str, Any]

    def __init__(self, folder: Path) -> None:
        """Set up the table; the first batch creates it."""
        self.path = folder / "table"
        self.settings = {"format": self.name, "path": str(self.path)}

    @abstractmethod
    def append(self, rows: DataFrame, number: int) -> None:
        """Write a micro-batch, as the documentation of the format says."""

    @abstractmethod
    def commits(self) -> Iterator[tuple[Path, list[Path]]]:
        """Yield each commit that is there, and its data files."""


class ParquetFolder(Table):
    """A folder of Parquet files. A file can be read once it has its name."""

    name = "parquet"

    def append(self, rows: DataFrame, number: int) -> None:
        rows.write.mode("append").parquet(str(self.path))

    def commits(self) -> Iterator[tuple[Path, list[Path]]]:
        # os.walk passes over folders that the writer removes meanwhile.
        for place, folders, names in os.walk(self.path):
            folders[:] = [name for name in folders if not name.startswith(("_", "."))]
            for name in names:
                if name.startswith("part-") and name.endswith(".parquet"):
                    yield Path(place, name), [Path(place, name)]


class DeltaTableFolder(Table):
    """A Delta table. Its log names the files of each commit."""

    name = "deltalake"

    def append(self, rows: DataFrame, number: int) -> None:
        from deltalake import write_deltalake

        write_deltalake(self.path, rows.toArrow(), mode="append")

    def commits(self) -> Iterator[tuple[Path, list[Path]]]:
        for commit in (self.path / "_delta_log").glob("*.json"):
            added = [json.loads(line).get("add") for line in commit.read_text().splitlines()]
            yield commit, [self.path / one["path"] for one in added if one]


class IcebergTable(Table):
    """An Iceberg table in a catalog of SQLite. Each snapshot has a new file of metadata."""

    name = "pyiceberg"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._options = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
        self.path = folder / "shop" / "rows"
        self.settings = {"format": "pyiceberg", "catalog": "lake", "name": "shop.rows", "options": self._options}

    def append(self, rows: DataFrame, number: int) -> None:
        table = rows.toArrow()
        catalog = self._catalog()
        catalog.create_namespace_if_not_exists("shop")
        catalog.create_table_if_not_exists("shop.rows", table.schema).append(table)

    def commits(self) -> Iterator[tuple[Path, list[Path]]]:
        # A snapshot's files are those that are there: this program alone writes the table, and removes nothing.
        files = list((self.path / "data").rglob("*.parquet"))
        for commit in sorted((self.path / "metadata").glob("*.metadata.json"))[-1:]:
            yield commit, files

    def _catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("lake", **self._options)


TABLES: Mapping[str, type[Table]] = {one.name: one for one in (ParquetFolder, DeltaTableFolder, IcebergTable)}


class Watch:
    """Looks at a table a hundred times a second. seen: file → the moment at which it could be read (seconds)."""

    def __init__(self, table: Table) -> None:
        """Begin."""
        self._table = table
        self._known: set[Path] = set()
        self.seen: dict[Path, float] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_EVERY):
            for commit, files in list(self._table.commits()):
                if commit in self._known:
                    continue
                self._known.add(commit)
                now = time.time()
                for file in files:
                    self.seen.setdefault(file, now)


def waited(seen: Mapping[Path, float], begin: float, end: float) -> tuple[np.ndarray, int]:
    """Return the milliseconds that rows waited which were made from `begin` to `end` (seconds), and the number of files
    that came within this time."""
    rows = [np.empty(0)]
    for file, moment in seen.items():
        made = np.asarray(pq.ParquetFile(file).read(["t"]).column("t"), dtype=np.float64) / 1e6
        rows.append((moment - made[(made >= begin) & (made < end)]) * 1000)
    return np.concatenate(rows), sum(begin <= moment < end for moment in seen.values())
