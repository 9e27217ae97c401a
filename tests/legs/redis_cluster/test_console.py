"""The web console on a Redis Cluster: streams of all nodes, shards as one stream, and changes."""

from __future__ import annotations

import pytest

from spark_streams.connector.shards.names import shards_of
from spark_streams.connector.shards.shard_sets import ensure_shards
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from tests.connector.deadletter.making import fill
from tests.operations.console.browser import form_to, wait_for_change
from tests.operations.console.process import running_console
from tools.servers.cluster import RedisCluster

pytestmark = pytest.mark.in_turn


def test_pages_and_changes(cluster: RedisCluster) -> None:
    with connect(Address.parse(cluster.url)) as server:
        ensure_shards(server, "clicks", 4)
        for number, shard in enumerate(shards_of("clicks", 4)):
            server.execute("XADD", shard, f"{1_700_000_000_000 + number}-0", "page", str(number))
            server.execute("XGROUP", "CREATE", shard, "etl", "0")
        server.execute("XADD", "orders", "1-0", "n", "1")
        server.execute("XGROUP", "CREATE", "orders", "etl", "$")
    fill(cluster.server, 30, into="orders:dead")
    with running_console(cluster.url, "--write") as console:
        browser = console.browser()
        overview = browser.get("/").text
        assert "3 groups" not in overview
        assert overview.count('href="/stream?name=clicks"') == 1
        page = browser.get("/stream?name=clicks").text
        assert [f">{number}</span>" in page for number in range(4)] == [True] * 4
        planned = browser.post("/plan", {"action": "seek", "names": "clicks", "group": "etl", "to": "latest"})
        assert "would read 0 entries again, and skip 4" in planned.text
        browser.post("/changes", form_to(planned.text, "/changes"))
        assert "Done" in wait_for_change(browser, 1)
        planned = browser.post("/plan", {"action": "redrive", "names": "orders:dead", "reason": "decode"})
        browser.post("/changes", form_to(planned.text, "/changes"))
        assert "Sent back 10 dead letters of orders:dead." in wait_for_change(browser, 2)
        assert "persistence" in browser.get("/doctor").text
