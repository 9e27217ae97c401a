"""Who writes shards and who reads them is killed in the midst of a batch: each key's rows are there once, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.chaos import keyed
from tools.servers.server import Server

pytestmark = [pytest.mark.spark, pytest.mark.kills]


def test_a_driver_that_is_killed_amid_a_batch(server_by_turns: Server, seed: int, tmp_path: Path) -> None:
    judged = keyed.run(tmp_path, server_by_turns.url, seed, rows=10_000, kills=2)
    assert judged, f"RSTREAM_SEED={seed}\n{judged}"
    assert not judged.ended
    assert judged.keys == keyed.KEYS
