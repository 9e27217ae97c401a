"""What a table that is a folder of files says of itself: the file `_schema.json` in it, which readers ignore.

    {"type": "struct", "fields": […],                     its columns
     "format": "parquet", "partition_by": ["batch"],      how its files are laid out
     "owner": {"application": "<query>:<output>", …}}     who writes it

Each file of the folder has only the columns of its own time, and to look into all of them takes longer with each batch.
A folder without the file, or whose file has only columns, is looked into once.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import NamedTuple
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_streams.connector.errors import TableError
from spark_streams.jobs.output.formats import FILES, SELF_DESCRIBING
from spark_streams.jobs.output.owner import Owner
from spark_streams.jobs.output.store import names_in, read_text, write_text

NAME = "_schema.json"
_NO_FILES = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")


class FolderRecord(NamedTuple):
    """columns: without the partitions' types if unknown; kind: the format, "" if not recorded; keys: the columns that
    partition it, None if not recorded; owner: None if not recorded."""

    columns: StructType
    kind: str = ""
    keys: Sequence[str] | None = None
    owner: Owner | None = None

    def to_json(self) -> str:
        owner = {} if self.owner is None else {"owner": self.owner._asdict()}
        layout = {"format": self.kind, "partition_by": list(self.keys or ())}
        return json.dumps({**self.columns.jsonValue(), **layout, **owner})

    @classmethod
    def from_json(cls, text: str) -> FolderRecord:
        """Parse the file. Raises ValueError, KeyError or TypeError."""
        fields = json.loads(text)
        owner = Owner.from_json(json.dumps(fields["owner"])) if "owner" in fields else None
        return cls(StructType.fromJson(fields), fields.get("format", ""), fields.get("partition_by"), owner)


def read_record(spark: SparkSession, path: str) -> FolderRecord | None:
    """Return the record of a folder, None if it has none."""
    text = read_text(spark, path, NAME)
    try:
        return None if text is None else FolderRecord.from_json(text)
    except (ValueError, KeyError, TypeError):
        return None  # an earlier version could cut it short


def write_record(spark: SparkSession, path: str, record: FolderRecord) -> None:
    """Record the table. The first of several writers of a new record writes it."""
    write_text(spark, path, NAME, record.to_json(), replace=read_text(spark, path, NAME) is not None)


def read_columns(spark: SparkSession, path: str, kind: str, keys: Collection[str]) -> StructType | None:
    """Return the columns of the table without its partitions, None if they are not known.

    kind, keys: format and partitions that the job writes. Raises TableError if the table has others.
    """
    record = read_record(spark, path)
    if record is not None and record.kind and record.kind != kind:
        raise TableError(
            f"table {path} has files of format {record.kind}, but the job writes {kind}: set format to the table's, or "
            "name another table"
        )
    found = record.keys if record is not None and record.keys is not None else _layout(spark, path, kind)
    if kind in FILES and found is not None and [key.lower() for key in found] != [key.lower() for key in keys]:
        raise TableError(
            f"table {path} is partitioned by {', '.join(found) or 'nothing'}, but the job writes it by "
            f"{', '.join(keys) or 'nothing'}: set partition_by to the table's, or name another table"
        )
    if record is not None:
        return record.columns
    return None if found is None else _columns_of_files(spark, path, kind, keys)


def _layout(spark: SparkSession, path: str, kind: str) -> Sequence[str] | None:
    """Return the columns that partition the files of a folder, by the names of its folders; None without such files."""
    keys: list[str] = []
    while True:
        names = [name for name in names_in(spark, path) if not name.startswith(("_", "."))]
        folder = next((name for name in names if "=" in name), None)
        if folder is None:
            has_files = any(name.startswith("part-") or name.endswith(f".{kind}") for name in names)
            return keys if keys or has_files else None
        keys.append(unquote(folder.partition("=")[0]))
        path = f"{path}/{folder}"


def _columns_of_files(spark: SparkSession, path: str, kind: str, partitions: Collection[str]) -> StructType | None:
    if kind not in SELF_DESCRIBING:
        return None
    try:
        schema = spark.read.format(kind).option("mergeSchema", "true").load(path).schema
    except AnalysisException as error:
        if error.getCondition() not in _NO_FILES:
            raise
        return None
    names = {name.lower() for name in partitions}
    return StructType([field for field in schema if field.name.lower() not in names])
