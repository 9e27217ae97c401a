"""Tables that a Python package writes, without a jar: what they share. One task writes a micro-batch.

A transaction of the table also records the query and the number of the batch, so that a batch is never appended twice.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.utils import require_minimum_pandas_version

from spark_streams.connector.keys import application
from spark_streams.connector.watch.failure import one_line
from spark_streams.jobs.output.ownership import query_id

Pages = Iterator[pa.RecordBatch]


def missing_package(package: str) -> str:
    """Return an error text if this Python lacks a package to write such tables, else "". Tasks need the same ones."""
    if importlib.util.find_spec(package) is None:
        return f"this Python has no package {package}, which writes it"
    try:
        require_minimum_pandas_version()  # mapInArrow needs pandas, although it passes Arrow data
    except ImportError as error:
        return f"Spark needs pandas for it, which this Python lacks ({' '.join(str(error).split())})"
    return ""


def application_of(spark: SparkSession, transaction: str | None) -> str | None:
    """Return the name of the query that runs on this thread, with its output. None: each row at least once."""
    return None if transaction is None else application(query_id(spark), transaction)


def write_in_one_task(rows: DataFrame, write: Callable[[Pages], Pages]) -> None:
    """Pass the rows to the function as a stream, so no process holds them all in memory.

    Its column `written` is false if the table holds the batch already.
    """
    names = rows.columns

    def write_named(pages: Pages) -> Pages:
        return write(page.rename_columns(names) for page in pages)

    # Spark's mapInArrow takes a name with a dot for a field of a struct.
    numbered = rows.toDF(*[f"c{number}" for number in range(len(names))])
    # Not repartition: its shuffle writes all rows to a disk first. The job `etl` has them in its cache.
    numbered.coalesce(1).mapInArrow(write_named, "written BOOLEAN").collect()


_log = logging.getLogger("spark_streams.jobs")


@contextlib.contextmanager
def no_error_ends_the_job(what: str, consequence: str) -> Iterator[None]:
    """Log an error of the block as a warning: the rows are written. what: the housekeeping; consequence: what the error
    leaves undone."""
    try:
        yield
    except BaseException as error:
        # Each store has errors of its own, and a panic of a library in Rust is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        _log.warning("%s failed; no row is lost, and %s: %s", what, consequence, one_line(error))
