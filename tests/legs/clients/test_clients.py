"""Each stream command of each client: equal replies on the engine and on the newest redis-server that can be had."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.legs.clients.programs import PROGRAMS, said
from tests.legs.versions.folder import bin_of, version_of
from tools.servers.jars import NotThereError
from tools.servers.server import Server, running_redis, serving, skip_without_redis

NEWEST = "redis-8.6"

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def newest_redis() -> Iterator[Server]:
    if version_of(NEWEST) is None:
        skip_without_redis()
        pytest.skip(f"{NEWEST} is missing: scripts/test --clients brings it")
    with running_redis(program=str(bin_of(NEWEST) / "redis-server")) as server:
        yield server


@pytest.fixture(scope="module")
def engine() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.mark.parametrize("client", PROGRAMS)
def test_a_client_gets_the_same_replies(client: str, engine: Server, newest_redis: Server) -> None:
    try:
        command = PROGRAMS[client]()
    except NotThereError as error:
        pytest.skip(f"{client} is not to be had: {error}")
    replies = {}
    for server in (newest_redis, engine):
        with server.client() as direct:
            direct.flushall()
        replies[server.kind] = said(command, int(urlsplit(server.url).port or 0))
    assert len(replies["redis"]) > 30
    assert replies["engine"] == replies["redis"]
