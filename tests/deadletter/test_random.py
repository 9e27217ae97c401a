"""Letters through seeded random lives: each exactly once, and an entry is acknowledged exactly where its letter exists.

RSTREAM_SEED replays a run, RSTREAM_RUNS says how many on each server.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.deadletter.lives import Lives
from tests.proxy import Proxy
from tools.servers.server import Server

RUNS = int(os.environ.get("RSTREAM_RUNS") or 25)


def test_each_letter_exists_once_whatever_breaks_and_an_entry_is_acknowledged_where_it_does(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = os.environ.get("RSTREAM_SEED")
    first = int(chosen) if chosen else random.randrange(1 << 30)
    for seed in range(first, first + (1 if chosen else RUNS)):
        with Proxy(server.url) as proxy:
            lives = Lives(server, proxy, seed)
            try:
                lives.run(steps=random.Random(seed).randint(2, 12))
            except Exception as error:
                told = "\n".join(lives.told)
                raise AssertionError(f"RSTREAM_SEED={seed} on {server.kind}: {error}\n{told}") from error
            finally:
                lives.direct.close()
