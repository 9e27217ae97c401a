"""An operator's hand: another client claims, acknowledges, deletes consumers, moves or destroys the group at any time.

Every entry is read once, or what is wrong is named; a lenient query counts what it does not get.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tools.chaos.accounts import Done
from tools.chaos.aftermath import LENIENT, judge, live_on
from tools.chaos.history import History, Place, id_key
from tools.chaos.moments import DOWN, MODES, STAGES, Moment, meet
from tools.chaos.scene import Outcome, Scene

US, BOB = "spark", "bob"


def claims_from_the_query(scene: Scene, done: Done) -> None:
    """XCLAIM of some of its pending entries."""
    ids = _some(scene, _pending(scene, US))
    if ids:
        scene.client.xclaim(scene.name, "g", BOB, 0, ids)
    done.either |= _at(scene, ids)
    if scene.random.random() < 0.5:
        scene.client.xack(scene.name, "g", *_pending(scene, BOB) or ["0-0"])


def claims_all_that_is_idle(scene: Scene, done: Done) -> None:
    """XAUTOCLAIM, with nothing too young for it."""
    before = set(_pending(scene, BOB))
    scene.client.xautoclaim(scene.name, "g", BOB, 0, count=scene.random.randint(1, 60))
    done.either |= _at(scene, set(_pending(scene, BOB)) - before)


def gives_to_the_query(scene: Scene, done: Done) -> None:
    """XCLAIM of what another consumer has, for the query's: from then on it is the query's to read."""
    ids = _some(scene, _pending(scene, BOB))
    if ids:
        scene.client.xclaim(scene.name, "g", US, 0, ids)
    done.taken -= _at(scene, ids)
    done.unordered |= _at(scene, ids)


def acknowledges(scene: Scene, done: Done) -> None:
    """XACK of some of the query's pending entries."""
    ids = _some(scene, _pending(scene, US))
    scene.client.xack(scene.name, "g", *ids or ["0-0"])
    done.gone |= _at(scene, ids)


def deletes_the_consumer(scene: Scene, done: Done) -> None:
    """XGROUP DELCONSUMER drops what is pending for the query."""
    done.gone |= _at(scene, _pending(scene, US))
    scene.client.xgroup_delconsumer(scene.name, "g", US)


def sets_the_group_back(scene: Scene, done: Done) -> None:
    """XGROUP SETID to the start, or to an entry that was delivered before."""
    position = id_key(_position(scene))
    old = [entry for entry, _ in scene.client.xrange(scene.name) if id_key(entry) < position]
    scene.client.xgroup_setid(scene.name, "g", scene.random.choice(["0", *scene.random.sample(old, min(1, len(old)))]))
    done.either |= done.taken  # they are delivered again, too
    done.taken.clear()


def sets_the_group_forward(scene: Scene, done: Done) -> None:
    """XGROUP SETID to the end, or past some entries that were not delivered."""
    ahead = [entry for entry, _ in scene.client.xrange(scene.name, min=f"({_position(scene)}")]
    if not ahead:
        return
    last = scene.random.choice([ahead[-1], scene.random.choice(ahead)])
    scene.client.xgroup_setid(scene.name, "g", last)
    done.gone |= _at(scene, [entry for entry in ahead if id_key(entry) <= id_key(last)])


def destroys_the_group(scene: Scene, done: Done) -> None:
    """XGROUP DESTROY."""
    scene.client.xgroup_destroy(scene.name, "g")
    done.either |= done.taken
    done.taken.clear()


def makes_the_group_anew(scene: Scene, done: Done) -> None:
    """XGROUP DESTROY, and CREATE where the stream ends or begins."""
    destroys_the_group(scene, done)
    at = scene.random.choice(["$", "0"])
    scene.client.xgroup_create(scene.name, "g", id=at)
    if at == "$":
        done.gone |= {one.place for one in scene.producer.added if one.place is not None}


