"""The files of a load: those at its input path, and those in the checkpoint of its query.

Spark's file source reads a file once. Its log (`sources/0/<n>` in the checkpoint) holds the path of each file and its
modification time. The offset of a batch holds the last `<n>` that the batch has read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_streams.base.times import from_milliseconds
from spark_streams.jobs.job import JobError

_LOG_OFFSET = re.compile(r'"logOffset"\s*:\s*(\d+)')


class FileLog(NamedTuple):
    """Content of a checkpoint.

    query: the query's ID, "" if there is no checkpoint yet; last: number of the last committed batch; files: those of
    committed batches, with their modification times in milliseconds since the epoch.
    """

    query: str = ""
    last: int = -1
    files: Mapping[str, int] = {}

    @classmethod
    def read(cls, spark: SparkSession, checkpoint: str) -> FileLog:
        """Read the files of a checkpoint, on any file system of Spark's."""
        contents = _read_checkpoint(spark, checkpoint)
        if "metadata" not in contents:
            return cls()
        last = max((int(name) for folder, name in _files_below(contents, "commits") if name.isdigit()), default=-1)
        log_offset = _LOG_OFFSET.search(contents.get(f"offsets/{last}", ""))
        last_log = -1 if log_offset is None else int(log_offset[1])
        files = {}
        for path, _name in _files_below(contents, "sources"):
            for line in contents[path].splitlines()[1:]:
                entry = json.loads(line)
                if entry["batchId"] <= last_log:
                    files[normalize_path(unquote(entry["path"]))] = int(entry["timestamp"])
        return cls(json.loads(contents["metadata"])["id"], last, files)

    def require_unchanged(self, listed: Mapping[str, int]) -> None:
        """Raise JobError if a file was changed after its rows were loaded. listed: return value of `list_files`."""
        changed = sorted(file for file, time in self.files.items() if listed.get(file, time) != time)
        if changed:
            other_files = f" (and {len(changed) - 1:,} other files)" if len(changed) > 1 else ""
            loaded_at, changed_at = (
                from_milliseconds(time).isoformat(timespec="milliseconds")
                for time in (self.files[changed[0]], listed[changed[0]])
            )
            raise JobError(
                f"file {changed[0]}{other_files} was changed at {changed_at}, after it was loaded (modification time "
                f"then: {loaded_at}). A file is read once, so rows that were added later are not loaded. Write rows "
                "that are not in the stream yet into a new file, and move the changed file out of input.path"
            )


def list_files(spark: SparkSession, path: str, options: Mapping[str, str]) -> dict[str, int]:
    """Return modification times by path, in milliseconds since the epoch. Raises AnalysisException."""
    files = spark.read.format("binaryFile").options(**options).load(path)
    rows = files.select("path", F.unix_millis("modificationTime").alias("time")).collect()
    return {normalize_path(row["path"]): row["time"] for row in rows}


def rows_by_file(rows: DataFrame) -> dict[str, int]:
    """Return the number of rows by path."""
    counts = rows.groupBy("_metadata.file_path").count().collect()
    return {normalize_path(unquote(row["file_path"])): row["count"] for row in counts}


def normalize_path(path: str) -> str:
    """Return the path in the form for comparisons. Spark writes file:/ and file:/// for the same file."""
    return re.sub("^file:/+", "file:/", path)


def _read_checkpoint(spark: SparkSession, checkpoint: str) -> dict[str, str]:
    """Return the text of each file by its path within the checkpoint. Empty if there is no checkpoint."""
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        rows = reader.load(checkpoint).select("path", "content").collect()
    except AnalysisException:
        return {}
    paths = [Path(normalize_path(row["path"])).parts for row in rows]
    top = min((path[:-1] for path in paths if path[-1] == "metadata"), key=len, default=())
    return {"/".join(path[len(top) :]): row["content"].decode() for path, row in zip(paths, rows, strict=True)}


def _files_below(contents: Mapping[str, str], folder: str) -> list[tuple[str, str]]:
    """Return (path, name) of each file in this folder of the checkpoint, and below it."""
    return [(path, Path(path).name) for path in contents if path.startswith(f"{folder}/")]
