"""Actions of an operator: claims, acknowledgements, deleted consumers, and a moved or destroyed group, at any time.

Every entry is read once, or an error names the loss; a lenient query counts the entries that it does not receive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tools.chaos.accounts import Intervention
from tools.chaos.aftermath import LENIENT, judge, run_to_end
from tools.chaos.history import History, Place, id_key
from tools.chaos.moments import DOWN, MODES, STAGES, Moment, run_to_moment
from tools.chaos.scene import Outcome, Scene

US, BOB = "spark", "bob"


def claims_from_the_query(scene: Scene, intervention: Intervention) -> None:
    """XCLAIM some of the query's pending entries."""
    ids = _sample(scene, _pending(scene, US))
    if ids:
        scene.client.xclaim(scene.name, "g", BOB, 0, ids)
    intervention.either |= _places(scene, ids)
    if scene.random.random() < 0.5:
        scene.client.xack(scene.name, "g", *_pending(scene, BOB) or ["0-0"])


def claims_all_that_is_idle(scene: Scene, intervention: Intervention) -> None:
    """XAUTOCLAIM with an idle time of 0."""
    before = set(_pending(scene, BOB))
    scene.client.xautoclaim(scene.name, "g", BOB, 0, count=scene.random.randint(1, 60))
    intervention.either |= _places(scene, set(_pending(scene, BOB)) - before)


def gives_to_the_query(scene: Scene, intervention: Intervention) -> None:
    """XCLAIM entries of another consumer for the query's consumer: the query must then read them."""
    ids = _sample(scene, _pending(scene, BOB))
    if ids:
        scene.client.xclaim(scene.name, "g", US, 0, ids)
    intervention.taken -= _places(scene, ids)
    intervention.unordered |= _places(scene, ids)


def acknowledges(scene: Scene, intervention: Intervention) -> None:
    """XACK some of the query's pending entries."""
    ids = _sample(scene, _pending(scene, US))
    scene.client.xack(scene.name, "g", *ids or ["0-0"])
    intervention.removed |= _places(scene, ids)


def deletes_the_consumer(scene: Scene, intervention: Intervention) -> None:
    """XGROUP DELCONSUMER, which drops the query's pending entries."""
    intervention.removed |= _places(scene, _pending(scene, US))
    scene.client.xgroup_delconsumer(scene.name, "g", US)


def sets_the_group_back(scene: Scene, intervention: Intervention) -> None:
    """XGROUP SETID to the start, or to a delivered entry."""
    position = id_key(_position(scene))
    old = [entry for entry, _ in scene.client.xrange(scene.name) if id_key(entry) < position]
    scene.client.xgroup_setid(scene.name, "g", scene.random.choice(["0", *scene.random.sample(old, min(1, len(old)))]))
    intervention.either |= intervention.taken  # the group delivers them again, too
    intervention.taken.clear()


def sets_the_group_forward(scene: Scene, intervention: Intervention) -> None:
    """XGROUP SETID to the end, or past some undelivered entries."""
    ahead = [entry for entry, _ in scene.client.xrange(scene.name, min=f"({_position(scene)}")]
    if not ahead:
        return
    last = scene.random.choice([ahead[-1], scene.random.choice(ahead)])
    scene.client.xgroup_setid(scene.name, "g", last)
    intervention.removed |= _places(scene, [entry for entry in ahead if id_key(entry) <= id_key(last)])


def destroys_the_group(scene: Scene, intervention: Intervention) -> None:
    """XGROUP DESTROY."""
    scene.client.xgroup_destroy(scene.name, "g")
    intervention.either |= intervention.taken
    intervention.taken.clear()


def creates_the_group_again(scene: Scene, intervention: Intervention) -> None:
    """XGROUP DESTROY, and XGROUP CREATE at the end or the start of the stream."""
    destroys_the_group(scene, intervention)
    position = scene.random.choice(["$", "0"])
    scene.client.xgroup_create(scene.name, "g", id=position)
    if position == "$":
        intervention.removed |= {entry.place for entry in scene.producer.added if entry.place is not None}


