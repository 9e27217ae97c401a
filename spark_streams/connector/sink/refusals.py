"""Every LedgerError of the sink except that of `read_mark`, with its causes and remedies. Pure.

Each remedy works if it is followed literally. If it writes rows a second time, the error says so.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from spark_streams.base.numbers import parse_number
from spark_streams.connector.errors import LedgerError
from spark_streams.connector.keys import ANY_RUN, LOSSY, batch_kind_field
from spark_streams.connector.operator_commands import shell_words
from spark_streams.connector.sink.batch import Batch

_log = logging.getLogger("spark_streams.sink")

_STOOD_STILL = "a suspended task has resumed after its batch was complete (harmless)"
_TWO_DRIVERS = "two drivers run the query: stop one of them"
_OLD_CHECKPOINT = "the checkpoint was set back: use the newer checkpoint"
_NOT_REPEATABLE = (
    "the query returns other rows each time it runs (rand(), uuid(), the current time, an unordered limit): make it "
    "repeatable"
)
_SERVER_LOST = "a replica that lagged behind became the master, or the server was restored from an older file"
_ITS_ROWS = "its rows that are in the stream"


def _name(batch: Batch) -> str:
    return "this job" if batch.expires else f"batch {batch.number} of query {batch.query}"


def _write_twice(batch: Batch, rows: str) -> str:
    """Return the sentence about writing without the ledger."""
    if batch.expires:
        return f"Running the job again writes {rows} a second time"
    how = "without option transaction" if batch.is_named_write else "with delivery=at-least-once"
    return f"Running the batch {how} writes {rows} a second time"


def _accept(batch: Batch) -> str:
    """Return the remedy that goes on with the rows in the stream."""
    field = batch_kind_field(LOSSY, batch.number, ANY_RUN)
    return f"HSET {batch.kind_key} '{field}' 1 on the sink's server, and start the query again"


def no_number(value: str | bytes) -> LedgerError:
    """Another client has written to a key of the ledger."""
    return LedgerError(
        f"the sink's ledger holds {value[:50]!r} instead of a number. Cause: another client has changed a key "
        "rstream:sink:…. Only the sink's user may write those keys (rstream help access). Restore the keys from "
        "the server's backup, and start the query again"
    )


def set_back(batch: Batch, stream: str, done: int) -> LedgerError:
    """The batch is earlier than the last batch that is done."""
    return LedgerError(
        f"{_name(batch)} cannot write to stream {stream!r}: batch {done} of the query is done. Cause: {_STOOD_STILL}, "
        f"or {_OLD_CHECKPOINT}. {_write_twice(batch, _ITS_ROWS)}"
    )


def later_batch(batch: Batch, stream: str, other: int) -> LedgerError:
    """A later batch is being written."""
    return LedgerError(
        f"{_name(batch)} cannot write to stream {stream!r}: batch {other} of the query is being written to it. Cause: "
        f"{_STOOD_STILL}, or {_TWO_DRIVERS}"
    )


def taken_over(batch: Batch, stream: str) -> LedgerError:
    """A later run has entered the head."""
    return LedgerError(
        f"another run of batch {batch.number} of query {batch.query} has taken over writing to stream {stream!r}. "
        f"Cause: {_STOOD_STILL}, or {_TWO_DRIVERS}"
    )


def job_is_over(batch: Batch, stream: str) -> LedgerError:
    """A job's record is missing."""
    return LedgerError(
        f"a job cannot write to stream {stream!r}: its record {batch.record} is missing. Cause: {_STOOD_STILL} after "
        f"the job, or the key was evicted or deleted. {_write_twice(batch, _ITS_ROWS)}"
    )


def changed_meanwhile(batch: Batch, stream: str) -> LedgerError:
    """The head is not the one that this task has written."""
    return LedgerError(
        f"the ledger of stream {stream!r} was deleted or changed while {_name(batch)} was written. Start the query or "
        "job again, if Spark does not retry the task: another attempt reads from the marks which rows are written. If "
        "the marks were deleted, too, it writes their rows a second time"
    )


