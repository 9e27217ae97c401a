"""Streams that appear under a pattern: at the start, after all were rotated away, or while the query is down.

In the end all entries that were not deleted are in the sink, once and in order.
"""

from __future__ import annotations

import time

from pyspark.sql.streaming.query import StreamingQuery

from tools.chaos.checker import check
from tools.chaos.history import Place
from tools.chaos.query import Query
from tools.chaos.scene import Outcome, Scene


def none_at_the_start(scene: Scene) -> Outcome:
    """Start a query with `latest` while no stream matches its pattern. It reads new streams from their first entry."""
    query = _of_pattern(scene)
    running = scene.start(query)
    scene.wait_for(lambda: scene.client.keys("rstream:begun:*"), "the query to have looked for streams", running)
    time.sleep(scene.random.random())
    return _appear(scene, query, running)


def all_rotated_away(scene: Scene) -> Outcome:
    """Delete all streams that the query has read. New streams with entries appear before its next lookup."""
    query = _of_pattern(scene)
    deleted = _read_and_stop(scene, query)
    running = scene.start(query)
    _delete_all(scene)
    time.sleep(scene.random.random())
    return _appear(scene, query, running, deleted)


def while_down(scene: Scene) -> Outcome:
    """Delete all streams that the query has read while it is down. New streams exist when it starts again."""
    query = _of_pattern(scene)
    deleted = _read_and_stop(scene, query)
    _delete_all(scene)
    return _appear(scene, query, None, deleted)


def dead_letters_match(scene: Scene) -> Outcome:
    """The dead-letter stream, and the stream of parked dead letters, match the pattern: they are no input."""
    query = _of_pattern(scene, startingOffsets="earliest", mode="DEADLETTER", deadLetterStream=f"{scene.name}:dead")
    bad = set()
    for n in range(2):
        stream = f"{scene.name}:{n}"
        scene.producer.add(stream, 20)
        bad.add((stream, scene.client.xadd(stream, {"p": "bad", "n": "no number"})))
    parked = {"p": "parked", "n": 7, "dl.stream": f"{scene.name}:0", "dl.id": "1-1", "dl.reason": "decode"}
    scene.client.xadd(f"{scene.name}:dead:parked", parked)
    for _ in range(2):  # dead letters of a run's last batch exist when the next run starts
        scene.drain(query)
        scene.producer.add(f"{scene.name}:0", 10)
    scene.drain(query)
    outcome = scene.outcome(query, bad=bad)
    outcome.expect("dead letters", sorted(outcome.history.dead_letters), sorted(bad))
    for dead in (f"{scene.name}:dead", f"{scene.name}:dead:parked"):
        outcome.expect(f"groups of {dead}", scene.client.xinfo_groups(dead), [])
    scene.client.delete(f"{scene.name}:dead", f"{scene.name}:dead:parked")
    return outcome


def _of_pattern(scene: Scene, **options: str) -> Query:
    settings = {"streamsPattern": f"{scene.name}:*", "startingOffsets": "latest", "failOnDataLoss": "false", **options}
    return scene.query(None, **settings)


def _read_and_stop(scene: Scene, query: Query) -> set[Place]:
    """Run the query over two streams, and stop it. Return the entries that it has read."""
    running = scene.start(query)
    scene.wait_for(lambda: query.sign("up").exists(), "the query to look for streams", running)
    streams = [f"{scene.name}:{n}" for n in range(2)]
    for stream in streams:
        scene.client.xgroup_create(stream, query.group, id="0", mkstream=True)
        scene.producer.add(stream, 20)
    scene.wait_for(lambda: all(scene.is_settled(query, stream) for stream in streams), "all to be settled", running)
    running.processAllAvailable()
    running.stop()
    return {entry.place for entry in scene.producer.added if entry.place is not None}


def _delete_all(scene: Scene) -> None:
    scene.client.delete(*{entry.stream for entry in scene.producer.added})


def _appear(scene: Scene, query: Query, running: StreamingQuery | None, deleted: set[Place] | None = None) -> Outcome:
    """Create new streams with entries, and add more entries later."""
    new = [f"{scene.name}:new-{n}" for n in range(scene.random.randint(1, 3))]
    for stream in new:
        scene.producer.add(stream, scene.random.randint(5, 30))
    if running is None:
        running = scene.start(query)
    scene.wait_for(lambda: all(scene.is_settled(query, stream) for stream in new), "all to be settled", running)
    for stream in new:
        scene.producer.add(stream, 5)
    scene.wait_for(lambda: all(scene.is_settled(query, stream) for stream in new), "all to be settled", running)
    running.processAllAvailable()
    running.stop()
    outcome = scene.outcome(query, removed=deleted or set())
    outcome.history.forgotten = deleted or set()
    outcome.report = check(outcome.history)
    return outcome
