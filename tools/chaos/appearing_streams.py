"""Streams that appear and vanish under a pattern, at random: entries are added, streams are made and deleted, the
query is started again, step after step. In the end all that was not deleted is there, once and in order."""

from __future__ import annotations

import time

from pyspark.sql.streaming.query import StreamingQuery

from tools.chaos.checker import check
from tools.chaos.history import Place, id_key
from tools.chaos.query import Query
from tools.chaos.scene import Outcome, Scene

STEPS = {"add": 50, "create": 16, "delete": 10, "wait": 20, "restart": 4}  # how often each, in a hundred


def random_steps(scene: Scene, steps: int = 50) -> Outcome:
    """The query reads `<name>:*`. Faults that no step foresees show in the report."""
    query = scene.query(
        streamsPattern=f"{scene.name}:*",
        failOnDataLoss="false",
        maxEntriesPerTrigger=str(scene.random.choice([20, 60, 1000])),
        entriesPerPartition=str(scene.random.choice([10, 1000])),
    )
    living: list[str] = []
    gone: set[Place] = set()
    tally = dict.fromkeys(STEPS, 0)
    made = 0

    def add(stream: str) -> None:
        scene.producer.add(stream, scene.random.randint(1, 30))

    def settled() -> bool:
        return all(scene.is_settled(query, stream) for stream in living)

    running = scene.start(query)
    for _ in range(steps):
        step = scene.random.choices(list(STEPS), list(STEPS.values()))[0]
        if step in ("add", "delete") and not living:
            step = "create"
        tally[step] += 1
        if step == "add":
            add(scene.random.choice(living))
        elif step == "create":
            # A name that a deleted stream had, now and then.
            names = sorted({place[0] for place in gone} - set(living))
            reuse = bool(names) and scene.random.random() < 0.5
            stream = scene.random.choice(names) if reuse else f"{scene.name}:{made}"
            made += not reuse
            living.append(stream)
            add(stream)
        elif step == "delete":
            stream = living.pop(scene.random.randrange(len(living)))
            gone |= {one.place for one in scene.producer.added if one.stream == stream and one.place is not None}
            scene.client.delete(stream)
            _let_the_clock_pass(scene, gone)
        elif step == "wait":
            scene.wait_for(settled, f"all streams to be settled after {tally}", running)
        else:
            running.stop()
            running = scene.start(query)
    scene.wait_for(settled, "all streams to be settled", running)
    running.processAllAvailable()
    running.stop()
    # The end is a clean one.
    scene.drain(query)
    return scene.outcome(query, gone=gone)


def _let_the_clock_pass(scene: Scene, gone: set[Place]) -> None:
    """Until a stream of the same name cannot be given an id that was there before."""
    last = max(id_key(entry)[0] for _, entry in gone)
    while scene.client.time()[0] * 1000 + scene.client.time()[1] // 1000 <= last:
        time.sleep(0.001)


def none_at_the_start(scene: Scene) -> Outcome:
    """A query with `latest` begins while no stream matches its pattern: those that appear are read from their first
    entry."""
    query = _of_pattern(scene)
    running = scene.start(query)
    scene.wait_for(lambda: scene.client.keys("rstream:begun:*"), "the query to have looked for streams", running)
    time.sleep(scene.random.random())
    return _appear(scene, query, running)


def all_rotated_away(scene: Scene) -> Outcome:
    """All streams that it has read are deleted; new ones come before it looks again, with entries in them."""
    query = _of_pattern(scene)
    gone = _read_some(scene, query)
    running = scene.start(query)
    _delete_all(scene)
    time.sleep(scene.random.random())
    return _appear(scene, query, running, gone)


def while_down(scene: Scene) -> Outcome:
    """All streams that it has read are deleted while it is down, and new ones are there when it comes back."""
    query = _of_pattern(scene)
    gone = _read_some(scene, query)
    _delete_all(scene)
    return _appear(scene, query, None, gone)


def letters_match(scene: Scene) -> Outcome:
    """Its dead-letter stream, and the one where letters are parked, match the pattern: they are no input."""
    query = _of_pattern(scene, startingOffsets="earliest", mode="DEADLETTER", deadLetterStream=f"{scene.name}:dead")
    bad = set()
    for n in range(2):
        stream = f"{scene.name}:{n}"
        scene.producer.add(stream, 20)
        bad.add((stream, scene.client.xadd(stream, {"p": "bad", "n": "no number"})))
    parked = {"p": "parked", "n": 7, "dl.stream": f"{scene.name}:0", "dl.id": "1-1", "dl.reason": "decode"}
    scene.client.xadd(f"{scene.name}:dead:parked", parked)
    for _ in range(2):  # the letters of a run's last batch are there for the next one
        scene.drain(query)
        scene.producer.add(f"{scene.name}:0", 10)
    scene.drain(query)
    outcome = scene.outcome(query, bad=bad)
    outcome.expect("letters", sorted(outcome.history.letters), sorted(bad))
    for dead in (f"{scene.name}:dead", f"{scene.name}:dead:parked"):
        outcome.expect(f"groups of {dead}", scene.client.xinfo_groups(dead), [])
    scene.client.delete(f"{scene.name}:dead", f"{scene.name}:dead:parked")
    return outcome


def _of_pattern(scene: Scene, **options: str) -> Query:
    given = {"streamsPattern": f"{scene.name}:*", "startingOffsets": "latest", "failOnDataLoss": "false", **options}
    return scene.query(None, **given)


def _read_some(scene: Scene, query: Query) -> set[Place]:
    """What the query has read before its streams go."""
    running = scene.start(query)
    scene.wait_for(lambda: query.sign("up").exists(), "the query to look for streams", running)
    streams = [f"{scene.name}:{n}" for n in range(2)]
    for stream in streams:
        scene.client.xgroup_create(stream, query.group, id="0", mkstream=True)
        scene.producer.add(stream, 20)
    scene.wait_for(lambda: all(scene.is_settled(query, stream) for stream in streams), "all to be settled", running)
    running.processAllAvailable()
    running.stop()
    return {one.place for one in scene.producer.added if one.place is not None}


def _delete_all(scene: Scene) -> None:
    scene.client.delete(*{one.stream for one in scene.producer.added})


def _appear(scene: Scene, query: Query, running: StreamingQuery | None, gone: set[Place] | None = None) -> Outcome:
    """New streams, each with entries from the first moment on, some more later."""
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
    outcome = scene.outcome(query, gone=gone or set())
    outcome.history.forgotten = gone or set()
    outcome.report = check(outcome.history)
    return outcome
