"""Writers that Spark drives. Retried and speculative tasks write their rows once.

BatchWriter     one job of `df.write`, also within foreachBatch
StreamWriter    `writeStream`: a micro-batch is written once, however often and by whichever driver it runs
transaction     the options that name a write within foreachBatch, also over Spark Connect, which does not report
                the micro-batch
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkTypeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_streams.connector.deadletter.envelope import ORIGIN
from spark_streams.connector.errors import InvalidOptionError, SchemaError, UnsupportedError
from spark_streams.connector.keys import MicroBatchName
from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.sink.balance import Total
from spark_streams.connector.sink.batch import Batch
from spark_streams.connector.sink.batch_commit import begin_job, begin_run, close_batch, connect_once, void_batch
from spark_streams.connector.sink.chunk_writer import SinkTask, append
from spark_streams.connector.sink.chunks import Destination
from spark_streams.connector.sink.feedback import GROUP, STREAM
from spark_streams.connector.sink.fields import check_writable
from spark_streams.connector.spark.arrow import arrow_schema
from spark_streams.connector.spark.data_source import DataSourceStreamArrowWriter
from spark_streams.connector.spark.running_pyspark import is_of_connect
from spark_streams.connector.spark.worker import (
    SameVersion,
    freeze_imported_modules,
    micro_batch,
    micro_batch_of_driver,
    partition,
)


@dataclass
class WrittenRows(WriterCommitMessage):
    """Message of a task to the driver. rows: number of the task's rows; batch: the batch that they belong to; totals:
    its rows by stream, empty without a ledger."""

    rows: int
    batch: Batch
    totals: dict[bytes, Total]


class BatchWriter(SameVersion, DataSourceArrowWriter):
    """format("rstream") for write, mode append.

    Spark creates one on the driver for each job, and passes it to the tasks and to the commit. A job within
    foreachBatch is a job like any other, unless option `transaction` names the write. A named write belongs to its
    micro-batch: if the micro-batch is replayed, the sink recognises its rows.
    """

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool, is_micro_batch: bool = False) -> None:
        """is_micro_batch: the job writes a complete micro-batch. Raises UnsupportedError for mode overwrite, or if the
        server may evict the ledger; SchemaError, InvalidOptionError, ShardsError, ServerError."""
        to = Destination.from_options(options)
        if overwrite:
            raise UnsupportedError(
                f"{to.shown} cannot be overwritten: the sink only appends to streams. Use mode('append'), or output "
                "mode append"
            )
        for field in schema:
            if field.dataType.typeName() == "variant":
                raise SchemaError(
                    f"column {field.name!r} is a VARIANT, which the sink cannot write. Write to_json({field.name}) "
                    "instead"
                )
        try:
            columns = arrow_schema(schema)
        except PySparkTypeError as error:
            raise SchemaError(f"a column cannot be written as a field: {error}. Cast it to a string") from None
        to.check_columns(columns)
        check_writable(columns, apart=to.columns)
        self._options = options
        # Of `route_dead_letters`.
        self._letters = GROUP in schema.names and any(one.name == STREAM and ORIGIN in one.metadata for one in schema)
        self._pace = secrets.token_hex(8)
        self._once = options.delivery == "exactly-once"
        self._run = self._job = None
        if self._once and (is_micro_batch or options.transaction is not None):
            self._run = begin_run(options.address, to.make_ready)
        elif self._once:
            self._job = begin_job(options.address, to.make_ready)
        else:
            connect_once(options.address, is_micro_batch, to.make_ready)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        name = self._options.transaction
        if name is None:
            return self.write_part_of(self._job or Batch.of_job(""), iterator)
        return self.write_part_of(self.batch_of(self._micro_batch(name), name), iterator)

    def _micro_batch(self, name: str) -> MicroBatchName:
        """Return the micro-batch that the named write belongs to. Raises InvalidOptionError."""
        spark_batch, query, number = micro_batch(), self._options.transaction_query, self._options.transaction_batch
        option_batch = None if query is None or number is None else MicroBatchName(query, number)
        if spark_batch is not None and option_batch is not None and spark_batch[:2] != option_batch[:2]:
            raise InvalidOptionError(
                f"options transactionQuery and transactionBatch name batch {option_batch.number} of query "
                f"{option_batch.query}, but Spark runs this write in batch {spark_batch.number} of query "
                f"{spark_batch.query}. Drop both options, or use the options that spark_streams.transaction returns "
                "within this batch"
            )
        batch = spark_batch or option_batch
        if batch is None:
            raise InvalidOptionError(
                f"option transaction={name!r} is only for writes within foreachBatch, and Spark reports no micro-batch "
                "for this write. Outside foreachBatch, drop the option. Spark Connect never reports the micro-batch: "
                f"there, pass the options that spark_streams.transaction({name!r}, rows, number, checkpoint) returns "
                "(rstream help options#transaction)"
            )
        return batch

    def batch_of(self, name: MicroBatchName, transaction: str | None = None) -> Batch:
        return Batch.of_query(name, self._run or "", transaction)

    def write_part_of(self, batch: Batch, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        """Write this task's rows as a part of the batch."""
        freeze_imported_modules()
        place = partition()
        task = SinkTask(batch, place) if self._once and place is not None else None
        query = micro_batch() or batch.micro_batch
        result = append(iterator, self._options, task, self._pace, query, self._letters)
        return WrittenRows(result.rows, batch, result.totals)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Close the batch in the ledger when all tasks have succeeded. If a micro-batch was written without the ledger,
        void what the ledger holds of it."""
        totals: dict[bytes, Total] = {}
        batch = self._job
        for message in messages:
            if isinstance(message, WrittenRows):
                batch = message.batch
                for stream, total in message.totals.items():
                    totals[stream] = totals.get(stream, Total()) + total
        if batch is not None and self._once:
            close_batch(self._options.address, batch, totals, self._options.wait_replicas)
        elif batch is not None and not batch.expires:
            void_batch(self._options.address, batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: entries cannot be removed. The marks stay for the next run of the batch; those of a job
        expire."""


