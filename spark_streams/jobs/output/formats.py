"""Formats of files and tables: those whose files describe themselves, and those with a way to write each row once."""

from __future__ import annotations

# Formats whose tables are folders of files, which Spark replaces partition by partition.
FILES = ("parquet", "orc", "json", "csv", "avro", "xml")
# Those of them whose files name their columns and types.
SELF_DESCRIBING = ("parquet", "orc", "avro")
DELTA = "delta"
DELTALAKE = "deltalake"
PYICEBERG = "pyiceberg"
# Formats that a Python package writes, without a jar, and the extra that brings the package.
PACKAGES = {DELTALAKE: "delta", PYICEBERG: "iceberg"}
# They need a path or a name.
ONCE = (*FILES, DELTA, *PACKAGES)
