"""The fault of a query in one of its processes: it raises, dies, stands still, or leaves a zombie behind.

A process that stands still creates the query's file `held`. If it may continue, it waits for `go` (chaos.query).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, Protocol

import pyarrow as pa
from pyspark import TaskContext

from tools.chaos.query import Fault, Query

ZOMBIE_SECONDS = 90.0  # after which a zombie without `wake` ends


class FaultRaised(Exception):  # noqa: N818 - not an error of the program
    """A task fails because the test requires it."""


class Strike:
    """Fault of the current task. rows: of the task before it happens."""

    def __init__(self, fault: Fault, query: Query, context: TaskContext) -> None:
        self.rows, self.fault, self._query, self._context = fault.rows, fault, query, context

    @classmethod
    def for_task(cls, query: Query, stage: str) -> Strike | None:
        """Return the fault of the current task, or None.

        It happens in the fault's batch and stage, in the first attempt of the first task. A `crash`, and the rest of an
        `orphan`, happens in every task and attempt.
        """
        fault, context = query.fault, TaskContext.get()
        if fault is None or context is None or fault.stage != stage:
            return None
        if context.getLocalProperty("streaming.sql.batchId") != str(fault.batch):
            return None
        if fault.kind == "orphan":
            fault = replace(fault, kind="zombie" if _is_first(query) else "crash")
        elif fault.kind != "crash" and (context.attemptNumber() > 0 or not _is_first(query)):
            return None
        return cls(fault, query, context)

    def now(self) -> None:
        """Make the fault happen."""
        task = f"partition {self._context.partitionId()} of batch {self.fault.batch}"
        if self.fault.kind in ("raise", "crash"):
            raise FaultRaised(f"{task} fails in attempt {self._context.attemptNumber()}")
        if self.fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault.kind == "hold":
            hold(self._query)
        if self.fault.kind == "pause":
            pause(self._query)
        if self.fault.kind == "wait":
            twin = f"{self.fault.batch}-{self._context.partitionId()}-1-*.jsonl"
            wait_for_file(self._query.path / "rows", twin)
            self._query.sign("twin").touch()


class Happening(Protocol):
    """Fault of a task after `rows` rows."""

    rows: int

    def now(self) -> None:
        """Make the fault happen."""


def apply_strike(batches: Iterator[pa.RecordBatch], strike: Happening | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task with the fault between them. Rows follow only if the task survives it."""
    remaining_rows = strike.rows if strike else 0
    for batch in batches:
        if strike is None or batch.num_rows < remaining_rows:
            remaining_rows -= batch.num_rows
            yield batch
            continue
        if remaining_rows:
            yield batch.slice(0, remaining_rows)
        strike.now()
        yield batch.slice(remaining_rows)
        strike = None
    if strike is not None:  # the task has fewer rows
        strike.now()


class Sleep:
    """Fault of a zombie: after `rows` rows it stands still until `wake` exists."""

    def __init__(self, query: Query, rows: int) -> None:
        self.rows, self._query = rows, query

    def now(self) -> None:
        """Make the fault happen."""
        self._query.sign("asleep").touch()
        wait_for_file(self._query.sign("wake"), seconds=ZOMBIE_SECONDS)


def leave_a_zombie(query: Query, rows: int, write: Callable[[Sleep], str]) -> NoReturn:
    """Fail this task, and leave a copy of its process that does the task's work when `wake` exists.

    The copy knows nothing of what happened between. write: called in the copy; the file `zombie` holds its result or
    error.
    """
    if os.fork() == 0:
        outcome = ""
        try:
            outcome = write(Sleep(query, rows))
        except BaseException as error:  # noqa: BLE001 - the copy must end here after any error
            outcome = f"{type(error).__name__}: {error}"
        finally:
            note(query, "zombie", outcome)
            os._exit(0)
    wait_for_file(query.sign("asleep"))
    raise FaultRaised("the attempt is given up; its process lives on")


def _is_first(query: Query) -> bool:
    """Whether this is the first task that reaches the fault. True once."""
    try:
        query.sign("struck").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def wait_for_file(folder: Path, pattern: str = "", seconds: float = 60.0) -> None:
    """Wait until such a file exists. Raises FaultRaised after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (list(folder.glob(pattern)) if pattern else folder.exists()):
        if time.monotonic() > deadline:
            raise FaultRaised(f"no file {folder / pattern} within {seconds:g} s")
        time.sleep(0.02)


def note(query: Query, name: str, text: str) -> None:
    """Write a file in the query's folder atomically."""
    unfinished = query.path / f"{query.driver}{name}.{os.getpid()}"
    unfinished.write_text(text)
    os.replace(unfinished, query.sign(name))


def hold(query: Query) -> None:
    """Report that the kill point is reached, and stand still until killed."""
    note(query, "held", str(os.getpid()))
    while True:
        signal.pause()


def pause(query: Query) -> None:
    """Report that the moment has come, and stand still until `go` exists; once."""
    if not query.held():
        note(query, "held", str(os.getpid()))
        wait_for_file(query.sign("go"))


def stand_still(query: Query, stage: str, batch: int) -> None:
    """Hold or pause if the fault is at this stage of this batch."""
    fault = query.fault
    if fault is None or (fault.stage, fault.batch) != (stage, batch):
        return
    if fault.kind == "hold":
        hold(query)
    if fault.kind == "pause":
        pause(query)
