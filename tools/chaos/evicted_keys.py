"""Keys that the product keeps beside streams are evicted between two batches: that is noticed, or it does no harm."""

from __future__ import annotations

import redis

from tools.chaos.accounts import Done
from tools.chaos.aftermath import judge, live_on
from tools.chaos.moments import DOWN, Moment, meet
from tools.chaos.scene import Outcome, Scene

STAGES = ("looked", "reserved", "committed", DOWN)


def at_a_moment(scene: Scene, moment: Moment | None = None) -> Outcome:
    """DEL of some of all `rstream:*` keys; among the entries are some that become dead letters."""
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
            scene.drain(query)  # it was stopped in the midst of a batch; its ledger is needed
        for url in {query.url, query.out_at}:
            with redis.Redis.from_url(url, protocol=2, decode_responses=True) as client:
                keys = sorted(client.scan_iter("rstream:*", count=1000))
                count = min(len(keys), scene.random.choice([1, len(keys), scene.random.randint(1, 5)]))
                some = scene.random.sample(keys, count)
                if some:
                    client.delete(*some)
                deleted.extend(some)
        scene.producer.add(scene.name, 30)

    running = meet(scene, query, moment, evict)
    after = live_on(scene, query, running)
    # A deleted note takes its dead letter with it: a strict query stops, and the lenient run after it counts the entry.
    lost_notes = after.errors and any(key.startswith("rstream:notes:") for key in deleted)
    outcome = judge(scene, query, after, Done(either=bad if lost_notes else set()))
    outcome.history.bad = bad
    outcome.report.buried = [place for place in outcome.history.letters if place not in bad]
    if not after.errors:
        outcome.expect("dead letters", sorted(set(outcome.history.letters)), sorted(bad))
    outcome.chosen = f"{moment}, {len(deleted)} keys: {sorted(deleted)}"
    return outcome
