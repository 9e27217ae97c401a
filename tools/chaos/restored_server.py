"""A server comes back from an older file: what it has lost is named and counted, and nothing is written twice."""

from __future__ import annotations

from dataclasses import replace

from tools.chaos.accounts import Done
from tools.chaos.aftermath import LENIENT, judge, live_on
from tools.chaos.history import Added, Place
from tools.chaos.moments import DOWN, Moment, meet
from tools.chaos.scene import Outcome, Scene
from tools.chaos.servers import kept_server

STAGES = ("committed", "reserved", "logged", "writing", DOWN)


def source(scene: Scene, moment: Moment | None = None, lenient: bool | None = None) -> Outcome:
    """The server that is read from. A strict query that had read what is gone stops; a lenient one goes on with what
    is there and with what comes, and where it ran all the time it tells how many entries went that it had not read."""
    moment = moment or Moment.by_chance(scene, *STAGES)
    lenient = scene.random.choice([True, False]) if lenient is None else lenient
    kept = kept_server(scene.kind, scene.folder / "kept")
    with kept as server, scene.elsewhere(server.url, scene.url) as there:
        query = there.query(None, maxEntriesPerTrigger="20", **(LENIENT if lenient else {}))
        there.producer.add(there.name, there.random.randint(20, 40))
        there.drain(query)
        server.save_to(scene.folder / "older")
        new = there.producer.add(there.name, 70)
        done = Done()

        def restore() -> None:
            server.restore_from(scene.folder / "older")
            done.gone = _places(new)
            there.producer.add(there.name, 30)

        moment = replace(moment, batch=query.committed() + 1 + moment.batch)
        running = meet(there, replace(query, fault=moment.fault), moment, restore)
        after = live_on(there, query, running)
        done.overcounted = len(new)  # a loss is a loss, also of what was read
        done.uncounted = len(new) if running is None or not lenient else 0  # nobody has seen what came and went
        outcome = judge(there, query, after, done)
        outcome.report.forgive("unseen")  # what was acknowledged since the copy is pending again
        if lenient:
            outcome.wrong += [f"does not go on: {error[:300]}" for error in after.errors]
        elif not after.errors:
            outcome.wrong.append("entries that it had read are gone, and nobody says so")
        outcome.chosen = f"{moment}, {'lenient' if lenient else 'strict'}"
    return outcome


def _places(added: list[Added]) -> set[Place]:
    return {one.place for one in added if one.place is not None}
