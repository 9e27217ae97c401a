"""One cluster and a few Pythons for all tests of this folder, which are long: they run by `scripts/test --cluster`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.legs.cluster.pythons import as_zip, install, make_python, make_wheel
from tests.legs.cluster.standalone import Cluster, standalone
from tools.servers.server import Server


@dataclasses.dataclass(frozen=True)
class Pythons:
    """wheel: the package; zipped: for --py-files; bare: a Python without it; whole: one that has it."""

    wheel: Path
    zipped: Path
    bare: Path
    whole: Path


@pytest.fixture(scope="session")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> Pythons:
    folder = tmp_path_factory.mktemp("pythons")
    wheel = make_wheel(folder / "wheel")
    bare = make_python(folder / "bare")
    whole = make_python(folder / "whole", like=bare)
    install(whole, wheel)
    return Pythons(wheel, as_zip(wheel, folder), bare, whole)


@pytest.fixture(scope="session")
def the_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(the_cluster: Cluster) -> Cluster:
    """Two workers: what a test before has killed is replaced."""
    for _ in range(2 - len(the_cluster.alive_workers())):
        the_cluster.add_worker()
    return the_cluster


@pytest.fixture
def both_servers(engine_server: Server, redis_server: Server) -> list[Server]:
    """Empty."""
    for server in (engine_server, redis_server):
        with server.client() as client:
            client.flushall()
    return [engine_server, redis_server]


@pytest.fixture
def real(redis_server: Server) -> Server:
    """A redis-server, empty."""
    with redis_server.client() as client:
        client.flushall()
    return redis_server
