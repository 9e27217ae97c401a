"""A query dies after it has written a part of a batch, and entries of the batch are removed before its replay."""

from __future__ import annotations

from dataclasses import replace

from spark_streams.source.offset import position_in
from tools.chaos.accounts import Intervention
from tools.chaos.aftermath import LENIENT, judge, run_to_end
from tools.chaos.history import id_key
from tools.chaos.query import Fault, into_a_stream
from tools.chaos.scene import Outcome, Scene

HOW = ("head trimmed", "deleted here and there")


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
    delivered = scene.client.xinfo_groups(query.name)[0]["last-delivered-id"]
    settled = position_in(query.offset(query.committed())["streams"][query.name]) if query.committed() >= 0 else "0-0"
    entries = [entry for entry, _ in scene.client.xrange(query.name)]
    in_flight = [entry for entry in entries if id_key(settled) < id_key(entry) <= id_key(delivered)]
    ids = in_flight[: scene.random.randint(1, len(in_flight))]
    if (how or scene.random.choice(HOW)) == "head trimmed":
        ms, seq = id_key(ids[-1])
        scene.client.xtrim(scene.name, minid=f"{ms}-{seq + 1}", approximate=False)
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
