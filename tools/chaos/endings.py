"""The end of a run that reads all entries and ends: nothing is pending then."""

from __future__ import annotations

from tools.chaos.gather import pending
from tools.chaos.scene import Outcome, Scene


def once(scene: Scene) -> Outcome:
    """trigger(once=True) is refused by a named error, because Spark reports no commit for it (FACTS S25).

    The refusal comes before the group delivers an entry. The query then reads with availableNow.
    """
    query = scene.query(None, maxEntriesPerTrigger="30", entriesPerPartition="15")
    scene.producer.add(scene.name, scene.random.randint(20, 80))
    error, _ = scene.run(query, "once")
    pending_count = len(pending(query, scene.name))
    scene.drain(query)
    outcome = scene.outcome(query)
    outcome.expect_error(error, "RSTREAM_UNSUPPORTED")
    outcome.expect("pending after the refusal", pending_count, 0)
    return outcome


def available_now(scene: Scene) -> Outcome:
    """trigger(availableNow=True) reads in batches up to the last entry at its start. Two runs."""
    query = scene.query(None, maxEntriesPerTrigger="30", entriesPerPartition="15")
    pending_counts, errors = [], []
    for _ in range(2):
        scene.producer.add(scene.name, scene.random.randint(20, 80))
        error, _ = scene.run(query, "now")
        errors.append(error)
        pending_counts.append(len(pending(query, scene.name)))
    outcome = scene.outcome(query)
    outcome.expect("errors", errors, ["", ""])
    outcome.expect("pending after each run", pending_counts, [0, 0])
    return outcome