class StreamWriter(DataSourceStreamArrowWriter):
    """format("rstream") for writeStream. Output modes append and complete: every row is an entry.

    Spark creates one on the driver for each execution of a micro-batch. The task's properties name query and batch
    (FACTS S8), so a replay by another driver finds the rows that this one has written.
    """

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        """Raises InvalidOptionError, and the errors of BatchWriter."""
        if options.transaction is not None:
            raise InvalidOptionError(
                "option transaction is only for writes within foreachBatch. writeStream writes each micro-batch once "
                "without it. Drop the option (rstream help options#transaction)"
            )
        self._rows = BatchWriter(options, schema, overwrite, is_micro_batch=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        name = micro_batch()
        if name is None:
            raise UnsupportedError(
                "this version of Spark does not report the micro-batch to its tasks, so the sink cannot write it once. "
                "Write within foreachBatch"
            )
        return self._rows.write_part_of(self._rows.batch_of(name), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._rows.commit(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing, as BatchWriter."""


# By session and checkpoint. In one run of a query, its function has one session, in a process of the server.
_query_ids: dict[tuple[str, str], str] = {}


def transaction(name: str, rows: DataFrame, number: int, checkpoint: str) -> dict[str, str]:
    """See spark_streams.transaction."""
    spark = rows.sparkSession
    query = (
        _query_of_checkpoint(spark, number, checkpoint)
        if is_of_connect(spark)
        else _query_of_driver(spark, name, number)
    )
    return {"transaction": name, "transactionBatch": str(number), "transactionQuery": query}


def _query_of_checkpoint(spark: SparkSession, number: int, checkpoint: str) -> str:
    """Return the query's ID from its checkpoint. Raises InvalidOptionError if the checkpoint has no such batch."""
    session: str = spark.session_id  # type: ignore[attr-defined]  # Spark Connect's has one
    if (session, checkpoint) not in _query_ids:
        try:
            text = spark.read.text(f"{checkpoint}/metadata").collect()
            spark.read.text(f"{checkpoint}/offsets/{number}").collect()
        except AnalysisException:
            raise InvalidOptionError(
                f"checkpoint {checkpoint!r} does not belong to the query that calls this function with batch {number}: "
                f"on Spark's server it has no file metadata, or no file offsets/{number}. Pass the query's option "
                "checkpointLocation"
            ) from None
        _query_ids[session, checkpoint] = json.loads(text[0][0])["id"]
    return _query_ids[session, checkpoint]


def _query_of_driver(spark: SparkSession, name: str, number: int) -> str:
    """Return the query's ID from Spark. Raises InvalidOptionError if Spark runs another batch, or none."""
    spark_batch = micro_batch_of_driver(spark)
    if spark_batch is None or spark_batch.number != number:
        where = "no micro-batch"
        if spark_batch is not None:
            where = f"micro-batch {spark_batch.number} of query {spark_batch.query}"
        raise InvalidOptionError(
            f"spark_streams.transaction({name!r}, …) names micro-batch {number}, but is called in {where}. Call it in "
            "the function of foreachBatch, with the arguments of that function"
        )
    return spark_batch.query
