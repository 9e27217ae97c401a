"""A plan: its dry run changes nothing and tells what the change then does; the change is refused while a query runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from spark_streams.connector.admin.groups import GroupSnapshot, fetch_group
from spark_streams.connector.errors import GroupInUseError
from spark_streams.connector.source.group_client import lease_key
from spark_streams.connector.wire.connection import Connection, Server
from spark_streams.operations.groups.change_plan import Only, Plan, apply, effect, only_these
from spark_streams.operations.groups.group_deletion import delete_consumer, delete_group
from spark_streams.operations.groups.pending_entries import Choice, acknowledge, claim
from spark_streams.operations.groups.position import GroupTarget, create, seek

PLANS: dict[str, Callable[[Server, GroupSnapshot], Plan[object]]] = {
    "ack": lambda server, group: acknowledge(server, group, Choice()),
    "claim": lambda server, group: claim(server, group, "ann", Choice(("bob",))),
    "seek": lambda server, group: seek(server, group, GroupTarget.parse("earliest"), 0),
    "delete": lambda server, group: delete_group(server, group, []),
    "consumer": lambda server, group: delete_consumer(server, group, "bob", True),
    "create": lambda server, group: create(server, "s", "other", GroupTarget.parse("latest"), 0, False),
}


@pytest.fixture
def group(client: redis.Redis, connection: Connection) -> GroupSnapshot:
    """Three entries, of which bob has been given two."""
    for n in (1, 2, 3):
        client.xadd("s", {"n": n}, id=f"{n}-0")
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "bob", {"s": ">"}, count=2)
    return fetch_group(connection, "s", "g")


@pytest.mark.parametrize("plan_of", PLANS.values(), ids=PLANS)
def test_a_dry_run_changes_nothing_and_tells_what_the_change_does(
    client: redis.Redis,
    connection: Connection,
    group: GroupSnapshot,
    plan_of: Callable[[Server, GroupSnapshot], Plan[object]],
) -> None:
    before = (client.xinfo_groups("s"), client.xpending_range("s", "g", "-", "+", 9), client.keys())
    planned = effect(plan_of(connection, group))
    after = (client.xinfo_groups("s"), client.xpending_range("s", "g", "-", "+", 9), client.keys())
    for pending in (*before[1], *after[1]):  # type: ignore[misc]
        del pending["time_since_delivered"]  # it passes
    assert before == after
    assert planned == apply(connection, plan_of(connection, group))


@pytest.mark.parametrize("name", ["ack", "claim", "seek", "delete", "consumer"])
def test_a_change_is_refused_while_a_query_runs(
    client: redis.Redis, connection: Connection, group: GroupSnapshot, name: str
) -> None:
    client.set(lease_key("s", "g", "bob"), "elsewhere 1 token", px=60_000)
    effect(PLANS[name](connection, group))
    with pytest.raises(GroupInUseError):
        apply(connection, PLANS[name](connection, group))


def test_a_change_is_no_more_than_its_bound(client: redis.Redis, connection: Connection, group: GroupSnapshot) -> None:
    only = Only({("s", "g"): "1-0"})
    done = apply(connection, acknowledge(connection, group, Choice(), only))
    assert (done.entries, only_these([done.bound])) == (1, ["--only", "s", "g", "1-0"])
