"""`rstream wait`: it ends with an entry for the group, and sends a command a second at most meanwhile."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from spark_streams.cli import main
from spark_streams.connector.source.counting import nth_from
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from spark_streams.connector.wire.session import Session
from spark_streams.operations.monitor import undelivered
from spark_streams.operations.monitor.undelivered import wait_for_entries
from tests.runner import separate_runner
from tools.servers.server import Server
from tools.waiting import until

SET_UP = ("hello", "client", "info", "auth", "select", "config", "ping", "command", "echo")


def rstream(server: Server, *words: str) -> Result:
    return CliRunner().invoke(main, ["wait", *words, "--url", server.url], env={"COLUMNS": "200"})


def sent(client: redis.Redis) -> int:
    """Commands that clients have sent, without those that set up a connection."""
    stats = client.info("commandstats")
    names = {name: one["calls"] for name, one in stats.items()}
    return sum(calls for name, calls in names.items() if name.removeprefix("cmdstat_").partition("|")[0] not in SET_UP)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


def begin(
    pool: ThreadPoolExecutor, server: Server, streams: list[str], entries: int = 1, seconds: float = 30.0
) -> Future[dict[str, int] | None]:
    """Wait for entries of group g in another thread, and return when the wait has begun."""
    begun = threading.Event()

    def run() -> dict[str, int] | None:
        with Session(Address.parse(server.url)) as session:
            session.get()
            begun.set()
            return wait_for_entries(session, streams, "g", entries, seconds)

    future = pool.submit(run)
    assert begun.wait(10)
    return future


def test_there_is_work(server: Server, client: redis.Redis) -> None:
    client.xadd("s", {"n": 1})
    client.xgroup_create("s", "g", id="0")
    ran = rstream(server, "s", "--group", "g")
    assert (ran.exit_code, ran.output) == (0, "group 'g' has undelivered entries: 1 of s\n")


def test_the_time_is_over(server: Server, client: redis.Redis) -> None:
    """Pending entries are no work: a consumer has them."""
    client.xgroup_create("s", "g", mkstream=True)
    client.xadd("s", {"n": 1})
    client.xreadgroup("g", "c", {"s": ">"})
    began = time.monotonic()
    ran = rstream(server, "s", "--group", "g", "--for", "1500ms")
    assert (ran.exit_code, ran.output) == (3, "group 'g' has fewer than 1 undelivered entry\n")
    assert 1.4 < time.monotonic() - began < 5
    client.xadd("s", {"n": 1})
    assert rstream(server, "s", "--group", "g", "--lag", "2", "--for", "1ms").exit_code == 3
    assert rstream(server, "s", "--group", "g", "--lag", "1", "--for", "1ms").exit_code == 0


def test_other_errors_have_other_codes(server: Server, client: redis.Redis) -> None:
    client.set("text", "x")
    wrong = rstream(server, "text", "--group", "g")
    assert (wrong.exit_code, "RSTREAM_WRONG_KEY_TYPE" in wrong.output) == (1, True)
    assert rstream(server, "s*", "--group", "g").exit_code == 1  # no stream matches
    for words in (["s"], ["--group", "g"], ["s", "--group", "g", "--lag", "0"], ["s", "--group", "g", "--for", "5"]):
        assert rstream(server, *words).exit_code == 2
    away = CliRunner().invoke(main, ["wait", "s", "--group", "g", "--url", "redis://127.0.0.1:1"])
    assert (away.exit_code, "RSTREAM_SERVER_UNREACHABLE" in away.output) == (1, True)


def test_without_the_group_all_entries_are_work(server: Server, client: redis.Redis) -> None:
    assert rstream(server, "s", "--group", "g", "--for", "1ms").exit_code == 3
    client.xadd("s", {"n": 1})
    assert rstream(server, "s", "--group", "g").exit_code == 0
    client.xgroup_create("s", "g", id="$")
    assert rstream(server, "s", "--group", "g", "--for", "1ms").exit_code == 3


def test_a_lag_that_the_server_does_not_know_is_counted(server: Server, client: redis.Redis) -> None:
    ids = [client.xadd("s", {"n": n}) for n in range(40)]
    client.xgroup_create("s", "g", id=ids[4])
    client.xdel("s", ids[20])
    assert client.xinfo_groups("s")[0]["lag"] is None
    assert rstream(server, "s", "--group", "g", "--lag", "34").exit_code == 0
    assert rstream(server, "s", "--group", "g", "--lag", "35", "--for", "1ms").exit_code == 3


def test_a_lag_of_none_that_is_wrong_does_not_hide_an_entry(server: Server, client: redis.Redis) -> None:
    client.xadd("s", {"n": 1})
    client.xadd("s", {"n": 2})
    client.xgroup_create("s", "g", id="0", entries_read=2)
    if client.xinfo_groups("s")[0]["lag"]:
        pytest.skip("this server does not believe the number")
    assert rstream(server, "s", "--group", "g", "--for", "10s").exit_code == 0


@pytest.mark.parametrize("group", [True, False], ids=["group", "no group"])
def test_an_add_wakes_it_within_a_second(
    server: Server, client: redis.Redis, pool: ThreadPoolExecutor, group: bool
) -> None:
    """Of any of its streams. While nothing is added it sends two commands for each stream at most."""
    if group:
        client.xgroup_create("s", "g", mkstream=True)
    before = sent(client)
    future = begin(pool, server, ["s", "t"])
    until(lambda: "xread" in {one["cmd"] for one in client.client_list()}, "it does not block")
    time.sleep(3)
    assert not future.done()
    assert sent(client) - before <= 5 + 1  # CLIENT LIST is set-up; two streams, XREAD, and XLEN where no group is
    client.xadd("s" if group else "t", {"n": 1})
    began = time.monotonic()
    found = future.result(10)
    assert time.monotonic() - began < 1
    assert found == ({"s": 1, "t": 0} if group else {"s": 0, "t": 1})


def test_a_busy_stream_costs_a_command_a_second(server: Server, client: redis.Redis, pool: ThreadPoolExecutor) -> None:
    """Fewer entries than it waits for come all the time."""
    client.xgroup_create("s", "g", mkstream=True)
    before, began = sent(client), time.monotonic()
    future = begin(pool, server, ["s"], entries=400)
    added = 0
    while time.monotonic() - began < 5:
        client.xadd("s", {"n": added})
        added += 1
        time.sleep(0.02)
    assert not future.done()
    commands = sent(client) - before - added
    print(f"{commands} commands in {time.monotonic() - began:.1f} s")
    assert 3 <= commands <= time.monotonic() - began + 2
    with client.pipeline() as pipe:
        for n in range(400 - added):
            pipe.xadd("s", {"n": n})
        pipe.execute()
    began = time.monotonic()
    assert future.result(10) == {"s": 400}
    assert time.monotonic() - began < 1.5


def test_entries_that_another_consumer_takes_are_no_work(
    server: Server, client: redis.Redis, pool: ThreadPoolExecutor
) -> None:
    client.xgroup_create("s", "g", mkstream=True)
    future = begin(pool, server, ["s"], seconds=math.inf)
    before, began = sent(client), time.monotonic()
    for n in range(100):
        with client.pipeline() as transaction:
            transaction.xadd("s", {"n": n}).xreadgroup("g", "c", {"s": ">"}).execute()
        time.sleep(0.04)
    assert not future.done()
    assert sent(client) - before - 400 <= time.monotonic() - began + 3  # MULTI, XADD, XREADGROUP, EXEC
    client.xadd("s", {"n": 1})
    assert future.result(10) == {"s": 1}


def test_an_entry_that_is_taken_while_it_is_counted_is_no_work(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The position was asked before; another consumer gets the entry before the count."""
    client.xgroup_create("s", "g", mkstream=True)

    def counted_late(*given: Any) -> Any:
        client.xadd("s", {"n": 1})
        client.xreadgroup("g", "c", {"s": ">"})
        return nth_from(*given)

    monkeypatch.setattr(undelivered, "nth_from", counted_late)
    with Connection(Address.parse(server.url)) as connection:
        found = undelivered.fetch_undelivered(connection, "s", "g", 10, must_count=True)
    [group] = client.xinfo_groups("s")
    assert (str(found.position), found.entries) == (group["last-delivered-id"], 0)


