"""Find a short plan that fails alike, greedily: leave out steps, simplify delays and options."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from tools.simulation.plan import NEVER_AHEAD
from tools.simulation.setup import Plan

_ALWAYS = ("streams", "streamsPattern", "startingOffsets", "startingTimestamp")  # options that a plan needs
_MAX_RUNS = 400
_MAX_SECONDS = 15.0


def shrink(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """Return the shortest plan that was found within a limit of runs and seconds. fails: whether a plan fails alike."""
    remaining_runs, deadline = _MAX_RUNS, time.monotonic() + _MAX_SECONDS
    smaller = True
    while smaller:
        smaller = False
        for candidate in _simpler(plan):
            remaining_runs -= 1
            if remaining_runs < 0 or time.monotonic() > deadline:
                return plan
            if fails(candidate):
                plan, smaller = candidate, True
                break
    return plan


def _simpler(plan: Plan) -> Iterator[Plan]:
    """Yield simpler plans, those with the largest difference first."""
    count = len(plan.steps)
    size = count // 2
    while size:
        for start in range(0, count, size):
            yield plan.without(range(start, min(start + size, count)))
        size //= 2
    setup = plan.setup
    for name in setup.options:
        if name not in _ALWAYS:
            kept = {key: value for key, value in setup.options.items() if key != name}
            yield replace(plan, setup=replace(setup, options=kept))
    if setup.streams > 1 and "streams" in setup.options:
        fewer = ",".join(setup.options["streams"].split(",")[:-1])
        yield replace(
            plan, setup=replace(setup, streams=setup.streams - 1, options={**setup.options, "streams": fewer})
        )
    for name in setup.limits:
        kept_limits = {key: value for key, value in setup.limits.items() if key != name}
        yield replace(plan, setup=replace(setup, limits=kept_limits))
    if setup.sink_elsewhere:
        yield replace(plan, setup=replace(setup, sink_elsewhere=False))
    if setup.before:
        yield replace(plan, setup=replace(setup, before=0))
    if setup.pace:
        yield replace(plan, setup=replace(setup, pace=0))
    if setup.ahead != NEVER_AHEAD:
        yield replace(plan, setup=replace(setup, ahead=NEVER_AHEAD))
    for index, step in enumerate(plan.steps):
        for delay in sorted({0, step.delay // 2, step.delay - 1} - {step.delay}):
            if 0 <= delay < step.delay:
                yield _with(plan, index, delay=delay)
        if step.amount > 0.2:
            yield _with(plan, index, amount=round(step.amount / 2, 3))
        if len(step.options) > 2:
            for removed in range(len(step.options)):
                if step.options[removed][0] not in _ALWAYS:
                    yield _with(plan, index, options=step.options[:removed] + step.options[removed + 1 :])


def _with(plan: Plan, index: int, **changes: object) -> Plan:
    steps = list(plan.steps)
    steps[index] = replace(steps[index], **changes)  # type: ignore[arg-type]
    return replace(plan, steps=tuple(steps))
