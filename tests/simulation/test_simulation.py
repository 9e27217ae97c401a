"""Random interleavings of everything that may happen to a query, on both servers (see the package)."""

from __future__ import annotations

import os

import pytest

from tests.seeds import TIMES
from tools.servers.server import Server
from tools.simulation.patched import product
from tools.simulation.plan import make
from tools.simulation.run import run
from tools.simulation.soak import shrunk, soak

pytestmark = [pytest.mark.kills, pytest.mark.random]

BLOCKS, RUNS = 6, 10 * TIMES  # runs per block and server
FIRST = int(os.environ.get("RSTREAM_SEED") or 0)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_nothing_is_lost_doubled_or_passed_over_in_silence(server: Server, block: int) -> None:
    """The same seeds each time, or those from RSTREAM_SEED on."""
    for tally in soak(server, range(FIRST + block * RUNS, FIRST + (block + 1) * RUNS)):
        for seed, *_ in tally.seeds.values():
            pytest.fail(f"seed {seed}\n{_story(server, seed)}", pytrace=False)


def _story(server: Server, seed: int) -> str:
    """The shortest plan that fails like this one, and its story."""
    lines: list[str] = []
    with product(), server.client(decode_responses=True) as client:
        plan = shrunk(server, client, make(seed))
        outcome = run(server, client, plan, lines.append)
    failures = [f"{one.kind}\n    {one.details}" for one in outcome.failures]
    return "\n".join([*lines, "", str(plan), "", *failures])
