"""`rstream tail`: what was added last, what comes, what a group would see; each entry once, in order."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import redis
from click.testing import CliRunner, Result

from spark_streams.base.ids import StreamId
from spark_streams.cli import main
from spark_streams.connector.wire.connection import Connection
from spark_streams.operations.monitor.last_entries import Follower
from tests.proxy import Proxy
from tools.machine_time import machine_seconds
from tools.servers.server import Server, free_port, running_redis, serving, skip_without_redis
from tools.waiting import until

ROOT = Path(__file__).parents[3]


def tail(server: Server, *words: str) -> Result:
    return CliRunner().invoke(main, ["tail", *words, "--url", server.url], env={"COLUMNS": "200"})


def lines(server: Server, *words: str) -> list[dict[str, Any]]:
    ran = tail(server, *words, "--json")
    assert ran.exit_code == 0, ran.output
    return [json.loads(line) for line in ran.output.splitlines()]


@pytest.fixture
def filled(client: redis.Redis) -> None:
    """a and b take turns, ten entries each; group g was given six of a, and acknowledged two."""
    for n in range(20):
        client.xadd("ab"[n % 2], {"n": n}, id=f"{n + 1}-0")
    client.xgroup_create("a", "g", id="0")
    client.xreadgroup("g", "ann", {"a": ">"}, count=6)
    client.xack("a", "g", "1-0", "3-0")


# -- what there is -----------------------------------------------------------------------------------------------------


def test_the_last_ones_of_all_streams_together(server: Server, filled: None) -> None:
    assert [(one["stream"], one["fields"]["n"]) for one in lines(server, "-n", "3")] == [
        ("b", "17"),
        ("a", "18"),
        ("b", "19"),
    ]
    assert [one["id"] for one in lines(server, "a", "-n", "2")] == ["17-0", "19-0"]
    assert len(lines(server, "[ab]")) == 10
    assert lines(server, "a", "-n", "0") == []


def test_for_people_it_is_as_show(server: Server, client: redis.Redis) -> None:
    client.xadd("s", {"text": "ä\x1b[31m", "long": "x" * 3_000}, id="1-1")
    client.execute_command("XADD", "s", "2-1", b"\xff", b"\xfe\x00")
    shown = CliRunner().invoke(main, ["show", "s", "--url", server.url]).output
    assert tail(server, "s").output == shown
    assert "ä\\x1b[31m" in shown
    assert "… (3,000 bytes; --json has all of them)" in shown
    assert "\\xff" in shown
    assert "s 1-1" in tail(server, "*").output
    assert lines(server, "s")[1]["fields"] == [[{"base64": "/w=="}, {"base64": "/gA="}]]


def test_what_is_not_there(server: Server, filled: None) -> None:
    cases = ((["c"], "no stream 'c'"), (["c*"], "'c*' or matches it"), (["b", "--group", "g"], "no group 'g'"))
    for words, why in cases:
        ran = tail(server, *words)
        assert (ran.exit_code, why in ran.output) == (1, True), ran.output


def test_as_a_group_would_see_it(server: Server, client: redis.Redis, filled: None) -> None:
    client.xdel("a", "5-0")
    before = client.xinfo_stream("a", full=True)["groups"]
    seen = lines(server, "a", "--group", "g", "-n", "3")
    assert [one["id"] for one in seen] == ["5-0", "7-0", "9-0", "13-0", "15-0", "17-0"]
    assert seen[0]["fields"] is None
    assert seen[1]["fields"] == {"n": "6"}
    held = seen[1]["pending"]
    assert (held["consumer"], held["deliveries"]) == ("ann", 1)
    assert held["idle_ms"] >= 0
    assert "pending" not in seen[3]
    text = tail(server, "--group", "g", "-n", "3").output
    assert "pending for ann for " in text
    assert ", delivered once, deleted from the stream" in text
    assert client.xinfo_stream("a", full=True)["groups"] == before


# -- what comes --------------------------------------------------------------------------------------------------------


def test_entries_of_several_streams_come_in_the_order_of_their_ids_however_many_there_are(
    server: Server, client: redis.Redis, connection: Connection
) -> None:
    pipe = client.pipeline(transaction=False)
    for n in range(300):
        pipe.xadd("a" if n % 10 else "b", {"n": n}, id=f"{n + 1}-0")
    pipe.execute()
    follower = Follower({"a": StreamId(0, 0), "b": StreamId(0, 0)}, at_once=20)
    found: list[int] = []
    while step := list(follower.step(connection, 0)):
        found += [int(one.pairs[0][1]) for one in step]
    assert found == list(range(300))


@contextlib.contextmanager
def following(*words: str, out: int | IO[bytes] = subprocess.PIPE) -> Iterator[subprocess.Popen[bytes]]:
    """`rstream tail -f …` as a process of its own."""
    command = [sys.executable, "-m", "spark_streams.cli", "tail", "-f", "--json", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, env=environment, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


def read_values(process: subprocess.Popen[bytes], count: int) -> list[str]:
    """The values of so many lines."""
    assert process.stdout is not None
    return [json.loads(process.stdout.readline())["fields"]["n"] for _ in range(count)]


@pytest.mark.in_turn
def test_following_until_ctrl_c(server: Server, client: redis.Redis) -> None:
    client.xadd("s:1", {"n": 1})
    client.xgroup_create("s:1", "g", id="0")
    client.xreadgroup("g", "ann", {"s:1": ">"}, count=1)
    client.xadd("s:1", {"n": 2})
    with (
        following("s:*", "-n", "1", "--url", server.url) as one,
        following("s:1", "--group", "g", "--url", server.url) as other,
    ):
        assert read_values(one, 1) == ["2"]
        assert read_values(other, 2) == ["1", "2"]
        client.xadd("s:1", {"n": 3})
        assert read_values(one, 1) == read_values(other, 1) == ["3"]
        client.xadd("s:2", {"n": 4})  # it is new, and matches
        assert read_values(one, 1) == ["4"]
        for process in (one, other):
            process.send_signal(signal.SIGINT)
            assert (process.wait(30), process.stderr.read() if process.stderr else b"") == (0, b"")
    assert client.xinfo_groups("s:1")[0]["pending"] == 1


@pytest.mark.in_turn
def test_the_reader_of_the_output_may_end(engine_server: Server) -> None:
    client = engine_server.client()
    client.flushall()
    client.xadd("s", {"n": 1})
    with client, following("s", "--url", engine_server.url) as process:
        assert read_values(process, 1) == ["1"]
        assert process.stdout is not None
        process.stdout.close()
        deadline = machine_seconds() + 30
        while process.poll() is None:
            client.xadd("s", {"n": 2})
            time.sleep(0.02)
            assert machine_seconds() < deadline
        assert (process.returncode, process.stderr.read() if process.stderr else b"") == (0, b"")


@pytest.mark.in_turn
def test_a_server_that_is_away_is_waited_for(tmp_path: Path) -> None:
    """It dies amid what is printed, and comes back with its file: no line is missing, none comes twice."""
    port = free_port()
    words = ("--port", str(port), "--dir", str(tmp_path), "--appendonly", "yes", "--appendfsync", "always")
    url = f"redis://127.0.0.1:{port}/0"
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(redis.Redis.from_url(url, protocol=2))
        with serving(*words) as server:
            client.xadd("s", {"n": 0})
            process = stack.enter_context(following("s", "--url", url))
            assert read_values(process, 1) == ["0"]
            pipe = client.pipeline(transaction=False)
            for n in range(1, 500):
                pipe.xadd("s", {"n": n})
            pipe.execute()
            assert read_values(process, 200) == [str(n) for n in range(1, 201)]
            server.process.kill()
        client.close()
        stack.enter_context(serving(*words))
        for n in range(500, 510):
            client.xadd("s", {"n": n})
        assert read_values(process, 309) == [str(n) for n in range(201, 510)]


@pytest.mark.in_turn
def test_a_failover_amid_a_blocked_read_does_not_end_it() -> None:
    """The old master becomes a replica of the new one, and ends each blocked read with UNBLOCKED."""
    skip_without_redis()
    with running_redis() as old, running_redis() as new, Proxy(old.url) as proxy, old.client() as client:
        client.xadd("s", {"n": 1})
        with new.client() as promoted, following("s", "--url", proxy.url) as process:
            assert read_values(process, 1) == ["1"]
            promoted.replicaof("127.0.0.1", old.url.split(":")[-1].split("/")[0])
            until(lambda: promoted.exists("s"), "the replica does not follow")
            promoted.replicaof("NO", "ONE")
            until(lambda: client.info("clients")["blocked_clients"], "it does not wait")
            proxy.lead_new_ones_to(new.url)
            client.replicaof("127.0.0.1", new.url.split(":")[-1].split("/")[0])
            promoted.xadd("s", {"n": 2})
            assert read_values(process, 1) == ["2"]
