"""Streams and groups that change under a query: trimmed, deleted, destroyed, flushed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tools.chaos.history import Added, Place
from tools.chaos.job import error_of
from tools.chaos.query import Fault
from tools.chaos.scene import Outcome, Scene
from tools.chaos.servers import other_database

BATCH = 40  # entries
LENIENT = {"failOnDataLoss": "false"}


def places(added: Iterable[Added]) -> list[Place]:
    """Return stream and ID of the entries that have an ID."""
    return [entry.place for entry in added if entry.place is not None]


def trimmed_past_the_offset(scene: Scene) -> Outcome:
    """XTRIM entries that the group has not delivered. A strict query stops; a lenient one counts them."""
    query = scene.query(maxEntriesPerTrigger=str(scene.random.randint(30, 60)))
    scene.producer.add(scene.name, scene.random.randint(50, 70))
    scene.drain(query)
    unread = places(scene.producer.add(scene.name, scene.random.randint(60, 90)))
    lost = scene.random.randint(1, len(unread) - 1)
    scene.client.xtrim(scene.name, maxlen=len(unread) - lost, approximate=False)
    error, _ = scene.run(query)
    running = scene.drain(query, **LENIENT)
    outcome = scene.outcome(query, removed=unread[:lost])
    outcome.expect_error(error, "RSTREAM_DATA_LOSS")
    outcome.expect("lost entries in the progress", scene.reported(running, "lost").get(scene.name, 0), lost)
    return outcome


def deleted_while_pending(scene: Scene) -> Outcome:
    """XDEL and XTRIM entries of a batch that is in the offset log and not yet read. A lenient query counts them."""
    query = scene.query(Fault("pause", 1, "logged"), maxEntriesPerTrigger=str(BATCH), entriesPerPartition="15")
    scene.producer.add(scene.name, 100)
    running = scene.start(query)
    scene.wait_for(query.held, "the pause", running)
    batch = places(scene.producer.added)[BATCH : 2 * BATCH]
    trimmed = scene.random.randint(1, 10)
    scene.client.xtrim(scene.name, maxlen=100 - BATCH - trimmed, approximate=False)
    deleted = scene.random.sample(batch[trimmed:], scene.random.randint(1, 10))
    scene.client.xdel(scene.name, *[entry for _, entry in deleted])
    removed = [*batch[:trimmed], *deleted]
    scene.resume(query)
    scene.wait_for(lambda: not running.isActive, "the strict query to stop")
    restarted = scene.drain(query, **LENIENT)
    outcome = scene.outcome(query, removed=removed)
    outcome.expect_error(error_of(running), "RSTREAM_DATA_LOSS")
    outcome.expect("lost entries in the progress", scene.reported(restarted, "lost").get(scene.name, 0), len(removed))
    return outcome


def group_destroyed(scene: Scene) -> Outcome:
    """XGROUP DESTROY between batches. A lenient query creates the group again at the checkpoint: nothing is lost."""

    def destroy() -> list[Place]:
        assert [scene.client.xgroup_destroy(scene.name, group) for group in ("g", "strict")] == [1, 1]
        return []

    return _change_while_paused(scene, destroy, "RSTREAM_GROUP_MISSING")


def stream_deleted(scene: Scene) -> Outcome:
    """DEL between batches: entries that the group had not read are lost and counted; later entries are read."""

    def delete() -> list[Place]:
        scene.client.delete(scene.name)
        return places(scene.producer.added)[BATCH:]

    return _change_while_paused(scene, delete, "RSTREAM_DATA_LOSS")


def flushed(scene: Scene) -> Outcome:
    """FLUSHALL between batches: as `stream_deleted`."""

    def flush() -> list[Place]:
        if scene.sink == "stream":
            scene.client.flushdb()
        else:
            scene.client.flushall()
        return places(scene.producer.added)[BATCH:]

    if scene.sink == "stream":  # another database, which is not flushed
        scene.out_url = other_database(scene.url)

    return _change_while_paused(scene, flush, "RSTREAM_DATA_LOSS")


def _change_while_paused(scene: Scene, take: Callable[[], list[Place]], condition: str) -> Outcome:
    """Run a strict and a lenient query in two groups; call `take` between batch 0 and their next trigger."""
    first = scene.producer.add(scene.name, scene.random.randint(80, 120))[:BATCH]
    pause, limit = Fault("pause", 0, "committed"), str(BATCH)
    lenient = scene.query(pause, maxEntriesPerTrigger=limit, **LENIENT)
    strict = scene.query(pause, suffix="-strict", group="strict", maxEntriesPerTrigger=limit)
    running, stopped = scene.start(lenient), scene.start(strict)
    scene.wait_for(lenient.held, "the pause", running)
    scene.wait_for(strict.held, "the pause", stopped)
    lost = take()
    scene.resume(strict)
    scene.wait_for(lambda: not stopped.isActive, "the strict query to stop")
    scene.producer.add(scene.name, scene.random.randint(20, 60))
    scene.resume(lenient)
    scene.wait_for(lambda: scene.is_settled(lenient), "the later entries to be settled", running)
    running.processAllAvailable()
    counted = scene.reported(running, "lost").get(scene.name, 0)
    running.stop()
    outcome = scene.outcome(lenient, removed=lost, forgotten=places(first))
    outcome.expect_error(error_of(stopped), condition)
    outcome.expect("lost entries in the progress", counted, len(lost))
    return outcome
