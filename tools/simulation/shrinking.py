"""The shortest plan that still fails alike, found greedily: steps are left out, delays and options made plainer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from tools.simulation.plan import NEVER_AHEAD, Plan

_MOST_RUNS = 400
_MOST_SECONDS = 15.0


def shrink(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """fails: whether a plan fails like this one. It does not take long."""
    left, deadline = _MOST_RUNS, time.monotonic() + _MOST_SECONDS
    smaller = True
    while smaller:
        smaller = False
        for candidate in _plainer(plan):
            left -= 1
            if left < 0 or time.monotonic() > deadline:
                return plan
            if fails(candidate):
                plan, smaller = candidate, True
                break
    return plan


def _plainer(plan: Plan) -> Iterator[Plan]:
    """Plans that are a little plainer, the boldest first."""
    count = len(plan.steps)
    size = count // 2
    while size:
        for start in range(0, count, size):
            yield plan.without(range(start, min(start + size, count)))
        size //= 2
    setup = plan.setup
    for name in setup.options:
        if name not in ("streams", "streamsPattern", "startingOffsets"):
            kept = {key: value for key, value in setup.options.items() if key != name}
            yield replace(plan, setup=replace(setup, options=kept))
    if setup.streams > 1 and "streams" in setup.options:
        fewer = ",".join(setup.options["streams"].split(",")[:-1])
        yield replace(
            plan, setup=replace(setup, streams=setup.streams - 1, options={**setup.options, "streams": fewer})
        )
    if setup.before:
        yield replace(plan, setup=replace(setup, before=0))
    if setup.pace:
        yield replace(plan, setup=replace(setup, pace=0))
    if setup.ahead != NEVER_AHEAD:
        yield replace(plan, setup=replace(setup, ahead=NEVER_AHEAD))
    for at, step in enumerate(plan.steps):
        for delay in sorted({0, step.delay // 2, step.delay - 1} - {step.delay}):
            if 0 <= delay < step.delay:
                yield _with(plan, at, delay=delay)
        if step.much > 0.2:
            yield _with(plan, at, much=round(step.much / 2, 3))
        if len(step.options) > 2:
            for gone in range(len(step.options)):
                if step.options[gone][0] not in ("streams", "streamsPattern", "startingOffsets"):
                    yield _with(plan, at, options=step.options[:gone] + step.options[gone + 1 :])


def _with(plan: Plan, at: int, **changes: object) -> Plan:
    steps = list(plan.steps)
    steps[at] = replace(steps[at], **changes)  # type: ignore[arg-type]
    return replace(plan, steps=tuple(steps))
