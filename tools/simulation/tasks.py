"""The tasks of a batch: copies of the reader read the partitions, with retries and twins, and write to the sink."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from spark_streams.connector.errors import RStreamError
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.operations.verify.history import Row
from spark_streams.operations.verify.judge import Facts, Fault, judge
from tools.simulation.actor import Actor, Killed, TaskFailed
from tools.simulation.model import Entry
from tools.simulation.reasons import Reason
from tools.simulation.sinks import OUT
from tools.simulation.threads import TaskPlace
from tools.simulation.world import World, counted

_PLACE = [("_stream", pa.string()), ("_id", pa.string())]
SCHEMA = pa.schema([("n", pa.int64()), *_PLACE])
WITH_VALUES = pa.schema([("n", pa.int64()), ("v", pa.int64()), *_PLACE])  # of a plan with entries that do not fit
_MAX_ATTEMPTS = 4
_EXPELLED = "our consumer deleted"


@dataclass(frozen=True)
class Twin:
    """A second execution of a task. It stands still after `ticks` ticks, and continues after `later` batches.

    later: 0: before its own batch is closed, -1: at the end. at: only ticks before a request with this text count.
    choice: selects the task.
    """

    choice: float
    ticks: int
    later: int
    at: str = ""


@dataclass(frozen=True)
class _Paused:
    actor: Actor
    until: int


class RunningQuery(Protocol):
    """What tasks read of their query (tools.simulation.spark.Query)."""

    id: str
    epoch: int
    runs: int
    options: dict[str, str]
    offsets: list[Any]
    mode: str
    is_lenient: bool
    was_limited: bool


class Tasks:
    """The tasks of a query. twins: of the next batch; crashes: of the next batches, each whether the driver is killed
    after the sink has closed the batch, or after its first task."""

    def __init__(self, world: World, query: RunningQuery) -> None:
        self._world, self._query = world, query
        self.twins: list[Twin] = []
        self.crashes: list[bool] = []
        self._paused: list[_Paused] = []
        self._read: dict[tuple[int, int, str, str], set[int]] = {}
        self._attempt = 0
        self.in_task = False

    def run(self, reader: StreamReader, number: int, partitions: Sequence[Any], offsets: tuple[str, str]) -> None:
        """Run all tasks of a batch, then close it in the sink."""
        world, sink = self._world, self._world.sink
        sink.begin(self._query.epoch)
        twins, self.twins = self.twins, []
        crash = self.crashes.pop(0) if self.crashes else None
        pickled = pickle.dumps(reader)
        for index, partition in enumerate(partitions):
            copy = pickled, pickle.dumps(partition)
            for twin in [candidate for candidate in twins if int(candidate.choice * len(partitions)) == index]:
                paused = _Paused(Actor(self._execution(copy, number, index)), number + twin.later)
                if twin.later < 0:
                    paused = _Paused(paused.actor, 1 << 30)
                paused.actor.resume(twin.ticks, twin.at)
                self._paused.append(paused)
            self._until_it_works(copy, number, index)
            if crash is False:
                raise Killed
            world.tick()
        self._wake(number)
        self._compare(number, offsets)
        sink.close(number)
        if crash:
            raise Killed

    def committed(self, number: int) -> None:
        """Record that the batch is in the commit log."""
        self._world.sink.committed(number)
        for name in self._query.offsets[-1]["batch"]:
            self._world.model.stream(name).forgiven.clear()
        self._wake(number)

    def wake_all(self) -> None:
        """Let all twins that stand still continue."""
        self._wake(1 << 31)

    def die(self) -> None:
        """Record that the driver is dead. Twins on executors may live on, and continue later."""
        self._attempt = 0

    def end(self) -> None:
        """End all twins that stand still."""
        for paused in self._paused:
            paused.actor.end()
        self._paused.clear()

    def forget_after(self, number: int) -> None:
        """Forget the batches above this number: they run again."""
        self._world.sink.forget_after(self._query.epoch, number)
        self._read = {key: rows for key, rows in self._read.items() if key[0] != self._query.epoch or key[1] <= number}

    def expect_others(self) -> None:
        """An error has said that batches which run again lack entries."""
        self._read.clear()

    def _wake(self, number: int) -> None:
        due = [paused for paused in self._paused if paused.until <= number]
        self._paused = [paused for paused in self._paused if paused.until > number]
        for paused in due:
            self._world.tell("      a twin that stood still continues")
            paused.actor.resume()
            error = paused.actor.error
            self._world.tell(f"      it ends: {error}")
            if error is not None and not isinstance(error, (RStreamError, Killed)):
                self._world.fail(f"crash | a twin: {type(error).__name__}", repr(error))

    def _until_it_works(self, copy: tuple[bytes, bytes], number: int, partition: int) -> None:
        for attempt in range(_MAX_ATTEMPTS):
            self.in_task = True
            try:
                self._execution(copy, number, partition)()
            except TaskFailed:
                self._world.tell(f"   task {partition} fails")
                if attempt == _MAX_ATTEMPTS - 1:
                    raise Killed from None  # the stage fails, and so does the query
            except RStreamError as error:
                self._world.tell(f"   task {partition} fails: {error}")
                if attempt >= self._world.setup.retries:
                    raise
            else:
                return
            finally:
                self.in_task = False

    def _execution(self, copy: tuple[bytes, bytes], number: int, partition: int) -> Callable[[], None]:
        """Return a function that executes a task once."""
        self._attempt += 1
        attempt = self._attempt
        task, share = map(pickle.loads, copy)
        place = TaskPlace(self._query.id, number, f"run{self._query.runs}", partition)
        end = self._query.offsets[number]

        def work() -> None:
            batches = _batches(task, share)
            try:
                with place:
                    self._to_the_end(batches, lambda: self._world.sink.write(batches, number, partition, attempt))
            finally:
                for entry in self._world.model.entries.values():
                    entry.looked_for |= entry.removed_unacknowledged and _covers(end, entry)

        return work

    def _to_the_end(self, batches: Generator[pa.RecordBatch, None, None], work: Callable[[], None]) -> None:
        """Run a task, then end what it reads from, which sends notes unless its process was killed. Without this, that
        ends when Python collects it, which no seed decides."""
        try:
            work()
        except Killed:
            self._world.dying = True
            raise
        finally:
            batches.close()
            self._world.dying = False

    def _may_be_more(self, entry: Entry) -> bool:
        """Whether a batch that runs again may have an entry that it did not have before.

        A restored server may have an entry again that was missing when a lenient query read its batch. So it is with an
        entry that another client had taken from the query, and that was handed back. Documented: a group that is set
        forward while a batch is taken has entries within the batch's range that the batch lacks.
        """
        ever = self._world.model.stream(entry.stream).ever
        is_back = Reason.TAKEN in entry.repeat_reasons and Reason.HANDED_WITHIN in entry.excuses
        return self._query.is_lenient and (is_back or bool({"server set back", "group set forward"} & ever))

    def _compare(self, number: int, offsets: tuple[str, str]) -> None:
        """Check that a batch that runs again has the same entries, unless events explain the difference."""
        world = self._world
        rows: set[int] = world.sink.read(number)
        world.tell(f"   batch {number}: {counted(rows)}")
        key = (self._query.epoch, number, *offsets)
        before = self._read.setdefault(key, rows)
        if before != rows and world.setup.sink_elsewhere:  # documented: that sink is not told of it
            world.model.stream(OUT).causes.add("a batch has other rows, and its sink is on another server")
        again = {world.model.entries[n].stream for n in rows - before}
        if self._query.was_limited and any(_EXPELLED in world.model.stream(name).ever for name in again):
            # What was pending for a consumer that was deleted, a task of a batch that may be cut misses once.
            world.model.stream(OUT).causes.add("a batch has entries again that a task has missed")
        if before == rows or self._query.was_limited:
            return
        more = self._changed(number, rows - before, self._may_be_more)
        if self._is_another(more):
            world.model.stream(OUT).causes.add("another stream has the place of its input")
        elif more:
            world.fail(f"replay has more | {self._query.mode}", f"batch {number} now has {counted(more)}, too")
        is_counted = self._query.is_lenient  # it must count them as lost
        if less := self._changed(number, before - rows, lambda _: is_counted):
            missing = [world.model.entries[n] for n in less]
            causes = "+".join(sorted({cause for entry in missing for cause in world.model.stream(entry.stream).ever}))
            world.fail(
                f"replay has less | after {causes or 'nothing'} | {self._query.mode}",
                f"batch {number} had {counted(before)}, and has {counted(rows)} without a report",
            )
        self._read[key] = rows

    def _changed(self, number: int, numbers: set[int], may_differ: Callable[[Entry], bool]) -> set[int]:
        """Return which of these entries, that one of two runs of a batch had, the judge calls changed."""
        facts = []
        for n in sorted(numbers):
            entry = self._world.model.entries[n]
            tried = [Row(entry.place, ("p", n), number, 0, 0, 0, kept=False)]
            reasons = frozenset({Reason.OTHER_IN_REPLAY}) if may_differ(entry) else frozenset[str]()
            facts.append(Facts(entry.place, ("p", n), tried=tried, may_miss=reasons))
        judgement = judge(facts)
        self._world.used.update(judgement.used)
        return {one.value[1] for one in judgement.found.get(Fault.CHANGED, ()) if one.value is not None}

    def _is_another(self, more: set[int]) -> bool:
        """Whether the entries belong to a stream that was created again within the range of a batch.

        Documented: a batch is a range of IDs.
        """
        model = self._world.model
        streams = {model.entries[n].stream for n in more}
        return bool(streams) and all({"vanished", "flushed"} & model.stream(name).ever for name in streams)


def _covers(end: Any, entry: Entry) -> bool:
    """Whether the batch that ends at this offset may contain an entry."""
    texts = [*end.get("old", {}).get(entry.stream, ()), *filter(None, [end["batch"].get(entry.stream)])]
    parts = [Range.parse(entry.stream, text) for text in texts]
    return any(part.after < entry.key <= part.last for part in parts)


def _batches(task: StreamReader, share: Any) -> Generator[pa.RecordBatch, None, None]:
    yield from task.read(share)
