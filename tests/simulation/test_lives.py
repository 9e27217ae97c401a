"""Random lives of commands (tools.lives): what a command says is what it does, at any moment, also if it is killed."""

from __future__ import annotations

import pytest

from tests.seeds import TIMES, seeds
from tools.lives.processes import product
from tools.lives.run import live
from tools.simulation.in_process.server import ProcessServer

_PARTS = 4
RUNS = 40 if TIMES == 1 else 100 * TIMES
# Seeds of defects that were mended.
MENDED = {
    "trim counts what it has removed itself": (1110, 1423),
    "keys of a query whose consumer was deleted go with its group": (1269, 1300, 30249),
    "a query that the snapshot lacks is not moved": (1044,),
    "a query that came too late to be seen is named": (20038,),
    "an entry that was delivered in the same millisecond is acknowledged": (20187,),
    "the bookmark of a query with noAck counts what the query has read": (189,),
    "what claimIdle takes from a killed query is no false alarm": (30251,),
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
