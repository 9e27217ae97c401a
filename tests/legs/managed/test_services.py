"""What works on each stand-in of a managed server: `scripts/test --managed` prints the table."""

from __future__ import annotations

import pytest
import redis

from tests.legs.managed.capabilities import CAPABILITIES
from tests.legs.managed.table import WORKS, outcomes
from tools.servers.managed.standin import NAMES, Service, running_standin

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("redis_server")]


@pytest.mark.parametrize("name", NAMES)
def test_all_that_is_tried_works_on(name: str) -> None:
    cells = outcomes(name)
    assert {title: cell for title, cell in cells.items() if not cell.startswith(WORKS)} == {}
    assert [*cells] == [*CAPABILITIES]


def test_the_user_of_a_standin_has_the_documented_commands_and_no_longer_requests() -> None:
    with running_standin(Service.named("elasticache-serverless")) as standin:
        with redis.Redis.from_url(standin.proxy.url, username="service", password="secret", protocol=2) as client:
            with pytest.raises(redis.ResponseError, match="no permissions"):
                client.config_get("*")
            assert client.sadd("k", *range(3_997)) == 3_997
            with pytest.raises(redis.ResponseError, match="(?i)unknown subcommand"):
                client.sadd("k", *range(3_998))
        assert standin.proxy.longest == (4_000, b"SADD")
