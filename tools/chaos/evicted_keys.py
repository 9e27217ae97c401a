"""The source's and sink's own keys are evicted between two batches: the query reports it, or it does no harm."""

from __future__ import annotations

import redis

from tools.chaos.accounts import Intervention
from tools.chaos.aftermath import judge, run_to_end
from tools.chaos.moments import DOWN, Moment, run_to_moment
from tools.chaos.scene import Outcome, Scene

STAGES = ("looked", "reserved", "committed", DOWN)


def at_a_moment(scene: Scene, moment: Moment | None = None) -> Outcome:
    """DEL a sample of all `rstream:*` keys. Some entries become dead letters."""
    moment = moment or Moment.by_chance(scene, *STAGES)
    options = {"mode": "DEADLETTER", "deadLetterStream": f"{scene.name}-dead"}
    query = scene.query(moment.fault, maxEntriesPerTrigger="40", entriesPerPartition="15", **options)
    bad = set()
    for _ in range(6):
        scene.producer.add(scene.name, scene.random.randint(15, 25))
        if scene.random.random() < 0.5:
            bad.add((scene.name, scene.client.xadd(scene.name, {"p": "bad", "n": "no number"})))
    deleted: list[str] = []

    def evict() -> None:
        if moment.stage == DOWN:
            scene.drain(query)  # completes the batch in which the query was stopped, which needs the ledger
        for url in {query.url, query.out_address}:
            with redis.Redis.from_url(url, protocol=2, decode_responses=True) as client:
                keys = sorted(client.scan_iter("rstream:*", count=1000))
                count = min(len(keys), scene.random.choice([1, len(keys), scene.random.randint(1, 5)]))
                evicted = scene.random.sample(keys, count)
                if evicted:
                    client.delete(*evicted)
                deleted.extend(evicted)
        scene.producer.add(scene.name, 30)

    running = run_to_moment(scene, query, moment, evict)
    after = run_to_end(scene, query, running)
    # Without its note an entry becomes no dead letter: a strict query stops, and a lenient run then counts it as lost.
    lost_notes = after.errors and any(key.startswith("rstream:notes:") for key in deleted)
    outcome = judge(scene, query, after, Intervention(either=bad if lost_notes else set()))
    outcome.history.bad = bad
    outcome.report.buried = [place for place in outcome.history.dead_letters if place not in bad]
    if not after.errors:
        outcome.expect("dead letters", sorted(set(outcome.history.dead_letters)), sorted(bad))
    outcome.choices = f"{moment}, {len(deleted)} keys: {sorted(deleted)}"
    return outcome
