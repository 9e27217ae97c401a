"""The product as the subject of a history: its reader on the engine's core in this process, called as Spark calls it.

Each request of the product is one command of the history: the process may be killed before and after it, and other
clients act there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import hiredis
import pyarrow as pa
import pytest

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import DataLossError, GroupMissingError, StreamStateError
from spark_streams.connector.keys import key_beside
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.shards import names
from spark_streams.connector.source.commit_mark import Mark, committed_key
from spark_streams.connector.source.group.recovery import DataLoss, Finding
from spark_streams.connector.source.limits import LIMITS
from spark_streams.connector.source.offset import Offset, Range
from spark_streams.connector.source.query import batch_stream
from spark_streams.connector.source.rows.columns import Columns
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.spark.data_source import ReadMaxRows
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connection.connection import Connection
from spark_streams.connector.wire.lease import LeaseTerms, Processes
from tools.simulation.actor import Killed
from tools.simulation.core_model.clients import InProcess, Scenario
from tools.simulation.core_model.facts import Id, parse
from tools.simulation.core_model.scenarios import kind_of, limit_of
from tools.simulation.core_model.source import RefusedError, StopError
from tools.simulation.core_model.world import MODEL, World
from tools.simulation.in_process.patches import on_core

GROUP, CONSUMER = "g", "us"
LIMIT = 5  # entries of a batch, as the model has it
_SCHEMA = pa.schema([("v", pa.int64()), ("_id", pa.string())])
# A few entries cross every boundary, and each trigger asks the server.
_SMALL = replace(LIMITS, first_page=2, pending_page=3, reserve_step=3, reserve_round=6, idle_check=0.0)
_NEVER = 1 << 62  # entries
_BESIDE = ("committed", "first", "attempts", "tried")  # kinds of strings beside a stream
T = TypeVar("T")


class _Processes(Processes):
    """Each process of a history has the next number; the ones before are dead."""

    number = 0

    @property
    def pid(self) -> int:
        return self.number

    @property
    def space(self) -> str:
        return "history"

    def this(self) -> dict[str, str | int]:
        return {"host": "history", "space": self.space, "pid": self.pid, "born": self.born(self.pid)}

    def born(self, pid: int) -> str:
        return "1" if pid == self.pid else ""


@dataclass(frozen=True)
class Checkpointed:
    """An offset as Spark logs it."""

    json: str
    offset: Offset

    @classmethod
    def of(cls, value: dict[str, object]) -> Checkpointed:
        """Take an offset from the product."""
        return cls(json.dumps(value), Offset.from_json(value))

    @property
    def value(self) -> dict[str, Any]:
        """The offset, as Spark passes it."""
        value: dict[str, Any] = json.loads(self.json)
        return value

    @property
    def token(self) -> str:
        """Name of the batch."""
        return self.offset.token

    @property
    def position(self) -> Id:
        """Where the batch ends."""
        return _id(next(iter(self.offset.at.values())).position)


class Worker:
    """In place of BackgroundWorker: jobs run when the history says so, each at once."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._jobs: deque[tuple[Callable[[Connection], object], Future[object]]] = deque()
        self._errors: list[Exception] = []
        self._server: Connection | None = None

    def submit(self, job: Callable[[Connection], object]) -> Future[object]:
        """Run this job after the jobs that were submitted before."""
        result = Future[object]()
        self._jobs.append((job, result))
        return result

    def step(self) -> bool:
        """Run one job. Return whether there was one."""
        if not self._jobs:
            return False
        job, result = self._jobs.popleft()
        try:
            self._server = self._server or Connection(self._address)
            result.set_result(job(self._server))
        except Exception as error:  # noqa: BLE001 - wait() raises it
            self._errors.append(error)
            result.set_exception(error)
            self._server = None
        return True

    def wait(self) -> None:
        """Run all jobs. Raises the first error."""
        while self.step():
            pass
        errors, self._errors = self._errors, []
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Run all jobs."""
        while self.step():
            pass


class Process:
    """One process of the driver, with the calls of the model's Source. strict: failOnDataLoss."""

    def __init__(self, world: Any, terms: LeaseTerms) -> None:
        self._world = world
        self.strict = not world.lenient_once
        self._stop: tuple[str, int] | None = None
        powers = world.scenario.powers
        settings = {"url": world.server.server.url, "streams": world.key, "group": GROUP, "consumer": CONSUMER}
        settings |= {"startingOffsets": "earliest"}
        settings |= {"maxEntriesPerTrigger": str(LIMIT), "failOnDataLoss": "true" if self.strict else "false"}
        settings |= {"claimIdle": "30m"} if "claims" in powers else {}
        settings |= {"maxDeliveries": "2", "deadLetterStream": f"dead:{world.key}"} if "poison" in powers else {}
        options = SourceOptions.parse(settings)
        columns = Columns(_SCHEMA, True, options.mode, options.column_name_of_corrupt_record)
        limits = replace(_SMALL, prefetch_entries=1, lease=terms)
        if world.scenario.in_step:
            limits = replace(limits, prefetch_entries=_NEVER, reserve_step=LIMIT)  # as the model does
        self._reader = StreamReader(options, columns, time.monotonic, limits, lambda: None)

    # -- Spark's calls -----------------------------------------------------------------------------------------------

    def initial_offset(self) -> Checkpointed:
        """Return where the query begins without a batch."""
        return Checkpointed.of(self._call(self._reader.initialOffset))

    def latest_offset(self, checkpoint: Checkpointed) -> Checkpointed:
        """Return the end of the next batch, or `checkpoint` if there is nothing to read."""
        value = checkpoint.value
        end = self._call(lambda: self._reader.latestOffset(value, ReadMaxRows(LIMIT)))
        return checkpoint if end is value else Checkpointed.of(end)

    def plan(self, checkpoint: Checkpointed, end: Checkpointed) -> list[Any]:
        """Return the tasks of a batch."""
        return self._call(lambda: list(self._reader.partitions(checkpoint.value, end.value)))

    def read(self, end: Checkpointed, batch: list[Any]) -> list[Id]:
        """Return what the tasks read. What a lenient task notes as lost is reported with the next trigger only, and
        is noticed here."""
        rows = self._call(lambda: [r for task in batch for r in self._reader.read_batches(task)])
        ids = [parse(text) for page in rows for text in page.column("_id").to_pylist()]
        if len(ids) < end.offset.held:
            self._world.report("ENTRIES_LOST", end.offset.held - len(ids))
        return ids

    def commit(self, end: Checkpointed) -> None:
        """Spark may call it late or never."""

    def background_step(self) -> bool:
        """Run one job of the background worker. Return whether there was one."""
        return self._call(self._reader.batches.worker.step)

    def finish_background(self) -> None:
        """Run the rest of the background work."""
        while self.background_step():
            pass

    # -- what the world asks -----------------------------------------------------------------------------------------

    @staticmethod
    def shown(end: Checkpointed, is_batch: bool) -> tuple[Any, ...]:
        """Return what the model's offset must have in common with this one."""
        offset = end.offset
        [(stream, at)] = offset.at.items()
        new = offset.new.get(stream)
        ranges = [*map(_bounds, offset.old.get(stream, ())), _bounds(new) if new else None] if is_batch else []
        return "batch" if is_batch else "idle", end.position, at.read, *ranges

    def refuses(self, findings: Sequence[Finding], is_allowed: bool) -> None:
        """What the product is about to stop with."""
        for finding in findings:
            if not (is_allowed or finding.is_harmless) and self._stop is None:
                self._stop = finding.kind.name, finding.lost

    def reports(self, findings: Sequence[Finding]) -> None:
        """What the product has reported."""
        for finding in findings:
            is_set = finding.is_harmless and not finding.lost
            self._world.report("SET_TO_CHECKPOINT" if is_set else finding.kind.name, finding.lost)

    def _call(self, function: Callable[[], T]) -> T:
        """Call the product. Raises StopError for the error of a strict query, RefusedError for another one."""
        try:
            return function()
        except StreamStateError as error:
            if self._stop is not None:
                raise StopError(*self._stop) from error
            if self.strict and isinstance(error, GroupMissingError):
                raise StopError("GROUP_MISSING", 0) from error
            if self.strict and isinstance(error, DataLossError):
                missing = "is missing" in error.message
                raise StopError("STREAM_MISSING" if missing else "ENTRIES_LOST", 1) from error
            raise RefusedError(error.message) from error


