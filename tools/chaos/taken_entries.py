"""Another client trims or deletes entries at any moment of a query: a strict query names it, a lenient one counts them.

Never is there a smaller batch in silence. What the query had read before costs nothing.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from tools.chaos.accounts import Done
from tools.chaos.aftermath import LENIENT, judge, live_on
from tools.chaos.attempts import attempts
from tools.chaos.history import Place, id_key
from tools.chaos.moments import DOWN, MODES, STAGES, Moment, meet
from tools.chaos.query import Fault, Query, into_a_stream
from tools.chaos.scene import Outcome, Scene

HOW = ("head trimmed", "deleted here and there", "tail deleted")
WHERE = ("in flight", "ahead", "anywhere")
STARTS = ("earliest", "an id", "latest")


def taken_at_a_moment(
    scene: Scene,
    moment: Moment | None = None,
    mode: str | None = None,
    start: str | None = None,
    lenient: bool | None = None,
    how: str | None = None,
    where: str | None = None,
) -> Outcome:
    """XTRIM or XDEL while the query stands still. What is not said is left to chance."""
    choice = scene.random.choice
    mode, start = mode or choice(list(MODES)), start or choice(STARTS)
    how, where = how or choice(HOW), where or choice(WHERE)
    moment = moment or Moment.by_chance(scene, DOWN, *STAGES)
    lenient = choice([True, False]) if lenient is None else lenient
    query, before = _begin(scene, moment, mode, start, lenient)
    done = Done()

    def take() -> None:
        ids = _choose(scene, query, how, where)
        if ids:
            scene.client.xdel(query.name, *ids) if how != "head trimmed" else scene.client.xtrim(
                query.name, minid=_after(ids[-1]), approximate=False
            )
        there = {entry for entry, _ in scene.client.xrange(query.name)}
        gone = {one.place for one in scene.producer.added if one.place is not None and one.id not in there}
        done.gone = gone - before
        read = {row.place for attempt in attempts(query) for row in attempt.rows}
        done.harmless = done.gone <= read and moment.stage != DOWN  # a batch that was cut off is read again
        scene.producer.add(query.name, scene.random.choice([0, 30]))

    running = meet(scene, query, moment, take)
    after = live_on(scene, query, running)
    outcome = judge(scene, query, after, done, before)
    if mode != "at-least-once":
        outcome.report.forgive("early", "unseen")  # acknowledged before it is read, or never
    outcome.chosen = f"{moment}, {mode}, {start}, {'lenient' if lenient else 'strict'}, {how} {where}"
    return outcome


def taken_while_running(scene: Scene, rounds: int = 8) -> Outcome:
    """XTRIM and XDEL at any time while a producer adds and a lenient query reads: the number of entries that never came
    is the number that the progress tells."""
    mode = scene.random.choice(["at-least-once", "noAck"])
    query = scene.query(None, maxEntriesPerTrigger="40", entriesPerPartition="15", **LENIENT, **MODES[mode])
    scene.producer.add(scene.name, 60)
    running = scene.start(query)
    stop, its_own = threading.Event(), random.Random(scene.random.random())

    def produce() -> None:
        while not stop.is_set():
            scene.producer.add(scene.name, its_own.randint(1, 15))
            time.sleep(0.02)

    producing = threading.Thread(target=produce)
    producing.start()
    try:
        scene.wait_for(lambda: query.committed() >= 0, "the first batch", running)
        for _ in range(rounds):
            time.sleep(0.3 * scene.random.random())
            if scene.random.random() < 0.5:
                scene.client.xtrim(scene.name, maxlen=scene.random.randint(0, 30), approximate=False)
            else:
                ids = [entry for entry, _ in scene.client.xrange(scene.name)]
                some = scene.random.sample(ids, min(len(ids), scene.random.randint(1, 10)))
                if some:
                    scene.client.xdel(scene.name, *some)
    finally:
        stop.set()
        producing.join()
    there = {entry for entry, _ in scene.client.xrange(scene.name)}
    after = live_on(scene, query, running)
    gone = {one.place for one in scene.producer.added if one.place is not None and one.id not in there}
    outcome = judge(scene, query, after, Done(gone=gone))
    if mode == "noAck":
        outcome.report.forgive("unseen")
    outcome.chosen = mode
    return outcome


def _begin(scene: Scene, moment: Moment, mode: str, start: str, lenient: bool) -> tuple[Query, set[Place]]:
    """A query with something to read, and the entries that it is not to read."""
    options: dict[str, str] = {**MODES[mode], **(LENIENT if lenient else {})}
    old = scene.producer.add(scene.name, 30)
    last = {"earliest": -1, "an id": scene.random.randint(5, 25), "latest": len(old) - 1}[start]
    before = {one.place for one in old[: last + 1] if one.place is not None}
    if start != "earliest":
        options["startingOffsets"] = str(old[last].id) if start == "an id" else "latest"
    if scene.random.random() < 0.5:
        scene.client.xtrim(scene.name, maxlen=scene.random.randint(20, 29), approximate=False)
        left = {entry for entry, _ in scene.client.xrange(scene.name)}
        before |= {one.place for one in old if one.place is not None and one.id not in left}
    query = scene.query(moment.fault, maxEntriesPerTrigger="40", entriesPerPartition="15", **options)
    if start == "latest":  # the group is made before anything that it is to read is there
        scene.client.xgroup_create(scene.name, query.group, id="$")
    scene.producer.add(scene.name, scene.random.randint(100, 130))
    return query, before


def _choose(scene: Scene, query: Query, how: str, where: str) -> list[str]:
    """Entries that are there, in order: up to one of them, some of them, or the last ones."""
    stream = query.name
    at = scene.client.xinfo_groups(stream)[0]["last-delivered-id"]
    settled = query.offset(query.committed())["streams"][stream] if query.committed() >= 0 else "0-0"
    inside: Mapping[str, Callable[[str], bool]] = {
        "in flight": lambda entry: id_key(settled) < id_key(entry) <= id_key(at),
        "ahead": lambda entry: id_key(entry) > id_key(at),
        "anywhere": lambda entry: True,
    }
    there = [entry for entry, _ in scene.client.xrange(stream)]
    ids = [entry for entry in there if inside[where](entry)]
    if not ids:
        return []
    count = scene.random.randint(1, len(ids))
    if how == "head trimmed":
        return ids[:count]
    if how == "tail deleted":
        return ids[-count:]
    chosen = set(scene.random.sample(ids, count))
    return [entry for entry in ids if entry in chosen]


def _after(entry: str) -> str:
    ms, seq = id_key(entry)
    return f"{ms}-{seq + 1}"


def replayed_after_trimming(scene: Scene, how: str | None = None) -> Outcome:
    """A batch is written in part when its query dies, and some of its entries are gone before it is replayed: a lenient
    query goes on, and what was written is there once."""
    batch = scene.random.randint(0, 1)
    fault = Fault("crash", batch, "writing", rows=scene.random.randint(4, 12))
    query = scene.query(fault, maxEntriesPerTrigger="40", entriesPerPartition="15", **LENIENT)
    query = replace(into_a_stream(query, scene.random), out_options={"chunkSize": "3"})
    scene.producer.add(scene.name, scene.random.randint(90, 120))
    error, _ = scene.run(query)
    ids = _choose(scene, query, "head trimmed", "in flight")
    if (how or scene.random.choice(HOW)) == "head trimmed":
        scene.client.xtrim(scene.name, minid=_after(ids[-1]), approximate=False)
    else:
        scene.client.xdel(scene.name, *ids)
    written = {row.place for row in scene.outcome(query).history.kept()}
    after = live_on(scene, query, None)
    outcome = judge(scene, query, after, Done(gone={(scene.name, entry) for entry in ids}, harmless=True))
    if "fails in attempt" not in error:
        outcome.wrong.append(f"the first run ended with {error[:300]!r}")
    outcome.expect("rows were written before", bool(written), True)
    outcome.chosen = f"batch {batch}, {len(ids)} gone"
    return outcome
