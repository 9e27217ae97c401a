"""Letters through seeded random lives: each exactly once, and an entry is acknowledged exactly where its letter exists.

tests/seeds.py says which seeds.
"""

from __future__ import annotations

import random

import pytest

from tests.connector.deadletter.lives import Lives
from tests.proxy import Proxy
from tests.seeds import seeds
from tools.servers.server import Server


@pytest.mark.in_turn
@pytest.mark.random
def test_each_dead_letter_exists_once_whatever_breaks_and_an_entry_is_acknowledged_where_it_does(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in seeds(25):
        with Proxy(server.url) as proxy:
            lives = Lives(server, proxy, seed)
            try:
                lives.run(steps=random.Random(seed).randint(2, 12))
            except Exception as error:
                told = "\n".join(lives.told)
                raise AssertionError(f"RSTREAM_SEED={seed} on {server.kind}: {error}\n{told}") from error
            finally:
                lives.direct.close()
