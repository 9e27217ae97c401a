"""Fixtures that every test shares: the servers that stream behaviour is tested on."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.servers import Server, redis_server_path, running_engine, running_redis, skip_without_redis

# How long an example takes says how busy the machine is. What once failed is a test of its own, not a file on one disk.
settings.register_profile("tests", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

KINDS = ["engine", "redis"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--by-turns",
        action="store_true",
        help="each test of both servers on one of them: half of the tests on the engine, half on redis-server; an even "
        "RSTREAM_SEED's is the other one than an odd one's",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """--by-turns, where this machine has both."""
    if not config.getoption("--by-turns") or redis_server_path() is None:
        return
    turn = int(os.environ.get("RSTREAM_SEED") or random.randrange(2))
    left = [item for item in items if not _has_turn(item, turn)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in set(left)]


def _has_turn(item: pytest.Item, turn: int) -> bool:
    kind = (
        item.callspec.params.get("server") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
    )
    if kind not in KINDS:
        return True
    name = "-".join(part for part in item.nodeid.split("[")[-1].rstrip("]").split("-") if part not in KINDS)
    chosen = turn + zlib.crc32(f"{item.nodeid.split('[')[0]} {name}".encode())
    return KINDS[chosen % len(KINDS)] == kind


@pytest.fixture(scope="session")
def engine_server() -> Iterator[Server]:
    with running_engine() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    skip_without_redis()
    with running_redis() as server:
        yield server


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Server:
    """An empty server: the same test runs on the bundled engine and on a real redis-server."""
    chosen: Server = request.getfixturevalue(f"{request.param}_server")
    with chosen.client() as client:
        client.flushall()
    return chosen
