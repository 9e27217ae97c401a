"""Commands of the product that the server refuses, once or for a while."""

from __future__ import annotations

from tools.simulation.in_process.refusals import CODES, Request
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.step import Step, pick
from tools.simulation.world import World

_ONCE = 0.6  # share of the refusals that meet one command
_MANY = 60  # commands: longer than an operation is tried


def refuse(world: World, step: Step) -> None:
    """From one of the next commands on, refuse what a code applies to: one command, or up to sixty. choice: the code;
    amount: which command is the first; how: how many. Only a server in this process can be told so."""
    if not isinstance(world.server, ProcessServer):
        return
    refusals = world.server.core.refusals
    passing = int(40 * step.amount**2)
    refused = 1 if step.how < _ONCE else 2 + int(_MANY * ((step.how - _ONCE) / (1 - _ONCE)) ** 2)

    def is_met(request: Request) -> bool:
        nonlocal passing, refused
        passing -= 1
        if passing >= 0:
            return False
        refused -= 1
        world.away = True
        world.tell(f"      refused {request.place}: {b' '.join(request.words)[:90].decode('utf-8', 'replace')}")
        if refused == 0:
            refusals.end()
        return True

    code = pick([*CODES], step.choice)
    world.tell(f"      {code}: {refused} commands, after {passing}")
    refusals.begin(code, is_met)
