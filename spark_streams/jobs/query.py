"""A job that is a streaming query: its keys, what waits for it, how it runs and how it stops."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_streams import watch
from spark_streams.deadletter.inspect.input_streams import Inputs, own_dead_letter_streams
from spark_streams.errors import ConfigError
from spark_streams.jobs.job import Job, access_of
from spark_streams.jobs.micro_batches import Ran, run_batches, trigger_of
from spark_streams.monitor.groups import StreamView, view_streams
from spark_streams.monitor.watch.listener import Watch
from spark_streams.options.source_options import SourceOptions
from spark_streams.options.values import duration
from spark_streams.running.ending import end_between_batches
from spark_streams.shards.names import Shard
from spark_streams.source.shard_sets import names_of
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

# What [job] holds.
SHAPE = {
    "checkpoint": str,
    "name": str,
    "trigger": str,
    "stop_within": str,
    "log": str,
    "metrics_port": int,
    "metrics_file": str,
}


class Query:
    """The streaming side of a job. Made before anything is started: raises ConfigError for what is wrong in [job], and
    ServerUnreachableError and kin where the source's server does not answer."""

    def __init__(self, job: Job, source: SourceOptions) -> None:
        self._job = job
        self._source = source
        self._watching: Watch | None = None
        trigger_of(job)
        try:
            self._patience = duration(job.get("job.stop_within", "30s")) / 1000
        except ValueError as error:
            raise ConfigError(f"job.stop_within {error}") from None
        if not 0 <= job.get("job.metrics_port", 0) < 65536:
            raise ConfigError(f"job.metrics_port must be a port, not {job.get('job.metrics_port')}")
        if source.streams is None and source.streams_pattern is None:
            raise ConfigError("source.streams is missing (or source.streamsPattern): say which streams to read")
        with connect(source.address) as server:
            self.streams: list[str] = list(names_of(server, source.streams or ()) or _inputs(server, source))
            views = view_streams(server, self.streams)
            self._expected = self._told_of_absent(server, {view.stream: view for view in views})
        self.waiting: int | None = 0
        for view in views:
            group = next((one for one in view.groups if one.group == source.group), None)
            if self.waiting is None or (group is not None and group.lag is None):
                self.waiting = None
            else:
                self.waiting += view.length if group is None else group.pending + (group.lag or 0)

    def plan(self) -> dict[str, object]:
        """For `--check`."""
        source = self._source
        wanted = self._job.get("job.trigger", "available-now")
        begun = Path(self._job.get("job.checkpoint").removeprefix("file:")).joinpath("metadata").exists()
        return {
            "read": f"{', '.join(source.streams or self.streams) or source.streams_pattern} at {source.address}",
            "as": f"group {source.group}, consumer {source.consumer}",
            "waiting": "unknown" if self.waiting is None else f"{self.waiting:,} entries",
            **({"note": "; ".join(self._expected)} if self._expected else {}),
            "checkpoint": f"{self._job.get('job.checkpoint')}{' (goes on)' if begun else ''}",
            "trigger": wanted,
        }

    def _told_of_absent(self, server: Server, views: Mapping[str, StreamView]) -> list[str]:
        """A line for each stream that has no entry yet, for `--check`: the query itself says so when it starts."""
        if not self._job.check:
            return []
        but = own_dead_letter_streams(self._source.dead_letter_stream)
        if not self.streams:
            return [nothing_matches(server, self._source.pattern, but)]
        known = {s for s in self.streams if s in views and (views[s].last != "0-0" or Shard.named(s))}
        why = {s: SILENT if s in views else ABSENT for s in self.streams if s not in known}
        refused = [] if self._source.create_streams else [s for s, state in why.items() if state == ABSENT]
        told = [missing(server, stream, CREATE).message for stream in refused]
        return told + lines_of(server, {s: state for s, state in why.items() if s not in refused}, WAITING, but)

    def watch(self, spark: SparkSession) -> None:
        """Log lines and metrics, where they are wanted; and what kills the query is noted for its dead letter."""
        job = self._job
        self._watching = watch(
            spark,
            options=access_of(job.options("source")),
            log=job.get("job.log"),
            metrics_port=job.get("job.metrics_port"),
            metrics_file=job.get("job.metrics_file"),
        )

    def run(self, writer: DataStreamWriter, look: Callable[[], None] = lambda: None) -> Ran:
        """Run the query to its end, or until the job is asked to stop: then the batch in flight is finished first.
        look: called again and again meanwhile.

        Raises what ended the query.
        """
        with contextlib.ExitStack() as closing:
            if self._watching is not None:
                closing.callback(self._watching.close)
            return self._run(writer, look)

    def _run(self, writer: DataStreamWriter, look: Callable[[], None]) -> Ran:
        job = self._job

        def done(ran: Ran) -> int:
            look()
            return ran.entries

        def end(query: StreamingQuery) -> None:
            if not end_between_batches(query, self._patience, job.stop):
                job.say(cut=True)

        writer = writer.queryName(job.get("job.name") or self._source.group)
        return run_batches(job, writer, end, self.waiting or None, done, Ran())


def _inputs(server: Server, source: SourceOptions) -> list[str]:
    """The streams that a pattern finds and that the query would read now."""
    but = own_dead_letter_streams(source.dead_letter_stream)
    return Inputs().among(server, matching_streams(server, source.pattern, but))


def foreach_batch(rows: DataFrame, function: Callable[[DataFrame, int], None]) -> DataStreamWriter:
    """A writer that hands each micro-batch to the function."""
    return rows.writeStream.foreachBatch(function)


def added(address: Address, stream: str | None) -> int:
    """How many entries were ever added to a stream."""
    if stream is None:
        return 0
    with connect(address) as server:
        views = view_streams(server, [stream])
    return 0 if not views else views[0].length if views[0].added is None else views[0].added
