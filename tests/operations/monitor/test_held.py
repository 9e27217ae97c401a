"""Groups that hold entries back: how many entries and bytes, and what `rstream lag` and the exporter say of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.lag.survey import survey
from spark_streams.connector.watch.metrics_page import MetricsPage
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from spark_streams.operations.monitor import held
from spark_streams.operations.monitor.exported_metrics import ExportedMetrics
from spark_streams.operations.monitor.held import MEASURED, Held, fetch_held, held_in
from spark_streams.operations.monitor.snapshots import SnapshotCache, StreamFilter
from tests.holding import hold
from tools.servers.server import Server

SLOW = 'group="slow",stream="s"'


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group is unused after 50 ms, as after a day."""
    monkeypatch.setattr(held, "IDLE_MS", 50)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that are sent, by their first word."""
    sent: list[str] = []
    honest = Connection.pipeline

    def pipeline(self: Connection, commands: Sequence[Any]) -> Any:
        sent.extend(str(command[0]) for command in commands)
        return honest(self, commands)

    monkeypatch.setattr(Connection, "pipeline", pipeline)
    return sent


def lag(server: Server, *words: str) -> str:
    ran = CliRunner().invoke(main, ["lag", *words, "--url", server.url], env={"COLUMNS": "200"})
    assert ran.exit_code == 0, ran.output
    return ran.output


def holders(connection: Connection) -> dict[str, Held]:
    seen = survey(connection, ["s"])
    return {one.group: one for one in held_in(seen.streams, seen.groups, {"s": 1000})}


def test_a_group_holds_what_another_one_no_longer_needs(client: redis.Redis, connection: Connection) -> None:
    hold(client)
    found = holders(connection)
    assert {group: (one.entries, one.bytes) for group, one in found.items()} == {"slow": (8, 800), "slower": (9, 900)}
    assert found["slow"].position == "3-0"
    assert (found["slow"].idle_ms or 0) >= 50


def test_a_pending_entry_at_the_beginning_holds_all_that_follow(client: redis.Redis, connection: Connection) -> None:
    hold(client)
    client.xgroup_create("s", "crashed", 0)
    client.xreadgroup("crashed", "spark", {"s": ">"}, count=1)
    client.xreadgroup("crashed", "spark", {"s": ">"}, noack=True)
    assert holders(connection)["crashed"].entries == 10
    client.xadd("s", {"n": 10}, id="11-0")
    assert holders(connection)["crashed"].entries == 10, "the new entry is needed by all groups"


def test_what_all_groups_need_is_held_by_none(client: redis.Redis, connection: Connection) -> None:
    client.xadd("s", {"n": 1})
    for group in ("a", "b"):
        client.xgroup_create("s", group, 0)
    assert holders(connection) == {}


def test_a_group_without_consumers_is_idle_since_an_unknown_time(
    client: redis.Redis, connection: Connection, soon: None
) -> None:
    hold(client)
    client.xgroup_create("s", "unused", 0)
    assert (holders(connection)["unused"].entries, holders(connection)["unused"].idle_ms) == (10, None)
    assert str(holders(connection)["unused"]) == "holds 10 entries, about 1 kB, no consumer"
    assert [one.group for one in fetch_held(connection, survey(connection, ["s"]))] == ["slow", "slower"]


def test_a_lag_that_is_not_known_gives_no_number(client: redis.Redis, connection: Connection) -> None:
    hold(client)
    client.xdel("s", "7-0")  # the server no longer knows the lags of groups before it
    seen = survey(connection, ["s"], counted=1)
    assert {one.group: one.entries for one in held_in(seen.streams, seen.groups)}["slow"] is None


def test_lag_names_the_group_that_holds_most(server: Server, client: redis.Redis, soon: None) -> None:
    hold(client)
    last = lag(server).splitlines()[-1]
    assert last.startswith("group slower of s holds 9 entries, about ")
    assert "(1 more of such groups)" in last
    assert lag(server, "--group", "slow").splitlines()[-1].startswith("group slow of s holds 8 entries, about ")
    assert "holds" not in lag(server, "--group", "fast")
    told = {one["group"]: one["held"] for one in json.loads(lag(server, "--json"))}
    assert told["fast"] is None
    assert (told["slow"]["entries"], told["slow"]["bytes"] > 0) == (8, True)


def test_lag_says_nothing_of_groups_in_use_and_asks_nothing_more(
    server: Server, client: redis.Redis, commands: list[str]
) -> None:
    hold(client)
    assert "holds" not in lag(server)
    assert {one["held"] for one in json.loads(lag(server, "--json"))} == {None}
    assert "MEMORY" not in commands


def test_lag_measures_few_streams(server: Server, client: redis.Redis, soon: None, commands: list[str]) -> None:
    pipe = client.pipeline(transaction=False)
    for at in range(300):
        pipe.xadd(f"s{at:03d}", {"n": 1}).xgroup_create(f"s{at:03d}", "g", 0)
        pipe.xreadgroup("g", "c", {f"s{at:03d}": ">"}).xgroup_create(f"s{at:03d}", "h", "$")
    pipe.execute()
    hold(client)
    told = json.loads(lag(server, "--json"))
    assert commands.count("MEMORY") == MEASURED
    assert sum(one["held"] is not None for one in told) == 302
    assert {one["stream"] for one in told if one["held"] and one["held"]["bytes"]} >= {"s"}, "it holds most"


def test_a_user_who_may_not_see_memory_is_shown_the_entries(redis_server: Server, soon: None) -> None:
    with redis_server.client() as client:
        client.flushall()
        hold(client)
        client.acl_setuser("looker", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-memory"])
        url = redis_server.url.replace("://", "://looker:x@")
        last = CliRunner().invoke(main, ["lag", "--url", url], env={"COLUMNS": "200"}).output.splitlines()[-1]
        client.acl_deluser("looker")
    assert last.startswith("group slower of s holds 9 entries, idle ")


def test_names_are_printed_without_their_control_characters(server: Server, client: redis.Redis, soon: None) -> None:
    hold(client, "s\x1b[2J")
    assert "\x1b" not in lag(server)
    assert "s\\x1b[2J holds 9 entries" in lag(server).splitlines()[-1]


@pytest.fixture
def exposition(server: Server) -> Iterator[MetricsPage]:
    snapshots = SnapshotCache(Address.parse(server.url), StreamFilter(), 0.0, 8.0, lambda line: None)
    yield MetricsPage(ExportedMetrics(snapshots))
    snapshots.close()


def test_the_exporter_shows_it_for_every_group(client: redis.Redis, exposition: MetricsPage) -> None:
    hold(client)
    samples = dict(line.rsplit(" ", 1) for line in exposition.text().splitlines() if "rstream_held" in line)
    assert float(samples[f"rstream_held_entries{{{SLOW}}}"]) == 8
    size = client.memory_usage("s")
    assert float(samples[f"rstream_held_bytes{{{SLOW}}}"]) == pytest.approx(0.8 * size, abs=1)
    assert float(samples['rstream_held_entries{group="fast",stream="s"}']) == 0
