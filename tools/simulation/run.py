"""One run: execute a plan in a world, drain, and judge."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import redis

from spark_streams.base.ids import U64_MAX
from tools.servers.server import Server
from tools.simulation import drivers, powers_accidents, powers_clients, powers_spark, verdict
from tools.simulation.actor import Killed
from tools.simulation.births import Births
from tools.simulation.elsewhere import Elsewhere
from tools.simulation.in_process.cluster import ClusterServer
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.journeys import Asker
from tools.simulation.letters import Letters, Redrives
from tools.simulation.mixes import seconds_set_back
from tools.simulation.model import Entry
from tools.simulation.options import ID, long_delays
from tools.simulation.patched import in_world
from tools.simulation.remedies import Operator
from tools.simulation.setup import Plan, Step
from tools.simulation.sinks import Once, Recorder, Skipping
from tools.simulation.spark import Query
from tools.simulation.world import Outcome, World

_MODULES = (powers_clients, powers_accidents, powers_spark)
POWERS: dict[str, Callable[[World, Step], None]] = {
    name: power
    for module in _MODULES
    for name, power in vars(module).items()
    if getattr(power, "__module__", "") == module.__name__ and not name.startswith("_")
}
SINKS: dict[str, Callable[[World], Once | Recorder]] = {"recorder": Recorder, "skipping": Skipping, "once": Once}
_MAX_RUNS = 12  # of the last drain
_ASKED = 12  # entries at the end of a plan that asks where they are


def run(
    server: Server,
    client: redis.Redis,
    plan: Plan,
    tell: Callable[[str], None] | None = None,
    beside: Mapping[str, Callable[[World, Step], None]] | None = None,
    reader_of: Callable[[Query], Any] | None = None,
    trace: list[Any] | None = None,
) -> Outcome:
    """Execute a plan on an empty server with the patched library.

    tell: receives the story, line by line; beside: more powers, which only this plan has; reader_of: what is in the
    place of the product (core_model); trace: receives what two of these must have in common, step by step.
    """
    if plan.setup.drivers > 1:
        return drivers.run(server, client, plan, tell)
    if isinstance(server, ProcessServer):
        server.core.begin(plan.setup.seed)
        server.core.clock.command_ns = 1_000 * plan.setup.command_us
        if plan.setup.nodes > 1:
            server = ClusterServer.of(server.core)
            client = server.client(decode_responses=True)
    client.flushall()
    world = World(server, client, plan, tell)
    world.powers = {**POWERS, **(beside or {})}
    world.births, world.operator = Births(world), Operator(world)
    world.elsewhere = Elsewhere(world)
    world.letters, world.redrives = Letters(world), Redrives(world)
    world.sink = SINKS[plan.setup.sink](world)
    for core in (server.core, *server.core.others.values()) if isinstance(server, ProcessServer) else ():
        core.engine.__dict__["wait_for_replica"] = world.wait_for_replica
    before = world.add(world.names()[0], plan.setup.before)
    options = dict(plan.setup.options)
    _begin_at(options, before)
    world.query = Query(world, options, reader_of, trace)
    with in_world(world), tempfile.TemporaryDirectory() as world.archive:
        try:
            for step in plan.steps:
                _execute(world, step)
                if world.failures:
                    break
            else:
                _finish(world, plan)
        finally:
            world.query.die()
            world.query.tasks.end()
            world.redrives.end()
            world.raw.close()
    digest = server.core.digest_so_far() if isinstance(server, ProcessServer) else 0
    failures, batches = world.failures or world.suspicions[:1], len(world.query.offsets)
    return Outcome(plan, failures, batches, world.ticks.count, digest, world.met, world.used)


def _begin_at(options: dict[str, str], before: Sequence[Entry]) -> None:
    """Replace ID by that of an entry. With a time, startingOffsets has the position that follows from it: the model
    reads that."""
    chosen = before[len(before) // 2].id if before else "5-5"
    if "startingTimestamp" in options:
        milliseconds = int(chosen.partition("-")[0])
        options |= {"startingTimestamp": str(milliseconds), "startingOffsets": f"{milliseconds - 1}-{U64_MAX}"}
    elif options.get("startingOffsets") == ID:
        options["startingOffsets"] = chosen


def _execute(world: World, step: Step) -> None:
    if step.kind == "trigger":
        world.tell("trigger")
        _trigger(world)
    elif step.kind == "drain":
        world.tell("drain")
        _drain(world, 1)
    elif step.delay:
        world.tell(f"armed: {step}")
        world.ticks.arm(step)
    else:
        try:
            world.happen(step)
        except Killed:
            world.query.die()


def _trigger(world: World, available_now: bool = False) -> str:
    happened = world.model.happened
    result = world.query.advance(available_now)
    turns = 0
    while result == "idle" and not available_now and turns < len(world.names()) and verdict.has_unread_entries(world):
        world.network.pass_time(world.query.held_back)
        result, turns = world.query.advance(), turns + 1
    # Entries that are added during an AvailableNow run are left to the next run.
    is_complete = world.query.until in (None, len(world.model.entries))
    is_held_back = world.query.held_back > 0 and not available_now and verdict.has_unread_entries(world)
    if result == "idle" and world.model.happened == happened and is_complete and not is_held_back:
        verdict.at_peace(world)
        world.letters.check_delays()
        if world.query.lenient and world.query.strict_again:
            world.tell("   operator: strict again")
            world.query.die()
            world.query.lenient = False
    return result


def _drain(world: World, runs: int) -> bool:
    """Run with AvailableNow, at most `runs` times. Return whether a run read all entries."""
    for _ in range(runs):
        world.query.die()
        while (result := _trigger(world, available_now=True)) == "batch":
            pass
        if result == "idle":
            world.query.die()
            return True
    return False


def _finish(world: World, plan: Plan) -> None:
    """Read all entries without further events, and judge."""
    world.tell("the end")
    world.ticks.disarm()
    world.network.recover()
    world.replicated, world.replica = True, None
    world.query.tasks.wake_all()
    world.redrives.finish()
    world.elsewhere.end_all()
    world.query.read_all()
    delays = long_delays(plan.setup.options.get("retryDelay", ""))
    for _ in range(1 + len(delays)):
        if world.setup.has_values:
            world.network.pass_time(2 + max(delays) + seconds_set_back(world.server))
        if not _drain(world, _MAX_RUNS) and not world.failures:
            world.fail(f"never drained | {world.query.mode}", f"the last drain did not complete in {_MAX_RUNS} runs")
        world.query.tasks.wake_all()
        if world.failures:
            return
    verdict.at_the_end(world)
    if world.asks:
        Asker(world, random.Random(world.setup.seed)).ask(_ASKED)
