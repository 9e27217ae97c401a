"""What works on stand-ins of managed servers, as the page says: `scripts/test --managed` tries all of them."""

from __future__ import annotations

import pytest
import redis

from spark_streams.connector.errors import UnsupportedError
from spark_streams.operations.verify.running_query import BAD
from tests.legs.managed.capabilities import CAPABILITIES, dead_letters
from tests.legs.managed.table import PAGE, services, try_on
from tests.operations.doctor.test_command import doctor_json
from tests.operations.verify.test_verify_run import planned
from tools.driving import drain, forget_all, reader
from tools.servers.managed.refusing import Limits
from tools.servers.managed.standin import NAMES, Service, running_standin

pytestmark = pytest.mark.usefixtures("redis_server")
# Few arguments, no CLIENT, one address for several slots.
CORE = ("elasticache-serverless", "memorystore-redis", "azure-managed-enterprise")


@pytest.mark.in_turn
@pytest.mark.parametrize("name", CORE)
def test_what_a_service_permits_is_what_the_page_says(name: str) -> None:
    service = Service.named(name)
    with running_standin(service) as standin:
        found = try_on(standin)
    assert found.tried == [*CAPABILITIES]
    [line] = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith(f"| [{service.title}]")]
    assert line.split(" | ")[3:] == found.row().split(" | ")[3:]  # the version is that of this machine


def test_each_service_has_its_row() -> None:
    text = PAGE.read_text("utf-8")
    assert [one.title for one in services(NAMES).values() if f"| [{one.title}]({one.source})" not in text] == []


def test_the_user_of_a_standin_has_the_documented_commands_and_no_longer_requests() -> None:
    with running_standin(Service.named("elasticache-serverless")) as standin:
        with redis.Redis.from_url(standin.proxy.url, username="service", password="secret", protocol=2) as client:
            with pytest.raises(redis.ResponseError, match="no permissions"):
                client.config_get("*")
            assert client.sadd("k", *range(3_997)) == 3_997
            with pytest.raises(redis.ResponseError, match="(?i)no permissions|unknown subcommand"):
                client.sadd("k", *range(3_998))
        assert standin.proxy.longest == (4_000, b"SADD")


def test_active_active_takes_no_full_ids_and_transactions_of_one_slot() -> None:
    with running_standin(Service.named("redis-active-active")) as standin, standin.client() as client:
        client.xadd("s", {"n": 1})
        client.xadd("s", {"n": 2}, maxlen=5, approximate=False)
        for given in ("99999999999999-1", "99999999999999-*"):
            with pytest.raises(redis.ResponseError, match="Invalid stream ID"):
                client.xadd("s", {"n": 3}, id=given)
        assert standin.proxy.refused == [b"XADD"] * 2
        assert client.exists("s", "t", "u", "s") == 2
        with pytest.raises(redis.ResponseError, match="same slot"):
            client.pipeline().set("a", 1).set("b", 1).execute()
        with pytest.raises(redis.ResponseError, match="same slot"):
            client.delete("a", "b")


def test_who_cannot_write_to_two_slots_at_once_learns_of_hash_tags() -> None:
    with running_standin(Service.named("azure-managed-enterprise")) as standin:
        with pytest.raises(UnsupportedError, match=r"one address for all its shards: .* orders and {orders}:dead"):
            dead_letters(standin, "dead")
        forget_all()


def test_a_run_of_verify_writes_its_dead_letters_where_a_transaction_has_one_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running_standin(Service.named("azure-managed-enterprise")) as standin, standin.admin.client() as client:
        plan = planned(standin.url, monkeypatch)
        for n in (1, BAD):
            client.xadd(plan.streams[0], {"n": n})
        client.xadd(plan.streams[1], {"n": 2})
        read = [n for batch in drain(reader(standin, **plan.source())) for n in batch]
        forget_all()
        assert (sorted(read), client.xlen(plan.dead)) == ([1, 2], 1)


def test_a_service_without_role_whose_info_may_be_asked_lacks_no_right() -> None:
    with running_standin(Service.named("upstash")) as standin:
        found = doctor_json(standin.url)["findings"]
    assert [one["level"] for one in found if one["about"] == "rights"] == ["note", "ok"]


def test_a_file_says_what_a_service_limits() -> None:
    given = {name: Service.named(name) for name in NAMES}
    assert given["elasticache-serverless"].limits == Limits(arguments=3_999)
    assert given["azure-cache"].limits == Limits(idle=600)
    assert [name for name, one in given.items() if not one.rules.startswith(("-@all +", "+@all"))] == []
    assert [name for name, one in given.items() if one.rules.startswith("-@all") and not one.exact] == []
