"""Columns of a table that is a folder of files: the file `_schema.json` in it, which readers of the table ignore.

Each file of the folder has only the columns of its own time, and to look into all of them takes longer with each batch.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_streams.jobs.output.formats import SELF_DESCRIBING
from spark_streams.model.untyped import JavaObject

_NAME = "_schema.json"
_NO_FILES = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")


def read_columns(spark: SparkSession, path: str, kind: str, partitions: Collection[str]) -> StructType | None:
    """Return the columns of the table without its partitions, None if they are not known."""
    if not exists(spark, path, _NAME):
        return _columns_of_files(spark, path, kind, partitions)
    file, store = _path(spark, path, _NAME)
    stream = store.open(file)
    try:
        text = bytes(stream.readAllBytes())
    finally:
        stream.close()
    try:
        return StructType.fromJson(json.loads(text))
    except (ValueError, KeyError, TypeError):
        # A crash cut the file short while it was written.
        return _columns_of_files(spark, path, kind, partitions)


def exists(spark: SparkSession, path: str, name: str) -> bool:
    """Whether the folder has a file or a folder of this name."""
    file, store = _path(spark, path, name)
    return bool(store.exists(file))


def write_columns(spark: SparkSession, path: str, columns: StructType) -> None:
    """Keep the columns of the table."""
    file, store = _path(spark, path, _NAME)
    stream = store.create(file, True)
    try:
        stream.write(columns.json().encode())
    finally:
        stream.close()


def _columns_of_files(spark: SparkSession, path: str, kind: str, partitions: Collection[str]) -> StructType | None:
    # A folder that has no `_schema.json` is looked into once.
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


def _path(spark: SparkSession, path: str, name: str) -> tuple[JavaObject, JavaObject]:
    jvm: JavaObject = spark.sparkContext._jvm
    location = jvm.org.apache.hadoop.fs.Path(path, name)
    return location, location.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
