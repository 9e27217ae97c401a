"""A process of Spark that runs code of this package: how it is set up, and the task and micro-batch that run there.

Pickles for executors that begin with the version of spark-streams, which is checked before the rest is read.

A pickle names modules, classes and fields, which differ between versions. An executor with another version would fail
with an AttributeError, or not fail at all. Only the reader and the writer of a query carry the version: a task reads
them first.
"""

from __future__ import annotations

import functools
import gc
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import cloudpickle

from spark_streams.base.untyped import JavaObject
from spark_streams.base.version import __version__
from spark_streams.connector.errors import VersionError
from spark_streams.connector.keys import MicroBatchName
from spark_streams.connector.spark.running_pyspark import running_module


class SameVersion:
    """Base of classes whose pickles only the same version of spark-streams can read."""

    def __reduce__(self) -> tuple[Callable[[str, bytes], object], tuple[str, bytes]]:
        pickled = cloudpickle.dumps((type(self), self.__getstate__()))  # type: ignore[no-untyped-call]  # pyspark has no types there
        return read, (__version__, pickled)


def read(version: str, pickled: bytes) -> object:
    """Unpickle an object. Raises VersionError if another version has pickled it."""
    if version != __version__:
        raise VersionError(
            f"a task cannot run on {socket.gethostname()}: it has spark-streams {__version__}, and the driver has "
            f"{version}. The task's version is in {Path(__file__).parents[2]}, its Python is {sys.executable}. Install "
            "the driver's version there, or pass it with --py-files (rstream help spark-clusters)"
        )
    kind, state = pickle.loads(pickled)
    instance = kind.__new__(kind)
    instance.__dict__.update(state)
    return instance


# -- The task and the micro-batch in which this code runs (docs/internals/facts.md, S8) --------------------------------

if TYPE_CHECKING:
    from pyspark import TaskContext
    from pyspark.sql import SparkSession
else:
    TaskContext = running_module("taskcontext").TaskContext

QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # Spark's names, also of the driver's local properties
RUN = "spark.jobGroup.id"  # the job group of one run of a query, named by the run's ID


def micro_batch() -> MicroBatchName | None:
    """Return the micro-batch of this task, None if there is none or if this is no task."""
    context = TaskContext.get()
    query, number, run = (None if context is None else context.getLocalProperty(name) for name in (QUERY, BATCH, RUN))
    return None if query is None or number is None else MicroBatchName(query, int(number), run or "")


def micro_batch_of_driver(spark: SparkSession) -> MicroBatchName | None:
    """Return the micro-batch whose foreachBatch function runs in this thread of the driver.

    None if there is none, and over Spark Connect, which does not report it.
    """
    context = getattr(spark, "_sc", None)
    query, number, run = (None if context is None else context.getLocalProperty(name) for name in (QUERY, BATCH, RUN))
    return None if query is None or number is None else MicroBatchName(query, int(number), run or "")


def time_of_batch(spark: SparkSession) -> int:
    """Return when Spark planned the micro-batch whose foreachBatch function runs in this thread of the driver, in
    milliseconds since the epoch. A batch that is run again has the same time: it is that of `current_timestamp()`.

    As a column of the query, Spark would write the time into the code of its rows, and compile it for each batch.
    """
    jvm: JavaObject = spark._jvm
    session: JavaObject = spark._jsparkSession
    query = jvm.java.util.UUID.fromString(spark.sparkContext.getLocalProperty(QUERY))
    execution = session.sharedState().activeStreamingQueries().get(query)
    return int(execution.lastExecution().offsetSeqMetadata().batchTimestampMs())


def partition() -> int | None:
    """Return the number of this task's partition, None if this is no task."""
    context = TaskContext.get()
    return None if context is None else context.partitionId()


# -- Set-up of Python processes that Spark starts ----------------------------------------------------------------------

_OBJECTS_PER_COLLECTION = 50_000  # new objects


@functools.cache
def freeze_imported_modules() -> None:
    """Exclude existing objects, mostly imported modules, from garbage collection. Called in a worker's first task.

    Spark's worker collects garbage after each task (pyspark/daemon.py), and the next task waits for it. Without this,
    that takes 40 ms, as long as reading 100,000 entries.
    """
    gc.freeze()


def set_up_source_process() -> None:
    """Set up the process that Spark starts on the driver for a streaming source. In other processes, do nothing.

    SIGINT is ignored. Ctrl-C at a terminal reaches this process, too, and would end the query in the middle of a batch.
    Only the driver decides when the query ends.

    Garbage is collected rarely. A trigger creates some objects for each stream, and hardly any that only a collection
    removes. With Python's threshold of 700 objects, collections take a quarter of a trigger over 10,000 streams.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if spec is not None and spec.name.startswith(("pyspark.", "_engine_pyspark.")) and in_main_thread:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        freeze_imported_modules()
        gc.set_threshold(_OBJECTS_PER_COLLECTION)
