"""[source]: the streams that a job reads through a consumer group."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_streams.connector.options.option import text_of
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.options.table import SOURCE
from spark_streams.jobs.job import Job
from spark_streams.jobs.part import Part
from spark_streams.jobs.settings.config import FREE


class Source(Part):
    """Streams that a job reads through a consumer group, with the options of `[source]`.

    Args:
        job: The job, with its configuration.

    Attributes:
        options: The checked options.

    Raises:
        OptionError: An option cannot be used.
    """

    KEYS = {"source": FREE}
    REQUIRED = ("source.group",)

    def __init__(self, job: Job) -> None:
        self.given = job.options("source")
        self.options = SourceOptions.parse(self.given)

    @property
    def retry_delay(self) -> str:
        """`retryDelay` as the user wrote it, "" without one."""
        return text_of("retryDelay", self.given, SOURCE) or ""

    def read(self, spark: SparkSession, schema: StructType | str, **more: str) -> DataFrame:
        """Return the entries as a streaming DataFrame.

        Args:
            spark: The session.
            schema: The columns to read.
            more: Options in addition to those of `[source]`.
        """
        return spark.readStream.format("rstream").schema(schema).options(**{**self.given, **more}).load()
