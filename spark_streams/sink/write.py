"""What a task does: its rows become chunks, and the chunks are sent, exactly once or at least once."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from spark_streams.errors import ReplicationError
from spark_streams.options import Options
from spark_streams.sink.books import Books
from spark_streams.sink.chunks import chunks
from spark_streams.sink.closing import Total
from spark_streams.sink.ledger import Batch
from spark_streams.sink.plain import PlainSender
from spark_streams.sink.transactions import LedgerSender
from spark_streams.sink.trim import Trimmer, Trimming
from spark_streams.wire.link import Link

WAIT_MS = 10_000  # how long replicas may take to acknowledge


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


def append(
    batches: Iterable[pa.RecordBatch], options: Options, task: Task | None, patience: float | None = None
) -> Result:
    """Append every row to its stream. task: None for at-least-once; patience: as Link's.

    Raises SchemaError, EntryIdError for a row that cannot be an entry, LedgerError for rows that are not those of an
    earlier attempt, RetriesExhaustedError where the server stays unusable, ServerReplyError (or kin) for what it
    refused, ReplicationError.
    """
    with Link(options.address, patience) as link:
        trimmer = Trimmer(link, Trimming.of(options))
        try:
            cut = chunks(batches, options["stream"], options["nulls"], options["chunkSize"], task is not None)
            if task is None:
                result = Result(PlainSender(link, trimmer).run(cut), {})
            else:
                books = Books(task.batch, task.partition, task.attempt)
                rows = LedgerSender(link, trimmer, books).run(cut)
                result = Result(rows, {book.stream: Total(book.rows, book.total) for book in books.all()})
            if options["waitReplicas"] is not None and result.rows:
                wait_for_replicas(link, options["waitReplicas"])
        finally:
            trimmer.close()
    return result


def wait_for_replicas(link: Link, replicas: int) -> None:
    """Until so many replicas have all that the server has by now. Raises ReplicationError."""
    have = link.execute("WAIT", replicas, WAIT_MS)
    if have < replicas:
        raise ReplicationError(
            f"{have} of {replicas} replicas (waitReplicas) of {link.address} acknowledged the entries within "
            f"{WAIT_MS // 1000} s: they are written, and a retry under delivery=exactly-once writes them no more; "
            "bring the replicas back, or ask for fewer"
        )
