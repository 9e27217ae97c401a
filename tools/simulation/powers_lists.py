"""Changes between two runs of a query: streams leave its list and come back, and batches are cut for a while."""

from __future__ import annotations

from collections.abc import Mapping

from tools.simulation.options import with_option
from tools.simulation.step import Step, part, pick
from tools.simulation.ticks import Killed
from tools.simulation.world import World


def leave_out(world: World, step: Step) -> None:
    """Stop the query, and start it without one stream or several neighbours, but not without all."""
    listed = world.query.reads()
    if "streams" in world.query.options and len(listed) > 1:
        first = listed.index(pick(listed, step.choice))
        out = listed[first : first + part(len(listed) - 1, step.amount)]
        _start_with(world, {**world.query.options, "streams": ",".join(name for name in listed if name not in out)})


def put_back(world: World, step: Step) -> None:
    """Stop the query, and start it with all streams that were ever in its list, or with one more of them."""
    query = world.query
    out = sorted(query.listed - {*query.reads()})
    if "streams" in query.options and out:
        back = out if step.how < 0.6 else [pick(out, step.choice)]
        _start_with(world, {**query.options, "streams": ",".join(sorted([*query.reads(), *back]))})


def deliver_often(world: World, step: Step) -> None:
    """Stop the query, and start it without maxDeliveries."""
    if "maxDeliveries" in world.query.options:
        options = {name: value for name, value in world.query.options.items() if name != "maxDeliveries"}
        if options.get("mode") != "DEADLETTER":
            options.pop("deadLetterStream", None)
        world.query.was_unlimited = True
        _start_with(world, options)


def deliver_seldom(world: World, step: Step) -> None:
    """Stop the query, and start it with maxDeliveries."""
    if "maxDeliveries" not in world.query.options:
        _start_with(world, with_option(world.query.options, "maxDeliveries", pick(["1", "2"], step.how)))


def _start_with(world: World, options: Mapping[str, str]) -> None:
    query = world.query
    query.listed |= {*query.reads()}  # at the end, all of them are read
    query.change({**options})
    if query.running:
        raise Killed
