"""Run a streaming query in batches of given sizes, for tests. A batch that was killed is repeated.

Each batch is a run of its own with this maxEntriesPerTrigger and a trigger that never comes again. A batch is killed
after its sink has it and before its commit: the query is stopped, and the batch's entry in the checkpoint's commit log
is deleted. So the next run repeats it, as after a driver that died at this moment.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from spark_streams.base.numbers import parse_number
from spark_streams.base.untyped import JavaObject, Json

KILL = "kill"
_NEVER = "36500 days"
_POLL = 0.02  # seconds
Write = Callable[[DataFrame], DataStreamWriter]


def run_batches(reader: DataStreamReader, write: Write, sizes: Sequence[int | str]) -> None:
    """Run the batches. sizes: number of entries of each, or KILL. Raises AssertionError if a batch is of another size,
    ValueError, StreamingQueryException."""
    if not sizes or sizes[0] == KILL or any(size != KILL and not _is_size(size) for size in sizes):
        raise ValueError(f"sizes are numbers of entries from 1, each followed by {KILL!r} or not, and not {sizes!r}")
    size: int | str = 0
    for number, step in enumerate(sizes):
        size = size if step == KILL else step
        query = write(reader.option("maxEntriesPerTrigger", str(size)).load()).trigger(processingTime=_NEVER).start()
        try:
            entries = _entries_of_batch(query)
        finally:
            query.stop()
        if entries != size:
            raise AssertionError(f"batch {number} of {list(sizes)} has {entries:,} entries: the streams have no more")
        if sizes[number + 1 : number + 2] == [KILL]:
            _forget_commit(query)


def _is_size(size: object) -> bool:
    return type(size) is int and size > 0


def _entries_of_batch(query: StreamingQuery) -> int:
    """Wait for the end of the query's trigger, and return how many entries its batch has; 0: there was none. Raises
    StreamingQueryException."""
    while True:
        has_ended = query.status["message"].startswith("Waiting")  # for the next trigger, or for data
        ran = [one for one in query.recentProgress if "addBatch" in one.durationMs]
        if ran:
            return sum(_entries_up_to(source.endOffset) for source in ran[-1].sources)
        if has_ended:
            return 0
        if not query.isActive:
            query.awaitTermination()  # it raises the error that ended the query
            return 0
        time.sleep(_POLL)


def _entries_up_to(offset: str) -> int:
    """Return how many entries the batch has that ends at an offset (connector/source/offset.py)."""
    parsed: Json = json.loads(offset)
    if not isinstance(parsed, dict) or "streams" not in parsed:
        return 0  # of another kind of source
    ranges = [*parsed.get("batch", {}).values(), *(one for part in parsed.get("old", {}).values() for one in part)]
    return sum(parse_number(text.split(" ")[2]) or 0 for text in ranges)


def _forget_commit(query: StreamingQuery) -> None:
    """Delete the newest entry of the checkpoint's commit log."""
    context = SparkContext._active_spark_context
    assert context is not None  # the query had one
    jvm: JavaObject = context._jvm
    folder = jvm.org.apache.hadoop.fs.Path(query._jsq.streamingQuery().resolvedCheckpointRoot(), "commits")
    files = folder.getFileSystem(context._jsc.hadoopConfiguration())
    numbers = (parse_number(one.getPath().getName()) for one in files.listStatus(folder))  # None: a checksum file
    newest = max(number for number in numbers if number is not None)
    files.delete(jvm.org.apache.hadoop.fs.Path(folder, str(newest)), False)
