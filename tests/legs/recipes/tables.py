"""Tables that the jobs write by a Python package: both kinds, each by the same words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_streams.jobs.output import deltalake_table, pyiceberg_table
from spark_streams.jobs.output.pyiceberg_table import TableLocation
from tests.legs.recipes.conftest import recipe_of

Write = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Deltalake:
    """Delta tables of a folder."""

    name = "deltalake"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def settings(self, table: str) -> dict[str, Any]:
        """The keys of [table]."""
        return {"format": "deltalake", "path": str(self._folder / table)}

    def rows(self, table: str) -> list[dict[str, Any]]:
        return recipe_of("delta_table").rows_in(str(self._folder / table))

    def create(self, table: str, schema: pa.Schema) -> None:
        from deltalake import DeltaTable

        DeltaTable.create(str(self._folder / table), schema)

    def writer(self, table: str, application: str | None, number: int, schema: pa.Schema) -> Write:
        """What a task runs that writes a batch."""
        path = str(self._folder / table)
        return deltalake_table._writer(deltalake_table._DeltaBatch(path, [], {}, application, number), schema)


class Pyiceberg:
    """Iceberg tables of a folder, in a catalog that is a file of SQLite."""

    name = "pyiceberg"

    def __init__(self, folder: Path) -> None:
        self.options = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}

    def settings(self, table: str) -> dict[str, Any]:
        return {"format": "pyiceberg", "catalog": "lake", "name": f"shop.{table}", "options": self.options}

    def place(self, table: str) -> TableLocation:
        return TableLocation.configured("lake", self.options, f"shop.{table}")

    def table(self, table: str) -> Any:
        return self.place(table).table()

    def rows(self, table: str) -> list[dict[str, Any]]:
        return self.table(table).scan().to_arrow().to_pylist()

    def create(self, table: str, schema: pa.Schema) -> None:
        """As the job does, but so that few manifests are merged."""
        properties = {**pyiceberg_table._CREATED_WITH, "commit.manifest.min-count-to-merge": "3"}
        catalog = self.place(table).open()
        catalog.create_namespace_if_not_exists("shop")
        catalog.create_table(f"shop.{table}", schema, properties=properties)

    def writer(self, table: str, application: str | None, number: int, schema: pa.Schema) -> Write:
        return pyiceberg_table._writer(self.place(table), application, number)


Kind = Deltalake | Pyiceberg
KINDS: dict[str, type[Deltalake] | type[Pyiceberg]] = {kind.name: kind for kind in (Deltalake, Pyiceberg)}
