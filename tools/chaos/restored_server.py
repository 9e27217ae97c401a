"""A server restarts from an older file: the query reports and counts the loss, and writes no row twice."""

from __future__ import annotations

from dataclasses import replace

from tools.chaos.accounts import Intervention
from tools.chaos.aftermath import LENIENT, judge, run_to_end
from tools.chaos.history import Added, Place
from tools.chaos.moments import DOWN, Moment, run_to_moment
from tools.chaos.scene import Outcome, Scene
from tools.chaos.servers import durable_server

STAGES = ("committed", "reserved", "logged", "writing", DOWN)


def source(scene: Scene, moment: Moment | None = None, lenient: bool | None = None) -> Outcome:
    """Restore the server of the source.

    A strict query that had read the lost entries stops. A lenient query continues with the remaining and new entries.
    If it ran all the time, it counts the lost entries that it had not read.
    """
    moment = moment or Moment.by_chance(scene, *STAGES)
    lenient = scene.random.choice([True, False]) if lenient is None else lenient
    server_context = durable_server(scene.kind, scene.folder / "kept")
    with server_context as server, scene.on_server(server.url, scene.url) as restored_scene:
        query = restored_scene.query(None, maxEntriesPerTrigger="20", **(LENIENT if lenient else {}))
        restored_scene.producer.add(restored_scene.name, restored_scene.random.randint(20, 40))
        restored_scene.drain(query)
        server.save_to(scene.folder / "older")
        new = restored_scene.producer.add(restored_scene.name, 70)
        intervention = Intervention()

        def restore() -> None:
            server.restore_from(scene.folder / "older")
            intervention.removed = _places(new)
            restored_scene.producer.add(restored_scene.name, 30)

        moment = replace(moment, batch=query.committed() + 1 + moment.batch)
        running = run_to_moment(restored_scene, replace(query, fault=moment.fault), moment, restore)
        after = run_to_end(restored_scene, query, running)
        intervention.overcounted = len(new)  # the count may include entries that were read
        intervention.uncounted = (
            len(new) if running is None or not lenient else 0
        )  # the query may not have seen the lost entries
        outcome = judge(restored_scene, query, after, intervention)
        outcome.report.forgive("unseen")  # entries acknowledged since the copy are pending again
        if lenient:
            outcome.wrong += [f"does not continue: {error[:300]}" for error in after.errors]
        elif not after.errors:
            outcome.wrong.append("entries that the query had read are missing, and no error reports it")
        outcome.choices = f"{moment}, {'lenient' if lenient else 'strict'}"
    return outcome


def _places(added: list[Added]) -> set[Place]:
    return {entry.place for entry in added if entry.place is not None}
