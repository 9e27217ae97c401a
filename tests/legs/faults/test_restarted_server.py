"""A server that goes away for two seconds."""

from __future__ import annotations

import pytest

from tools.chaos import servers
from tools.chaos.stage import Stage

pytestmark = [pytest.mark.spark, pytest.mark.kills]


@pytest.mark.parametrize("moment", ["reading", "writing", servers.BEGINNING])
def test_a_restart_of_the_server_is_waited_for(stage_by_turns: Stage, seed: int, moment: str) -> None:
    """Two seconds, when a task begins to read or to write, or when the query begins: it does not end."""
    servers.restarted(stage_by_turns, moment, 2)
    assert stage_by_turns.is_right(), f"RSTREAM_SEED={seed}\n{stage_by_turns}"
