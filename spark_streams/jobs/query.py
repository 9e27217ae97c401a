"""A job that is a streaming query: its keys, its waiting entries, how it runs and how it stops."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_streams import watch
from spark_streams.deadletter.inspect.input_streams import Inputs, own_dead_letter_streams
from spark_streams.errors import ConfigError
from spark_streams.jobs.job import Job, access_of
from spark_streams.jobs.micro_batches import RunProgress, check_target_time, run_batches
from spark_streams.model.times import duration
from spark_streams.monitor.groups import StreamView, view_streams
from spark_streams.monitor.watch.lineage.datasets import Dataset
from spark_streams.monitor.watch.listener import Watch
from spark_streams.options.source_options import SourceOptions
from spark_streams.running.ending import end_between_batches
from spark_streams.shards.names import Shard
from spark_streams.source.shard_sets import resolve_shards
from spark_streams.wire.address.address import Address
from spark_streams.wire.connect import connect
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.absent_streams import (
    ABSENT,
    CREATE,
    SILENT,
    WAITING,
    lines_of,
    missing,
    nothing_matches,
)
from spark_streams.wire.replies.scan import matching_streams

# Keys of [job].
SHAPE = {
    "checkpoint": str,
    "name": str,
    "trigger": str,
    "stop_within": str,
    "log": str,
    "metrics_port": int,
    "metrics_file": str,
    "lineage": str,
}


class Query:
    """Streaming part of a job.

    It is made before Spark is started. Raises ConfigError for an error in [job], and ServerUnreachableError or another
    RStreamError if the source's server does not answer.
    """

    def __init__(self, job: Job, source: SourceOptions) -> None:
        self._job = job
        self._source = source
        self._watching: Watch | None = None
        check_target_time(job, source.target_batch_time)
        try:
            self._patience = duration(job.get("job.stop_within", "30s")) / 1000
        except ValueError as error:
            raise ConfigError(f"job.stop_within {error}") from None
        if not 0 <= job.get("job.metrics_port", 0) < 65536:
            raise ConfigError(f"job.metrics_port must be a port, not {job.get('job.metrics_port')}")
        if source.streams is None and source.streams_pattern is None:
            raise ConfigError("source.streams is missing (or source.streamsPattern): set one of them to name streams")
        with connect(source.address) as server:
            self.streams: list[str] = list(resolve_shards(server, source.streams or ()) or _inputs(server, source))
            views = view_streams(server, self.streams)
            self._expected = self._absent_stream_notes(server, {view.stream: view for view in views})
        self.waiting: int | None = 0
        for view in views:
            group = next((candidate for candidate in view.groups if candidate.group == source.group), None)
            if self.waiting is None or (group is not None and group.lag is None):
                self.waiting = None
            else:
                self.waiting += view.length if group is None else group.pending + (group.lag or 0)

    def plan(self) -> dict[str, object]:
        """Return the facts of `--check`."""
        source = self._source
        trigger = self._job.get("job.trigger", "available-now")
        has_checkpoint = Path(self._job.get("job.checkpoint").removeprefix("file:")).joinpath("metadata").exists()
        return {
            "read": f"{', '.join(source.streams or self.streams) or source.streams_pattern} at {source.address}",
            "as": f"group {source.group}, consumer {source.consumer}",
            "waiting": "unknown" if self.waiting is None else f"{self.waiting:,} entries",
            **({"note": "; ".join(self._expected)} if self._expected else {}),
            "checkpoint": f"{self._job.get('job.checkpoint')}{' (continues)' if has_checkpoint else ''}",
            "trigger": trigger,
        }

    def _absent_stream_notes(self, server: Server, views_by_stream: Mapping[str, StreamView]) -> list[str]:
        """Return a line for each stream without entries, for `--check`. The query itself logs them when it starts."""
        if not self._job.check:
            return []
        own_streams = own_dead_letter_streams(self._source.dead_letter_stream)
        if not self.streams:
            return [nothing_matches(server, self._source.pattern, own_streams)]
        filled_streams = {
            s for s in self.streams if s in views_by_stream and (views_by_stream[s].last != "0-0" or Shard.parse(s))
        }
        states = {s: SILENT if s in views_by_stream else ABSENT for s in self.streams if s not in filled_streams}
        refused_streams = [] if self._source.create_streams else [s for s, state in states.items() if state == ABSENT]
        refusals = [missing(server, stream, CREATE).message for stream in refused_streams]
        return refusals + lines_of(
            server, {s: state for s, state in states.items() if s not in refused_streams}, WAITING, own_streams
        )

    def watch(self, spark: SparkSession, outputs: Iterable[Dataset | None]) -> None:
        """Start logging, metrics and lineage of [job], and note the error that ends the query for its dead letter.

        outputs: what the job writes; None: it is not known.
        """
        job = self._job
        self._watching = watch(
            spark,
            options=access_of(job.options("source")),
            log=job.get("job.log"),
            metrics_port=job.get("job.metrics_port"),
            metrics_file=job.get("job.metrics_file"),
            lineage=job.get("job.lineage"),
        )
        self._watching.declare_outputs(output for output in outputs if output is not None)

    def count_dead_letters(self, counts: Mapping[str, int]) -> None:
        """Add the dead letters of a micro-batch, by stream, to the log and the metrics."""
        if self._watching is not None and any(counts.values()):
            self._watching.count_dead_letters(self._source.group, counts)

    def run(self, writer: DataStreamWriter, on_poll: Callable[[], None] = lambda: None) -> RunProgress:
        """Run the query to its end, or until the job is to stop. Then the batch in flight is finished first.

        on_poll: called repeatedly while the query runs. Raises the error that ended the query.
        """
        with contextlib.ExitStack() as closing:
            if self._watching is not None:
                closing.callback(self._watching.close)
            return self._run(writer, on_poll)

    def _run(self, writer: DataStreamWriter, on_poll: Callable[[], None]) -> RunProgress:
        job = self._job

        def entries_done(progress: RunProgress) -> int:
            on_poll()
            return progress.entries

        def end(query: StreamingQuery) -> None:
            if not end_between_batches(query, self._patience, job.stop):
                job.summarize(cut=True)

        writer = writer.queryName(job.get("job.name") or self._source.group)
        return run_batches(job, writer, end, self.waiting or None, entries_done, RunProgress())


def _inputs(server: Server, source: SourceOptions) -> list[str]:
    """Return the streams that match the pattern and that the query would read now."""
    own_streams = own_dead_letter_streams(source.dead_letter_stream)
    matching = matching_streams(server, source.pattern, own_streams)
    return Inputs().filter_inputs(server, source.without_excluded(matching))


def foreach_batch(rows: DataFrame, function: Callable[[DataFrame, int], None]) -> DataStreamWriter:
    """Return a writer that passes each micro-batch to the function."""
    return rows.writeStream.foreachBatch(function)


def count_added(address: Address, stream: str | None) -> int:
    """Return how many entries were ever added to a stream."""
    if stream is None:
        return 0
    with connect(address) as server:
        views = view_streams(server, [stream])
    return 0 if not views else views[0].length if views[0].added is None else views[0].added
