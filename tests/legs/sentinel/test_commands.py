"""The commands of `rstream` behind sentinels, also where another server has become the master."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from examples.flights.demo import redis_cli
from spark_streams.cli import main
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from tests.connector.deadletter.making import DEAD, fill
from tools.servers.sentinels import Sentinels
from tools.servers.server import Server
from tools.waiting import until


def rstream(sentinels: Sentinels, *words: str) -> Result:
    """On a terminal of 110 columns."""
    return CliRunner().invoke(main, words, env={"COLUMNS": "110", "RSTREAM_URL": sentinels.url})


@pytest.mark.in_turn
def test_every_command_finds_the_master_of_now(sentinels: Sentinels) -> None:
    assert rstream(sentinels, "add", "orders", "n=1", "--id", "1-1").output == "1-1\n"
    before = sentinels.master()
    fill(Server("redis", f"redis://127.0.0.1:{before}/0"), 6, stream="orders")  # makes group g at 0
    with sentinels.direct() as client:
        assert client.wait(2, 5000) == 2
    sentinels.kill(before)
    until(lambda: sentinels.master() != before, "no failover")
    now = sentinels.healthy()
    assert rstream(sentinels, "add", "orders", "n=2", "--id", "2-1").output == "2-1\n"
    [lag] = json.loads(rstream(sentinels, "lag", "orders", "--json").output)
    assert lag["lag"] == 2
    for words, told in {
        ("top", "--once"): "streams 2   groups 1   lag 2",
        ("streams",): "orders",
        ("wait", "orders", "--group", "g", "--lag", "2"): "undelivered entries: 2 of orders",
        ("show", "orders", "--last", "1"): "entry 2-1",
        ("exporter", "--once"): 'rstream_lag_entries{group="g",stream="orders"} 2.0',
        ("dead", "list"): DEAD,
        ("dead", "redrive", DEAD, "--yes"): "moved 6 dead letters",
        ("doctor",): "a master with 2 replicas",
        ("url",): f"redis://127.0.0.1:{now}",
    }.items():
        ran = rstream(sentinels, *words)
        assert told in ran.output, ran.output
    with connect(Address.parse(sentinels.url)) as server:
        assert redis_cli(server) == f"redis-cli -u redis://127.0.0.1:{now}"
