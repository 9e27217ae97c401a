"""The seed of all faults, and one Spark session with task retries for the faults that need no kill.

What chance has chosen for a test (the sink; the server, where a scene is slow) is printed when all have run.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tools.chaos.query import SINKS
from tools.chaos.scene import Scene
from tools.day_seed import first_seed
from tools.servers.server import Server, kind_of_turn

_CHOSEN = pytest.StashKey[dict[str, str]]()


@pytest.fixture(scope="session")
def seed() -> int:
    """Seed of all that is random in these tests."""
    print(f"RSTREAM_SEED={first_seed()}")
    return first_seed()


@pytest.fixture(scope="module")
def servers(servers_of_kinds: dict[str, Server]) -> dict[str, str]:
    """Kind → URL of the servers that tests of this file look at; one Spark has queries on all of them."""
    return {kind: server.url for kind, server in servers_of_kinds.items()}


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    """Tasks are tried four times."""
    from tools.chaos.job import session

    active = SparkSession.getActiveSession()
    if active is not None:
        active.stop()  # of other tests, without retries
    made = session("local[2,4]", {})
    yield made
    made.stop()


@pytest.fixture
def sink(request: pytest.FixtureRequest, seed: int) -> str:
    """Where the test's query writes: what SINK of its module says, or one of the two, by the seed."""
    if hasattr(request.module, "SINK"):
        return str(request.module.SINK)
    chosen = random.Random(f"{seed} {request.node.nodeid}").choice(SINKS)
    say(request.config, request.node.nodeid, f"into {chosen}", seed)
    return chosen


@pytest.fixture
def server_by_turns(request: pytest.FixtureRequest, seed: int) -> Server:
    """An empty server, for a scene that is too slow for both: an even seed's is the other one than an odd seed's."""
    kind = kind_of_turn(request.node.nodeid, seed)
    say(request.config, request.node.nodeid, f"on {kind}", seed)
    server: Server = request.getfixturevalue(f"{kind}_server")
    with server.client() as client:
        client.flushall()
    return server


@pytest.fixture
def scene(spark: SparkSession, server: Server, seed: int, sink: str, tmp_path: Path) -> Iterator[Scene]:
    """A place for one query over stream `s`, or streams whose names begin with `s:`."""
    with contextlib.closing(Scene(spark, tmp_path, server.kind, server.url, "s", random.Random(seed), sink)) as made:
        yield made


@pytest.fixture
def scene_by_turns(
    spark: SparkSession, server_by_turns: Server, seed: int, sink: str, tmp_path: Path
) -> Iterator[Scene]:
    """The same on one of the servers."""
    kind, url = server_by_turns.kind, server_by_turns.url
    with contextlib.closing(Scene(spark, tmp_path, kind, url, "s", random.Random(seed), sink)) as made:
        yield made


def say(config: pytest.Config, test: str, what: str, seed: int) -> None:
    """Print at the end what was chosen for a test."""
    said = config.stash.setdefault(_CHOSEN, {"RSTREAM_SEED": str(seed)})
    name = test.rpartition("/")[2]
    said[name] = f"{said[name]}, {what}" if name in said else what


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Which ones ran."""
    said = config.stash.get(_CHOSEN, {})
    if said:
        terminalreporter.section("faults: what the seed has chosen")
    for name, what in said.items():
        terminalreporter.line(f"{name}: {what}")
