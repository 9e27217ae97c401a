"""Streams that appear and vanish under a pattern, at random: entries are added, streams are made and deleted, the
query is started again, step after step. In the end all that was not deleted is there, once and in order."""

from __future__ import annotations

import time

from chaos.history import Place, id_key
from chaos.scene import Outcome, Scene

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