def vanished_meanwhile(batch: Batch, stream: str, marks: int) -> LedgerError:
    """Marks that this task has read or written are missing."""
    return LedgerError(
        f"{marks} chunks that {_name(batch)} wrote to stream {stream!r} are not on the server any more. Cause: "
        f"{_SERVER_LOST}. Start the query or job again, if Spark does not retry the task: another attempt writes the "
        "missing rows, and no row twice"
    )


def missing_marks(batch: Batch, stream: str, part: str) -> LedgerError:
    """A key that `parts` lists does not exist. It may be of an earlier batch, which this batch is a piece of."""
    number = parse_number(part.partition(":")[0])
    writer = batch if number is None else replace(batch, number=number)
    return LedgerError(
        f"the ledger of stream {stream!r} has lost the marks {part!r} of {_name(writer)}: they were evicted or "
        f"deleted. The sink cannot find out which of its rows are in the stream. {_write_twice(batch, _ITS_ROWS)}"
    )


def other_attempt(batch: Batch, stream: str, partition: int, rows: int) -> LedgerError:
    """An earlier attempt of a partition had rows that this one does not have."""
    problem = (
        f"partition {partition} of {_name(batch)} wrote {rows} rows to stream {stream!r} in an earlier attempt that "
        f"this one does not have. Cause: {_NOT_REPEATABLE}"
    )
    return LedgerError(problem if batch.expires else f"{problem}. To keep the rows of both attempts, {_accept(batch)}")


def other_run(batch: Batch, stream: str, rows: int) -> LedgerError:
    """An earlier run had rows that this one does not have."""
    return LedgerError(
        f"an earlier run of {_name(batch)} wrote {rows} rows to stream {stream!r} that this run does not have. Cause: "
        f"{_NOT_REPEATABLE}; or entries that it read are missing. To keep the rows of both runs, {_accept(batch)}"
    )


def other_than_done(batch: Batch, stream: str, rows: int, written: int) -> LedgerError:
    """The batch is done, with other rows than it has now."""
    keep = "To keep the rows that were written" + (" and omit the others" if rows > written else "")
    return LedgerError(
        f"{_name(batch)} was written to stream {stream!r} before, and its {rows} rows are not the {written} that were "
        f"written then. Cause: {_NOT_REPEATABLE}; or {_OLD_CHECKPOINT}; or entries that it read are missing. {keep}, "
        f"{_accept(batch)}. {_write_twice(batch, _ITS_ROWS)}"
    )


def fewer_known(batch: Batch, stream: str, rows: int, recorded: int) -> LedgerError:
    """The ledger has fewer rows than the tasks had."""
    problem = (
        f"{_name(batch)} has {rows} rows for stream {stream!r}, but the ledger has {recorded}. Cause: {_SERVER_LOST}"
    )
    if batch.expires:
        return LedgerError(
            f"{problem}, or keys were evicted or deleted. {rows - recorded} rows may be missing. "
            f"{_write_twice(batch, 'the others')}"
        )
    return LedgerError(
        f"{problem}. To write the missing rows, and no row twice, start the query again. If keys of the ledger were "
        "deleted, this writes their rows a second time"
    )


def more_known(batch: Batch, stream: str, rows: int, recorded: int) -> LedgerError:
    """The ledger has more rows than the tasks had."""
    problem = (
        f"{_name(batch)} has {rows} rows for stream {stream!r}, but the ledger has {recorded}: another attempt of a "
        f"task had other rows. Cause: {_NOT_REPEATABLE}"
    )
    return LedgerError(problem if batch.expires else f"{problem}. To keep them all in the stream, {_accept(batch)}")


