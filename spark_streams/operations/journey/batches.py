"""Micro-batches that read an entry, by the query's checkpoint and the ledger of its sink. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.base.ids import StreamId
from spark_streams.base.printable import name_text
from spark_streams.connector.admin.checkpoint import Batch, Checkpoint, Offset, QueryRecord
from spark_streams.operations.journey.facts import EntryFacts
from spark_streams.operations.journey.line import Line

_LOG = "Spark's log of offsets"


def batch_lines(facts: EntryFacts, stream: str, entry: StreamId, checkpoint: Checkpoint) -> list[Line]:
    """Return the batches that read an entry. stream, entry: of the entry, or of its returned copy."""
    found = [
        (batch, offset)
        for batch in checkpoint.batches
        for offset in batch.offsets or ()
        if any(part.covers(entry) for part in offset.ranges(stream))
    ]
    lines = []
    for batch, offset in found:
        new = offset.new.get(stream)
        is_new = new is not None and new.covers(entry)
        lines.append(_batch_line(facts, batch, offset, stream, is_new, len(found) == 1, checkpoint.query))
    return lines or [_no_batch(stream, entry, checkpoint)]


def _batch_line(
    facts: EntryFacts, batch: Batch, offset: Offset, stream: str, is_new: bool, is_only: bool, query: str
) -> Line:
    why = ""
    if not is_only:
        why = "several batches have its ID in their ranges: the stream was created again, or its entries read again"
    elif not is_new:
        why = "the range has entries that were pending or handed over, and the log does not name them"
    elif offset.at[stream].read is None:
        why = "other consumers read from the group, and may have been given it"
    elif facts.fields is None:
        why = "the entry is gone, and may have left the stream before the batch"
    state = "complete" if batch.is_committed else "not complete"
    return Line(
        "batch",
        f"in the range of batch {batch.number} of query {query or '(no ID)'}, which is {state}",
        _LOG,
        batch.at,
        why,
        name_text(offset.group),
        {"batch": batch.number, "query": query, "committed": batch.is_committed},
    )


def _no_batch(stream: str, entry: StreamId, checkpoint: Checkpoint) -> Line:
    why, batches = "", checkpoint.batches
    last = batches[-1].offsets if batches else None
    if not batches or any(batch.offsets is None for batch in batches):
        why = "the log has no batch" if not batches else "an offset in it cannot be read"
    elif not any(stream in offset.at for offset in last or ()):
        why = "its last batch does not read this stream"
    elif batches[0].number and not all(entry > offset[stream] for offset in last or () if stream in offset.at):
        why = f"the log begins with batch {batches[0].number}"
    return Line("no batch", "in no batch of the checkpoint", _LOG, why_unknown=why)


def ledger_lines(lines: Sequence[Line], record: QueryRecord) -> list[Line]:
    """Return what the sink's ledger says of the batches in these lines."""
    return [_ledger_line(int(str(line.facts["batch"])), record) for line in lines if line.event == "batch"]


def _ledger_line(batch: int, record: QueryRecord) -> Line:
    streams = sorted(name_text(stream) for stream, last in record.streams.items() if last == batch)
    written = f", to {', '.join(streams)}" if streams else ""
    values: dict[str, object] = {"batch": batch, "closed": batch <= record.closed, "streams": streams}
    if batch > record.closed:
        text = f"the sink has not closed batch {batch}{written}"
        return Line("rows", text, "ledger of the sink", facts=values, is_of_batch=True)
    why = "" if streams else "the ledger names only the last batch of each stream"
    text, source = f"all rows of batch {batch} are written{written}", "ledger of the sink"
    return Line("rows", text, source, why_unknown=why, facts=values, is_of_batch=True)
