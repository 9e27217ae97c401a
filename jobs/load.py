"""Feed a file into a stream: one entry a row, a field a column, missing values left out, in the order of the file."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from _config import FREE
from _job import Bar, Job, main
from pyspark.sql import Observation
from pyspark.sql import functions as F

from spark_streams.errors import ConfigError, RStreamError
from spark_streams.monitor.groups import view_streams
from spark_streams.options import SINK
from spark_streams.wire.connection import Connection

SHAPE = {
    "input": {"path": str, "format": str, "schema": str, "options": FREE},
    "sink": FREE,
}


def body(job: Job) -> None:
    sink = job.check_options("sink", SINK, "sink")
    path = job.get("input.path")
    if "://" not in path and not Path(path).exists():
        raise ConfigError(f"input.path {path!r} does not exist (seen from {Path.cwd()})")
    with Connection(sink.address) as server:
        before = _added(server, sink["stream"])
        spark = job.session()
        reader = spark.read.format(job.get("input.format", "csv"))
        reader = reader.schema(job.schema("input.schema", job.get("input.schema")))
        # One task: a stream has one order, and it is the file's.
        rows = reader.options(**job.plain_options("input.options")).load(path).coalesce(1)
        total = rows.count()
        written = Observation("load")
        with (
            Bar(job.console, "load", total) as bar,
            _watch(lambda: bar.at(_added(server, sink["stream"]) - before)),
        ):
            counted = rows.observe(written, F.count(F.lit(1)).alias("entries"))
            counted.write.format("rstream").mode("append").options(**job.options("sink")).save()
        entries = written.get["entries"]
        bar.at(entries)
    job.say(entries=entries, stream=sink["stream"], entries_per_second=round(bar.rate))


@contextlib.contextmanager
def _watch(look: Callable[[], None]) -> Iterator[None]:
    """Call `look` a few times a second, in another thread, while the body runs."""
    stop = threading.Event()

    def loop() -> None:
        with contextlib.suppress(RStreamError):  # the write itself will say what is wrong with the server
            while not stop.wait(0.3):
                look()

    watcher = threading.Thread(target=loop, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()


def _added(server: Connection, stream: str) -> int:
    views = view_streams(server, [stream])
    if not views:
        return 0
    return views[0].length if views[0].added is None else views[0].added


if __name__ == "__main__":
    main("load", __doc__, SHAPE, ["input.path", "input.schema", "sink.stream"], body)
