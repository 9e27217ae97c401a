"""Plans by hand without a mutant: nothing fails, and the story of each tells what it is for."""

from __future__ import annotations

import pytest

from tools.simulation.in_process.server import ProcessServer
from tools.simulation.patched import product
from tools.simulation.told import TOLD, missing


@pytest.mark.parametrize("name", TOLD)
def test_a_plan_by_hand_goes_the_way_that_it_is_for(name: str) -> None:
    """A mutant is found by what its plan tells then; if it told nothing before, the plan would find nothing."""
    server = ProcessServer()
    with product(server), server.client(decode_responses=True) as client:
        assert missing(server, client, name) is None
