"""The commands of `rstream` on a cluster: what they say of one server they say of streams on every node."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
import redis
from click.testing import Result

from examples.flights.demo import redis_cli
from spark_streams.cli import main
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from tests.connector.deadletter.making import DEAD, fill
from tests.runner import separate_runner
from tools.driving import ALL, NEVER_AHEAD, another_reader, rows, stop_all
from tools.servers.cluster import RedisCluster
from tools.waiting import until

NAMES = [f"orders-{n}" for n in range(6)]  # on all three masters


@pytest.fixture
def filled(cluster: RedisCluster) -> RedisCluster:
    """Twenty entries in each stream, of which group g has been given five; 30 dead letters of orders-1."""
    with connect(Address.parse(cluster.url)) as server:
        assert len(server.parts(NAMES, lambda name: name)) == 3
        for name in NAMES:
            server.execute_all([("XADD", name, f"{n}-1", "n", n) for n in range(1, 21)])
            server.execute("XGROUP", "CREATE", name, "g", "0")
            server.execute("XREADGROUP", "GROUP", "g", "bob", "COUNT", 5, "STREAMS", name, ">")
    fill(cluster.server, 30, stream="orders-1")
    return cluster


def rstream(cluster: RedisCluster, *words: str, given: str | None = None) -> Result:
    """On a terminal of 110 columns."""
    environment = {"COLUMNS": "110", "RSTREAM_URL": cluster.url}
    return separate_runner().invoke(main, words, env=environment, input=given)


def rstream_json(cluster: RedisCluster, *words: str, given: str | None = None) -> Any:
    """What it prints for programs."""
    ran = rstream(cluster, *words, "--json", given=given)
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.output)


def test_looking(filled: RedisCluster) -> None:
    assert {one["stream"]: one["length"] for one in rstream_json(filled, "streams")} == {
        **dict.fromkeys(NAMES, 20),
        DEAD: 30,
    }
    groups = rstream_json(filled, "lag")
    assert [(one["stream"], one["lag"], one["pending"]) for one in groups] == [(name, 15, 5) for name in NAMES]
    behind = rstream(filled, "lag", "--max", "2")
    assert (behind.exit_code, "(5 more of 6 groups)" in behind.output) == (3, True)
    assert [one["stream"] for one in rstream_json(filled, "groups", "orders-1", "orders-2")] == ["orders-1", "orders-2"]
    [bob] = rstream_json(filled, "pending", "orders-3")
    assert (bob["consumer"], bob["pending"]) == ("bob", 5)
    assert rstream_json(filled, "show", "orders-4", "--last", "1") == [{"id": "20-1", "fields": {"n": "20"}}]
    near = rstream(filled, "lag", "orders-9")
    assert (near.exit_code, "did you mean 'orders-" in near.output) == (1, True)


def test_top(filled: RedisCluster) -> None:
    top = rstream(filled, "top", "--once")
    assert top.exit_code == 0, top.output
    assert "streams 7   groups 6   lag 90   pending 30" in top.output
    assert all(name in top.output for name in NAMES)


def test_exporter(filled: RedisCluster) -> None:
    ran = rstream(filled, "exporter", "--once")
    assert (ran.exit_code, ran.stderr) == (0, ""), ran.output
    for name in NAMES:
        assert f'rstream_lag_entries{{group="g",stream="{name}"}} 15.0' in ran.stdout
        assert f'rstream_stream_memory_bytes{{stream="{name}"}}' in ran.stdout
    assert f'rstream_dead_letters_waiting{{reason="odd",stream="{DEAD}"}} 20.0' in ran.stdout
    nodes = re.findall(r'rstream_server_memory_bytes{node="127.0.0.1:(\d+)"}', ran.stdout)
    assert sorted(map(int, nodes)) == sorted(map(int, filled.masters()))


@pytest.mark.in_turn
def test_adding(cluster: RedisCluster) -> None:
    assert rstream(cluster, "add", "orders", "customer=ann", "--id", "5-1").output == "5-1\n"
    lines = "".join(f'{{"n": {n}}}\n' for n in range(1, 1501))
    assert rstream_json(cluster, "add", "other", "-", given=lines)["added"] == 1500
    refused = rstream(cluster, "add", "nowhere", "a=1", "--no-create")
    assert (refused.exit_code, "does not exist; leave out --no-create" in refused.output) == (1, True)
    assert {one["stream"]: one["length"] for one in rstream_json(cluster, "streams")} == {"orders": 1, "other": 1500}


def test_dead_letters(filled: RedisCluster) -> None:
    assert [(one["stream"], one["letters"]) for one in rstream_json(filled, "dead", "list")] == [(DEAD, 30)]
    assert {one["reason"]: one["letters"] for one in rstream_json(filled, "dead", "list", DEAD)} == {
        "decode": 10,
        "odd": 20,
    }
    [shown] = rstream_json(filled, "dead", "show", DEAD, "--limit", "1")
    assert shown["envelope"]["stream"] == "orders-1"
    assert rstream_json(filled, "dead", "redrive", DEAD)["moved"] == 30
    assert rstream_json(filled, "dead", "redrive", DEAD, "--reason", "decode", "--yes")["moved"] == 10
    assert rstream_json(filled, "dead", "redrive", DEAD, "--to", "orders-2", "--limit", "5", "--yes")["moved"] == 5
    assert rstream_json(filled, "dead", "purge", DEAD, "--yes")["deleted"] == 15
    lengths = {one["stream"]: one["length"] for one in rstream_json(filled, "streams")}
    assert (lengths["orders-1"], lengths["orders-2"], lengths.get(DEAD, 0)) == (30, 25, 0)


def test_top_goes_on_when_a_master_has_died(filled: RedisCluster) -> None:
    from spark_streams.operations.commands.read.monitor import ServerWatch

    top = ServerWatch(filled.url, (), None, 1000)
    top.refresh()
    before = filled.owner("orders-0")
    filled.kill(before)
    until(lambda: filled.owner("orders-0") != before, "no failover")

    def sees_it() -> bool:
        top.refresh()
        return not top.title.trouble

    until(sees_it, "top does not see the cluster again")
    assert len(top.history.last.groups) == 6


def test_the_url_for_other_clients_is_a_node_s(filled: RedisCluster) -> None:
    found = rstream(filled, "url").output.strip()
    assert found.removeprefix("redis://127.0.0.1:") in map(str, filled.masters())
    with redis.RedisCluster.from_url(found) as client:  # type: ignore[no-untyped-call]
        assert [client.xlen(name) for name in NAMES] == [20] * 6
    with connect(Address.parse(filled.url.replace("://", "://default:@"))) as server:
        assert redis_cli(server) == f"redis-cli -c -u redis://***@127.0.0.1:{filled.ports[0]}"


def test_managing_groups(filled: RedisCluster) -> None:
    """Each stream in its own slot; several at once, or a pattern."""
    group = ("--group", "g", "--even-active")
    planned = rstream_json(filled, "groups", "seek", "orders-?", *group, "--to", "2-1")
    done = rstream_json(filled, "groups", "seek", "orders-?", *group, "--to", "2-1", "--yes")
    assert planned["streams"] == done["streams"]
    assert [(one["stream"], one["read_again"], one["lag"]) for one in done["streams"]] == [(n, 3, 18) for n in NAMES]
    claimed = rstream_json(
        filled, "groups", "claim", *NAMES, *group, "--from", "bob", "--to", "eve", "--last-id", "3", "--yes"
    )
    assert [one["entries"] for one in claimed["streams"]] == [3] * 6
    acked = rstream_json(filled, "groups", "ack", "orders-*", *group, "--limit", "14", "--yes")
    assert [one["entries"] for one in acked["streams"]] == [5, 5, 4, 0, 0, 0]
    with connect(Address.parse(filled.url)) as server:
        server.execute("SET", "rstream:committed:{orders-3}:g:spark", "1-1")
        server.execute("SET", "rstream:begun:g:spark", "*")
    deleted = rstream_json(filled, "groups", "delete", "orders-*", *group, "--yes")["streams"]
    assert (sum(one["pending"] for one in deleted), sum(len(one["keys"]) for one in deleted)) == (16, 2)
    assert [
        one["stream"] for one in rstream_json(filled, "groups", "create", "orders-[12]", "--group", "g")["streams"]
    ] == NAMES[1:3]
    assert rstream_json(filled, "groups") == []
    with connect(Address.parse(filled.url)) as server:
        keys = {key for node in server.nodes() for key in node.execute("KEYS", "rstream:*")}
        assert keys <= {b"rstream:origins:{dead}"}


def test_a_stopped_query_replays_a_part_of_streams_on_every_node(filled: RedisCluster) -> None:
    query = {"url": filled.url, "streams": ",".join(NAMES), "group": "replayed"}

    def reader() -> StreamReader:
        return another_reader(filled.server, limits=NEVER_AHEAD, **query)

    one = reader()
    at = one.initialOffset()
    end = one.latestOffset(at, ALL)
    assert len(rows(one, at, end)) == 120
    assert one.latestOffset(end, ALL) == end
    stop_all()
    words = ("replay", "orders-?", "--group", "replayed", "--from", "15-1")
    planned, done = rstream_json(filled, *words), rstream_json(filled, *words, "--yes")
    assert planned["streams"] == done["streams"]
    assert [(told["stream"], told["entries"]) for told in done["streams"]] == [(name, 6) for name in NAMES]
    again = reader()
    newer = again.latestOffset(end, ALL)
    assert sorted(row["n"] for row in rows(again, end, newer)) == sorted([*range(15, 21)] * 6)
    assert again.latestOffset(newer, ALL) == newer
    stop_all()
    assert sum(one["pending"] for one in rstream_json(filled, "groups") if one["group"] == "replayed") == 0


def test_abandoned_groups_are_pruned_on_every_node(filled: RedisCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_streams.operations.groups.unused.SHORTEST_MS", 1)
    monkeypatch.setattr("spark_streams.connector.admin.groups.ACTIVE_MS", 1)
    with connect(Address.parse(filled.url)) as server:
        for name in (f"old-{n}" for n in range(6)):
            server.execute_all([("XADD", name, f"170000000000{n}-1", "n", n) for n in range(3)])
            server.execute("XGROUP", "CREATE", name, "nb", "0")
            server.execute("XREADGROUP", "GROUP", "nb", "spark", "COUNT", 1, "STREAMS", name, ">")
            server.execute("SET", f"rstream:committed:{{{name}}}:nb:spark", "1-1")
        for name in NAMES:  # without old pending entries, only the IDs of undelivered ones could show their age
            server.execute("XACK", name, "g", *[f"{n}-1" for n in range(1, 6)])
    time.sleep(0.06)
    words = ("groups", "prune", "--idle", "50ms")
    planned, done = rstream_json(filled, *words), rstream_json(filled, *words, "--yes")
    for told in (planned, done):
        assert [(one["stream"], len(one["keys"])) for one in told["streams"]] == [(f"old-{n}", 1) for n in range(6)]
    assert {one["stream"] for one in done["kept"]} == set(NAMES)  # their IDs are no times
    assert {one["group"] for one in rstream_json(filled, "groups")} == {"g"}


def test_tail(filled: RedisCluster) -> None:
    from spark_streams.base.ids import StreamId
    from spark_streams.operations.monitor.last_entries import Follower

    seen = rstream(filled, "tail", "orders-?", "-n", "7", "--json")
    assert [json.loads(line)["id"] for line in seen.output.splitlines()] == ["19-1", *["20-1"] * 6]
    assert rstream(filled, "tail", "orders-0", "--group", "g", "-n", "2").output.count("pending for bob") == 2
    follower = Follower({name: StreamId(15, 0) for name in NAMES}, at_once=12)
    with connect(Address.parse(filled.url)) as server:
        found = []
        while step := list(follower.step(server, 0)):
            found += [one.id.ms for one in step]
    assert found == [n for n in range(15, 21) for _ in NAMES]


def test_waiting(filled: RedisCluster) -> None:
    """For entries of streams on every node together."""
    assert rstream(filled, "wait", *NAMES, "--group", "g", "--lag", "90").exit_code == 0
    assert rstream(filled, "wait", *NAMES, "--group", "g", "--lag", "91", "--for", "1ms").exit_code == 3


@pytest.mark.parametrize(
    "words",
    [
        ("streams",),
        ("groups",),
        ("lag", "--max", "100000"),
        ("dead", "list"),
        ("exporter", "--once"),
        ("pending",),
        ("trim", "--acked"),
        ("groups", "prune", "--idle", "1d"),
        ("doctor",),
        ("lag", "orders-*"),
    ],
    ids=" ".join,
)
def test_a_command_that_lists_keys_refuses_one_node_and_names_the_right_url(
    filled: RedisCluster, words: tuple[str, ...]
) -> None:
    """It would show a part of the streams, and an alert would be green."""
    node = filled.url.replace("redis+cluster://", "redis://").partition(",")[0]
    ran = separate_runner().invoke(main, words, env={"COLUMNS": "300", "RSTREAM_URL": node})
    said = re.sub(r"\s+", " ", ran.output + ran.stderr)
    assert ran.exit_code != 0, said
    assert node.replace("redis://", "redis+cluster://") in said
