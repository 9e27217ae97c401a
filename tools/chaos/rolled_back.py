"""A query with an older checkpoint reads its entries again, or fails with an error. It skips no entry."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tools.chaos.history import Place
from tools.chaos.query import Query
from tools.chaos.scene import Outcome, Scene

HOW = ("older copy", "last of both logs deleted", "last commits deleted", "last offsets deleted")
MODES: Mapping[str, Mapping[str, str]] = {
    "at-least-once": {},
    "noAck": {"noAck": "true"},
    "shared": {},
}
BATCH = 20


def rolled_back(scene: Scene, how: str | None = None, mode: str | None = None) -> Outcome:
    """Roll the checkpoint back between two runs.

    Files of the sink are restored together with an older copy, as from a backup of the machine; an output stream keeps
    its entries. In mode `shared` another consumer reads from the group, too.
    """
    how, mode = how or scene.random.choice(HOW), mode or scene.random.choice(list(MODES))
    query = scene.query(None, maxEntriesPerTrigger=str(BATCH), entriesPerPartition="8", **MODES[mode])
    theirs = _run(scene, query, mode)
    saved = scene.folder / "saved"
    shutil.copytree(query.path, saved)
    theirs |= _run(scene, query, mode)
    last = query.committed()
    if how == "older copy":
        _restore(query, saved)
    else:
        _lose(query, how, scene.random.randint(1, 3))
    theirs |= _run(scene, query, mode, run=False)
    error, _ = scene.run(query)
    outcome = scene.outcome(query, foreign=["bob"], taken=theirs)
    report = outcome.report
    report.forgive("early", "unseen", "changed")  # batches have other numbers after the rollback
    if error:
        report.forgive("lost", "pending")
        if not error.startswith("[RSTREAM_") and how != "last offsets deleted":  # Spark reports this one
            outcome.wrong.append(f"ended with {error[:300]!r}, which is not a named error")
    outcome.choices = f"{how}, {mode}, from batch {last} to {query.committed()}: {error[:100] or 'no error'}"
    return outcome


def _run(scene: Scene, query: Query, mode: str, run: bool = True) -> set[Place]:
    """Add entries, and let the query read them. Return the entries that another consumer received."""
    scene.producer.add(scene.name, scene.random.randint(30, 50))
    theirs = set()
    if mode == "shared" and run:
        if query.logged() == -1:
            scene.client.xgroup_create(scene.name, query.group, id="0")
        read = scene.client.xreadgroup(query.group, "bob", {scene.name: ">"}, count=scene.random.randint(1, 10))
        theirs = {(scene.name, entry) for _, entries in read for entry, _ in entries}
    if run:
        scene.drain(query)
    return theirs


def _restore(query: Query, saved: Path) -> None:
    for name in ["checkpoint", *(() if query.sink == "stream" else ("rows", "batches"))]:
        shutil.rmtree(query.path / name)
        shutil.copytree(saved / name, query.path / name)


def _lose(query: Query, how: str, count: int) -> None:
    """Delete the last `count` files of one log of Spark, or of both and then the sink's files of these batches, too."""
    logs = {"last commits deleted": ["commits"], "last offsets deleted": ["offsets"]}.get(how, ["offsets", "commits"])
    last = query.committed()
    for batch in range(max(1, last - count + 1), last + 1):
        for log in logs:
            for name in (str(batch), f".{batch}.crc"):
                (query.path / "checkpoint" / log / name).unlink(missing_ok=True)
        if len(logs) == 2 and query.sink != "stream":
            (query.path / "batches" / f"{batch}.json").unlink()
