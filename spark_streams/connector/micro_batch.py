"""Name of a micro-batch: for the sink, and in the tables that jobs write. Pure."""

from __future__ import annotations

from typing import NamedTuple

# In the summary of an Iceberg snapshot: the `application`, and the number of the batch.
ICEBERG_QUERY, ICEBERG_BATCH = "spark-streams.query", "spark-streams.batch"


class MicroBatchName(NamedTuple):
    """query: ID of the query; number: of the batch; query_run: Spark's ID of the run, which has one batch a number."""

    query: str
    number: int
    query_run: str = ""


def partition_name(query: str, number: int) -> str:
    """Return the name of a batch as the partition `batch` of a table of files has it."""
    return f"b{query[:8]}-{number}"


def application(query: str, output: str) -> str:
    """Return the name of an output of a query in the transactions of a table."""
    return f"{query}:{output}"
