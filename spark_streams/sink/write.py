"""What a task does: its rows become chunks, and the chunks are sent, exactly once or at least once."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from spark_streams.options.sink_options import SinkOptions
from spark_streams.sink.at_least_once import PlainSender
from spark_streams.sink.balance import Total
from spark_streams.sink.batch import Batch
from spark_streams.sink.chunks import chunks, of_one_slot
from spark_streams.sink.destination import Destination
from spark_streams.sink.ledger_view import LedgerViews
from spark_streams.sink.limits import Limits
from spark_streams.sink.pace import Pace
from spark_streams.sink.transactions import LedgerSender
from spark_streams.sink.trim import Trimmer
from spark_streams.wire.session import Session


@dataclass(frozen=True)
class Task:
    """Which part of what is written. partition: of the batch; attempt: names one execution of it, without a dot."""

    batch: Batch
    partition: int = 0
    attempt: str = field(default_factory=lambda: secrets.token_hex(6))


@dataclass(frozen=True)
class Result:
    """rows: that the task had; totals: by stream, where the ledger was used."""

    rows: int
    totals: dict[bytes, Total]


def append(batches: Iterable[pa.RecordBatch], options: SinkOptions, task: Task | None, pace: str = "") -> Result:
    """Append every row to its stream. task: None for at-least-once; pace: a name that the tasks of a write share, for
    option rowsPerSecond. The driver has been connected before: where the server is away now, it comes back.

    Raises SchemaError, EntryIdError for a row that cannot be an entry, LedgerError for rows that are not those of an
    earlier attempt, RetriesExhaustedError where the server stays unusable, ServerReplyError (or kin) for what it
    refused, ReplicationError.
    """
    with Session(options.address, is_known=True) as session:
        trimmer, limits = Trimmer.of(session, options), Limits(options.address)
        turns = Pace(options.address, pace, options.rows_per_second)
        try:
            to = Destination.of(options)
            size = turns.chunk_size(options.chunk_size)
            cut = chunks(batches, to, options.nulls, size, task is not None)
            if options.address.is_cluster:
                cut = of_one_slot(cut)
            if task is None:
                result = Result(PlainSender(session, trimmer, limits, turns, options.wait_replicas).run(cut), {})
            else:
                views = LedgerViews(task.batch, task.partition, task.attempt, options.address.is_cluster)
                rows = LedgerSender(session, trimmer, views, limits, turns, options.wait_replicas).run(cut)
                result = Result(rows, {view.stream: Total(view.rows, view.total) for view in views.all()})
        finally:
            trimmer.close()
            turns.close()
    return result
