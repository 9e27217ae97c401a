"""What the ledger refuses, and what to do then: every LedgerError of the sink in one place. Pure.

Each remedy holds what it says; one that writes rows a second time says that, too.
"""

from __future__ import annotations

import logging

from spark_streams.errors import LedgerError
from spark_streams.model.keys import ANY_RUN, LOSSY, told_value
from spark_streams.sink.ledger.batch import Batch

_log = logging.getLogger("spark_streams.sink")

_STOOD_STILL = "a task that had stood still has woken up (then nothing is amiss)"
_REPEATABLE = "the query gives other rows each time it runs (rand(), uuid(), the current time, an unordered limit)"
_SERVER_LOST = "a replica that lagged behind became the master, or the server came back from an older file"


def _who(batch: Batch) -> str:
    return "this job" if batch.expires else f"batch {batch.number} of query {batch.query}"


def _anew(batch: Batch, what: str) -> str:
    """Writing without the ledger."""
    if batch.expires:
        return f"running the job again writes {what} a second time"
    how = "without option transaction" if batch.is_named_write else "with delivery=at-least-once"
    return f"running the batch {how} writes {what} a second time"


def _leave(batch: Batch) -> str:
    """Going on with what the stream has."""
    value = told_value(batch.number, ANY_RUN)
    return f"HSET {batch.told} {LOSSY} {value} on the sink's server, and start the query again"


def no_number(value: str | bytes) -> LedgerError:
    """Something else has written to a key of the ledger."""
    return LedgerError(
        f"the sink's ledger holds {value[:50]!r}, and a number belongs there: another client has changed a key "
        "rstream:sink:…. Only the sink's user may write those keys (docs/reference/rights.md). Restore the keys from "
        "the server's backup, and start the query again"
    )


def set_back(batch: Batch, stream: str, done: int) -> LedgerError:
    """An earlier batch than the last one that is done."""
    return LedgerError(
        f"{_who(batch)} wants to write to stream {stream!r}, and batch {done} of the query is done: {_STOOD_STILL}, or "
        f"the checkpoint was set back: put the later one back; {_anew(batch, 'what is in the stream of it')}"
    )


def later_batch(batch: Batch, stream: str, other: int) -> LedgerError:
    """A later batch is being written."""
    return LedgerError(
        f"{_who(batch)} wants to write to stream {stream!r}, which batch {other} is being written to: {_STOOD_STILL}, "
        "or the query runs twice: stop one of them"
    )


def taken_over(batch: Batch, stream: str) -> LedgerError:
    """A later run has entered the head."""
    return LedgerError(
        f"another run of batch {batch.number} of query {batch.query} has taken over writing to stream {stream!r}: "
        f"{_STOOD_STILL}, or the query runs twice: stop one of them"
    )


def job_is_over(batch: Batch, stream: str) -> LedgerError:
    """A job's record is gone."""
    return LedgerError(
        f"a job wants to write to stream {stream!r}, and its record {batch.record} is gone: {_STOOD_STILL} after the "
        f"job, or the key was evicted or deleted: {_anew(batch, 'what is in the stream of it')}"
    )


def changed_meanwhile(batch: Batch, stream: str) -> LedgerError:
    """The head is not what this task has made it."""
    return LedgerError(
        f"the ledger of stream {stream!r} was deleted or changed while {_who(batch)} was being written: another "
        "attempt finds what is written by its marks; only where these were deleted, too, it writes a second time"
    )


def vanished_meanwhile(batch: Batch, stream: str, marks: int) -> LedgerError:
    """Marks that this task knew are not there any more."""
    return LedgerError(
        f"{marks} chunks that were written to stream {stream!r} by {_who(batch)} are not on the server any more: "
        f"{_SERVER_LOST}; another attempt writes what is missing, and nothing twice"
    )


def marks_gone(batch: Batch, stream: str, part: str) -> LedgerError:
    """A key that stands among the parts does not exist."""
    return LedgerError(
        f"the ledger of stream {stream!r} has lost the marks {part!r} of {_who(batch)} (evicted or deleted), and which "
        f"of its rows are in the stream cannot be told: {_anew(batch, 'those that are')}"
    )


def other_attempt(batch: Batch, stream: str, partition: int, rows: int) -> LedgerError:
    """An earlier attempt of a partition had rows that this one has not."""
    said = (
        f"partition {partition} of {_who(batch)} wrote {rows} rows to stream {stream!r} in an earlier attempt that "
        f"this one does not have: {_REPEATABLE}: make it repeatable"
    )
    return LedgerError(
        said if batch.expires else f"{said}; to leave them beside those of this attempt, {_leave(batch)}"
    )


def other_run(batch: Batch, stream: str, rows: int) -> LedgerError:
    """An earlier run had rows that this one has not."""
    return LedgerError(
        f"an earlier run of {_who(batch)} wrote {rows} rows to stream {stream!r} that this run does not have: "
        f"{_REPEATABLE}, or entries that it read are gone: make it repeatable; to leave them beside those of this "
        f"run, {_leave(batch)}"
    )


def other_than_done(batch: Batch, stream: str, rows: int, written: int) -> LedgerError:
    """The batch is done, with other rows than it has now."""
    stay = "to stay with those that were written then" + (", and leave out the others" if rows > written else "")
    return LedgerError(
        f"{_who(batch)} was written to stream {stream!r} before, and its {rows} rows are not the {written} that were "
        f"written then: {_REPEATABLE}: make it repeatable; or the checkpoint was set back: put the later one back; or "
        f"entries that it read are gone. {_anew(batch, 'what is in the stream of it').capitalize()}; {stay}, "
        f"{_leave(batch)}"
    )


