"""The tasks of a batch: partitions read by copies of the reader, tried again, run twice; and the sink's part."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from spark_streams.errors import RStreamError
from spark_streams.source.stream_reader import StreamReader
from tools.chaos.history import Row, id_key
from tools.simulation.actor import Actor
from tools.simulation.model import Entry
from tools.simulation.place import TaskPlace
from tools.simulation.ticks import Killed, TaskFailed
from tools.simulation.world import World, counted

SCHEMA = pa.schema([("n", pa.int64()), ("_stream", pa.string()), ("_id", pa.string())])
_MOST_ATTEMPTS = 4


@dataclass(frozen=True)
class Twin:
    """A second execution of a task: it stands still after so many ticks, and goes on when `later` batches have passed;
    0: before its own batch is closed, -1: at the end."""

    which: float
    ticks: int
    later: int


@dataclass(frozen=True)
class _Standing:
    actor: Actor
    until: int


class RunningQuery(Protocol):
    """What tasks ask of the query that they belong to (tools.simulation.spark.Query)."""

    id: str
    epoch: int
    runs: int
    options: dict[str, str]
    offsets: list[Any]
    mode: str
    is_lenient: bool
    was_limited: bool


class Tasks:
    """twins: those of the next batch; read: per batch and its offsets what its complete executions have read."""

    def __init__(self, world: World, query: RunningQuery) -> None:
        self._world, self._query = world, query
        self.twins: list[Twin] = []
        self._standing: list[_Standing] = []
        self._read: dict[tuple[int, int, str, str], set[int]] = {}
        self._attempt = 0
        self.in_task = False

    def run(self, reader: StreamReader, number: int, partitions: Sequence[Any], which: tuple[str, str]) -> None:
        """All tasks of a batch, then what the sink does at its end."""
        world, sink = self._world, self._world.sink
        sink.begin(self._query.epoch)
        twins, self.twins = self.twins, []
        mine: list[_Standing] = []
        for at, partition in enumerate(partitions):
            copies = [pickle.dumps((reader, partition)) for _ in range(2)]
            for twin in [one for one in twins if int(one.which * len(partitions)) == at]:
                one = _Standing(Actor(self._execution(copies[1], number, at)), number + twin.later)
                if twin.later < 0:
                    one = _Standing(one.actor, 1 << 30)
                one.actor.resume(twin.ticks)
                mine.append(one)
            self._until_it_works(copies[0], number, at)
            world.tick()
        self._standing += mine
        self._wake(number)
        self._compare(number, which)
        sink.close(number)

    def committed(self, number: int) -> None:
        """The commit log has the batch."""
        self._world.sink.committed(number)
        for name in self._query.offsets[-1]["batch"]:
            self._world.model.stream(name).forgiven.clear()
        self._wake(number)

    def wake_all(self) -> None:
        """All that stand still go on now."""
        self._wake(1 << 31)

    def die(self) -> None:
        """The driver is dead. Executors may live on: what stands still there goes on one day."""
        self._attempt = 0

    def end(self) -> None:
        """Whatever stands still is gone."""
        for one in self._standing:
            one.actor.end()
        self._standing.clear()

    def forget_after(self, number: int) -> None:
        """The batches above this one are to be run anew."""
        self._world.sink.forget_after(self._query.epoch, number)
        self._read = {key: rows for key, rows in self._read.items() if key[0] != self._query.epoch or key[1] <= number}

    def _wake(self, number: int) -> None:
        due = [one for one in self._standing if one.until <= number]
        self._standing = [one for one in self._standing if one.until > number]
        for one in due:
            self._world.tell("      one that stood still goes on")
            one.actor.resume()
            error = one.actor.error
            if error is not None and not isinstance(error, (RStreamError, Killed)):
                self._world.fail(f"crash | a twin: {type(error).__name__}", repr(error))

    def _until_it_works(self, copy: bytes, number: int, partition: int) -> None:
        for attempt in range(_MOST_ATTEMPTS):
            self.in_task = True
            try:
                self._execution(copy, number, partition)()
            except TaskFailed:
                self._world.tell(f"   task {partition} fails")
                if attempt == _MOST_ATTEMPTS - 1:
                    raise Killed from None  # the stage fails, and with it the query
            except RStreamError as error:
                self._world.tell(f"   task {partition} fails: {error}")
                if attempt >= self._world.setup.retries:
                    raise
            else:
                return
            finally:
                self.in_task = False

    def _execution(self, copy: bytes, number: int, partition: int) -> Callable[[], None]:
        """One execution of a task."""
        self._attempt += 1
        attempt = self._attempt
        task, share = pickle.loads(copy)
        place = TaskPlace(self._query.id, number, f"run{self._query.runs}", partition)
        end = self._query.offsets[number]

        def work() -> None:
            try:
                with place:
                    self._world.sink.write(_batches(task, share), number, partition, attempt)
            finally:
                for one in self._world.model.entries.values():
                    one.looked_for |= one.gone_unacknowledged and _covers(end, one)

        return work

    def _came_back(self, one: Entry) -> bool:
        """Whether the server had lost an entry when a lenient query read its batch, and may have it again."""
        return self._query.is_lenient and "server set back" in self._world.model.stream(one.stream).ever

    def _compare(self, number: int, which: tuple[str, str]) -> None:
        """A batch that is run again is the same batch, unless something has happened to its entries."""
        world, options = self._world, self._query.options
        rows: set[int] = world.sink.read(number)
        world.tell(f"   batch {number}: {counted(rows)}")
        key = (self._query.epoch, number, *which)
        before = self._read.setdefault(key, rows)
        if before == rows or options.get("delivery") == "at-most-once" or self._query.was_limited:
            return
        more = {n for n in rows - before if not self._came_back(world.model.entries[n])}
        if self._is_another(more):
            world.model.excuse([world.model.entries[n] for n in before - rows], "another stream has its place")
        elif more:
            world.fail(f"replay has more | {self._query.mode}", f"batch {number} now has {counted(more)}, too")
        missing = [one for n in before - rows if not self._is_told_later(one := world.model.entries[n])]
        if missing and not self._query.is_lenient:  # where it is, they must be counted as lost
            causes = "+".join(sorted({cause for one in missing for cause in world.model.stream(one.stream).ever}))
            world.fail(
                f"replay has less | after {causes or 'nothing'} | {self._query.mode}",
                f"batch {number} had {counted(before)}, and has {counted(rows)} without a word",
            )
        self._read[key] = rows

    def _is_another(self, more: set[int]) -> bool:
        """Documented: with noAck a batch is a range of ids, and a stream that was made anew may have entries there."""
        model = self._world.model
        streams = {model.entries[n].stream for n in more if "noAck" in self._query.options}
        return bool(streams) and all({"vanished", "flushed"} & model.stream(name).ever for name in streams)

    def _is_told_later(self, one: Entry) -> bool:
        """Documented: with noAck the tasks of a batch whose end is an estimate do not know how many entries it has.
        The trigger after it finds what is gone."""
        counts = self._query.offsets[-1].get("counts", {})
        return bool(one.gone) and bool(counts.get(one.stream, {}).get("before"))


def _covers(end: Any, one: Entry) -> bool:
    """Whether the batch that ends at this offset may have an entry."""
    held, position = end["batch"].get(one.stream), end["streams"].get(one.stream)
    is_new = held is not None and id_key(held.get("after") or "0-0") < one.key <= id_key(position)
    return is_new or one.stream in end["claimed"]


def _batches(task: StreamReader, share: Any) -> Iterator[pa.RecordBatch]:
    yield from task.read(share)


def rows_of(batch: pa.RecordBatch, number: int, partition: int, attempt: int, first: int) -> list[Row]:
    """A record batch as rows of a history."""
    return [
        Row((row["_stream"], row["_id"]), ("p", row["n"]), number, partition, attempt, first + at)
        for at, row in enumerate(batch.to_pylist())
    ]
