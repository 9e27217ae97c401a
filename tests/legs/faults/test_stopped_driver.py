"""The old driver stands still, a new one takes over, the old one wakes: it does no harm."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.legs.faults.conftest import say
from tools.chaos import drivers
from tools.chaos.stage import Stage
from tools.servers.server import Server

pytestmark = [pytest.mark.spark, pytest.mark.kills]

POINTS = ("reserved", "writing")  # scripts/chaos has all of drivers.STOPS


def test_a_driver_that_was_taken_over_does_no_harm(
    server_by_turns: Server, seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Stopped with a batch reserved, or with a task about to write; woken two batches later."""
    with Stage(tmp_path, {server_by_turns.kind: server_by_turns.url}, random.Random(seed)) as stage:
        drivers.stopped(stage, POINTS)
    for name, case in stage.cases.items():
        say(request.config, request.node.nodeid, f"{name} into {case.query.sink}", seed)
    assert stage.is_right(), f"RSTREAM_SEED={seed}\n{stage}"
