"""The batch writer that Spark drives: one job, whose retried tasks and speculative twins write their rows once."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_streams.errors import InvalidOptionError, SchemaError, UnsupportedError
from spark_streams.model.micro_batch import MicroBatchName
from spark_streams.options.sink_options import SinkOptions
from spark_streams.sink.encode.destination import Destination
from spark_streams.sink.encode.fields import check_writable
from spark_streams.sink.ledger.balance import Total
from spark_streams.sink.ledger.batch import Batch
from spark_streams.sink.ledger.batch_commit import close_batch, pass_over
from spark_streams.sink.ledger.runs import begin_job, begin_run, reach
from spark_streams.sink.send.write import Task, append
from spark_streams.spark.arrow_schema import arrow_schema
from spark_streams.spark.same_version import SameVersion
from spark_streams.spark.task_context import micro_batch, partition
from spark_streams.spark.worker import settle_in


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver. rows: that it had; batch: what it was a part of; totals: its rows by stream, where
    the ledger was used."""

    rows: int
    batch: Batch
    totals: dict[bytes, Total]


class BatchWriter(SameVersion, DataSourceArrowWriter):
    """format("rstream") for write, mode append.

    Spark makes one for each job on the driver, and hands it to the tasks and to the commit. A job within foreachBatch
    is a job like any other, unless option `transaction` tells which of the function's writes it is: then it is a part
    of the micro-batch, and recognised when that is replayed.
    """

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool, of_query: bool = False) -> None:
        """of_query: for a whole micro-batch. Raises UnsupportedError for mode overwrite, or where the server may drop
        the ledger, SchemaError, InvalidOptionError, ShardsError, ServerError."""
        to = Destination.of(options)
        if overwrite:
            raise UnsupportedError(
                f"a stream is only appended to: {to.shown} is not overwritten; use mode('append'), or output mode "
                "append"
            )
        for field in schema:
            if field.dataType.typeName() == "variant":
                raise SchemaError(f"column {field.name!r} is a VARIANT; write to_json({field.name}) instead")
        try:
            columns = arrow_schema(schema)
        except PySparkTypeError as error:
            raise SchemaError(f"a column cannot be written as a field, cast it to a string: {error}") from None
        to.check(columns)
        check_writable(columns, apart=to.columns)
        self._options = options
        self._pace = secrets.token_hex(8)
        self._once = options.delivery == "exactly-once"
        self._run = self._job = None
        if self._once and (of_query or options.transaction is not None):
            self._run = begin_run(options.address, to.make_ready)
        elif self._once:
            self._job = begin_job(options.address, to.make_ready)
        else:
            reach(options.address, of_query, to.make_ready)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        name = self._options.transaction
        if name is None:
            return self.write_part_of(self._job or Batch.of_job(""), iterator)
        return self.write_part_of(self.batch_of(self._micro_batch(name), name), iterator)

    def _micro_batch(self, name: str) -> MicroBatchName:
        """Which one the named write is a part of. Raises InvalidOptionError."""
        told, query, number = micro_batch(), self._options.transaction_query, self._options.transaction_batch
        given = None if query is None or number is None else MicroBatchName(query, number)
        if told is not None and given is not None and told[:2] != given[:2]:
            raise InvalidOptionError(
                f"options transactionQuery and transactionBatch say that this write is a part of batch {given.number} "
                f"of query {given.query}, and Spark says that it is in batch {told.number} of {told.query}: drop both "
                "options, or take what spark_streams.transaction gives within this batch"
            )
        found = told or given
        if found is None:
            raise InvalidOptionError(
                f"option transaction={name!r} belongs into a streaming query's foreachBatch, and Spark tells this "
                "write of none: drop it; or, within foreachBatch over Spark Connect, which never tells it, give what "
                f"spark_streams.transaction({name!r}, rows, number, checkpoint) returns as options"
            )
        return found

    def batch_of(self, of: MicroBatchName, transaction: str | None = None) -> Batch:
        """The micro-batch that this execution is of."""
        return Batch.of_query(of, self._run or "", transaction)

    def write_part_of(self, batch: Batch, iterator: Iterator[pa.RecordBatch]) -> Written:
        """This task's rows, as a part of the batch."""
        settle_in()
        place = partition()
        task = Task(batch, place) if self._once and place is not None else None
        result = append(iterator, self._options, task, self._pace)
        return Written(result.rows, batch, result.totals)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All tasks have ended well: the ledger says so, and forgets how. A micro-batch that was written without it
        makes void what it says."""
        totals: dict[bytes, Total] = {}
        batch = self._job
        for message in messages:
            if isinstance(message, Written):
                batch = message.batch
                for stream, total in message.totals.items():
                    totals[stream] = totals.get(stream, Total()) + total
        if batch is not None and self._once:
            close_batch(self._options.address, batch, totals, self._options.wait_replicas)
        elif batch is not None and not batch.expires:
            pass_over(self._options.address, batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Entries cannot be taken back, and marks are kept for whoever runs the batch again; those of a job expire."""
