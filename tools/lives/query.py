"""A query of a life: the product's reader, driven as Spark drives it, with a checkpoint and a sink of its own."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from spark_streams.connector.errors import RStreamError
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.limits import LIMITS
from spark_streams.connector.source.rows.columns import Columns
from spark_streams.connector.source.stream_reader import StreamReader
from tools.lives.processes import PATIENCE, TERMS, Place, Process
from tools.patience import with_patience
from tools.simulation.actor import Killed
from tools.simulation.threads import TaskPlace

SCHEMA = pa.schema([("n", pa.int64()), ("_stream", pa.string()), ("_id", pa.string())])
# A few entries cross every boundary, and each trigger asks the server.
SMALL = replace(
    LIMITS,
    first_page=2,
    pending_page=7,
    reserve_step=3,
    reserve_round=6,
    idle_check=0.0,
    prefetch_entries=4,
    lease=TERMS,
)


class Query:
    """A streaming query: `offsets` is its offset log, `committed` the last batch of its commit log, `rows` its sink."""

    def __init__(self, place: Place, name: str, group: str, options: dict[str, str]) -> None:
        self.place, self.name, self.group = place, name, group
        self.options = {"group": group, "consumer": name, **options}
        self.streams = options["streams"].split(",")
        self.offsets: list[dict[str, Any]] = []
        self.committed = -1
        self.rows: dict[int, list[tuple[str, str]]] = {}  # (stream, ID), by batch
        self.process: Process | None = None
        self.error: RStreamError | None = None  # that has ended its last run
        self._reader: StreamReader | None = None
        self._runs, self._is_busy = 0, False

    @property
    def runs(self) -> bool:
        """Whether its process lives."""
        return self.process is not None

    @property
    def has_pending_list(self) -> bool:
        """Whether the entries that it reads are pending until it has committed them."""
        return self.options.get("noAck") != "true"

    def advance(self, interruptions: Sequence[tuple[int, Any]] = ()) -> str:
        """Run one trigger. Return `batch`, `idle`, `killed`, or `error`; `busy`: it is amid one, beside a command."""
        if self._is_busy:
            return "busy"
        self._is_busy = True
        process = self.process = self.process or self.place.new()
        process.interruptions = [(process.requests + at, act) for at, act in interruptions]
        try:
            with self.place.at_work(process):
                return self._trigger()
        except Killed:
            self.process = self._reader = None
            return "killed"
        except RStreamError as error:
            self.error = error
            self.kill()
            return "error"
        finally:
            process.interruptions, self._is_busy = [], False

    def kill(self) -> None:
        """SIGKILL of its process."""
        if self.process is not None:
            self.place.end(self.process)
            self.process = self._reader = None

    def stop(self) -> None:
        """Let it end by itself: its lease is free."""
        if self.process is not None and self._reader is not None and not self._is_busy:
            with self.place.at_work(self.process):
                self._reader.stop()
        self.kill()

    def _trigger(self) -> str:
        reader = self._reader = self._reader or self._start()
        if self.committed < len(self.offsets) - 1:
            self._run(reader)
            return "batch"
        start = self.offsets[-1] if self.offsets else reader.initialOffset()
        end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
        if end == start:
            return "idle"
        self.offsets.append(end)
        if len(self.offsets) > 1:
            reader.commit(self.offsets[-2])
        self._run(reader)
        return "batch"

    def _start(self) -> StreamReader:
        self._runs += 1
        settings = {"url": self.place.server.url, "startingOffsets": "earliest", **self.options}
        options = with_patience(SourceOptions.parse(settings), PATIENCE)
        columns = Columns(SCHEMA, True, options.mode, options.column_name_of_corrupt_record)
        return StreamReader(options, columns, time.monotonic, SMALL)

    def _run(self, reader: StreamReader) -> None:
        number = len(self.offsets) - 1
        start = self.offsets[-2] if number else reader.initialOffset()
        rows = []
        for index, partition in enumerate(reader.partitions(start, self.offsets[-1])):
            task, share = pickle.loads(pickle.dumps((reader, partition)))
            with TaskPlace(self.name, number, f"{self.name}-{self._runs}", index):
                rows += [(row["_stream"], row["_id"]) for batch in task.read(share) for row in batch.to_pylist()]
        self.rows[number] = rows  # a batch that runs again replaces its rows
        self.committed = number
