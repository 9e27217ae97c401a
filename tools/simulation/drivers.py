"""A run with two drivers on one group: each has its own consumer, checkpoint and sink. Both die and come back, and
claim from each other. It is judged by entry, over both sinks.

Nothing leaves the streams, so nothing may be lost or pending at the end. What a driver has written and not acknowledged
may come a second time if the other one claims it (docs/reference/guarantees.md). Nothing else may.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import redis

from tools.servers.server import Server
from tools.simulation import powers_clock
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.lane import Lane, failures_of
from tools.simulation.options import DEAD
from tools.simulation.outcome import Outcome
from tools.simulation.patched import in_world
from tools.simulation.setup import Plan
from tools.simulation.step import Step, pick
from tools.simulation.world import Failure, World, counted

NAMES = ("ann", "ben")
_MOST_ROUNDS = 12  # of both drivers, at the end
_MOST_TRIGGERS = 40  # of one driver in a round


def run(server: Server, client: redis.Redis, plan: Plan, tell: Callable[[str], None] | None = None) -> Outcome:
    """Execute a plan on an empty server with the patched library. tell: receives the story."""
    assert isinstance(server, ProcessServer), "two drivers need the plan's clock: --server process"
    server.core.begin(plan.setup.seed)
    server.core.clock.command_ns = 1_000 * plan.setup.command_us
    client.flushall()
    lanes = [Lane(server, client, plan, tell, name, 1_000_000 * index) for index, name in enumerate(NAMES)]
    for lane in lanes:
        lane.others = [other for other in lanes if other is not lane]
    _add(lanes, Step("add"), plan.setup.before)
    with in_world(lanes[0]):
        try:
            for step in plan.steps:
                lanes[0].elsewhere.renew()
                for lane in lanes:
                    lane.model.happened += 1
                DRIVEN[step.kind](lanes, step)
                if failures_of(lanes):
                    break
            else:
                _finish(lanes)
        finally:
            for lane in lanes:
                lane.kill()
                lane.query.tasks.end()
                lane.raw.close()
    ticks = sum(lane.ticks.count for lane in lanes)
    batches = sum(len(lane.query.offsets) for lane in lanes)
    return Outcome(plan, failures_of(lanes), batches, ticks, server.core.digest_so_far())


# -- steps -------------------------------------------------------------------------------------------------------------


def _drive(lanes: Sequence[Lane], step: Step) -> None:
    """Let one driver work for some ticks, 0: to the end of its trigger, or to the request that the step names."""
    lane = pick([*lanes], step.choice)
    result = lane.work(step.delay if step.at else step.delay or None, step.at)
    lane.tell(f"=== {step}: {result or 'stands still'}")


def _kill(lanes: Sequence[Lane], step: Step) -> None:
    """Kill one driver where it stands."""
    lane = pick([*lanes], step.choice)
    lane.tell("is killed")
    lane.kill()


def _crash(lanes: Sequence[Lane], step: Step) -> None:
    """Kill one driver while it runs its next batch: after its first task, or after the sink has closed it."""
    pick([*lanes], step.choice).query.tasks.crashes.append(step.how >= 0.5)


def _options(lanes: Sequence[Lane], step: Step) -> None:
    """Stop one driver. It starts again with other options."""
    lane = pick([*lanes], step.choice)
    lane.kill()
    lane.query.change({**dict(step.options), "consumer": lane.name})


def _add(lanes: Sequence[Lane], step: Step, count: int | None = None) -> None:
    """Add one to eight entries."""
    names = lanes[0].names()
    added = lanes[0].add(pick(names, step.how), 1 + int(step.amount * 8) if count is None else count)
    lanes[0].tell(f"added {[entry.n for entry in added]}")
    for lane in lanes[1:]:
        lane.copy(added)


def _wait(lanes: Sequence[Lane], step: Step) -> None:
    """Nothing happens for up to four seconds: what is pending becomes idle (claimIdle)."""
    lanes[0].network.pass_time(4 * step.amount)


DRIVEN: dict[str, Callable[[Sequence[Lane], Step], None]] = {
    "drive": _drive,
    "drive_kill": _kill,
    "drive_crash": _crash,
    "drive_options": _options,
    "drive_add": _add,
    "drive_wait": _wait,
    "clock_back": lambda lanes, step: powers_clock.clock_back(lanes[0], step),
}


# -- the end -----------------------------------------------------------------------------------------------------------


def _finish(lanes: Sequence[Lane]) -> None:
    """Let both read all there is, one after the other, and judge."""
    for lane in lanes:
        lane.tell("the end")
        lane.query.tasks.crashes.clear()
    for _ in range(_MOST_ROUNDS):
        results = []
        for lane in lanes:
            lane.kill()
            lane.network.pass_time(5)
            results.append(_drained(lane))
        if failures_of(lanes):
            return
        if set(results) == {"idle"} and not _pending(lanes[0]):
            break
    else:
        left = {name: lanes[0].see(name).pending for name in lanes[0].names()}
        lanes[0].fail(f"pending | {_modes(lanes)}", f"{results} after {_MOST_ROUNDS} rounds, pending: {left}")
        return
    for failure in _judged(lanes):
        lanes[0].fail(failure.kind, failure.details)


def _drained(lane: Lane) -> str:
    result = ""
    for _ in range(_MOST_TRIGGERS):
        result = lane.work(None, available_now=True)
        if result != "batch":
            break
    return result


def _pending(world: World) -> bool:
    return any(world.see(name).pending for name in world.names())


def _judged(lanes: Sequence[Lane]) -> Iterable[Failure]:
    model = lanes[0].model
    times = Counter(row.value[1] for lane in lanes for row in lane.sink.rows())
    dead = {int(fields["n"]) for _, fields in lanes[0].client.xrange(DEAD)}
    excused = {n for lane in lanes for n, entry in lane.model.entries.items() if entry.excuses}
    lost = [n for n in model.entries if not times[n] and n not in dead | excused]
    if lost:
        yield Failure(f"lost | {_modes(lanes)}", f"in no sink: {counted(lost)}")
    allowed = set[int]().union(*(lane.elsewhere.claimed for lane in lanes))
    allowed |= {n for lane in lanes for n, entry in lane.model.entries.items() if entry.repeat_reasons}
    if twice := [n for n, often in times.items() if often > 1 and n not in allowed]:
        by_lane = {lane.name: counted(sorted({*twice} & lane.written())) for lane in lanes}
        yield Failure(f"twice | {_modes(lanes)}", f"twice, and not claimed after they were written: {by_lane}")
    if set(times) - set(model.entries):
        yield Failure(f"phantom | {_modes(lanes)}", f"{set(times) - set(model.entries)}")


def _modes(lanes: Sequence[Lane]) -> str:
    return " / ".join(lane.query.mode for lane in lanes)
