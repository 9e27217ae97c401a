"""Print the files that a healthy trigger enters, and those of an entry: `python -m tools.entered_files [--names]`.

A query without Spark reads from a bundled engine in a separate process, and writes to it exactly once. Its fourth
trigger is traced, because earlier ones contain the work of the start. A file is entered if one of its functions is
called.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pyarrow as pa
import redis
from pyspark.sql.types import LongType, StructType

import spark_streams
from spark_streams.engine import LocalEngine
from spark_streams.model.micro_batch import MicroBatchName
from spark_streams.options.sink_options import SinkOptions
from spark_streams.options.source_options import SourceOptions
from spark_streams.sink.batch_writer import BatchWriter, Written
from spark_streams.sink.send.write import Task, append
from spark_streams.source.rows.columns import Columns
from spark_streams.source.stream_reader import UNLIMITED, StreamReader
from spark_streams.spark.read_limits import ReadMaxRows

PACKAGE = Path(spark_streams.__file__).parent


class Tracer:
    """Records the files whose functions are called, in this thread and in the threads that it starts."""

    def __init__(self) -> None:
        self._into: set[str] | None = None

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and self._into is not None:
            self._into.add(frame.f_code.co_filename)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Trace the threads of this block."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextmanager
    def tracing(self, files: set[str] | None) -> Iterator[None]:
        """Add the files that are entered in this block to `files`. None: add nothing."""
        self._into = files
        try:
            yield
        finally:
            self._into = None


def _named(files: set[str]) -> list[str]:
    """Return their names within the package, sorted."""
    paths = [Path(name) for name in files]
    return sorted(str(path.relative_to(PACKAGE)) for path in paths if path.is_relative_to(PACKAGE))


def trace(url: str) -> tuple[list[str], list[str]]:
    """Return the files that the driver enters in a trigger, and the files of an entry from one stream to the next."""
    source = SourceOptions.parse({"url": url, "streams": "in", "group": "g", "startingOffsets": "earliest"})
    sink = SinkOptions.parse({"url": url, "stream": "out"})
    schema = pa.schema([("n", pa.int64())])
    tracer, trigger, passage = Tracer(), set[str](), set[str]()
    with redis.Redis.from_url(url) as client, tracer.watching():
        client.xadd("in", {"n": 0})
        reader = StreamReader(source, Columns(schema, True, source.mode, source.column_name_of_corrupt_record))
        writer = BatchWriter(sink, StructType().add("n", LongType()), False, is_micro_batch=True)
        begin = reader.initialOffset()
        for number in range(4):
            is_traced = number == 3
            with tracer.tracing(trigger if is_traced else None):
                end = reader.latestOffset(begin, ReadMaxRows(UNLIMITED))
                if number:
                    reader.commit(begin)
                parts = reader.partitions(begin, end)
                reader.batches.worker.wait()
            with tracer.tracing(passage if is_traced else None):
                rows = [page for part in parts for page in reader.read(part)]
                batch = writer.batch_of(MicroBatchName("q", number))
                result = append(rows, sink, Task(batch))  # as the writer does in a task of Spark
                writer.commit([Written(result.rows, batch, result.totals)])
            begin = end
            client.xadd("in", {"n": number + 1})
        reader.stop()
    return _named(trigger), _named(passage | trigger)


def main() -> int:
    """Print both counts by folder, and with --names all file names."""
    parser = argparse.ArgumentParser(prog="python -m tools.entered_files", description=__doc__)
    parser.add_argument("--names", action="store_true", help="print the names of the files, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, LocalEngine(directory=Path(folder)) as engine:
        traced = trace(engine.url)
    for title, files in zip(("A trigger, on the driver", "An entry, from stream to stream"), traced, strict=True):
        print(f"{title}: {len(files)} files")
        for top, count in Counter(name.split("/")[0] for name in files).most_common():
            print(f"  {top:20}{count:4}")
        if arguments.names:
            print(*(f"    {name}" for name in files), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
