"""Who owns an output, and the folder in which its files lie.

An output has one owner: the query whose batches it has. It is recorded in the output itself:

| output | where its owner is recorded |
|---|---|
| folder of files, Delta table by path (`delta`) | the file `_schema.json` in it |
| `deltalake`, `pyiceberg`, table of Spark's catalog | the table's property `spark-streams.owner` |
| other formats, and `shared = true` | nowhere |

A job looks for another owner before its query starts. It records itself with its first batch: the query then holds the
lease of its group, so no other run of the query writes.

A table shares its folder with nothing: no other output lies in it or around it, and nothing that a configuration names
lies in it. Spark's readers, compactions and other programs take what lies below a table's path for the table's own.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from posixpath import normpath
from typing import NamedTuple
from urllib.parse import unquote

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_streams.base.untyped import JavaObject, Json
from spark_streams.connector.errors import ConfigError, TableError
from spark_streams.connector.keys import application, partition_name
from spark_streams.jobs.job import Job
from spark_streams.jobs.job_config import Config
from spark_streams.jobs.output.table_columns import FILES, SELF_DESCRIBING, check_partitions


def located(spark: SparkSession, path: str, *below: str) -> tuple[JavaObject, JavaObject]:
    """Return a path, and its file system."""
    context: JavaObject = spark.sparkContext
    # By its name: `jvm.org.apache.…` asks the JVM for each part of the name.
    path_class = JavaClass("org.apache.hadoop.fs.Path", context._gateway._gateway_client)
    location = functools.reduce(path_class, below, path_class(path))
    return location, location.getFileSystem(context._jsc.hadoopConfiguration())


def exists(spark: SparkSession, path: str, name: str) -> bool:
    """Whether the folder has a file or a folder of this name."""
    file, store = located(spark, path, name)
    return bool(store.exists(file))


def read_text(spark: SparkSession, path: str, name: str) -> str | None:
    """Return the text of a file, None if there is none. Bytes that are no UTF-8 are replaced."""
    file, store = located(spark, path, name)
    if not store.exists(file):
        return None
    stream = store.open(file)
    try:
        return bytes(stream.readAllBytes()).decode(errors="replace")
    finally:
        stream.close()


def write_text(spark: SparkSession, path: str, name: str, text: str, *, replace: bool) -> bool:
    """Write a file as a whole: no crash cuts it short. Return whether it was written.

    replace: whether a file that exists is replaced. Otherwise only one of several writers writes it.
    """
    folder, store = located(spark, path)
    store.mkdirs(folder)
    file, _ = located(spark, path, name)
    try:
        stream = _checkpoint_files(spark, folder).createAtomic(file, replace)
        stream.write(text.encode())
        stream.close()
    except Py4JJavaError as error:
        if replace or "FileAlreadyExistsException" not in str(error.java_exception.getClass().getName()):
            raise
        return False
    return True


def names_in(spark: SparkSession, path: str) -> Sequence[str]:
    """Return the names of the files and folders in a folder. One call of the JVM, however many they are."""
    folder, store = located(spark, path)
    if not store.exists(folder):
        return ()
    jvm: JavaObject = spark.sparkContext._jvm
    paths = jvm.org.apache.hadoop.fs.FileUtil.stat2Paths(store.listStatus(folder))
    if not len(paths):
        return ()
    above = f"{paths[0].getParent().toString()}/"  # each name in the text follows it
    text: str = jvm.scala.runtime.ScalaRunTime.stringOf(paths)  # Array(…, …)
    return text[text.index("(") + 1 : -1].removeprefix(above).split(f", {above}")


def is_folder(spark: SparkSession, path: str, name: str) -> bool:
    """Whether this is a folder."""
    file, store = located(spark, path, name)
    return bool(store.exists(file) and store.getFileStatus(file).isDirectory())


def _checkpoint_files(spark: SparkSession, folder: JavaObject) -> JavaObject:
    """Return Spark's own writer of whole files, which Spark 4.1 has moved."""
    streaming = spark.sparkContext._jvm.org.apache.spark.sql.execution.streaming  # type: ignore[union-attr]
    moved = streaming.checkpointing.CheckpointFileManager
    manager = moved if isinstance(moved, JavaClass) else streaming.CheckpointFileManager
    return manager.create(folder, spark.sparkContext._jsc.hadoopConfiguration())


def query_id(spark: SparkSession) -> str:
    """Return the ID, from its checkpoint, of the query that runs on this thread."""
    return spark.sparkContext.getLocalProperty("sql.streaming.queryId") or "query"


def batch_name(spark: SparkSession, number: int) -> str:
    """Return the name of a micro-batch in partitions of a table: unique among all batches of all queries, and the same
    when the batch is run again."""
    return partition_name(query_id(spark), number)


PROPERTY = "spark-streams.owner"
TAKE_OVER = "--take-over"


class Owner(NamedTuple):
    """application: `<query>:<output>`, which identifies it; job, group: of the query, for messages."""

    application: str
    job: str = ""
    group: str = ""

    def to_json(self) -> str:
        """Return it as the value of a property."""
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str | None) -> Owner | None:
        """Parse the value of a property, None without one. Raises ValueError."""
        if text is None:
            return None
        fields = json.loads(text)
        if not isinstance(fields, dict) or not all(isinstance(value, str) for value in fields.values()):
            raise ValueError(f"{text!r} names no owner")
        return cls(str(fields.get("application", "")), str(fields.get("job", "")), str(fields.get("group", "")))

    @property
    def shown(self) -> str:
        query, _, output = self.application.partition(":")
        name = f"query {query}" if query else "a query with a new checkpoint"
        return f"output {output!r} of job {self.job or '?'}, group {self.group!r} ({name})"


