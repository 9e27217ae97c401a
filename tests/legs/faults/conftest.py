"""The seed of all faults, and one Spark for the scenes that kill none.

What chance has chosen for a test (the sink; the server, where a scene is slow) is printed when all have run.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools.chaos.query import SINKS
from tools.chaos.stage import Spark, Stage
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
def shared_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Spark]]:
    """A Spark that starts when a scene needs it. Tasks are tried four times."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda: stack.enter_context(Spark(tmp_path_factory.mktemp("shared"), threads=2)))


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
def stage(shared_spark: Callable[[], Spark], server: Server, seed: int, sink: str, tmp_path: Path) -> Iterator[Stage]:
    """A place for one scene on this server."""
    with Stage(tmp_path, {server.kind: server.url}, random.Random(seed), sink, shared_spark) as made:
        yield made


@pytest.fixture
def stage_by_turns(
    shared_spark: Callable[[], Spark], server_by_turns: Server, seed: int, sink: str, tmp_path: Path
) -> Iterator[Stage]:
    """The same on one of the servers."""
    servers = {server_by_turns.kind: server_by_turns.url}
    with Stage(tmp_path, servers, random.Random(seed), sink, shared_spark) as made:
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
