"""`rstream export --with-groups` and `LocalEngine.load`: the engine has what the server had at the export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis

from spark_streams.base.export_lines import read_export
from spark_streams.base.ids import MIN_ID
from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.engine import LocalEngine
from spark_streams.operations.transfer.copied_groups import fetch_groups_state
from tests.operations.transfer.conftest import Rstream, RstreamJson
from tools.servers.server import Server

# What version 1 wrote: later versions read it.
VERSION_1 = """\
{"export":{"version":1,"stream":"orders","time":1795163900000,"last":"1795163000009-0","added":12,"deleted":"1795163000008-0"}}
{"group":"etl","position":"1795163000007-0","read":8}
{"group":"etl","consumer":"ann","idle":600000,"inactive":700000}
{"group":"etl","consumer":{"base64":"/w=="},"idle":5,"inactive":null}
{"group":"etl","pending":"1795163000003-0","consumer":"ann","idle":600000,"deliveries":2}
{"group":"etl","pending":"1795163000007-0","consumer":null,"idle":null,"deliveries":1}
{"group":"audit","position":"0-0","read":null}
{"id":"1795163000007-0","fields":{"n":"7","b":{"base64":"/w=="}}}
{"id":"1795163000009-0","fields":[["n","9"],["n","10"]]}
"""


@pytest.fixture
def orders(client: redis.Redis) -> redis.Redis:
    """Ten entries, one deleted while it is pending; groups at the end, in the middle and at the beginning; consumers
    with and without pending entries, of odd names, and one that has never got an entry."""
    for n in range(1, 11):
        client.xadd("orders", {"n": n, b"\xff": b"\xfe"}, id=f"{1_700_000_000_000 + n}-{n}")
    client.xgroup_create("orders", "etl", id="0", entries_read=0)
    client.xgroup_create("orders", b"\xff odd", id="1700000000004-4")
    client.xgroup_create("orders", "unread", id="0")
    client.xreadgroup("etl", "ann", {"orders": ">"}, count=3)
    client.xreadgroup("etl", b"b\xffb", {"orders": ">"}, count=4)
    client.xgroup_createconsumer("orders", "etl", "never")
    client.xack("orders", "etl", "1700000000001-1")
    client.xclaim("orders", "etl", "eve", 0, ["1700000000005-5"], idle=600_000, retrycount=7)
    client.xclaim("orders", "etl", "eve", 0, ["1700000000006-6"], idle=3_000, retrycount=1)
    client.xdel("orders", "1700000000002-2", "1700000000003-3", "1700000000010-10")
    return client


def told(client: redis.Redis) -> Any:
    """What XINFO, XPENDING and XRANGE tell of the stream, without idle times; and these."""
    groups = {group["name"]: group for group in client.xinfo_groups("orders")}
    pending = {name: client.xpending_range("orders", name, "-", "+", 100) for name in groups}
    idle = [one.pop("time_since_delivered") for entries in pending.values() for one in entries]
    consumers = {name: client.xinfo_consumers("orders", name) for name in groups}
    idle += [one.pop("idle") for each in consumers.values() for one in each]
    inactive = [one.pop("inactive", None) for each in consumers.values() for one in each]  # Redis 7.0 has none
    idle += [] if None in inactive else inactive
    return (groups, pending, consumers, client.xrange("orders")), idle


def test_the_engine_has_what_the_server_had(
    orders: redis.Redis, rstream_json: RstreamJson, tmp_path: Path, rstream_engine: LocalEngine
) -> None:
    """Positions, counts, lags, pending entries and their consumers are equal; idle times nearly."""
    file = tmp_path / "incident.jsonl"
    exported = rstream_json("export", "orders", str(file), "--with-groups")
    assert (exported["groups"], exported["pending"], exported["pending_left_out"], exported["sent"]) == (3, 6, 0, 7)
    before, idle = told(orders)
    rstream_engine.load(file)
    with redis.Redis.from_url(rstream_engine.url) as client:
        after, restored = told(client)
        assert after == before
        assert 10 <= len(idle) <= len(restored) == 14
        assert all((was < 0) == (now < 0) and abs(was - now) < 2_000 for was, now in zip(idle, restored, strict=False))
        heads = [one.xinfo_stream("orders") for one in (orders, client)]
        for key in ("length", "last-generated-id", "max-deleted-entry-id", "entries-added", "first-entry"):
            assert heads[0][key] == heads[1][key]
        with pytest.raises(ValueError, match="BUSYKEY"):
            rstream_engine.load(file)
        rstream_engine.load(file, stream="copy")
        assert client.xinfo_stream("copy")["groups"] == 3


def test_released_entries_are_released(
    client: redis.Redis, rstream: Rstream, tmp_path: Path, rstream_engine: LocalEngine
) -> None:
    client.xadd("s", {"n": 1})
    client.xgroup_create("s", "g", id="0")
    [[_, [(entry, _)]]] = client.xreadgroup("g", "c", {"s": ">"})
    try:
        client.execute_command("XNACK", "s", "g", "FAIL", "IDS", 1, entry)
    except redis.ResponseError:
        pytest.skip("this server has no XNACK")
    file = tmp_path / "s.jsonl"
    assert rstream("export", "s", str(file), "--with-groups").exit_code == 0
    rstream_engine.load(file)
    with redis.Redis.from_url(rstream_engine.url) as loaded:
        assert loaded.execute_command("XPENDING", "s", "g") == client.execute_command("XPENDING", "s", "g")
        assert loaded.xreadgroup("g", "other", {"s": "0"}) == [[b"s", []]]
        assert loaded.xautoclaim("s", "g", "other", 600_000)[1] == [(entry, {b"n": b"1"})]


def test_the_newest_entries_and_a_masked_incident(
    orders: redis.Redis, rstream: Rstream, rstream_json: RstreamJson, tmp_path: Path, rstream_engine: LocalEngine
) -> None:
    file = tmp_path / "s.jsonl"
    ran = rstream("export", "orders", str(file), "--with-groups", "--last", "4")
    assert "exported 4 entries and 3 groups (2 pending)" in ran.stderr
    assert "note: 4 pending entries below the first selected entry are left out" in ran.stderr
    rstream_engine.load(file)
    with redis.Redis.from_url(rstream_engine.url) as client:
        assert [group["lag"] for group in client.xinfo_groups("orders")] == [
            group["lag"] for group in orders.xinfo_groups("orders")
        ]
        assert len(client.xrange("orders")) == 4


def test_a_file_of_version_1_is_loaded(rstream_engine: LocalEngine, tmp_path: Path) -> None:
    file = tmp_path / "version_1.jsonl"
    file.write_text(VERSION_1)
    rstream_engine.load(file)
    with redis.Redis.from_url(rstream_engine.url) as client:
        [audit, etl] = client.xinfo_groups("orders")
        assert (audit["name"], audit["last-delivered-id"], audit["entries-read"]) == (b"audit", b"0-0", None)
        assert (etl["last-delivered-id"], etl["entries-read"], etl["pending"]) == (b"1795163000007-0", 8, 2)
        [kept, released] = client.xpending_range("orders", "etl", "-", "+", 9)
        assert (kept["consumer"], kept["times_delivered"]) == (b"ann", 2)
        assert 600_000 <= kept["time_since_delivered"] < 610_000
        assert (released["consumer"], released["message_id"]) == (b"", b"1795163000007-0")
        [ann, odd] = client.xinfo_consumers("orders", "etl")
        assert 700_000 <= ann["inactive"] < 710_000
        assert (odd["name"], odd["inactive"]) == (b"\xff", -1)
        assert client.execute_command("XRANGE", "orders", "-", "+", NEVER_DECODE=True)
        seconds, _ = client.time()
        assert 1_795_163_900 <= seconds < 1_795_163_910


LINES = VERSION_1.splitlines()


@pytest.mark.parametrize(
    ("number", "line", "reason"),
    [
        (1, LINES[7], "the file is no export with groups, because its first line is another one"),
        (
            1,
            LINES[0].replace('"version":1', '"version":2'),
            "the file has version 2, and this spark-streams reads version 1",
        ),
        (1, LINES[0].replace('"added":12', '"added":-1'), '"added" must be a whole number from 0'),
        (1, LINES[0].replace('"added":12', '"added":1'), '"added" must be at least the number of entries'),
        (2, "nonsense", "Expecting value in column 1"),
        (3, LINES[1], "the group is in the file twice"),
        (3, LINES[3].replace("etl", "other"), "the position of the group is missing"),
        (4, LINES[2], "the line names no consumer, or one that an earlier line has"),
        (5, LINES[4].replace("ann", "eve"), "its consumer is not on an earlier line"),
        (6, LINES[4], "the entry is pending twice"),
        (5, LINES[4].replace('"deliveries":2', '"deliveries":1.5'), "must be a whole number"),
        (9, LINES[7], "the ID 1795163000007-0 must be above 1795163000007-0"),
        (9, LINES[8].replace("3000009", "3000010"), "and at most 1795163000009-0"),
    ],
)
def test_a_wrong_line_is_named(number: int, line: str, reason: str, tmp_path: Path) -> None:
    lines = [*LINES]
    lines[number - 1] = line
    file = tmp_path / "wrong.jsonl"
    file.write_text("\n".join(lines))
    with LocalEngine() as engine:
        with pytest.raises(ValueError, match=f"wrong.jsonl' cannot be loaded: line {number}: ") as raised:
            engine.load(file)
        assert reason in str(raised.value)
        with redis.Redis.from_url(engine.url) as client:
            assert client.dbsize() == 0


def test_an_import_refuses_it(client: redis.Redis, rstream: Rstream, tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    file.write_text(VERSION_1)
    ran = rstream("import", str(file), "t", "--yes")
    assert ran.exit_code == 1
    assert "line 1 of" in ran.stderr
    assert "an export with groups, which an import does not restore. Load it into a stream engine" in ran.stderr
    assert not client.exists("t")


def test_what_would_make_a_file_incomplete_is_refused(orders: redis.Redis, rstream: Rstream, tmp_path: Path) -> None:
    for words in (("--where", "n=1"), ("--limit", "1"), ("--to", "1h")):
        ran = rstream("export", "orders", str(tmp_path / "s.jsonl"), "--with-groups", *words)
        assert (ran.exit_code, "leave out --to, --where and --limit" in ran.stderr) == (2, True)
    ran = rstream("export", "orders", str(tmp_path / "s.parquet"), "--with-groups")
    assert (ran.exit_code, "--with-groups writes JSON Lines" in ran.stderr) == (2, True)
    assert not list(tmp_path.iterdir())


def test_a_long_pending_list_is_refused(orders: redis.Redis, server: Server) -> None:
    with connect(Address.parse(server.url)) as connection:
        with pytest.raises(StreamStateError, match=r"group 'etl' of .* has more than 5 pending entries from 0-0 on"):
            fetch_groups_state(connection, "orders", MIN_ID, most=5)
        lines = fetch_groups_state(connection, "orders", MIN_ID, most=6).lines.splitlines()
    assert len(read_export(lines).groups[b"etl"].pending) == 6
    assert json.loads(lines[0])["export"]["added"] == 10
