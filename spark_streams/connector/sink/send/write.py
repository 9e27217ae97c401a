"""A task's write: cut its rows into chunks, and send them exactly once or at least once."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from spark_streams.connector.micro_batch import MicroBatchName
from spark_streams.connector.options.sink_options import SinkOptions
from spark_streams.connector.sink.encode.chunks import encode_chunks, split_by_slot
from spark_streams.connector.sink.encode.destination import Destination
from spark_streams.connector.sink.encode.limits import ServerLimits
from spark_streams.connector.sink.ledger.balance import Total
from spark_streams.connector.sink.ledger.batch import Batch
from spark_streams.connector.sink.ledger.ledger_view import LedgerViews
from spark_streams.connector.sink.send.at_least_once import AtLeastOnce
from spark_streams.connector.sink.send.chunk_writer import ChunkWriter
from spark_streams.connector.sink.send.delivery import Delivery
from spark_streams.connector.sink.send.exactly_once import ExactlyOnce
from spark_streams.connector.sink.send.feedback import Feedback
from spark_streams.connector.sink.send.pace import Pace
from spark_streams.connector.sink.trim.trim import Trimmer
from spark_streams.connector.wire.session import Session


@dataclass(frozen=True)
class SinkTask:
    """Part of a batch that a task writes. partition: of the batch; attempt: name of one execution of it, without a
    dot."""

    batch: Batch
    partition: int = 0
    attempt: str = field(default_factory=lambda: secrets.token_hex(6))


@dataclass(frozen=True)
class Result:
    """rows: number of the task's rows; totals: by stream, empty without a ledger."""

    rows: int
    totals: dict[bytes, Total]


def append(
    batches: Iterable[pa.RecordBatch],
    options: SinkOptions,
    task: SinkTask | None,
    pace: str = "",
    query: MicroBatchName | None = None,
    letters: bool = False,
) -> Result:
    """Append every row to its stream. task: None for at-least-once; pace: a name that the tasks of a write share, for
    option rowsPerSecond; query: the micro-batch that writes the rows; letters: they are dead letters of
    `route_dead_letters`. The driver was connected before, so the task waits for an unreachable server.

    Raises InvalidOptionError if the query would read what it writes, SchemaError, EntryIdError for a row that cannot be
    an entry, LedgerError if rows differ from those of an earlier attempt, RetriesExhaustedError if the server stays
    unusable, ServerReplyError (or a subclass) for a refused command, ReplicationError.
    """
    address = options.address
    with Session(address, is_known=True) as session:
        trimmer, limits = Trimmer(session, options), ServerLimits(address)
        paced = Pace(address, pace, options.rows_per_second)
        try:
            to = Destination.from_options(options)
            feedback = Feedback(query, letters, to)
            size = paced.chunk_size(options.chunk_size)
            parts = encode_chunks(feedback.seen(batches), to, options.nulls, size, task is not None)
            if address.is_cluster:
                parts = split_by_slot(parts)
            delivery: Delivery = AtLeastOnce()
            if task is not None:
                delivery = ExactlyOnce(LedgerViews(task.batch, task.partition, task.attempt, address.is_cluster))
            rows = ChunkWriter(session, delivery, feedback, trimmer, limits, paced, options.wait_replicas).run(parts)
        finally:
            trimmer.close()
            paced.close()
    return Result(rows, delivery.totals())
