"""Other consumers of a query's group: a dead one with pending entries, a living one, and a second query."""

from __future__ import annotations

from functools import partial

from tools.chaos.history import Place
from tools.chaos.job import error_of
from tools.chaos.query import Fault, Query
from tools.chaos.scene import Outcome, Scene


def take(scene: Scene, count: int, consumer: str = "rogue") -> list[Place]:
    """Read entries as another consumer of the group, without acknowledging them."""
    read = scene.client.xreadgroup("g", consumer, {scene.name: ">"}, count=count)
    return [(scene.name, entry) for _, entries in read for entry, _ in entries]


def dead_consumer(scene: Scene) -> Outcome:
    """A consumer that is no query died with pending entries: after claimIdle the query claims them, once."""
    scene.producer.add(scene.name, scene.random.randint(60, 100))
    scene.client.xgroup_create(scene.name, "g", id="0")
    rogue = take(scene, scene.random.randint(10, 30))
    query = scene.query(Fault("pause", 0, "logged"), claimIdle="200ms", maxEntriesPerTrigger="200")
    # The first batch can claim the entries only after they have been idle for long enough.
    scene.wait_for(lambda: _idle(scene) >= 200, "the entries to be idle")
    running = scene.start(query)
    scene.wait_for(query.held, "the pause", running)
    pending = scene.client.xpending_range(scene.name, "g", "-", "+", 1000)
    claimed = {
        (scene.name, entry["message_id"]): entry for entry in pending if entry["message_id"] in {e for _, e in rogue}
    }
    scene.producer.add(scene.name, 20)
    scene.resume(query)
    scene.wait_for(lambda: scene.is_settled(query), "all to be settled", running)
    running.processAllAvailable()
    taken_over = scene.reported(running, "claimed").get(scene.name, 0)
    running.stop()
    outcome = scene.outcome(query, unordered=rogue)
    outcome.expect("claimed entries in the progress", taken_over, len(rogue))
    outcome.expect("owners", {entry["consumer"] for entry in claimed.values()}, {"spark"})
    outcome.expect("deliveries", {entry["times_delivered"] for entry in claimed.values()}, {2})
    outcome.expect("batches", {row.batch for row in outcome.history.kept() if row.place in set(rogue)}, {0})
    return outcome


def ordered_claims(scene: Scene) -> Outcome:
    """With ordered=true the IDs of a batch ascend, except for entries that were claimed from a dead consumer."""
    scene.producer.add(scene.name, scene.random.randint(20, 30))
    scene.client.xgroup_create(scene.name, "g", id="0")
    rogue = take(scene, scene.random.randint(5, 15))
    options = {"ordered": "true", "claimIdle": "200ms"}
    query = scene.query(None, maxEntriesPerTrigger=str(scene.random.choice([15, 200])), **options)
    # Again: entries of the dead consumer lie between those that the query reads itself.
    scene.drain(query)
    scene.producer.add(scene.name, scene.random.randint(5, 10))
    rogue += take(scene, scene.random.randint(1, 10))
    scene.producer.add(scene.name, scene.random.randint(20, 30))
    scene.wait_for(lambda: _idle(scene) >= 200, "the entries to be idle")
    running = scene.start(query)
    scene.wait_for(lambda: scene.is_settled(query), "all to be settled", running)
    running.processAllAvailable()
    running.stop()
    return scene.outcome(query, unordered=rogue)


def _idle(scene: Scene) -> int:
    """Return milliseconds since the rogue consumer's entries were last delivered."""
    pending = scene.client.xpending_range(scene.name, "g", "-", "+", 1000, consumername="rogue")
    return min(int(entry["time_since_delivered"]) for entry in pending)


def living_consumer(scene: Scene) -> Outcome:
    """Another consumer reads from the same group: each entry is delivered to one of the two, and stays with it."""
    scene.producer.add(scene.name, 60)
    scene.client.xgroup_create(scene.name, "g", id="0")
    query = scene.query(maxEntriesPerTrigger=str(scene.random.randint(15, 30)))
    theirs = take(scene, 7)
    running = scene.start(query)
    for _ in range(6):
        committed = query.committed()
        scene.producer.add(scene.name, scene.random.randint(10, 40))
        theirs += take(scene, scene.random.randint(1, 15))
        scene.wait_for(partial(_has_more, scene, query, committed), "a batch", running)
    scene.wait_for(lambda: _all_read(scene) and not _ours(scene), "all to be settled", running)
    running.processAllAvailable()
    running.stop()
    outcome = scene.outcome(query, foreign=["rogue"], taken=theirs)
    pending = scene.client.xpending_range(scene.name, "g", "-", "+", 1000, consumername="rogue")
    outcome.expect("pending for the other consumer", len(pending), len(theirs))
    return outcome


def _has_more(scene: Scene, query: Query, committed: int) -> bool:
    return query.committed() > committed or _all_read(scene)


def _all_read(scene: Scene) -> bool:
    group = scene.client.xinfo_groups(scene.name)[0]
    return bool(group["last-delivered-id"] == scene.client.xinfo_stream(scene.name)["last-generated-id"])


def _ours(scene: Scene) -> int:
    return sum(c["pending"] for c in scene.client.xinfo_consumers(scene.name, "g") if c["name"] != "rogue")


def double_query(scene: Scene) -> Outcome:
    """A second query with the same group and consumer is refused, without effect on the first.

    When the first query has stopped, the second may use the name.
    """
    scene.producer.add(scene.name, scene.random.randint(60, 100))
    query = scene.query(maxEntriesPerTrigger="30")
    running = scene.start(query)
    scene.wait_for(lambda: query.committed() >= 0, "the first batch", running)
    second = scene.query(suffix="-second")
    error, _ = scene.run(second)
    scene.producer.add(scene.name, scene.random.randint(20, 40))
    scene.wait_for(lambda: scene.is_settled(query), "all to be settled", running)
    running.processAllAvailable()
    running.stop()
    early = len(scene.outcome(second).history.rows)
    first_entries = list(scene.producer.added)
    second_entries = scene.producer.add(scene.name, 15)
    scene.drain(second)
    outcome = scene.outcome(query, taken=[entry.place for entry in second_entries if entry.place])
    after = scene.outcome(second, taken=[entry.place for entry in first_entries if entry.place])
    outcome.expect_error(error, "RSTREAM_CONSUMER_TAKEN")
    outcome.expect("rows of the second while the first ran", early, 0)
    outcome.expect("error of the first", error_of(running), "")
    outcome.expect("rows of the second afterwards", len(after.history.kept()), len(second_entries))
    outcome.expect("faults of the second", after.report.faults(), {})
    return outcome
