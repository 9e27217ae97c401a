"""A table whose writer is killed at 22 moments of a batch: the batch is there as a whole or not, and then once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from multiprocessing.synchronize import Event
from pathlib import Path

import pyarrow as pa
import pytest

from tests.legs.recipes.tables import KINDS

pytestmark = pytest.mark.in_turn

ROWS = 1000  # of a batch
SCHEMA = pa.schema({"batch": pa.int32(), "n": pa.int32()})
BY_TIME = 20  # moments, apart from "before" and "after" the commit
PATIENCE = 60.0  # seconds

Kill = Callable[[str], None]


def pages(number: int) -> Iterator[pa.RecordBatch]:
    for begin in range(0, ROWS, 100):
        numbers = pa.array(range(begin, begin + 100), pa.int32())
        yield pa.record_batch([pa.array([number] * 100, pa.int32()), numbers], SCHEMA)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def write(kind: str, folder: Path, number: int, moment: str, begins: Event) -> None:
    """Write a batch in a process of its own, which ends itself at the moment `before` or `after`."""

    def dying() -> Iterator[pa.RecordBatch]:
        yield from pages(number)
        if moment == "before":
            die()

    writing = KINDS[kind](folder).writer("t", "query:table", number, SCHEMA)(dying())
    begins.set()
    list(writing)
    if moment == "after":
        die()


class Writers:
    """Processes that write a batch. They are forked from one that has imported the packages and used none."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind, self._folder = kind, folder
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["deltalake", "pyiceberg.catalog.sql", "pyiceberg.io.pyarrow", __name__])

    def run(self, number: int, moment: str = "", after: float | None = None) -> float:
        """Write a batch, and return the seconds that it took. after: seconds until the process is killed."""
        begins = self._context.Event()
        process = self._context.Process(target=write, args=(self._kind, self._folder, number, moment, begins))
        process.start()
        assert begins.wait(PATIENCE)
        began = time.perf_counter()
        if after is not None:
            time.sleep(after)
            process.kill()
        process.join(PATIENCE)
        assert process.exitcode in ((-signal.SIGKILL, 0) if after is not None else (-signal.SIGKILL if moment else 0,))
        return time.perf_counter() - began


@pytest.mark.parametrize("name", KINDS)
def test_a_batch_is_in_the_table_once_whenever_its_writer_is_killed(name: str, tmp_path: Path) -> None:
    kind, writers = KINDS[name](tmp_path), Writers(name, tmp_path)
    kind.create("t", SCHEMA)

    def batches() -> list[int]:
        """The batches in the table, each as a whole and once."""
        seen = sorted((row["batch"], row["n"]) for row in kind.rows("t"))
        found = sorted({batch for batch, _ in seen})
        assert seen == [(batch, n) for batch in found for n in range(ROWS)]
        return found

    usual = statistics.median(writers.run(number) for number in range(5))
    moments = [("before", None), ("after", None), *(("", 1.6 * usual * n / BY_TIME) for n in range(BY_TIME))]
    were_there = []
    for number, (moment, after) in enumerate(moments, start=5):
        writers.run(number, moment, after)
        were_there.append(batches() == [*range(number + 1)])
        assert were_there[-1] or batches() == [*range(number)]
        for _ in range(2):  # Spark repeats the batch, and is killed once more before its commit log has it
            writers.run(number)
            assert batches() == [*range(number + 1)]
    print(f"{name}: {len(moments)} kills, {sum(were_there)} of them with the batch in the table; a write {usual:.3f} s")
    assert were_there[:2] == [False, True]
