"""Tables that a Python package writes, without a jar: what they share. One task writes a micro-batch.

A transaction of the table also records the query and the number of the batch, so that a batch is never appended twice.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from spark_streams.connector.keys import application
from spark_streams.connector.watch.failure import one_line
from spark_streams.jobs.output.ownership import query_id

Pages = Iterator[pa.RecordBatch]


def application_of(spark: SparkSession, transaction: str | None) -> str | None:
    """Return the name of the query that runs on this thread, with its output. None: each row at least once."""
    return None if transaction is None else application(query_id(spark), transaction)


def write_in_one_task(rows: DataFrame, write: Callable[[Pages], Pages]) -> None:
    """Pass the rows to the function as a stream, so no process holds them all in memory. All are read.

    Its column `written` is false if the table holds the batch already.
    """

    def to_the_end(pages: Pages) -> Pages:
        yield from write(pages)
        for _page in pages:  # The job `etl` counts the rows of this Spark job.
            pass

    # Not repartition: its shuffle writes all rows to a disk first.
    map_in_arrow(rows.coalesce(1), to_the_end, "written BOOLEAN").collect()


def map_in_arrow(rows: DataFrame, function: Callable[[Pages], Pages], schema: str) -> DataFrame:
    """As `rows.mapInArrow`, but it asks for no pandas, and names of columns may have dots, and may repeat."""
    names = rows.columns

    def of_named(pages: Pages) -> Pages:
        return function(page.rename_columns(names) for page in pages)

    numbered = rows.toDF(*[f"c{number}" for number in range(len(names))])
    mapped = UserDefinedFunction(of_named, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)(*numbered.columns)
    return DataFrame(numbered._jdf.mapInArrow(mapped._jc, False, None), rows.sparkSession)


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
