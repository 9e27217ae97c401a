"""A task of the exactly-once sink stands still while the query continues without it, and then writes: no row twice.

It knows nothing of what happened between: another attempt, the end of its query, the next run, later batches.
"""

from __future__ import annotations

from dataclasses import replace

from tools.chaos.query import Fault, Query, into_a_stream
from tools.chaos.scene import Outcome, Scene


def task(
    scene: Scene, later_batches: int | None = None, elsewhere: bool | None = None, rows: int | None = None
) -> Outcome:
    """Give up the task's attempt; another attempt writes.

    later_batches: before the task continues; elsewhere: these write to another stream, so that they do not use the
    ledger of the task's stream; rows: that the task had written before.
    """
    query, later_batches = _query(scene, "zombie", later_batches, elsewhere, rows)
    running = scene.start(query)
    scene.wait_for(lambda: query.committed() >= _batch(query), "the batch of another attempt", running)
    _go_on(scene, later_batches)
    scene.wait_for(lambda: _is_done(scene, query, later_batches), "the batches after it", running)
    _wake(scene, query)
    running.processAllAvailable()
    running.stop()
    return _outcome(scene, query, later_batches)


def of_an_old_run(scene: Scene, later_batches: int | None = None, elsewhere: bool | None = None) -> Outcome:
    """Stop the query with an unfinished batch, and start it again, before the task continues."""
    query, later_batches = _query(scene, "orphan", later_batches, elsewhere, None)
    error, _ = scene.run(query, "always")
    running = scene.start(replace(query, fault=None))
    scene.wait_for(lambda: query.committed() >= _batch(query), "the batch of the new run", running)
    _go_on(scene, later_batches)
    scene.wait_for(lambda: _is_done(scene, query, later_batches), "the batches after it", running)
    _wake(scene, query)
    running.processAllAvailable()
    running.stop()
    outcome = _outcome(scene, query, later_batches)
    if "is given up" not in error and "fails in attempt" not in error:
        outcome.wrong.append(f"the first run ended with {error[:300]!r}")
    return outcome


def _query(
    scene: Scene, kind: str, later_batches: int | None, elsewhere: bool | None, rows: int | None
) -> tuple[Query, int]:
    later_batches = scene.random.randint(0, 3) if later_batches is None else later_batches
    elsewhere = scene.random.choice([True, False]) if elsewhere is None else elsewhere
    rows = scene.random.choice([0, 0, 7]) if rows is None else rows
    fault = Fault(kind, scene.random.randint(0, 1), "writing", rows=rows)
    streams = f"{scene.name}:0,{scene.name}:1"
    query = scene.query(fault, streams=streams, maxEntriesPerTrigger="30", entriesPerPartition="15")
    query = replace(into_a_stream(query, scene.random), routed=elsewhere, out_options={"chunkSize": "3"})
    scene.producer.add(f"{scene.name}:0", 30 * (fault.batch + 1))
    return query, later_batches


def _batch(query: Query) -> int:
    assert query.fault is not None
    return query.fault.batch


def _go_on(scene: Scene, batches: int) -> None:
    """Add entries for this number of batches. If the query is routed, none writes to the zombie's stream."""
    for _ in range(batches):
        scene.producer.add(f"{scene.name}:1", 30)


def _wake(scene: Scene, query: Query) -> None:
    query.sign("wake").touch()
    scene.wait_for(lambda: query.sign("zombie").exists(), "the zombie to end")


def _is_done(scene: Scene, query: Query, later_batches: int) -> bool:
    streams = [f"{scene.name}:0", *([f"{scene.name}:1"] if later_batches else [])]
    return query.committed() >= _batch(query) + later_batches and all(
        scene.is_settled(query, stream) for stream in streams
    )


def _outcome(scene: Scene, query: Query, later_batches: int) -> Outcome:
    report = query.sign("zombie").read_text()
    outcome = scene.outcome(query)
    assert query.fault is not None
    where = "a stream for each" if query.routed else "one stream"
    outcome.choices = (
        f"batch {query.fault.batch}, {later_batches} later, {query.fault.rows} rows, {where}; zombie: {report[:150]}"
    )
    if "no file" in report:
        outcome.wrong.append(f"the zombie did not continue: {report[:300]}")
    return outcome
