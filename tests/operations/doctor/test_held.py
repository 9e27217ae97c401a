"""`rstream doctor` names the group that holds most entries and that nobody uses."""

from __future__ import annotations

import json
import shlex
import time
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.operator_commands import forget_command
from spark_streams.operations.doctor import stream_findings
from spark_streams.operations.doctor.server_facts import Level
from spark_streams.operations.doctor.stream_findings import BYTES, ENTRIES, judge_groups
from spark_streams.operations.groups import unused
from spark_streams.operations.monitor import held
from spark_streams.operations.monitor.held import Held
from tests.holding import OLD, hold
from tools.driving import another_reader, stop_all
from tools.servers.server import Server

DAY = 86_400_000
HELD = Held("orders", "nb-1", 12_345, 1_200_000_000, 8 * DAY, "1-0")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group is unused after 50 ms and is large with nine entries."""
    monkeypatch.setattr(held, "IDLE_MS", 50)
    monkeypatch.setattr(stream_findings, "ENTRIES", 9)


def found(url: str, *words: str) -> list[dict[str, Any]]:
    """The findings about groups."""
    ran = CliRunner().invoke(main, ["doctor", url, "--json", *words])
    assert ran.exit_code in (0, 3), ran.output
    return [one for one in json.loads(ran.output)["findings"] if one["about"] == "groups"]


def test_the_group_that_holds_most_is_named(server: Server, client: redis.Redis) -> None:
    hold(client)
    [one] = found(server.url)
    assert one["said"].startswith("group 'slower' of stream 's' holds 9 entries, about ")
    assert "rstream groups prune s --hold --idle 1d --group=slower;" in one["remedy"]
    assert found(server.url, "--stream", "other") == []
    assert len(found(server.url, "--stream", "s", "--stream", "s")) == 1


def test_nothing_is_said_of_small_ones(server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_findings, "ENTRIES", 10)
    hold(client)
    assert found(server.url) == []
    monkeypatch.setattr(stream_findings, "BYTES", 10)
    assert len(found(server.url)) == 1, "few, but large ones"


@pytest.mark.parametrize("options", [{}, {"noAck": "true"}, {"consumer": "another"}])
def test_a_group_in_which_a_query_runs_is_not_named(
    server: Server, client: redis.Redis, options: dict[str, str]
) -> None:
    hold(client)
    running = another_reader(server, group="slower", **options)
    running.initialOffset()
    assert found(server.url) == []
    running.stop()
    stop_all()


@pytest.mark.parametrize(("stream", "group"), [("--yes", "g"), ("s *", "nb-*"), ("s'x", "--yes"), ("s[1]", "$(ls)")])
def test_the_command_of_the_remedy_names_this_group_alone(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, stream: str, group: str
) -> None:
    """Also if a shell or the command could take its names as something else."""
    monkeypatch.setattr(unused, "SHORTEST_MS", 1)
    for name in (stream, "s1", "s one"):
        hold(client, name, since=OLD)
        for other in (group, "nb-1"):
            client.xgroup_create(name, other, 0)
            client.xreadgroup(other, "c", {name: ">"}, count=1, noack=True)
    time.sleep(0.1)
    rstream, *words = shlex.split(forget_command(stream, group).replace(" 1d ", " 50ms "))
    assert (rstream, words[:2]) == ("rstream", ["groups", "prune"])
    ran = CliRunner().invoke(main, ["groups", "prune", "--json", "--url", server.url, *words[2:]])
    assert ran.exit_code == 0, ran.output
    assert [(one["stream"], one["group"]) for one in json.loads(ran.output)["streams"]] == [(stream, group)]
    assert client.xlen(stream) == 10, "a dry run"


def test_a_user_who_may_not_list_streams_is_told(redis_server: Server) -> None:
    with redis_server.client() as client:
        client.flushall()
        client.acl_setuser("reader", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-scan"])
        url = redis_server.url.replace("://", "://reader:x@")
        [one] = found(url)
        named = found(url, "--stream", "s")
        client.acl_deluser("reader")
    assert (one["level"], named) == ("note", [])
    assert "scan" in one["said"]


def test_a_tenth_of_the_memory_is_a_warning() -> None:
    levels = [next(judge_groups([HELD], used)).level for used in (0, 13 * 10**9, 11 * 10**9)]
    assert levels == [Level.NOTE, Level.NOTE, Level.WARNING]
    [one] = judge_groups([HELD, Held("s", "most", 20_000, None, DAY, "1-0")], 0)
    assert one.observation == "group 'most' of stream 's' holds 20,000 entries, idle 1 d 0 h; 1 more group is like it"
    assert not [*judge_groups([], 1)]
    assert (ENTRIES, BYTES) == (10_000, 10_000_000)
