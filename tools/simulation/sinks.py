"""The sinks of a run: the exactly-once sink, and one that keeps the last run of each batch, as an idempotent
foreachBatch does. Both are called as Spark calls them (FACTS S10).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.sink.writers import BatchWriter, StreamWriter
from spark_streams.operations.verify.history import Row
from tools.patience import with_patience
from tools.simulation.model import Model
from tools.simulation.options import STREAMS, without
from tools.simulation.reasons import Reason
from tools.simulation.threads import PATIENCE
from tools.simulation.world import World

OUT = "out"
_COLUMNS = ["n", "source", "entry"]
_FIELDS = [StructField(name, LongType() if name == "n" else StringType()) for name in _COLUMNS]


class Once:
    """The exactly-once sink. out: its stream; delivery: its option, which an operator may change; options: others of
    its options.

    With streamColumn, the rows of each further stream go to a stream of their own; with idColumn, the server counts all
    rows within one millisecond. With transaction, the write is named, as within foreachBatch."""

    def __init__(self, world: World, out: str = OUT) -> None:
        self._world, self._out = world, out
        self._writer = b""
        self._tasks: dict[int, tuple[object, set[int]]] = {}  # partition → the task's message, the numbers that it read
        self._read: set[int] = set()
        self.delivery = "exactly-once"
        self.options = dict(world.setup.sink_options)

    def begin(self, epoch: int) -> None:
        """Start a run of a batch with a new writer. The ledger does not depend on the checkpoint (epoch)."""
        settings = {"url": self._world.sink_server.url, "stream": self._out, "delivery": self.delivery, **self.options}
        if is_named := "transaction" in self.options:  # without it, a write is a job: each run writes its rows
            settings |= {"delivery": "exactly-once"}
            settings = settings if self.delivery == "exactly-once" else without(settings, "transaction")
        if settings["delivery"] == "exactly-once":
            settings["chunkSize"] = str(self._world.setup.chunk)
        self._tasks = {}
        out = self._world.model.stream(OUT)
        out.at_batch = out.happened
        checked = with_patience(SinkOptions.parse(settings), PATIENCE)
        schema = StructType([*_FIELDS, *(StructField(self.options[one], StringType()) for one in self._given())])
        self._writer = pickle.dumps((BatchWriter if is_named else StreamWriter)(checked, schema, False))

    def write(self, batches: Iterator[pa.RecordBatch], number: int, partition: int, attempt: int) -> None:
        """Execute a task. If it succeeds, its message goes to the driver."""
        tasks, writer = self._tasks, pickle.loads(self._writer)
        read: set[int] = set()
        message = writer.write(self._with_columns(batch) for batch in _renamed(self._world.model, batches, read))
        if tasks is self._tasks:  # the run that it belongs to has not ended
            tasks[partition] = (message, read)

    def read(self, number: int) -> set[int]:
        """Return the numbers that the tasks of this run have read."""
        return {n for _, read in self._tasks.values() for n in read}

    def close(self, number: int) -> None:
        """Commit the batch after all tasks have succeeded."""
        tasks, self._tasks = self._tasks, {}
        self._read = {n for _, read in tasks.values() for n in read}
        number_of_batch = () if "transaction" in self.options else (number,)
        # With at-least-once the end is not recorded: the tasks have waited for their rows.
        if not self.may_repeat or "transaction" in self.options:
            self._world.was_replicated = False
        pickle.loads(self._writer).commit([message for message, _ in tasks.values()], *number_of_batch)
        if "waitReplicas" in self.options and not self._world.was_replicated:
            self._world.fail("closed without its replicas", f"batch {number}")
        self._world.tick()

    def keeps_rows(self) -> None:
        """Excuse rows if the sink reports that it keeps the rows of an earlier batch of this number.

        Documented for a checkpoint that was set back: the other rows of this batch are not written.
        """
        model = self._world.model
        if "checkpoint set back" in model.stream(OUT).ever:
            written = {row.value[1] for row in self.rows()}
            model.excuse([model.entries[n] for n in self._read - written], Reason.EARLIER_BATCH_STAYS)

    def committed(self, number: int) -> None:
        """Record that the batch is in the commit log."""
        self._world.model.sunk |= self._read
        out = self._world.model.stream(OUT)
        out.seen = out.at_batch

    @property
    def may_repeat(self) -> bool:
        """Whether an operator has allowed duplicate rows."""
        return self.delivery != "exactly-once"

    def forget_after(self, epoch: int, number: int) -> None:
        """Do nothing: the stream is not set back with the checkpoint."""

    def rows(self) -> list[Row]:
        """Return all rows of the stream in their order."""
        return [
            Row(place, ("p", self._world.model.number_of(int(fields["n"]), *place)), 0, 0, 0, position)
            for position, (stream, fields) in enumerate(self._entries())
            for place in [(fields["source"], fields["entry"])]
            if stream == (self._out if self._to(place[0]) is None else self._to(place[0]))
        ]

    def _entries(self) -> Iterator[tuple[str, dict[str, str]]]:
        names = [self._out, *(f"{self._out}:{one}" for one in STREAMS[1:] if "streamColumn" in self.options)]
        return ((name, fields) for name in names for _, fields in self._world.sink_client.xrange(name))

    def _given(self) -> list[str]:
        return [name for name in ("streamColumn", "idColumn") if name in self.options]

    def _to(self, source: str) -> str | None:
        """Return the stream to which the rows of a stream go, as streamColumn says; None: to that of option stream."""
        return f"{self._out}:{source}" if "streamColumn" in self.options and source in STREAMS[1:] else None

    def _with_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add the columns that the options name."""
        texts = {
            "streamColumn": [self._to(source) for source in batch.column("source").to_pylist()],
            "idColumn": ["1-*"] * batch.num_rows,
        }
        for name in self._given():
            batch = batch.append_column(self.options[name], pa.array(texts[name], pa.string()))
        return batch


