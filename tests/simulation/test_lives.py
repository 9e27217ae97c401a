"""Random lives of commands (tools.lives): what a command says is what it does, at any moment, also if it is killed."""

from __future__ import annotations

import pytest

from tests.seeds import TIMES, seeds
from tools.lives.processes import product
from tools.lives.run import live
from tools.simulation.in_process.server import ProcessServer

_PARTS = 4
RUNS = 40 if TIMES == 1 else 100 * TIMES
# Seeds of defects that were mended. Those of earlier ones are the lives and tests that find the mutants of the rim.
MENDED = {
    "a query of a new name that begins amid prune --hold is seen": (7018558,),
    "the dry run of replay counts released entries": (7015434,),
    "claim leaves with nobody what was released since it was listed": (71001650,),
    "ack does not count a deleted entry that another consumer claims before": (20848372,),
    "what a query meets amid a change is no false alarm": (223,),
    "nobody needs what the scratch group of a killed query has not read": (442,),
}


def _faults(chosen: range | tuple[int, ...]) -> list[tuple[int, str]]:
    server = ProcessServer()
    with product(server):
        return [(seed, text) for seed in chosen for text in live(server, seed).faults]


@pytest.mark.parametrize("part", range(_PARTS))
def test_lives_have_no_fault(part: int) -> None:
    """To see one: python -m tools.lives --story SEED."""
    assert _faults(seeds(RUNS // TIMES)[part::_PARTS]) == []


@pytest.mark.parametrize("rule", MENDED)
def test_a_life_that_has_failed_passes(rule: str) -> None:
    assert _faults(MENDED[rule]) == []
