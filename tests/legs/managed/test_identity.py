"""Tokens that expire, and connections that the service closes: after 12 hours, or after 10 idle minutes, by its clock.

Here an hour of that clock takes less than a second.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis

from spark_streams.connector.wire import connection
from tests.piping import Piping
from tools.driving import ALL, add, forget_all, pending_count, read, reader
from tools.servers.managed.refusing import Limits
from tools.servers.managed.standin import Service, StandIn, running_standin

pytestmark = pytest.mark.usefixtures("redis_server")
PROVIDER = "tests.legs.managed.test_identity:provider"
_running = list[StandIn]()


class Tokens(redis.CredentialProvider):
    """Asks the cloud for a token each time."""

    def get_credentials(self) -> tuple[str, str]:
        return "service", _running[-1].proxy.token()


def provider() -> redis.CredentialProvider:
    return Tokens()


@pytest.fixture
def standin(request: pytest.FixtureRequest) -> Iterator[StandIn]:
    name, limits = request.param
    with running_standin(replace(Service.named(name), limits=limits)) as running:
        _running.append(running)
        yield running
        forget_all()


HOURS = [
    pytest.param((name, Limits(arguments=3_999, token=0.5, lifetime=1.2)), id=name)
    for name in ("elasticache-serverless", "elasticache")
]


@pytest.mark.parametrize("standin", HOURS, indirect=True)
def test_a_source_and_a_sink_go_on_with_new_tokens_on_new_connections(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection is closed after a while, also in the middle of a request. Each token is good for half of it."""
    monkeypatch.setattr(connection, "RENEW_EVERY", 0.2)
    begun = time.monotonic()
    piping = Piping(standin, lambda: standin.admin.client(decode_responses=True), credentialProvider=PROVIDER)
    while time.monotonic() < begun + 2.5 or standin.proxy.closed < 4:
        piping.at_least(20)
    piping.end()
    piping.nothing_is_lost_or_doubled()
    assert b"AUTH" not in standin.proxy.refused


@pytest.mark.parametrize("standin", [HOURS[0]], indirect=True)
def test_a_token_that_has_expired_is_refused(standin: StandIn) -> None:
    token = standin.proxy.token()
    time.sleep(0.6)
    for given, is_good in ((token, False), ("made up", False), (standin.proxy.token(), True)):
        with redis.Redis.from_url(standin.proxy.url, username="service", password=given, protocol=2) as client:
            if is_good:
                assert client.ping()
                continue
            with pytest.raises(redis.AuthenticationError, match="(?i)invalid username-password pair"):
                client.ping()


@pytest.mark.parametrize(
    "standin", [pytest.param(("azure-managed-oss", Limits(idle=0.3)), id="azure-managed-oss")], indirect=True
)
def test_a_query_that_was_idle_for_longer_than_the_service_waits_goes_on(standin: StandIn) -> None:
    with standin.admin.client() as client:
        found, offset = list[int](), None
        query = reader(standin)
        for first in (0, 20, 40):
            add(client, 20, first=first)
            offset = query.initialOffset() if offset is None else offset
            end = query.latestOffset(offset, ALL)
            found += read(query, offset, end)
            closed = standin.proxy.closed
            time.sleep(0.8)
            assert standin.proxy.closed > closed, "no connection was idle"
            query.commit(end)
            offset = end
        assert query.latestOffset(offset, ALL) == offset
        assert found == [*range(60)]
        assert pending_count(client) == 0
