"""The line of a group over its streams."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import redis
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.lag.survey import GroupLag
from spark_streams.operations.monitor.rates import GroupTotal, group_totals
from tools.servers.server import Server

ONE = GroupLag("a", "etl", 3, False, 50, 2, 40, "1-0", 9, released=1)


def lag(server: Server, *words: str) -> str:
    return CliRunner().invoke(main, ["lag", *words, "--url", server.url], env={"COLUMNS": "200"}).output


def test_numbers_are_summed_and_ages_are_those_of_the_oldest() -> None:
    other = replace(ONE, stream="b", lag=10, at_least=True, lag_ms=70, pending=0, oldest_idle_ms=None, released=0)
    alone = replace(ONE, group="alone")
    assert group_totals([ONE, alone, other]) == {"etl": GroupTotal(2, 13, True, 70, 2, 1, 40)}
    assert group_totals([ONE, alone]) == {}


def test_an_age_that_is_not_known_for_one_stream_is_not_known_for_the_group() -> None:
    unknown = replace(ONE, stream="b", lag_ms=None, oldest_idle_ms=None)
    total = group_totals([replace(ONE, oldest_idle_ms=None), unknown])["etl"]
    assert (total.lag_ms, total.oldest_idle_ms) == (None, None)


def test_only_a_group_of_several_listed_streams_has_a_line(server: Server, client: redis.Redis) -> None:
    """Its JSON is a value of each of its streams: the sum over the list stays the sum over the streams."""
    for stream, groups in {"a": ["et\nl", "audit"], "b": ["et\nl"], "c": ["et\nl"]}.items():
        for n in range(3):
            client.xadd(stream, {"n": n})
        for group in groups:
            client.xgroup_create(stream, group, id="0")
    client.xreadgroup("et\nl", "ann", {"a": ">", "b": ">"}, count=2)
    [line] = [one for one in lag(server).splitlines() if one.startswith("group ")]
    assert line.startswith("group et\\nl, 3 streams: lag 5, behind ")
    assert ", pending 4, released 0, oldest " in line
    groups: list[dict[str, Any]] = json.loads(lag(server, "--json"))
    assert sum(one["lag"] for one in groups) == 8
    totals = {(one["stream"], one["group"]): one["total"] for one in groups}
    assert totals.pop(("a", "audit")) is None
    assert len(totals) == 3
    assert all((one["streams"], one["lag"], one["pending"]) == (3, 5, 4) for one in totals.values())
    assert "streams: lag" not in lag(server, "a")
    assert [one["total"] for one in json.loads(lag(server, "a", "--json"))] == [None, None]
