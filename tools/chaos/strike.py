"""The fault of a query as one of its processes meets it: it raises, dies, stands still, or leaves a zombie behind.

A process that stands still says so in the query's file `held` and, where it may go on, waits for `go` (chaos.query).
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

ZOMBIE_SECONDS = 90.0  # after that a zombie that nobody has woken is gone


class FaultRaised(Exception):  # noqa: N818 - it is no error of anybody
    """A task fails because the test wants it to."""


class Strike:
    """rows: after how many of the task's rows it happens."""

    def __init__(self, fault: Fault, query: Query, context: TaskContext) -> None:
        self.rows, self.fault, self._query, self._context = fault.rows, fault, query, context

    @classmethod
    def of(cls, query: Query, stage: str) -> Strike | None:
        """In the fault's batch and stage, at the task that comes first, in its first attempt. A `crash` happens to
        every task and attempt, and so does what is left of an `orphan`."""
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
        """It happens."""
        where = f"partition {self._context.partitionId()} of batch {self.fault.batch}"
        if self.fault.kind in ("raise", "crash"):
            raise FaultRaised(f"{where} fails in attempt {self._context.attemptNumber()}")
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
    """What happens in a task after so many rows."""

    rows: int

    def now(self) -> None:
        """It happens."""


def struck(batches: Iterator[pa.RecordBatch], strike: Happening | None) -> Iterator[pa.RecordBatch]:
    """The rows of a task, until the fault strikes, and what is left where it goes on."""
    left = strike.rows if strike else 0
    for batch in batches:
        if strike is None or batch.num_rows < left:
            left -= batch.num_rows
            yield batch
            continue
        if left:
            yield batch.slice(0, left)
        strike.now()
        yield batch.slice(left)
        strike = None
    if strike is not None:  # fewer rows than the fault wanted to wait for
        strike.now()


class Sleep:
    """The fault of a zombie: after `rows` rows it stands still until it is woken."""

    def __init__(self, query: Query, rows: int) -> None:
        self.rows, self._query = rows, query

    def now(self) -> None:
        """It happens."""
        self._query.sign("asleep").touch()
        wait_for_file(self._query.sign("wake"), seconds=ZOMBIE_SECONDS)


def leave_a_zombie(query: Query, rows: int, write: Callable[[Sleep], str]) -> NoReturn:
    """This task fails, and a copy of its process does what it was to do once it is woken: it saw nothing of what came
    between.

    write: called in the copy; what it says or raises is left in `zombie`.
    """
    if os.fork() == 0:
        said = ""
        try:
            said = write(Sleep(query, rows))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the copy must end here
            said = f"{type(error).__name__}: {error}"
        finally:
            note(query, "zombie", said)
            os._exit(0)
    wait_for_file(query.sign("asleep"))
    raise FaultRaised("the task is given up; its process lives on")


def _is_first(query: Query) -> bool:
    """The first task that comes is the one that is struck, and it is struck once."""
    try:
        query.sign("struck").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def wait_for_file(folder: Path, pattern: str = "", seconds: float = 60.0) -> None:
    """Wait until such a file is there; the query fails where that takes too long."""
    deadline = time.monotonic() + seconds
    while not (list(folder.glob(pattern)) if pattern else folder.exists()):
        if time.monotonic() > deadline:
            raise FaultRaised(f"{folder / pattern} has not come")
        time.sleep(0.02)


def note(query: Query, name: str, text: str) -> None:
    """Leave a file in the query's folder, whole or not at all."""
    unfinished = query.path / f"{query.driver}{name}.{os.getpid()}"
    unfinished.write_text(text)
    os.replace(unfinished, query.sign(name))


def hold(query: Query) -> None:
    """Say that the kill point is reached, and stand still until killed."""
    note(query, "held", str(os.getpid()))
    while True:
        signal.pause()


def pause(query: Query) -> None:
    """Say that the moment has come, and stand still until the query may go on; once."""
    if not query.held():
        note(query, "held", str(os.getpid()))
        wait_for_file(query.sign("go"))


def stand_still(query: Query, stage: str, batch: int) -> None:
    """Hold or pause where the fault is at this stage of this batch."""
    fault = query.fault
    if fault is None or (fault.stage, fault.batch) != (stage, batch):
        return
    if fault.kind == "hold":
        hold(query)
    if fault.kind == "pause":
        pause(query)
