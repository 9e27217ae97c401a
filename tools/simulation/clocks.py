"""Plans in which the server's clock goes back or ahead (powers_clock), and in which two answers seldom share a
millisecond. Only a server of kind `process` has a clock that a plan moves."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from tools.servers.server import Server
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.setup import Plan
from tools.simulation.step import Step, random_step

_KINDS: Mapping[str, int] = {"clock_back": 6, "clock_ahead": 3, "fail_over_apart": 3, "restore_apart": 2}
_OVER_A_NETWORK = 2_000  # microseconds that a command takes


def with_clocks(chance: random.Random, plan: Plan) -> Plan:
    """Move the server's clock at one to four places: while entries are reserved ahead, in flight or handed over. In
    half of the plans a command takes as long as over a network."""
    steps = [*plan.steps]
    if plan.setup.drivers > 1:  # a clock that is set ahead ends the session of a driver that stands still
        for _ in range(chance.choice([1, 1, 2])):
            steps.insert(chance.randint(0, len(steps)), random_step(chance, "clock_back", 0))
        return replace(plan, steps=tuple(steps))
    for kind in chance.choices(list(_KINDS), list(_KINDS.values()), k=chance.choice([1, 1, 2, 4])):
        place = chance.randint(0, len(steps))
        block = [random_step(chance, "add", 0), Step("trigger")] if chance.random() < 0.6 else []
        block += [random_step(chance, "backup", 0), Step("trigger")] if kind == "restore_apart" else []
        block += [random_step(chance, "kill")] if chance.random() < 0.3 else []
        block += [random_step(chance, kind), *[Step("trigger")] * chance.choice([0, 1, 2])]
        block += [random_step(chance, "give", 0), Step("trigger")] if chance.random() < 0.2 else []
        steps[place:place] = block
    setup = replace(plan.setup, command_us=chance.choice([plan.setup.command_us, _OVER_A_NETWORK]))
    return replace(plan, setup=setup, steps=tuple(steps))


def is_behind(server: Server) -> bool:
    """Whether the server's clock shows a time that it had already shown before it was set back."""
    return isinstance(server, ProcessServer) and server.core.clock.unix_ms() <= server.core.clock.shown


def seconds_set_back(server: Server) -> float:
    """Return by how many seconds the server's clock was set back in all: what waits for a time of it waits longer."""
    return server.core.clock.set_back / 1e9 if isinstance(server, ProcessServer) else 0.0
