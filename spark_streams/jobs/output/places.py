"""Places of a job on file systems. A table shares its folder with nothing: no other output lies in it or around it, and
nothing that a configuration names lies in it.

Spark's readers, compactions and other programs take what lies below a table's path for the table's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from spark_streams.base.untyped import Json
from spark_streams.connector.errors import ConfigError, TableError
from spark_streams.jobs.output.folder_record import NAME
from spark_streams.jobs.output.store import exists, is_folder, names_in
from spark_streams.jobs.settings.config import Config

_OUTPUTS = ("table", "output", "sql", "columns", "rule")  # tables of a configuration that name no further places
_ALWAYS = ("job.checkpoint", "job.log", "job.metrics_file", "source.archivePath")  # paths also if nothing is there
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/+")
_SAME_STORE = {"s3a": "s3", "s3n": "s3", "abfs": "abfss", "wasb": "wasbs"}
# What is in a folder if it is the one of something: all of one row.
_MARKS = (
    ((NAME,), "another table"),
    (("_delta_log",), "a Delta table"),
    (("offsets", "commits"), "the checkpoint of a query"),
)
_MOST_FOLDERS = 1_000  # that are looked into below a table, besides those of its partitions


class NamedPlace(NamedTuple):
    """where: the key of the configuration; path: as the user wrote it."""

    where: str
    path: str

    @property
    def normal(self) -> str:
        """The path in one form, which ends with a slash."""
        scheme = _SCHEME.match(self.path)
        if scheme is None or scheme[1] == "file":
            local = self.path if scheme is None else "/" + self.path[scheme.end() :]
            return str(Path(local).resolve()).rstrip("/") + "/"
        name = scheme[1].lower()
        return f"{_SAME_STORE.get(name, name)}://{self.path[scheme.end() :].rstrip('/')}/"

    @property
    def is_local(self) -> bool:
        return self.normal.startswith("/")

    def is_in(self, other: NamedPlace) -> bool:
        """Whether this is the other place, or lies in it."""
        return self.normal.startswith(other.normal)


def check_places(tables: Sequence[NamedPlace], others: Sequence[NamedPlace]) -> None:
    """Raise ConfigError if two tables, or a table and another place of the configuration, share a folder."""
    for number, table in enumerate(tables):
        for second in tables[:number]:
            if table.is_in(second) or second.is_in(table):
                raise ConfigError(
                    f"{second.where} {second.path!r} and {table.where} {table.path!r} share a folder: give each output "
                    "a folder of its own, beside the other"
                )
        for other in others:
            if other.is_in(table):
                raise ConfigError(
                    f"{other.where} {other.path!r} lies in {table.where} {table.path!r}, whose readers and maintenance "
                    f"take its files for the table's: set another {table.where}, or move {other.where} out of it"
                )
            if other.where in _ALWAYS and table.is_in(other):
                raise ConfigError(
                    f"{table.where} {table.path!r} lies in {other.where} {other.path!r}: set another {table.where}"
                )


def other_places(config: Config, config_file: str | None) -> list[NamedPlace]:
    """Return the files and folders that a configuration names, besides its tables."""
    found = [NamedPlace("--config", config_file)] if config_file else []
    for name, value in config.items():
        if name not in _OUTPUTS:
            found += _places_at(name, value)
    return found


def _places_at(key: str, value: Json) -> Iterator[NamedPlace]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _places_at(f"{key}.{name}", inner)
    elif isinstance(value, str) and value and (key in _ALWAYS or _is_file(value)):
        yield NamedPlace(key, value)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # a text that is no path
        return False


def check_surroundings(spark: SparkSession, table: NamedPlace) -> None:
    """Raise TableError if an output or a checkpoint lies in the folder of a table, or around it."""
    path = table.normal.rstrip("/") if table.is_local else table.path.rstrip("/")
    for around in _folders_around(path):
        if kind := _kind_around(spark, around):
            raise TableError(
                f"{table.where} {table.path!r} lies in {kind}, {around!r}: one output must not be within another; set "
                f"another {table.where}"
            )
    for below in _folders_below(spark, path):
        if kind := _kind_of(spark, below):
            raise TableError(
                f"{kind}, {below!r}, lies in {table.where} {table.path!r}: one output must not be within another; set "
                f"another {table.where}, or move what lies in it"
            )
    if kind := next((kind for marks, kind in _MARKS[2:] if _has(spark, path, marks)), ""):
        raise TableError(f"{table.where} {table.path!r} is {kind}: set another {table.where}")


def _folders_around(path: str) -> Iterator[str]:
    scheme = _SCHEME.match(path)
    start = scheme.end() if scheme else 1
    while (end := path.rfind("/", start)) > 0:
        path = path[:end]
        yield path


def _folders_below(spark: SparkSession, path: str) -> Iterator[str]:
    """Yield folders below a table, without those of its partitions and hidden ones."""
    waiting, seen = [path], 0
    while waiting and seen < _MOST_FOLDERS:
        folder = waiting.pop()
        for name in names_in(spark, folder):
            if "=" in name or name.startswith(("_", ".", "part-")) or not is_folder(spark, folder, name):
                continue
            seen += 1
            yield f"{folder}/{name}"
            waiting.append(f"{folder}/{name}")


def _kind_around(spark: SparkSession, path: str) -> str:
    try:
        return _kind_of(spark, path)
    except Py4JJavaError:
        return ""  # this user may not look into it, so it is none of this user's outputs


def _kind_of(spark: SparkSession, path: str) -> str:
    """Return what the folder is, "" if it is nothing known."""
    return next((kind for marks, kind in _MARKS if _has(spark, path, marks)), "")


def _has(spark: SparkSession, path: str, marks: Sequence[str]) -> bool:
    return all(exists(spark, path, mark) for mark in marks)