def fewer_known(batch: Batch, stream: str, rows: int, known: int) -> LedgerError:
    """The ledger has fewer rows than the tasks had."""
    said = f"{_who(batch)} has {rows} rows for stream {stream!r}, and the ledger knows of {known}: {_SERVER_LOST}"
    if batch.expires:
        return LedgerError(
            f"{said}, or keys were evicted or deleted; {rows - known} rows may be missing, and "
            f"{_anew(batch, 'the others')}"
        )
    return LedgerError(
        f"{said}: start the query again, which writes what is missing, and nothing twice (unless keys of the ledger "
        "were deleted: rows of these are written a second time)"
    )


def more_known(batch: Batch, stream: str, rows: int, known: int) -> LedgerError:
    """The ledger has more rows than the tasks had."""
    said = (
        f"{_who(batch)} has {rows} rows for stream {stream!r}, and the ledger knows of {known}: another attempt of a "
        f"task had other rows: {_REPEATABLE}: make it repeatable"
    )
    return LedgerError(said if batch.expires else f"{said}; to leave them all in the stream, {_leave(batch)}")


def give_up(batch: Batch, stream: str, earlier: int, rows: int, head: bytes) -> None:
    """An earlier batch is not done, and Spark begins a batch only when the one before it is. rows: that the ledger
    knows of it. Raises LedgerError, unless the user's function may have passed it over."""
    if batch.is_named_write:
        _log.warning(
            "stream %r: write %s of batch %d was begun (%d rows) and not finished, and is given up: the function of "
            "foreachBatch has passed it over, or the server has lost the end of it", stream, batch.query, earlier, rows,
        )  # fmt: skip
        return
    raise LedgerError(
        f"batch {earlier} of query {batch.query} is not done in stream {stream!r}, of which the ledger knows {rows} "
        f"rows, and Spark has come to batch {batch.number}: the server has lost the end of it ({_SERVER_LOST}); "
        f"{_add_missing(f'batch {earlier}', head, earlier)}"
    )


def lost_done(batch: Batch, stream: str, earlier: int, found: int, head: bytes, rows: int | None = None) -> LedgerError:
    """Record or witness say more of a stream than its head. rows: of the earlier batch, where that is known."""
    what = "was done" if rows is None else f"was done, with {rows} rows,"
    knows = f"knows only of batch {found}" if found >= 0 else "knows of none"
    return LedgerError(
        f"batch {earlier} of query {batch.query} {what} in stream {stream!r}, and what stands beside the stream "
        f"{knows}: {_SERVER_LOST}; {_add_missing(f'batches up to {earlier}', head, earlier)}"
    )


def lost_batches(batch: Batch, known: int) -> LedgerError:
    """All that is known of a query has come to an earlier batch than Spark has."""
    before = batch.number - 1
    which = f"batch {before}" if known == before - 1 else f"batches {known + 1} to {before}"
    return LedgerError(
        f"{which} of query {batch.query} came before batch {batch.number}, and the server knows of none after batch "
        f"{known}: {_SERVER_LOST}, or they went to another server; what they wrote may be missing: compare the streams "
        f'with what the query read, add it, and HSET {batch.record} "" {before} to go on'
    )


def no_record(batch: Batch) -> LedgerError:
    """The server knows nothing of a query that has come to a later batch than its first."""
    before = batch.number - 1
    return LedgerError(
        f"{_who(batch)} is the first one that this server is told of: nothing shows what is written of it and of "
        "the batches before it. Cause: the file metadata of the checkpoint is gone (then Spark 4.0 and 4.1 give the "
        "query a new id), or the sink's keys rstream:sink:… are gone, or the query has written elsewhere so far, or "
        "with delivery=at-least-once. If metadata is gone, write it again with the id that the query had: it stands in "
        f'the name of the key rstream:sink:<id> whose field "" is {before} or {batch.number}. Otherwise see that all '
        f'rows of the batches up to {before} are where they belong, and HSET {batch.record} "" {before} to go on'
    )


def lost_closed(batch: Batch, stream: str, rows: int, known: int) -> LedgerError:
    """The record says that this batch is closed, and the head of one of its streams does not."""
    return LedgerError(
        f"{_who(batch)} was complete, with {rows} rows for stream {stream!r}, and what stands beside the stream knows "
        f'of {known}: {_SERVER_LOST}; HSET {batch.record} "" {batch.number - 1} and start the '
        "query again: it writes what is missing, and nothing twice (unless keys of the ledger were deleted: then all a "
        f"second time); to stay with what is in the stream, {_leave(batch)}"
    )


def _add_missing(what: str, head: bytes, number: int) -> str:
    shown = head.decode("utf-8", "replace")
    return (
        f"rows of {what} may be missing: compare the stream with what the query read, add them, and HSET {shown} done "
        f"{number} to go on"
    )


def late_closing(batch: Batch, done: int) -> LedgerError:
    """A driver that stood still."""
    return LedgerError(
        f"{_who(batch)} has been written, and batch {done} of the query is done: this driver had stood still and "
        "another one has gone on (then nothing is amiss); or the query runs twice: stop one of them; or the checkpoint "
        f"was set back: put the later one back; {_anew(batch, 'what is in the stream of it')}"
    )