def test_the_nearest_names_of_all_missing_streams_are_in_one_list(server: Server, client: redis.Redis) -> None:
    client.xadd("orders", {"n": 1})
    client.xadd("payments", {"n": 1})
    before = scans(client)
    ran = rstream(server, "ordes", "payment", "x", "--group", "g", "--for", "1ms")
    for stream, hint in (("ordes", "did you mean 'orders'"), ("payment", "did you mean 'payments'"), ("x", "rstream")):
        assert f"note: no stream {stream!r} at {Address.parse(server.url)}; {hint}" in ran.output
    assert scans(client) - before == 1


def scans(client: redis.Redis) -> int:
    return int(client.info("commandstats").get("cmdstat_scan", {"calls": 0})["calls"])


@pytest.mark.parametrize(
    ("words", "code", "condition", "said"),
    [
        ("ordes --for 1ms", 3, "RSTREAM_STREAM_MISSING", "no stream 'ordes' at URL; did you mean 'orders'?"),
        ("nothing-like-it --for 1ms", 3, "RSTREAM_STREAM_MISSING", "; rstream streams lists the streams"),
        ("orders ordes --for 1ms", 3, "RSTREAM_STREAM_MISSING", "no stream 'ordes'"),
        ("orders --group elt", 0, "RSTREAM_GROUP_MISSING", "stream 'orders' at URL has no group 'elt'; it has 'etl'"),
        ("alone --group elt", 0, "RSTREAM_GROUP_MISSING", "has no group 'elt'; it has none"),
    ],
)
def test_a_misspelt_name_is_said_once_on_stderr_and_is_an_error_if_asked_for(
    server: Server, client: redis.Redis, words: str, code: int, condition: str, said: str
) -> None:
    """A stream that does not exist yet has a reason, too, so without --must-exist the exit code stays."""
    client.xadd("orders", {"n": 1})
    client.xgroup_create("orders", "etl", "$")
    client.xadd("alone", {"n": 1})
    group = [] if "--group" in words else ["--group", "etl"]
    run = [*words.split(), *group, "--url", server.url]
    ran = separate_runner().invoke(main, ["wait", *run])
    assert ran.exit_code == code, ran.stdout
    assert ran.stderr.startswith("note: ")
    assert said.replace("URL", server.url) in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert ran.stdout.count("\n") == 1
    asked = separate_runner().invoke(main, ["wait", *run, "--must-exist"])
    assert (asked.exit_code, asked.stdout) == (1, "")
    assert asked.stderr.startswith(f"Error: [{condition}] ")
    assert said.replace("URL", server.url) in asked.stderr


def test_what_exists_is_no_word_on_stderr(server: Server, client: redis.Redis) -> None:
    client.xadd("orders", {"n": 1})
    client.xgroup_create("orders", "etl", "0")
    ran = separate_runner().invoke(main, ["wait", "orders", "--group", "etl", "--must-exist", "--url", server.url])
    assert (ran.exit_code, ran.stderr) == (0, "")


def test_a_stream_that_vanishes_during_the_wait_is_an_error_too(
    server: Server, client: redis.Redis, pool: ThreadPoolExecutor
) -> None:
    client.xgroup_create("orders", "etl", "$", mkstream=True)

    def delete_while_it_waits() -> None:
        until(lambda: any(one["cmd"] == "xread" for one in client.client_list()), "it does not wait")
        client.delete("orders")

    deleting = pool.submit(delete_while_it_waits)
    words = ["wait", "orders", "--group", "etl", "--must-exist", "--for", "3s", "--url", server.url]
    ran = separate_runner().invoke(main, words)
    deleting.result(30)
    assert ran.exit_code == 1
    assert ran.stderr.startswith("Error: [RSTREAM_STREAM_MISSING] no stream 'orders'")
