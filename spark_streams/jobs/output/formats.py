"""Formats of a job's tables that have a way to write each row once."""

from __future__ import annotations

# Formats whose tables are folders of files, which Spark replaces partition by partition.
FILES = ("parquet", "orc", "json", "csv", "avro", "xml")
DELTA = "delta"
DELTALAKE = "deltalake"
# They need a path or a name.
ONCE = (*FILES, DELTA, DELTALAKE)
