"""Another client trims or deletes entries at any moment: a strict query stops with an error, a lenient one counts them.

No batch is smaller without a report. Entries that the query had read before do not count.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from tools.chaos.accounts import Intervention
from tools.chaos.aftermath import LENIENT, judge, run_to_end
from tools.chaos.attempts import attempts
from tools.chaos.history import Place, id_key
from tools.chaos.moments import DOWN, MODES, STAGES, Moment, run_to_moment
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
    """XTRIM or XDEL while the query stands still. None: selected by the seed."""
    choice = scene.random.choice
    mode, start = mode or choice(list(MODES)), start or choice(STARTS)
    how, where = how or choice(HOW), where or choice(WHERE)
    moment = moment or Moment.by_chance(scene, DOWN, *STAGES)
    lenient = choice([True, False]) if lenient is None else lenient
    query, before = _begin(scene, moment, mode, start, lenient)
    intervention = Intervention()

    def take() -> None:
        ids = _choose(scene, query, how, where)
        if ids:
            scene.client.xdel(query.name, *ids) if how != "head trimmed" else scene.client.xtrim(
                query.name, minid=_after(ids[-1]), approximate=False
            )
        present = {entry for entry, _ in scene.client.xrange(query.name)}
        removed = {entry.place for entry in scene.producer.added if entry.place is not None and entry.id not in present}
        intervention.removed = removed - before
        if start == "latest" and moment.stage == "started":
            # Such a group, created by an operator, does not know how many entries it has read: guarantees.md, Limits.
            intervention.either = intervention.removed
        read = {row.place for attempt in attempts(query) for row in attempt.rows}
        intervention.harmless = (
            intervention.removed <= read and moment.stage != DOWN
        )  # an interrupted batch is read again
        scene.producer.add(query.name, scene.random.choice([0, 30]))

    running = run_to_moment(scene, query, moment, take)
    after = run_to_end(scene, query, running)
    outcome = judge(scene, query, after, intervention, before)
    if mode != "at-least-once":
        outcome.report.forgive("early", "unseen")  # these modes acknowledge before they read, or never
    outcome.choices = f"{moment}, {mode}, {start}, {'lenient' if lenient else 'strict'}, {how} {where}"
    return outcome


def taken_while_running(scene: Scene, rounds: int = 8) -> Outcome:
    """XTRIM and XDEL at any time while a producer adds and a lenient query reads.

    The count in the progress is the number of entries that never arrived.
    """
    mode = scene.random.choice(["at-least-once", "noAck"])
    query = scene.query(None, maxEntriesPerTrigger="40", entriesPerPartition="15", **LENIENT, **MODES[mode])
    scene.producer.add(scene.name, 60)
    running = scene.start(query)
    stop, random_of_producer = threading.Event(), random.Random(scene.random.random())

    def produce() -> None:
        while not stop.is_set():
            scene.producer.add(scene.name, random_of_producer.randint(1, 15))
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
                deleted = scene.random.sample(ids, min(len(ids), scene.random.randint(1, 10)))
                if deleted:
                    scene.client.xdel(scene.name, *deleted)
    finally:
        stop.set()
        producing.join()
    present = {entry for entry, _ in scene.client.xrange(scene.name)}
    after = run_to_end(scene, query, running)
    removed = {entry.place for entry in scene.producer.added if entry.place is not None and entry.id not in present}
    outcome = judge(scene, query, after, Intervention(removed=removed))
    if mode == "noAck":
        outcome.report.forgive("unseen")
    outcome.choices = mode
    return outcome


def _begin(scene: Scene, moment: Moment, mode: str, start: str, lenient: bool) -> tuple[Query, set[Place]]:
    """Return a query with entries to read, and the entries that it must not read."""
    options: dict[str, str] = {**MODES[mode], **(LENIENT if lenient else {})}
    old = scene.producer.add(scene.name, 30)
    last = {"earliest": -1, "an id": scene.random.randint(5, 25), "latest": len(old) - 1}[start]
    before = {entry.place for entry in old[: last + 1] if entry.place is not None}
    if start != "earliest":
        options["startingOffsets"] = str(old[last].id) if start == "an id" else "latest"
    if scene.random.random() < 0.5:
        scene.client.xtrim(scene.name, maxlen=scene.random.randint(20, 29), approximate=False)
        present = {entry for entry, _ in scene.client.xrange(scene.name)}
        before |= {entry.place for entry in old if entry.place is not None and entry.id not in present}
    query = scene.query(moment.fault, maxEntriesPerTrigger="40", entriesPerPartition="15", **options)
    if start == "latest":  # the group must exist before the entries that the query must read
        scene.client.xgroup_create(scene.name, query.group, id="$")
    scene.producer.add(scene.name, scene.random.randint(100, 130))
    return query, before


def _choose(scene: Scene, query: Query, how: str, where: str) -> list[str]:
    """Return existing entries in order: the first ones, a sample, or the last ones."""
    stream = query.name
    delivered = scene.client.xinfo_groups(stream)[0]["last-delivered-id"]
    settled = query.offset(query.committed())["streams"][stream] if query.committed() >= 0 else "0-0"
    inside: Mapping[str, Callable[[str], bool]] = {
        "in flight": lambda entry: id_key(settled) < id_key(entry) <= id_key(delivered),
        "ahead": lambda entry: id_key(entry) > id_key(delivered),
        "anywhere": lambda entry: True,
    }
    entries = [entry for entry, _ in scene.client.xrange(stream)]
    ids = [entry for entry in entries if inside[where](entry)]
    if not ids:
        return []
    count = scene.random.randint(1, len(ids))
    if how == "head trimmed":
        return ids[:count]
    if how == "tail deleted":
        return ids[-count:]
    deleted = set(scene.random.sample(ids, count))
    return [entry for entry in ids if entry in deleted]


def _after(entry: str) -> str:
    ms, seq = id_key(entry)
    return f"{ms}-{seq + 1}"


def replayed_after_trimming(scene: Scene, how: str | None = None) -> Outcome:
    """A query dies after it has written a part of a batch, and entries are removed before the replay.

    A lenient query continues, and every written row is there once.
    """
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
    after = run_to_end(scene, query, None)
    outcome = judge(scene, query, after, Intervention(removed={(scene.name, entry) for entry in ids}, harmless=True))
    if "fails in attempt" not in error:
        outcome.wrong.append(f"the first run ended with {error[:300]!r}")
    outcome.expect("rows were written before", bool(written), True)
    outcome.choices = f"batch {batch}, {len(ids)} removed"
    return outcome
