"""The seed of all faults, and one Spark session with task retries for the faults that need no kill."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chaos.scene import Scene
from tests.servers import Server, redis_server_path


@pytest.fixture(scope="session")
def seed() -> int:
    """What is random in these tests; RSTREAM_SEED replays a run."""
    chosen = int(os.environ.get("RSTREAM_SEED") or random.randrange(1_000_000))
    print(f"RSTREAM_SEED={chosen}")
    return chosen


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> dict[str, str]:
    """Kind → URL of the servers of this machine; a query on each costs no more than one Spark."""
    kinds = ["engine", "redis"] if redis_server_path() else ["engine"]
    found: dict[str, Server] = {kind: request.getfixturevalue(f"{kind}_server") for kind in kinds}
    return {kind: server.url for kind, server in found.items()}


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    """Tasks are tried four times."""
    from chaos.job import session

    active = SparkSession.getActiveSession()
    if active is not None:
        active.stop()  # of other tests, without retries
    made = session("local[2,4]", {})
    yield made
    made.stop()


@pytest.fixture
def scene(spark: SparkSession, server: Server, seed: int, tmp_path: Path) -> Iterator[Scene]:
    """A place for one query over stream `s`, or streams whose names begin with `s:`."""
    made = Scene(spark, tmp_path, server.kind, server.url, "s", random.Random(seed))
    yield made
    made.close()