ACTIONS: Mapping[str, Callable[[Scene, Intervention], None]] = {
    "claims from the query": claims_from_the_query,
    "claims what is idle": claims_all_that_is_idle,
    "gives to the query": gives_to_the_query,
    "acknowledges": acknowledges,
    "deletes the consumer": deletes_the_consumer,
    "sets the group back": sets_the_group_back,
    "sets the group forward": sets_the_group_forward,
    "destroys the group": destroys_the_group,
    "creates the group again": creates_the_group_again,
}
WITHOUT_A_GROUP = ("destroys the group", "creates the group again")  # the other actions need an existing group


def at_a_moment(
    scene: Scene,
    action: str,
    moment: Moment | None = None,
    mode: str | None = None,
    lenient: bool | None = None,
    shared: bool | None = None,
) -> Outcome:
    """Run one of ACTIONS at a moment. shared: another consumer has read from the group. None: selected by the seed."""
    choice = scene.random.choice
    mode, moment = mode or choice(list(MODES)), moment or Moment.by_chance(scene, DOWN, *STAGES)
    lenient = choice([True, False]) if lenient is None else lenient
    shared = action == "gives to the query" or (choice([True, False]) if shared is None else shared)
    if moment.stage == "started" and action not in WITHOUT_A_GROUP:
        shared = True  # when the query has only started, no group exists unless another consumer has created it
    if shared and mode == "noAck":
        mode = "at-least-once"  # noAck does not allow other consumers
    options = {**MODES[mode], **(LENIENT if lenient else {})}
    query = scene.query(moment.fault, maxEntriesPerTrigger="40", entriesPerPartition="15", **options)
    scene.producer.add(scene.name, scene.random.randint(100, 130))
    intervention = Intervention(foreign=(BOB,))
    if shared:
        scene.client.xgroup_create(scene.name, "g", id="0")
        read = scene.client.xreadgroup("g", BOB, {scene.name: ">"}, count=scene.random.randint(5, 25))
        intervention.taken = _places(scene, [entry for _, entries in read for entry, _ in entries])

    def act() -> None:
        ACTIONS[action](scene, intervention)
        if shared and action == "sets the group forward":
            intervention.either |= intervention.removed  # not distinguishable from entries that others have read
        scene.producer.add(scene.name, scene.random.choice([0, 30]))

    running = run_to_moment(scene, query, moment, act)
    after = run_to_end(scene, query, running, intervention.foreign)
    outcome = judge(scene, query, after, intervention)
    outcome.report.forgive("unseen")  # others acknowledge, too, and groups are destroyed
    if mode != "at-least-once" or (lenient and action == "sets the group back"):
        outcome.report.forgive("early")  # entries pending above such a group are delivered again
    elif action == "sets the group back":
        # A strict query without a commit mark takes such a group for one from an older file. It acknowledges the
        # entries pending above the group. The group delivers them again, and they are acknowledged again, in time.
        acknowledged_in_time = _in_time(outcome.history)
        outcome.report.early = [place for place in outcome.report.early if place not in acknowledged_in_time]
    shown = ", ".join([action, str(moment), mode, "lenient" if lenient else "strict", *(["shared"] if shared else [])])
    outcome.choices = shown
    return outcome


def scene_of(action: str) -> Callable[[Scene], Outcome]:
    """Return a scene that runs one of ACTIONS."""
    return lambda scene: at_a_moment(scene, action)


def _in_time(history: History) -> set[Place]:
    """Return the entries with an acknowledgement after the commit of their batch, earlier ones aside."""
    batch_of = {row.place: row.batch for row in history.kept()}
    return {ack.place for ack in history.acknowledged if batch_of.get(ack.place, ack.committed + 1) <= ack.committed}


def _pending(scene: Scene, consumer: str) -> list[str]:
    """Return the IDs that are pending for a consumer."""
    entries = scene.client.xpending_range(scene.name, "g", "-", "+", 10_000)
    return [entry["message_id"] for entry in entries if entry["consumer"] == consumer]


def _position(scene: Scene) -> str:
    return str(scene.client.xinfo_groups(scene.name)[0]["last-delivered-id"])


def _sample(scene: Scene, ids: list[str]) -> list[str]:
    """Return a sample of at least one ID, or [] if there is none."""
    return scene.random.sample(ids, scene.random.randint(1, len(ids))) if ids else []


def _places(scene: Scene, ids: set[str] | list[str]) -> set[Place]:
    return {(scene.name, entry) for entry in ids}
