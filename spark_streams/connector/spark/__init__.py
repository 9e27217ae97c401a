"""Differences between Spark 4.0 to 4.3, one file each.

Each difference is detected by a feature of pyspark and not by its version, because vendors backport features.
docs/reference/compatibility.md describes the consequences for users.
"""