class Product:
    """Starts processes of the product on a server in this process."""

    def __init__(self, server: InProcess) -> None:
        self.server = server
        self._processes = _Processes()
        self._terms = LeaseTerms(sleep=server.core.clock.sleep, processes=self._processes, is_kept=False)
        self.process: Process | None = None
        self._world: Any = None

    def streams_of(self, stream: str) -> list[str]:
        return [stream, f"dead:{stream}"]

    def all_of(self, stream: str) -> list[str]:
        beside = [key_beside(stream, kind, GROUP, CONSUMER).decode() for kind in _BESIDE]
        return [*self.streams_of(stream), *beside]

    def mark(self, stream: str) -> str:
        return committed_key(stream, GROUP, CONSUMER).decode()

    def record(self, stream: str) -> str:
        return key_beside(stream, "attempts", GROUP, CONSUMER).decode()

    def sought(self, position: str, before: str | None) -> str:
        return str(Mark.of_seek(StreamId.parse(position), None if before is None else Mark.parse(before.encode())))

    def start(self, world: Any) -> Process:
        self._processes.number += 1
        self._world = world
        self.process = Process(world, self._terms)
        return self.process

    def bury(self) -> None:
        self.process = None
        for line in list(self.server.core.lines.values()):
            line.cut()

    def running(self) -> contextlib.AbstractContextManager[None]:
        return self.server.core.clock.in_charge()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Patch the product for any number of histories."""
        original_send, reader = Connection.send, hiredis.Reader()
        original_refuse, original_count = DataLoss.refuse, DataLoss.count

        def send(connection: Connection, data: bytes | memoryview) -> None:
            if self.process is None:
                raise Killed
            reader.feed(bytes(data))
            commands = []
            while (words := reader.gets()) is not False:
                commands.append([word.decode("utf-8", "replace") for word in words])
            self._hook("before", commands)
            self.server.core.clock.pass_ns(1_000_000)
            original_send(connection, data)
            self._hook("after", commands)

        def refuse(losses: DataLoss, findings: Sequence[Finding]) -> None:
            assert self.process is not None
            self.process.refuses(findings, losses.allowed)
            original_refuse(losses, findings)

        def count(losses: DataLoss, finding: Finding) -> None:
            assert self.process is not None
            original_count(losses, finding)
            self.process.reports([finding])

        log = logging.getLogger("spark_streams")
        log.setLevel(logging.CRITICAL)
        with on_core(self.server.core), pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connection, "send", send)
            patch.setattr(DataLoss, "refuse", refuse)
            patch.setattr(DataLoss, "count", count)
            patch.setattr(batch_stream, "BackgroundWorker", Worker)
            patch.setattr(names, "_endings", lambda: ())  # no stream is in shards
            try:
                yield
            finally:
                log.setLevel(logging.NOTSET)

    def _hook(self, when: str, commands: list[list[str]]) -> None:
        try:
            self._world.hook(when, commands)
        except Killed:
            self.process = None
            raise


def _id(position: Any) -> Id:
    return parse(str(position))


def _bounds(part: Range) -> tuple[Id, Id, int]:
    return _id(part.after), _id(part.last), part.count


# -- one history of the model and of the product, compared step by step ------------------------------------------------


def trace_of(product: Product, seed: int, scenario: Scenario, is_model: bool) -> tuple[list[Any], list[str]]:
    """Run a history. Return its steps, and what went wrong that no limit explains."""
    steps: list[Any] = []
    world = World(product.server, seed, scenario, MODEL if is_model else product, steps)
    world.run()
    return steps, [failure for failure in world.wrong if not limit_of(kind_of(failure))]


def differences(product: Product, seed: int, scenario: Scenario) -> list[str]:
    """Return the first step in which model and product differ, and what went wrong in one of them."""
    model, wrong = trace_of(product, seed, scenario, is_model=True)
    steps, also_wrong = trace_of(product, seed, scenario, is_model=False)
    found = [f"{scenario.name}, seed {seed}: {failure}" for failure in (*wrong, *also_wrong)]
    place = next((n for n, pair in enumerate(zip(model, steps, strict=False)) if pair[0] != pair[1]), len(model))
    if model != steps:
        found.append(
            f"{scenario.name}, seed {seed}, step {place}: {model[place : place + 1]} {steps[place : place + 1]}"
        )
    return found