@dataclass(frozen=True)
class Claimant:
    """The job that writes an output."""

    job: str = ""
    group: str = ""
    query: str = ""  # the ID in its checkpoint, "" if the checkpoint is new
    take_over: bool = False  # whether it may take an output from another owner

    @classmethod
    def of_job(cls, job: Job, spark: SparkSession) -> Claimant:
        text = read_text(spark, str(job.get("job.checkpoint")), "metadata")
        return cls(job.name, str(job.get("source.group")), json.loads(text)["id"] if text else "", job.take_over)

    def as_owner(self, query: str, output: str) -> Owner:
        """Return this job as the owner of an output. query: its ID, "" if it will get one when it starts."""
        return Owner(application(query, output), self.job, self.group)

    def check_owner(self, shown: str, where: str, found: Owner | None, ours: Owner) -> str:
        """Return what `--check` says about an owner. shown: the table; where: its settings. Raises TableError."""
        if found is None or found.application == ours.application:
            return ""
        if self.take_over:
            return f"taken over from {found.shown}"
        raise TableError(
            f"{shown} belongs to {found.shown}, and this is {ours.shown}: two queries must not write one table. Write "
            f"to another table ({where}). If this job is to continue the table instead, stop the other one, and start "
            f"this one once with {TAKE_OVER}"
        )


# What a table that is a folder of files says of itself, in a file that readers ignore:
#
#     {"type": "struct", "fields": […],                     its columns
#      "format": "parquet", "partition_by": ["batch"],      how its files are laid out
#      "owner": {"application": "<query>:<output>", …}}     who writes it
#
# Each file of the folder has only the columns of its own time, and to look into all of them takes longer with each
# batch. A folder without the record, or whose record has only columns, is looked into once.
RECORD = "_schema.json"
_NO_FILES = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")


class FolderRecord(NamedTuple):
    """What the folder of a table records. None, or "": it does not."""

    columns: StructType  # without the partitions, if their types are unknown
    kind: str = ""  # the format
    keys: Sequence[str] | None = None  # the columns that partition it
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
    text = read_text(spark, path, RECORD)
    try:
        return None if text is None else FolderRecord.from_json(text)
    except (ValueError, KeyError, TypeError):
        return None  # an earlier version could cut it short


def write_record(spark: SparkSession, path: str, record: FolderRecord) -> None:
    """Record the table. The first of several writers of a new record writes it."""
    write_text(spark, path, RECORD, record.to_json(), replace=read_text(spark, path, RECORD) is not None)


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
        check_partitions(f"table {path}", found, [*keys])
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


_OUTPUTS = ("table", "output", "sql", "columns", "rule")  # tables of a configuration that name no further places
_ALWAYS = ("job.checkpoint", "job.log", "job.metrics_file", "source.archivePath")  # paths also if nothing is there
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/+")
_SAME_STORE = {"s3a": "s3", "s3n": "s3", "abfs": "abfss", "wasb": "wasbs"}
# What is in a folder if it is the one of something: all of one row.
Mark = tuple[tuple[str, ...], str]
_MARKS: tuple[Mark, ...] = (
    ((RECORD,), "another table"),
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
        """The path in one form, which ends with a slash. Spark leaves out `//`, `.` and `..`, too."""
        scheme = _SCHEME.match(self.path)
        name, below = (scheme[1].lower(), self.path[scheme.end() :]) if scheme else ("file", self.path)
        if name == "file":
            return str(Path(f"/{below}" if scheme else below).resolve()).rstrip("/") + "/"
        return f"{_SAME_STORE.get(name, name)}://{normpath(below)}/"

    @property
    def is_local(self) -> bool:
        return self.normal.startswith("/")

    @property
    def spark_path(self) -> str:
        """The path for Spark, without a slash at its end."""
        return (self.normal if self.is_local else self.path).rstrip("/")

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


def other_places(config: Config, files: Mapping[str, str | None]) -> list[NamedPlace]:
    """Return the files and folders that a job names, besides its tables. files: of the command line, by option."""
    found = [NamedPlace(option, file) for option, file in files.items() if file]
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
    path = table.spark_path
    _check_around(spark, table, path, _MARKS)
    for below in _folders_below(spark, path):
        if kind := _kind_of(spark, below, _MARKS):
            raise TableError(
                f"{kind}, {below!r}, lies in {table.where} {table.path!r}: one output must not be within another; set "
                f"another {table.where}, or move what lies in it"
            )
    if kind := _kind_of(spark, path, _MARKS[2:]):
        raise TableError(f"{table.where} {table.path!r} is {kind}: set another {table.where}")


def check_checkpoint(spark: SparkSession, path: str) -> None:
    """Raise TableError if the checkpoint of a job is a table, or lies in one."""
    checkpoint = NamedPlace("job.checkpoint", path)
    _check_around(spark, checkpoint, f"{checkpoint.spark_path}/", _MARKS[:2])


def _check_around(spark: SparkSession, place: NamedPlace, path: str, marks: Sequence[Mark]) -> None:
    """Raise TableError if a folder above the last slash of a path has these marks. place: what the path is of."""
    for around in _folders_around(path):
        try:
            kind = _kind_of(spark, around, marks)
        except Py4JJavaError:
            continue  # this user may not look into it, so it is none of this user's outputs
        if kind:
            raise TableError(
                f"{place.where} {place.path!r} lies in {kind}, {around!r}: one output must not be within another; set "
                f"another {place.where}"
            )


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


def _kind_of(spark: SparkSession, path: str, marks: Sequence[Mark]) -> str:
    """Return what the folder is by these marks, "" if it has none of them."""
    return next((kind for names, kind in marks if all(exists(spark, path, name) for name in names)), "")