def give_up(batch: Batch, stream: str, earlier: int, rows: int, head: bytes) -> None:
    """An earlier batch is not done, and Spark begins a batch only when the one before it is. rows: of it in the ledger.
    Raises LedgerError, unless the user's function may have omitted the write."""
    if batch.is_named_write:
        _log.warning(
            "stream %r: giving up write %s of batch %d, which was begun (%d rows) and not finished: the function of "
            "foreachBatch has omitted it, or the server has lost the end of it", stream, batch.query, earlier, rows,
        )  # fmt: skip
        return
    raise LedgerError(
        f"batch {earlier} of query {batch.query} is not done in stream {stream!r}, where the ledger has {rows} of its "
        f"rows, but Spark has begun batch {batch.number}. Cause: {_SERVER_LOST}. "
        f"{_add_missing(f'batch {earlier}', head, earlier)}"
    )


def lost_done(batch: Batch, stream: str, earlier: int, last_done: int, head: bytes) -> LedgerError:
    """The record has more of a stream than its head."""
    last = f"has only batch {last_done}" if last_done >= 0 else "has no batch"
    return LedgerError(
        f"batch {earlier} of query {batch.query} was done in stream {stream!r}, but the stream's ledger {last}. Cause: "
        f"{_SERVER_LOST}. {_add_missing(f'batches up to {earlier}', head, earlier)}"
    )


def lost_batches(batch: Batch, last_known: int) -> LedgerError:
    """Record and heads end with an earlier batch than the one before Spark's batch."""
    before = batch.number - 1
    missing = f"batch {before}" if last_known == before - 1 else f"batches {last_known + 1} to {before}"
    return LedgerError(
        f"{missing} of query {batch.query} came before batch {batch.number}, but the server has no batch after batch "
        f"{last_known}. Cause: {_SERVER_LOST}, or the query wrote them to another server, or the checkpoint was "
        "repartitioned (then no row is missing). Otherwise rows may be missing: compare the streams with the entries "
        f'that the query read, and add missing rows. HSET {batch.record} "" {before} to go on'
    )


def no_record(batch: Batch) -> LedgerError:
    """The server has no record of a query that has reached a later batch than its first."""
    before = batch.number - 1
    return LedgerError(
        f"{_name(batch)} is the first batch of the query on this server, so the sink does not know which rows are "
        "written. Causes: (1) The checkpoint's file metadata is missing, and Spark 4.0 or 4.1 has given the query a "
        "new ID: write the file again with the former ID, which is in the name of the key rstream:sink:<id> "
        f'whose field "" is {before} or {batch.number}. (2) The keys rstream:sink:… were deleted. (3) The '
        f"query wrote to another server so far, or with delivery=at-least-once. For 2 and 3, make sure that the "
        f'streams have all rows up to batch {before}, and HSET {batch.record} "" {before} to go on'
    )


def lost_closed(batch: Batch, stream: str, rows: int, recorded: int) -> LedgerError:
    """The record says that this batch is closed, but the head of one of its streams does not."""
    return LedgerError(
        f"{_name(batch)} was complete, with {rows} rows for stream {stream!r}, but the stream's ledger has {recorded}. "
        f'Cause: {_SERVER_LOST}. To write the missing rows, and no row twice, HSET {shell_words([batch.record])} "" '
        f"{batch.number - 1} and start the query again. If keys of the ledger were deleted, this writes all its rows a "
        f"second time. To keep the rows in the stream, {_accept(batch)}"
    )


def _add_missing(batches: str, head: bytes, number: int) -> str:
    shown = shell_words([head.decode("utf-8", "replace")])
    return (
        f"Rows of {batches} may be missing: compare the stream with the entries that the query read, add missing rows, "
        f"and HSET {shown} done {number} to go on"
    )


def late_closing(batch: Batch, done: int) -> LedgerError:
    """A driver that stood still closes its batch late."""
    return LedgerError(
        f"{_name(batch)} has been written, but batch {done} of the query is done. Cause: this driver stood still and "
        f"another one has gone on (then nothing is wrong); or {_TWO_DRIVERS}; or {_OLD_CHECKPOINT}. "
        f"{_write_twice(batch, _ITS_ROWS)}"
    )
