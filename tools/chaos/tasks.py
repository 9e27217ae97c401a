"""A task fails, has a twin, or stands still; and the end of a run that reads all entries."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from spark_streams.operations.verify.running_query import processes_of
from tools.chaos.query import Fault
from tools.chaos.stage import Case, Spark, Stage, is_committed

# -- a task fails in its first attempt, or a speculative one is faster -------------------------------------------------

# name: (kind of fault, stage of the task)
FAILURES = {
    "raises while reading": ("raise", "reading"),
    "raises while writing": ("raise", "writing"),
    "Python killed while reading": ("kill", "reading"),
    "Python killed while writing": ("kill", "writing"),
}
EXECUTOR_FAILURES = {"executor killed": ("hold", "reading"), "speculative twin": ("wait", "reading")}


def failed(stage: Stage, fault: str) -> None:
    """A task raises, or its Python process is killed at some row."""
    _fail(stage.spark(), fault, stage.case(fault))


def failed_on_executors(stage: Stage, faults: Iterable[str]) -> None:
    """The executor of a task is killed, or its speculative twin is faster, in one small cluster."""
    with Spark(stage.folder, on_executors=True) as spark:
        for fault, case in stage.case_of_each(faults):
            _fail(spark, fault, case)


def _fail(spark: Spark, name: str, case: Case) -> None:
    chance, (kind, stage) = case.random, (FAILURES | EXECUTOR_FAILURES)[name]
    fault = Fault(kind, 0, stage, rows=chance.randint(0, 20))
    limits = {"maxEntriesPerTrigger": str(chance.randint(60, 100)), "entriesPerPartition": str(chance.randint(20, 50))}
    query = replace(case.reads(fault, **limits), trigger="now")
    case.add(chance.randint(80, 120))
    spark.start(query)
    if kind == "hold":
        spark.wait_for(partial(query.has, "held"), f"the kill point of {query.name}", query)
        _kill_executor_of(spark, int(query.sign("held").read_text()))
    case.expect("error", spark.end(query), "")
    case.expect("the fault has happened", query.has("twin" if kind == "wait" else "struck"), True)
    case.judge()
    attempts = {row.attempt for row in case.history.kept()}
    if kind == "hold":
        case.expect("a later attempt has written", any(attempts), True)
    elif kind != "wait":
        case.expect("attempts", attempts, {0, 1})


def _kill_executor_of(spark: Spark, pid: int) -> None:
    """SIGKILL the executor that started this Python worker."""
    executors = {pid for pid, command in processes_of(spark.process.pid) if "CoarseGrainedExecutorBackend" in command}
    while pid not in executors:
        assert pid > 1, "the worker has no executor among its parents"
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGKILL)


# -- a run that reads all entries and ends -----------------------------------------------------------------------------


def once(stage: Stage) -> None:
    """trigger(once=True) is refused by a named error, because Spark reports no commit for it (FACTS S25).

    The refusal comes before the group delivers an entry. The query then reads with availableNow.
    """
    case, spark = stage.case(), stage.spark()
    query = case.reads(maxEntriesPerTrigger="30", entriesPerPartition="15")
    case.add(stage.random.randint(20, 80))
    case.expect_error(spark.run(query, "once"), "RSTREAM_UNSUPPORTED")
    case.expect("pending after the refusal", case.pending(), [])
    spark.drain(query)
    case.judge()


def available_now(stage: Stage) -> None:
    """trigger(availableNow=True) reads in batches up to the last entry at its start. Two runs."""
    case, spark = stage.case(), stage.spark()
    query = case.reads(maxEntriesPerTrigger="30", entriesPerPartition="15")
    for _ in range(2):
        case.add(stage.random.randint(20, 80))
        case.expect("error", spark.run(query), "")
        case.expect("pending after the run", case.pending(), [])
    case.judge()


# -- a task of the exactly-once sink stands still while the query continues without it, and then writes ----------------


def zombie(
    stage: Stage,
    of_an_old_run: bool = False,
    later_batches: int | None = None,
    elsewhere: bool | None = None,
    rows: int | None = None,
) -> None:
    """Give up the task's attempt; another attempt writes, or another run of the query. Then the zombie continues.

    later_batches: before that; elsewhere: these write to another stream, so that they do not use the ledger of the
    task's stream; rows: that the task had written before.
    """
    case, spark, chance = stage.case(), stage.spark(), stage.random
    later = chance.randint(0, 3) if later_batches is None else later_batches
    fault = Fault("orphan" if of_an_old_run else "zombie", chance.randint(0, 1), "writing", chance.choice([0, 0, 7]))
    fault = fault if rows is None else replace(fault, rows=rows)
    first, second = f"{case.name}:0", f"{case.name}:1"
    query = case.reads(fault, streams=f"{first},{second}", maxEntriesPerTrigger="30", entriesPerPartition="15")
    routed = chance.choice([True, False]) if elsewhere is None else elsewhere
    query = case.query = replace(query, routed=routed, out_options={"chunkSize": "3"})
    case.add(30 * (fault.batch + 1), first)
    running = query
    if of_an_old_run:
        error = spark.run(query, "always")
        if "is given up" not in error and "fails in attempt" not in error:
            case.wrong.append(f"the first run ended with {error[:300]!r}")
        running = replace(query, fault=None, driver="next-")  # keeps the signals of the zombie
    spark.start(running)
    spark.wait_for(partial(is_committed, query, fault.batch), "the batch of another attempt", running)
    for _ in range(later):
        case.add(30, second)
    streams = [first, second] if later else [first]
    spark.wait_for(
        lambda: query.committed() >= fault.batch + later and case.is_acknowledged(*streams), "later batches", running
    )
    query.sign("wake").touch()
    spark.wait_for(partial(query.has, "zombie"), "the zombie to end")
    case.expect("error", spark.stop(running), "")
    report = query.sign("zombie").read_text()
    where = "a stream for each" if routed else "one stream"
    case.choices = f"batch {fault.batch}, {later} later, {fault.rows} rows, {where}; zombie: {report[:150]}"
    if "no file" in report:
        case.wrong.append(f"the zombie did not continue: {report[:300]}")
    case.judge()
