"""The files of a load: those at its input path, and those that the checkpoint of its query has.

Spark's file source reads a file once. Its log (`sources/0/<n>` in the checkpoint) has the path of each file and when it
was last changed; the offset of a batch says up to which `<n>` the log was read with that batch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_streams.jobs.job import JobError

_LOG_OFFSET = re.compile(r'"logOffset"\s*:\s*(\d+)')


class FileLog(NamedTuple):
    """What a checkpoint has. query: its id, "" if there is no checkpoint yet; last: number of the last batch that was
    committed; files: those of committed batches, and when they were last changed, in milliseconds since the epoch."""

    query: str = ""
    last: int = -1
    files: Mapping[str, int] = {}

    @classmethod
    def read(cls, spark: SparkSession, checkpoint: str) -> FileLog:
        """From the files of the checkpoint, wherever Spark keeps it."""
        texts = _texts(spark, checkpoint)
        if "metadata" not in texts:
            return cls()
        last = max((int(name) for folder, name in _named(texts, "commits") if name.isdigit()), default=-1)
        found = _LOG_OFFSET.search(texts.get(f"offsets/{last}", ""))
        read = -1 if found is None else int(found[1])
        files = {}
        for path, _name in _named(texts, "sources"):
            for line in texts[path].splitlines()[1:]:
                entry = json.loads(line)
                if entry["batchId"] <= read:
                    files[plain(unquote(entry["path"]))] = int(entry["timestamp"])
        return cls(json.loads(texts["metadata"])["id"], last, files)

    def require_unchanged(self, listed: Mapping[str, int]) -> None:
        """Raises JobError if a file was changed after its rows were loaded. listed: as `list_files` gives them."""
        changed = sorted(file for file, time in self.files.items() if listed.get(file, time) != time)
        if changed:
            others = f" (and {len(changed) - 1:,} other files)" if len(changed) > 1 else ""
            then, now = (
                datetime.fromtimestamp(time / 1000, UTC).isoformat(timespec="milliseconds")
                for time in (self.files[changed[0]], listed[changed[0]])
            )
            raise JobError(
                f"file {changed[0]}{others} was changed at {now}, and it is loaded as it was at {then}: a file is "
                "read once, so rows that came to it later are not loaded. Write rows that are not in the stream yet "
                "into a file of their own, and move the changed file out of input.path"
            )


def list_files(spark: SparkSession, path: str, options: Mapping[str, str]) -> dict[str, int]:
    """By path of each file when it was last changed, in milliseconds since the epoch. Raises AnalysisException."""
    files = spark.read.format("binaryFile").options(**options).load(path)
    rows = files.select("path", F.unix_millis("modificationTime").alias("time")).collect()
    return {plain(row["path"]): row["time"] for row in rows}


def rows_by_file(rows: DataFrame) -> dict[str, int]:
    """By path of each file how many rows it has."""
    counts = rows.groupBy("_metadata.file_path").count().collect()
    return {plain(unquote(row["file_path"])): row["count"] for row in counts}


def plain(path: str) -> str:
    """A path as it is compared: Spark writes file:/ and file:/// for the same."""
    return re.sub("^file:/+", "file:/", path)


def _texts(spark: SparkSession, checkpoint: str) -> dict[str, str]:
    """By path within the checkpoint what each of its files says. Nothing if there is no checkpoint."""
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        rows = reader.load(checkpoint).select("path", "content").collect()
    except AnalysisException:
        return {}
    paths = [Path(plain(row["path"])).parts for row in rows]
    top = min((path[:-1] for path in paths if path[-1] == "metadata"), key=len, default=())
    return {"/".join(path[len(top) :]): row["content"].decode() for path, row in zip(paths, rows, strict=True)}


def _named(texts: Mapping[str, str], folder: str) -> list[tuple[str, str]]:
    """(path, name) of each file in this folder of the checkpoint, and below it."""
    return [(path, Path(path).name) for path in texts if path.startswith(f"{folder}/")]
