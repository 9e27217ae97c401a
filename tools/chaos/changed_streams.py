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
    """Where they are."""
    return [one.place for one in added if one.place is not None]


def trimmed_past_the_offset(scene: Scene) -> Outcome:
    """XTRIM takes entries that the group has not come to. A strict query stops; a lenient one counts them."""
    query = scene.query(maxEntriesPerTrigger=str(scene.random.randint(30, 60)))
    scene.producer.add(scene.name, scene.random.randint(50, 70))
    scene.drain(query)
    unread = places(scene.producer.add(scene.name, scene.random.randint(60, 90)))
    lost = scene.random.randint(1, len(unread) - 1)
    scene.client.xtrim(scene.name, maxlen=len(unread) - lost, approximate=False)
    error, _ = scene.run(query)
    running = scene.drain(query, **LENIENT)
    outcome = scene.outcome(query, gone=unread[:lost])
    outcome.expect_error(error, "RSTREAM_DATA_LOSS")
    outcome.expect("lost, says the progress", scene.told(running, "lost").get(scene.name, 0), lost)
    return outcome


def deleted_while_pending(scene: Scene) -> Outcome:
    """XDEL and XTRIM take entries of a batch that is in the offset log and not read yet. As above."""
    query = scene.query(Fault("pause", 1, "logged"), maxEntriesPerTrigger=str(BATCH), entriesPerPartition="15")
    scene.producer.add(scene.name, 100)
    running = scene.start(query)
    scene.wait_for(query.held, "the pause", running)
    batch = places(scene.producer.added)[BATCH : 2 * BATCH]
    trimmed = scene.random.randint(1, 10)
    scene.client.xtrim(scene.name, maxlen=100 - BATCH - trimmed, approximate=False)
    deleted = scene.random.sample(batch[trimmed:], scene.random.randint(1, 10))
    scene.client.xdel(scene.name, *[entry for _, entry in deleted])
    gone = [*batch[:trimmed], *deleted]
    scene.let_go(query)
    scene.wait_for(lambda: not running.isActive, "the strict query to stop")
    again = scene.drain(query, **LENIENT)
    outcome = scene.outcome(query, gone=gone)
    outcome.expect_error(error_of(running), "RSTREAM_DATA_LOSS")
    outcome.expect("lost, says the progress", scene.told(again, "lost").get(scene.name, 0), len(gone))
    return outcome


def group_destroyed(scene: Scene) -> Outcome:
    """XGROUP DESTROY between batches. A lenient query makes the group again at the checkpoint: nothing is lost."""

    def destroy() -> list[Place]:
        assert [scene.client.xgroup_destroy(scene.name, group) for group in ("g", "strict")] == [1, 1]
        return []

    return _taken_from_under(scene, destroy, "RSTREAM_GROUP_MISSING")


def stream_deleted(scene: Scene) -> Outcome:
    """DEL between batches: what the group had not read is lost and counted; what comes after is read."""

    def delete() -> list[Place]:
        scene.client.delete(scene.name)
        return places(scene.producer.added)[BATCH:]

    return _taken_from_under(scene, delete, "RSTREAM_DATA_LOSS")


def flushed(scene: Scene) -> Outcome:
    """FLUSHALL between batches. The same."""

    def flush() -> list[Place]:
        if scene.sink == "stream":
            scene.client.flushdb()
        else:
            scene.client.flushall()
        return places(scene.producer.added)[BATCH:]

    if scene.sink == "stream":  # in a database of its own, and not flushed with it
        scene.out_url = other_database(scene.url)

    return _taken_from_under(scene, flush, "RSTREAM_DATA_LOSS")


def _taken_from_under(scene: Scene, take: Callable[[], list[Place]], condition: str) -> Outcome:
    """A strict and a lenient query of two groups have committed batch 0; `take` happens before their next trigger."""
    first = scene.producer.add(scene.name, scene.random.randint(80, 120))[:BATCH]
    pause, limit = Fault("pause", 0, "committed"), str(BATCH)
    lenient = scene.query(pause, maxEntriesPerTrigger=limit, **LENIENT)
    strict = scene.query(pause, suffix="-strict", group="strict", maxEntriesPerTrigger=limit)
    running, stopped = scene.start(lenient), scene.start(strict)
    scene.wait_for(lenient.held, "the pause", running)
    scene.wait_for(strict.held, "the pause", stopped)
    lost = take()
    scene.let_go(strict)
    scene.wait_for(lambda: not stopped.isActive, "the strict query to stop")
    scene.producer.add(scene.name, scene.random.randint(20, 60))
    scene.let_go(lenient)
    scene.wait_for(lambda: scene.is_settled(lenient), "the end of what came after", running)
    running.processAllAvailable()
    counted = scene.told(running, "lost").get(scene.name, 0)
    running.stop()
    outcome = scene.outcome(lenient, gone=lost, forgotten=places(first))
    outcome.expect_error(error_of(stopped), condition)
    outcome.expect("lost, says the progress", counted, len(lost))
    return outcome
