"""The checkpoint is an older one: its entries come again, or an error says what is wrong. Nothing is passed over."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tools.chaos.history import Place, id_key
from tools.chaos.query import Query
from tools.chaos.scene import Outcome, Scene

HOW = ("older copy", "last of both logs gone", "last commits gone", "last offsets gone")
MODES: Mapping[str, Mapping[str, str]] = {
    "at-least-once": {},
    "at-most-once": {"delivery": "at-most-once"},
    "noAck": {"noAck": "true"},
    "shared": {},
}
BATCH = 20


def rolled_back(scene: Scene, how: str | None = None, mode: str | None = None) -> Outcome:
    """Between two runs. Files that the sink wrote go back with an older copy, as from a backup of the whole machine;
    what it wrote into a stream stays. In mode `shared` another consumer reads from the group, too."""
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
    given_up = _last_batch(scene, query) if mode == "at-most-once" else set()
    theirs |= _run(scene, query, mode, run=False)
    error, _ = scene.run(query)
    outcome = scene.outcome(query, foreign=["bob"], taken=theirs, either=given_up)
    report = outcome.report
    report.forgive("early", "unseen", "changed")  # batches have other numbers now
    if mode == "at-most-once" and len(report.lost) <= BATCH:
        report.forgive("lost")  # a crash before the offset log gives one batch up, and looks the same
    if error:
        report.forgive("lost", "pending")
        if not error.startswith("[RSTREAM_") and how != "last offsets gone":  # Spark has an error of its own for that
            outcome.wrong.append(f"ended with {error[:300]!r}, which is no named error")
    outcome.chosen = f"{how}, {mode}, from batch {last} to {query.committed()}: {error[:100] or 'no error'}"
    return outcome


def _run(scene: Scene, query: Query, mode: str, run: bool = True) -> set[Place]:
    """More entries, and the query reads them; what another consumer had of them."""
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
    """The last `count` files of a log of Spark, or of both; then the sink's files of these batches go, too."""
    logs = {"last commits gone": ["commits"], "last offsets gone": ["offsets"]}.get(how, ["offsets", "commits"])
    last = query.committed()
    for batch in range(max(1, last - count + 1), last + 1):
        for log in logs:
            for name in (str(batch), f".{batch}.crc"):
                (query.path / "checkpoint" / log / name).unlink(missing_ok=True)
        if len(logs) == 2 and query.sink != "stream":
            (query.path / "batches" / f"{batch}.json").unlink()


def _last_batch(scene: Scene, query: Query) -> set[Place]:
    """The entries of a batch that is in the offset log and not in the commit log."""
    last, stream = query.logged(), query.name
    if last <= query.committed():
        return set()
    after, upto = (id_key(query.offset(batch)["streams"][stream]) for batch in (last - 1, last))
    return {(stream, one.id) for one in scene.producer.added if one.id and after < id_key(one.id) <= upto}
