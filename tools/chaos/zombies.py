"""A task of the exactly-once sink stands still while everything goes on without it, and then writes: not one row twice.

It knows nothing of what came between: a twin of it, its query's end, the next run of the query, later batches.
"""

from __future__ import annotations

from dataclasses import replace

from tools.chaos.query import Fault, Query, into_a_stream
from tools.chaos.scene import Outcome, Scene


def task(scene: Scene, later: int | None = None, elsewhere: bool | None = None, rows: int | None = None) -> Outcome:
    """Its attempt is given up, and another one writes. later: batches until it wakes; elsewhere: these write to another
    stream, so that the ledger of its own is of no more use; rows: that it had written before."""
    query, later = _query(scene, "zombie", later, elsewhere, rows)
    running = scene.start(query)
    scene.wait_for(lambda: query.committed() >= _batch(query), "the batch of another attempt", running)
    _go_on(scene, later)
    scene.wait_for(lambda: _is_done(scene, query, later), "the batches after it", running)
    _wake(scene, query)
    running.processAllAvailable()
    running.stop()
    return _outcome(scene, query, later)


def of_an_old_run(scene: Scene, later: int | None = None, elsewhere: bool | None = None) -> Outcome:
    """Its query is stopped with its batch unfinished, and started again, before it wakes."""
    query, later = _query(scene, "orphan", later, elsewhere, None)
    error, _ = scene.run(query, "always")
    running = scene.start(replace(query, fault=None))
    scene.wait_for(lambda: query.committed() >= _batch(query), "the batch of the new run", running)
    _go_on(scene, later)
    scene.wait_for(lambda: _is_done(scene, query, later), "the batches after it", running)
    _wake(scene, query)
    running.processAllAvailable()
    running.stop()
    outcome = _outcome(scene, query, later)
    if "is given up" not in error and "fails in attempt" not in error:
        outcome.wrong.append(f"the first run ended with {error[:300]!r}")
    return outcome


def _query(scene: Scene, kind: str, later: int | None, elsewhere: bool | None, rows: int | None) -> tuple[Query, int]:
    later = scene.random.randint(0, 3) if later is None else later
    elsewhere = scene.random.choice([True, False]) if elsewhere is None else elsewhere
    rows = scene.random.choice([0, 0, 7]) if rows is None else rows
    fault = Fault(kind, scene.random.randint(0, 1), "writing", rows=rows)
    streams = f"{scene.name}:0,{scene.name}:1"
    query = scene.query(fault, streams=streams, maxEntriesPerTrigger="30", entriesPerPartition="15")
    query = replace(into_a_stream(query, scene.random), routed=elsewhere, out_options={"chunkSize": "3"})
    scene.producer.add(f"{scene.name}:0", 30 * (fault.batch + 1))
    return query, later


def _batch(query: Query) -> int:
    assert query.fault is not None
    return query.fault.batch


def _go_on(scene: Scene, later: int) -> None:
    """So many batches more, none of which writes where the zombie's does if each stream has its own."""
    for _ in range(later):
        scene.producer.add(f"{scene.name}:1", 30)


def _wake(scene: Scene, query: Query) -> None:
    query.sign("wake").touch()
    scene.wait_for(lambda: query.sign("zombie").exists(), "the zombie to end")


def _is_done(scene: Scene, query: Query, later: int) -> bool:
    streams = [f"{scene.name}:0", *([f"{scene.name}:1"] if later else [])]
    return query.committed() >= _batch(query) + later and all(scene.is_settled(query, stream) for stream in streams)


def _outcome(scene: Scene, query: Query, later: int) -> Outcome:
    said = query.sign("zombie").read_text()
    outcome = scene.outcome(query)
    assert query.fault is not None
    where = "a stream for each" if query.routed else "one stream"
    outcome.chosen = (
        f"batch {query.fault.batch}, {later} later, {query.fault.rows} rows, {where}; it said: {said[:150]}"
    )
    if "not come" in said:
        outcome.wrong.append(f"the zombie was not woken: {said[:300]}")
    return outcome