HANDS: Mapping[str, Callable[[Scene, Done], None]] = {
    "claims from the query": claims_from_the_query,
    "claims what is idle": claims_all_that_is_idle,
    "gives to the query": gives_to_the_query,
    "acknowledges": acknowledges,
    "deletes the consumer": deletes_the_consumer,
    "sets the group back": sets_the_group_back,
    "sets the group forward": sets_the_group_forward,
    "destroys the group": destroys_the_group,
    "makes the group anew": makes_the_group_anew,
}


def at_a_moment(
    scene: Scene,
    hand: str,
    moment: Moment | None = None,
    mode: str | None = None,
    lenient: bool | None = None,
    shared: bool | None = None,
) -> Outcome:
    """One of HANDS. shared: another consumer has read from the group before. What is not said is left to chance."""
    choice = scene.random.choice
    mode, moment = mode or choice(list(MODES)), moment or Moment.by_chance(scene, DOWN, *STAGES)
    lenient = choice([True, False]) if lenient is None else lenient
    shared = hand == "gives to the query" or (choice([True, False]) if shared is None else shared)
    if shared and mode == "noAck":
        mode = "at-least-once"  # noAck wants the group for itself
    options = {**MODES[mode], **(LENIENT if lenient else {})}
    query = scene.query(moment.fault, maxEntriesPerTrigger="40", entriesPerPartition="15", **options)
    scene.producer.add(scene.name, scene.random.randint(100, 130))
    done = Done(foreign=(BOB,))
    if shared:
        scene.client.xgroup_create(scene.name, "g", id="0")
        read = scene.client.xreadgroup("g", BOB, {scene.name: ">"}, count=scene.random.randint(5, 25))
        done.taken = _at(scene, [entry for _, entries in read for entry, _ in entries])

    def act() -> None:
        HANDS[hand](scene, done)
        if shared and hand == "sets the group forward":
            done.either |= done.gone  # nobody can tell it from what the others have read
        scene.producer.add(scene.name, scene.random.choice([0, 30]))

    running = meet(scene, query, moment, act)
    after = live_on(scene, query, running, done.foreign)
    outcome = judge(scene, query, after, done)
    outcome.report.forgive("unseen")  # others acknowledge, too, and groups vanish
    if mode != "at-least-once" or (lenient and hand == "sets the group back"):
        outcome.report.forgive("early")  # what is pending above such a group is given again
    elif hand == "sets the group back":
        # A strict query without a commit mark takes such a group for one that an older file has brought back. It
        # acknowledges what is pending above the group, which delivers it again: then it is acknowledged again, in time.
        again = _in_time(outcome.history)
        outcome.report.early = [place for place in outcome.report.early if place not in again]
    shown = ", ".join([hand, str(moment), mode, "lenient" if lenient else "strict", *(["shared"] if shared else [])])
    outcome.chosen = shown
    return outcome


def scene_of(hand: str) -> Callable[[Scene], Outcome]:
    """One of HANDS as a scene."""
    return lambda scene: at_a_moment(scene, hand)


def _in_time(history: History) -> set[Place]:
    """What was acknowledged after the batch that read it was committed, whatever was acknowledged before."""
    batch_of = {row.place: row.batch for row in history.kept()}
    return {ack.place for ack in history.acknowledged if batch_of.get(ack.place, ack.committed + 1) <= ack.committed}


def _pending(scene: Scene, consumer: str) -> list[str]:
    """Ids that are pending for a consumer, or for one that a query's name begins."""
    found = scene.client.xpending_range(scene.name, "g", "-", "+", 10_000)
    return [one["message_id"] for one in found if one["consumer"].partition("~")[0] == consumer]


def _position(scene: Scene) -> str:
    return str(scene.client.xinfo_groups(scene.name)[0]["last-delivered-id"])


def _some(scene: Scene, ids: list[str]) -> list[str]:
    """One of them at least, where there is one."""
    return scene.random.sample(ids, scene.random.randint(1, len(ids))) if ids else []


def _at(scene: Scene, ids: set[str] | list[str]) -> set[Place]:
    return {(scene.name, entry) for entry in ids}
