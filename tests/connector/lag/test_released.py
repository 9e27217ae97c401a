"""Released entries (XNACK) are shown wherever pending ones are: `rstream pending`, `lag`, `top`, `tail`, metrics."""

from __future__ import annotations

import json

import pytest
import redis
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.lag.survey import survey
from spark_streams.connector.wire.connection import Connection
from tests.operations.monitor.test_exporter import read
from tools.servers.server import Server, skip_without_xnack


@pytest.fixture
def orders(client: redis.Redis) -> list[str]:
    """Six entries: ann was given five and released the first three, the second as fatal."""
    skip_without_xnack(client)
    ids = [str(client.xadd("orders", {"n": n})) for n in range(6)]
    client.xgroup_create("orders", "billing", id="0")
    client.xreadgroup("billing", "ann", {"orders": ">"}, count=5)
    for mode, entry in (("FAIL", ids[0]), ("FATAL", ids[1]), ("SILENT", ids[2])):
        client.execute_command("XNACK", "orders", "billing", mode, "IDS", 1, entry)
    return ids


def printed(server: Server, *words: str) -> str:
    ran = CliRunner().invoke(main, [*words, "--url", server.url], env={"COLUMNS": "160"})
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def test_a_survey_counts_them_apart_from_the_consumers(
    client: redis.Redis, connection: Connection, orders: list[str]
) -> None:
    [group] = survey(connection, ["orders"]).groups
    assert (group.pending, group.released) == (5, 3)
    assert [(one.consumer, one.pending) for one in group.consumers] == [("ann", 2)]
    assert group.oldest_idle_ms is not None
    assert group.oldest_idle_ms >= 0
    client.xack("orders", "billing", *orders)
    [group] = survey(connection, ["orders"]).groups
    assert (group.pending, group.released, group.oldest_idle_ms) == (0, 0, None)


def test_a_consumer_without_a_name_is_none_that_released(client: redis.Redis, connection: Connection) -> None:
    client.xadd("s", {"n": 1})
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "", {"s": ">"})
    [group] = survey(connection, ["s"]).groups
    assert (group.pending, group.released, [one.consumer for one in group.consumers]) == (1, 0, [""])


def test_pending_shows_them(server: Server, orders: list[str]) -> None:
    told = json.loads(printed(server, "pending", "--json"))
    assert [(one["consumer"], one["pending"]) for one in told] == [("ann", 2), (None, 3)]
    table = printed(server, "pending")
    assert ["orders", "billing", "(released)", "3", "-", "-"] in [line.split() for line in table.splitlines()]
    words = ("pending", "orders", "--group", "billing", "--entries", "9")
    entries = json.loads(printed(server, *words, "--json"))
    assert [(one["consumer"], one["idle_ms"] is None, one["deliveries"]) for one in entries[:4]] == [
        (None, True, 1),
        (None, True, 2**63 - 1),
        (None, True, 0),
        ("ann", False, 1),
    ]
    lines = [line.split() for line in printed(server, *words).splitlines()]
    assert [orders[1], "(released)", "-", "fatal"] in lines
    assert [orders[0], "(released)", "-", "1"] in lines
    assert json.loads(printed(server, "pending", "--consumer", "ann", "--json"))[0]["pending"] == 2


def test_lag_and_top_show_them(server: Server, orders: list[str]) -> None:
    [one] = json.loads(printed(server, "lag", "--json"))
    assert (one["pending"], one["released"]) == (5, 3)
    head, row = [line.split() for line in printed(server, "lag").splitlines() if line.strip()][:2]
    assert dict(zip(head, row, strict=False))["stream"] == "orders"
    assert "released" in head
    board = printed(server, "top", "--once", "--every", "50ms")
    assert ["orders", "billing", "(released)", "3", "-", "-"] in [line.split() for line in board.splitlines()]


def test_tail_says_that_nobody_holds_them(server: Server, orders: list[str]) -> None:
    words = ("tail", "orders", "--group", "billing", "-n", "2")
    shown = printed(server, *words)
    assert "released, the group's next reader takes it, delivered once" in shown
    assert "released as fatal, not to be read again" in shown
    first = json.loads(printed(server, *words, "--json").splitlines()[0])
    assert first["pending"] == {"consumer": None, "idle_ms": None, "deliveries": 1}


def test_the_exporter_counts_them(server: Server, orders: list[str]) -> None:
    page = read(printed(server, "exporter", "--once"))
    assert page['rstream_released_entries{group="billing",stream="orders"}'] == 3
    assert page['rstream_pending_entries{group="billing",stream="orders"}'] == 5


def test_streams_and_groups_show_them(server: Server, client: redis.Redis, orders: list[str]) -> None:
    client.xgroup_create("orders", "audit", id="0")
    [stream] = json.loads(printed(server, "streams", "--json"))
    assert [(group["group"], group["released"]) for group in stream["groups"]] == [("audit", 0), ("billing", 3)]
    assert "audit, billing (3 released)" in printed(server, "streams")
    head, _, billing = [line.split() for line in printed(server, "groups").splitlines() if line.strip()]
    assert billing[head.index("released")] == "3"


def test_doctor_shows_them_of_a_named_stream(server: Server, orders: list[str]) -> None:
    ran = CliRunner().invoke(main, ["doctor", server.url, "--stream", "orders", "--json"])
    findings = json.loads(ran.stdout)["findings"]
    [finding] = [finding for finding in findings if "XNACK" in finding["effect"]]
    assert finding["said"] == "stream 'orders': 3 entries of group 'billing' were released"
    assert (finding["level"], finding["remedy"].rpartition(": ")[2]) == ("note", "rstream pending orders")
