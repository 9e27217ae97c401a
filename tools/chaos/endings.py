"""The end of a run that reads what is there and ends: nothing is pending then."""

from __future__ import annotations

from tools.chaos.gather import pending
from tools.chaos.scene import Outcome, Scene


def once(scene: Scene) -> Outcome:
    """trigger(once=True) says nothing of its commit (FACTS S25): it is refused by name before anything is given to the
    query, which then reads with availableNow."""
    query = scene.query(None, maxEntriesPerTrigger="30", entriesPerPartition="15")
    scene.producer.add(scene.name, scene.random.randint(20, 80))
    error, _ = scene.run(query, "once")
    left = len(pending(query, scene.name))
    scene.drain(query)
    outcome = scene.outcome(query)
    outcome.expect_error(error, "RSTREAM_UNSUPPORTED")
    outcome.expect("pending after the refusal", left, 0)
    return outcome


def available_now(scene: Scene) -> Outcome:
    """trigger(availableNow=True): batch after batch up to what was there when it began. Twice, with more in between."""
    query = scene.query(None, maxEntriesPerTrigger="30", entriesPerPartition="15")
    left, errors = [], []
    for _ in range(2):
        scene.producer.add(scene.name, scene.random.randint(20, 80))
        error, _ = scene.run(query, "now")
        errors.append(error)
        left.append(len(pending(query, scene.name)))
    outcome = scene.outcome(query)
    outcome.expect("errors", errors, ["", ""])
    outcome.expect("pending after each run", left, [0, 0])
    return outcome
