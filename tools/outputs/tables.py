"""The rows of a table, read without the library that has written it, without Spark, and without the product.

Parquet that Spark has written: pyarrow. Delta of deltalake: the log as text, its files by pyarrow. Iceberg of
pyiceberg: the metadata as text, the manifests by fastavro, the files by pyarrow.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import fastavro
import pyarrow.dataset
import pyarrow.parquet

Row = dict[str, Any]
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


def rows_of(kind: str, place: Path) -> list[Row]:
    """Return all rows of a table; none if there is no table."""
    return [*{"parquet": _parquet, "deltalake": _delta, "pyiceberg": _iceberg}[kind](place)]


def _parquet(folder: Path) -> Iterator[Row]:
    if not folder.exists():
        return
    for file in sorted(folder.rglob("*.parquet")):
        parts = file.relative_to(folder).parts
        if not any(part.startswith((".", "_")) for part in parts):
            keys = dict(part.split("=", 1) for part in parts[:-1])
            yield from _rows_in(file, {name: _value(unquote(text)) for name, text in keys.items()})


def _value(text: str) -> str | None:
    return None if text == NULL_FOLDER else text


def _rows_in(file: Path, keys: Row) -> Iterator[Row]:
    for row in pyarrow.parquet.ParquetFile(file).read().to_pylist():
        yield {**row, **keys}


def _delta(folder: Path) -> Iterator[Row]:
    files: dict[str, Row] = {}
    for commit in sorted(folder.glob("_delta_log/*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for removed in (action["remove"] for action in actions if "remove" in action):
            files.pop(removed["path"], None)
        files.update({action["add"]["path"]: action["add"]["partitionValues"] for action in actions if "add" in action})
    for path, keys in files.items():
        yield from _rows_in(folder / unquote(path), {name: value or None for name, value in keys.items()})


def _iceberg(warehouse: Path) -> Iterator[Row]:
    catalog = warehouse / "catalog.db"
    if not catalog.exists():
        return
    with contextlib.closing(sqlite3.connect(catalog)) as database:
        try:
            found = database.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
        except sqlite3.OperationalError:  # the catalog has no tables yet
            return
    for (location,) in found:
        metadata = json.loads(_local(location).read_text())
        snapshot = metadata.get("current-snapshot-id")
        lists = [one["manifest-list"] for one in metadata.get("snapshots", ()) if one["snapshot-id"] == snapshot]
        for manifest in (row for path in lists for row in _avro(path)):
            for entry in _avro(manifest["manifest_path"]):
                if entry["status"] != 2:  # deleted
                    yield from _rows_in(_local(entry["data_file"]["file_path"]), {})


def _local(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def _avro(location: str) -> list[Any]:
    with _local(location).open("rb") as file:
        return [*fastavro.reader(file)]