def _renamed(model: Model, batches: Iterator[pa.RecordBatch], read: set[int]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        chosen = batch.select(["n", "_stream", "_id"])
        read |= {model.number_of(*row) for row in zip(*chosen.to_pydict().values(), strict=True)}
        yield chosen.rename_columns(_COLUMNS)


# -- a sink that keeps the last run of each batch ----------------------------------------------------------------------


class Recorder:
    """Sink in memory. kept: rows of each batch, by checkpoint and number; may_repeat: rows may be duplicated."""

    may_repeat = False

    def __init__(self, world: World) -> None:
        self._world = world
        self._epoch = 0
        self._tasks: dict[int, tuple[int, list[Row]]] = {}  # partition → attempt, rows
        self._late: list[Row] = []
        self.kept: dict[tuple[int, int], list[Row]] = {}

    def begin(self, epoch: int) -> None:
        """Start a run of a batch. epoch: of the checkpoint."""
        self._epoch = epoch
        self._tasks = {}

    def write(self, batches: Iterator[pa.RecordBatch], number: int, partition: int, attempt: int) -> None:
        """Execute a task. The last successful execution counts."""
        tasks, rows = self._tasks, list[Row]()
        for batch in batches:
            rows += rows_of(self._world.model, batch, number, partition, attempt, len(rows))
        if tasks is self._tasks:  # the run that it belongs to has not ended
            tasks[partition] = (attempt, rows)

    def read(self, number: int) -> set[int]:
        """Return the numbers that the tasks of this run have read."""
        return {row.value[1] for _, rows in self._tasks.values() for row in rows}

    def close(self, number: int) -> None:
        """Keep the rows of the batch after all tasks have succeeded."""
        self.kept[self._epoch, number] = [row for _, rows in self._tasks.values() for row in rows]
        self._tasks = {}
        self._world.tick()

    def committed(self, number: int) -> None:
        """Record that the batch is in the commit log."""
        self._world.model.sunk = {row.value[1] for rows in self.kept.values() for row in rows}

    def forget_after(self, epoch: int, number: int) -> None:
        """Set the sink back with the checkpoint."""
        self.kept = {key: rows for key, rows in self.kept.items() if key[0] != epoch or key[1] <= number}
        self.committed(number)

    def rows(self) -> list[Row]:
        """Return all rows. Batches are numbered in their order."""
        numbered = enumerate(sorted(self.kept))
        return [replace(row, batch=number) for number, key in numbered for row in self.kept[key]]


class Skipping(Recorder):
    """The same as a foreachBatch does that reads nothing of a batch that it has written."""

    def write(self, batches: Iterator[pa.RecordBatch], number: int, partition: int, attempt: int) -> None:
        """Execute a task."""
        if (self._epoch, number) not in self.kept:
            super().write(batches, number, partition, attempt)

    def read(self, number: int) -> set[int]:
        """Return the numbers that the tasks of this run have read, or an earlier one that has written the batch."""
        kept = self.kept.get((self._epoch, number))
        return super().read(number) if kept is None else {row.value[1] for row in kept}

    def close(self, number: int) -> None:
        """Keep the rows of the batch."""
        if (self._epoch, number) not in self.kept:
            super().close(number)


def rows_of(model: Model, batch: pa.RecordBatch, number: int, partition: int, attempt: int, first: int) -> list[Row]:
    """Return a record batch as rows of a history."""
    return [
        Row(place, ("p", model.number_of(row["n"], *place)), number, partition, attempt, first + index)
        for index, row in enumerate(batch.to_pylist())
        for place in [(row["_stream"], row["_id"])]
    ]
