"""`rstream copy`: the target has the same entries byte for byte, or the command names why not."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from spark_streams.base.ids import StreamId
from spark_streams.cli import main
from spark_streams.connector.errors import CopyTargetError
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.session import Session
from spark_streams.operations.transfer.copied_groups import copy_groups, fetch_groups
from spark_streams.operations.transfer.passing import Appender
from spark_streams.operations.transfer.transferred import TransferEntry
from tests.operations.groups.conftest import APART
from tests.operations.transfer.conftest import Rstream, RstreamJson
from tests.proxy import Proxy
from tools.sending import at_each_point
from tools.servers.cluster import RedisCluster
from tools.servers.server import Server
from tools.waiting import until

ROOT = Path(__file__).resolve().parents[3]
ODD: list[tuple[str, list[bytes]]] = [
    ("1-1", [b"a", b"1"]),
    ("1-2", [b"a", b"1", b"a", b"2", b"a", b"1"]),
    ("7-0", [b"", b"", b"\xff\x00\r\n", b"\xed\xa0\x80"]),
    ("7-18446744073709551615", ["\u202e\x1b[2J\x9b".encode(), b"*1\r\n$3\r\nXADD\r\n"]),
    ("18446744073709551615-0", [b"{}", b'{"base64": "AA=="}', b"base64", b"x" * 100_000]),
]


def add(client: redis.Redis, entries: list[tuple[str, list[bytes]]], stream: str = "s") -> None:
    for entry, fields in entries:
        client.execute_command("XADD", stream, entry, *fields)  # type: ignore[no-untyped-call]


def content(client: Any, stream: str = "s") -> list[tuple[str, list[bytes]]]:
    """All entries as the server sends them: redis-py would drop repeated fields."""
    connection = client.connection_pool.get_connection()
    try:
        connection.send_command("XRANGE", stream, "-", "+")
        return [(entry.decode(), fields) for entry, fields in connection.read_response()]
    finally:
        client.connection_pool.release(connection)


def numbered(client: redis.Redis, count: int, stream: str = "s") -> None:
    pipe = client.pipeline(transaction=False)
    for n in range(1, count + 1):
        pipe.xadd(stream, {"n": n, "kind": "even" if n % 2 == 0 else "odd"}, id=f"{n}-1")
    pipe.execute()


def test_entries_are_copied_byte_for_byte_to_another_server(
    client: redis.Redis, other: Server, rstream_json: RstreamJson
) -> None:
    add(client, ODD)
    planned = rstream_json("copy", "s", "t", "--to-url", other.url)
    assert not other.client().exists("t")
    done = rstream_json("copy", "s", "t", "--to-url", other.url, "--yes")
    assert content(other.client(), "t") == ODD
    assert (planned["dry_run"], planned["target"], planned["source"]) == (True, None, done["source"])
    assert (planned["sent"], done["sent"]) == (len(ODD), len(ODD))
    assert done["source"] == done["target"]
    assert (done["source"]["entries"], done["source"]["first"], done["source"]["last"]) == (5, "1-1", ODD[-1][0])
    again = rstream_json("copy", "s", "t", "--to-url", other.url, "--yes")
    assert (again["sent"], again["already"], again["target"]) == (0, 5, done["target"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--from", "5-1"], range(5, 21)),
        (["--from", "5-2", "--to", "7-1"], range(6, 8)),
        (["--from", "1970-01-01T00:00:00.004", "--to", "1970-01-01T00:00:00.008"], range(4, 8)),
        (["--last", "3"], range(18, 21)),
        (["--to", "10-1", "--last", "3"], range(8, 11)),
        (["--last", "100"], range(1, 21)),
        (["--limit", "4"], range(1, 5)),
        (["--where", "kind=even", "--limit", "3"], (2, 4, 6)),
        (["--where", "kind=even", "--where", "n=8"], (8,)),
        (["--where", "kind=none"], ()),
        (["--from", "1h"], ()),
        (["--from", "20-2"], ()),
    ],
)
def test_options_select_entries(
    client: redis.Redis, rstream_json: RstreamJson, options: list[str], expected: Any
) -> None:
    numbered(client, 20)
    planned = rstream_json("copy", "s", "t", *options)
    done = rstream_json("copy", "s", "t", *options, "--yes")
    assert [entry for entry, _ in content(client, "t")] == [f"{n}-1" for n in expected]
    assert done["sent"] == planned["sent"] == len(expected)


def test_a_time_in_the_future_ends_behind_the_last_entry(client: redis.Redis, rstream_json: RstreamJson) -> None:
    """As the next midnight, for all entries of today."""
    numbered(client, 5)
    assert rstream_json("copy", "s", "t", "--to", "2999-11-29T00:00")["sent"] == 5
    assert rstream_json("copy", "s", "t", "--from", "2999-11-29T00:00")["sent"] == 0


def test_a_limit_counts_from_the_position_of_the_target(client: redis.Redis, rstream_json: RstreamJson) -> None:
    numbered(client, 20)
    for round_number in (1, 2, 3):
        done = rstream_json("copy", "s", "t", "--where", "kind=odd", "--limit", "4", "--yes")
        assert (done["already"], done["sent"]) == ([0, 4, 8][round_number - 1], [4, 4, 2][round_number - 1])
    assert [entry for entry, _ in content(client, "t")] == [f"{n}-1" for n in range(1, 21, 2)]


def test_a_copy_continues_when_the_source_has_grown_and_was_trimmed(
    client: redis.Redis, rstream_json: RstreamJson
) -> None:
    numbered(client, 10)
    rstream_json("copy", "s", "t", "--yes")
    client.xtrim("s", maxlen=4, approximate=False)
    client.xadd("s", {"n": 11}, id="11-1")
    done = rstream_json("copy", "s", "t", "--yes")
    assert (done["already"], done["sent"], done["source"]) == (4, 1, done["target"])
    assert len(content(client, "t")) == 11


@pytest.mark.parametrize("command", ["copy", "import"])
@pytest.mark.parametrize("foreign", ["other bytes", "other id", "deleted", "above", "missing below"])
def test_a_target_with_entries_of_another_program_is_refused(
    client: redis.Redis, rstream: Rstream, tmp_path: Path, command: str, foreign: str
) -> None:
    numbered(client, 10)
    assert rstream("export", "s", str(tmp_path / "s.jsonl")).exit_code == 0
    entries = {
        "other bytes": [("5-1", [b"n", b"5"])],
        "other id": [("5-2", [b"n", b"5"])],
        "above": [("99-1", [b"a", b"b"])],
        "missing below": content(client)[1:5],
    }
    add(client, entries.get(foreign, [("5-1", [b"a", b"b"])]), "t")
    if foreign == "deleted":
        client.xdel("t", "5-1")
    before = content(client, "t")
    words = ["copy", "s", "t"] if command == "copy" else ["import", str(tmp_path / "s.jsonl"), "t"]
    planned, done = rstream(*words), rstream(*words, "--yes")
    assert (planned.exit_code, "would be refused now: stream 't' at" in planned.stdout) == (3, True)
    assert (done.exit_code, "[RSTREAM_COPY_TARGET]" in done.stderr) == (1, True)
    assert content(client, "t") == before


def test_a_target_with_entries_below_the_selected_ones_is_continued(
    client: redis.Redis, rstream_json: RstreamJson
) -> None:
    numbered(client, 10)
    add(client, [("2-5", [b"own", b"entry"])], "t")
    assert rstream_json("copy", "s", "t", "--from", "3-1", "--yes")["sent"] == 8
    assert content(client, "t") == [("2-5", [b"own", b"entry"]), *content(client)[2:]]


def test_a_difference_is_reported_and_is_an_error(
    client: redis.Redis, rstream: Rstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program deletes an entry of the target during the copy."""
    numbered(client, 10)
    client.xgroup_create("s", "g", "0")
    append = Appender.append

    def append_and_lose(appender: Appender, entries: Sequence[TransferEntry]) -> None:
        append(appender, entries)
        client.xdel("t", "5-1")

    monkeypatch.setattr(Appender, "append", append_and_lose)
    ran = rstream("copy", "s", "t", "--groups", "--yes", "--json")
    assert (ran.exit_code, "[RSTREAM_COPY_MISMATCH]" in ran.stderr) == (1, True)
    report = json.loads(ran.stdout)
    assert (report["source"]["entries"], report["target"]["entries"]) == (10, 9)
    assert client.xinfo_groups("t") == []
    assert rstream("copy", "s", "t").exit_code == 3


def test_wrong_sources_and_targets_are_refused_by_name(client: redis.Redis, rstream: Rstream) -> None:
    numbered(client, 3)
    client.set("text", "x")
    for words, code, text in (
        (("copy", "s", "s"), 2, "the same stream"),
        (("copy", "S", "t"), 1, "[RSTREAM_STREAM_MISSING]"),
        (("copy", "s", "text"), 1, "[RSTREAM_WRONG_KEY_TYPE]"),
        (("copy", "text", "t"), 1, "[RSTREAM_WRONG_KEY_TYPE]"),
        (("copy", "s", "rstream:mine"), 2, "is a key of spark-streams"),
        (("copy", "s", "t", "--where", "n"), 2, "FIELD=VALUE"),
        (("copy", "s", "t", "--from=-5"), 2, "--last N"),
        (("copy", "s", "t", "--from", "latest"), 2, "--last N"),
        (("copy", "s", "t", "--transform", "nothing:here"), 1, "[RSTREAM_TRANSFORM]"),
        (("export", "s", "s.csv"), 2, ".parquet"),
    ):
        ran = rstream(*words, *(["--yes"] if words[0] == "copy" else []))
        assert (ran.exit_code, text in ran.stderr) == (code, True), (words, ran.stderr)
    assert client.keys("t") == []


def test_streams_in_shards_are_refused_by_name(client: redis.Redis, rstream: Rstream, server: Server) -> None:
    from spark_streams.connector.shards.shard_sets import ensure_shards
    from spark_streams.connector.wire.connect import connect

    numbered(client, 3)
    with connect(Address.parse(server.url)) as connected:
        ensure_shards(connected, "sharded", 2, "key")
    for words in (("copy", "sharded", "t"), ("copy", "s", "sharded")):
        ran = rstream(*words, "--yes")
        assert (ran.exit_code, "[RSTREAM_SHARDS] stream 'sharded'" in ran.stderr) == (1, True), ran.stderr


# -- transform, groups, rate ----------------------------------------------------------------------------------------

TRANSFORM = """
import itertools
calls = itertools.count()
def mask(entry):
    if entry.fields["n"] == "3":
        return None
    return [*((name, "*" if name == "kind" else value) for name, value in entry.pairs), ("call", next(calls))]
def fail(entry):
    raise ValueError("no")
def none(entry):
    return {}
"""


@pytest.fixture
def transforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"transforms_{random.getrandbits(60):x}"
    (tmp_path / f"{name}.py").write_text(TRANSFORM)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_a_transform_changes_entries_skips_some_and_is_not_repeated(
    client: redis.Redis, rstream_json: RstreamJson, transforms: str
) -> None:
    numbered(client, 5)
    words = ("copy", "s", "t", "--transform", f"{transforms}:mask", "--yes")
    done = rstream_json(*words, "--limit", "3")
    assert (done["sent"], done["skipped"], done["source"]) == (3, 1, done["target"])
    done = rstream_json(*words)
    assert (done["sent"], done["skipped"], done["already"], done["source"]) == (1, 0, 3, done["target"])
    done = rstream_json(*words, "--from", "3-1")
    assert (done["sent"], done["already"]) == (0, 2), "of the selected ones, without the one that was skipped"
    assert content(client, "t") == [
        (f"{n}-1", [b"n", b"%d" % n, b"kind", b"*", b"call", b"%d" % call]) for call, n in enumerate((1, 2, 4, 5))
    ]


@pytest.mark.parametrize(("function", "text"), [("fail", "failed at entry 1-1: ValueError: no"), ("none", "Return a")])
def test_a_failing_transform_is_named(
    client: redis.Redis, rstream: Rstream, transforms: str, function: str, text: str
) -> None:
    numbered(client, 5)
    ran = rstream("copy", "s", "t", "--transform", f"{transforms}:{function}", "--yes")
    assert (ran.exit_code, text in ran.stderr) == (1, True), ran.stderr


def test_groups_are_created_at_their_positions_with_the_right_lag(
    client: redis.Redis, other: Server, rstream_json: RstreamJson
) -> None:
    numbered(client, 20)
    client.xtrim("s", maxlen=15, approximate=False)
    client.xgroup_create("s", "half", "0")
    client.xreadgroup("half", "reader", {"s": ">"}, count=7)
    client.xgroup_create("s", b"end\xff", "$")
    client.xgroup_create("s", "existing", "0")
    target = other.client()
    target.xgroup_create("t", "existing", "5-5", mkstream=True)
    words = ("copy", "s", "t", "--to-url", other.url, "--groups")
    planned, done = rstream_json(*words), rstream_json(*words, "--yes")
    assert planned["groups"] == done["groups"]
    assert {(group["group"], group["position"], group["pending"], group["exists"]) for group in done["groups"]} == {
        ("end\udcff", "20-1", 0, False),
        ("existing", "0-0", 0, True),
        ("half", "12-1", 7, False),
    }
    assert "pending entries of groups are not copied" in done["notes"][0]
    groups = {group["name"]: group for group in target.xinfo_groups("t")}
    assert {name: group["last-delivered-id"] for name, group in groups.items()} == {
        b"half": b"12-1",
        b"end\xff": b"20-1",
        b"existing": b"5-5",
    }
    assert (groups[b"half"]["pending"], groups[b"half"]["lag"], groups[b"end\xff"]["lag"]) == (0, 8, 0)
    assert (groups[b"half"]["entries-read"], groups[b"end\xff"]["entries-read"]) == (7, 15)


def read_all(client: redis.Redis, count: int, stream: str = "s", group: str = "g") -> None:
    """Read and acknowledge."""
    reply: Any = client.xreadgroup(group, "reader", {stream: ">"}, count=count)
    client.xack(stream, group, *[entry for entry, _ in reply[0][1]])


def test_a_second_copy_moves_groups_that_nobody_has_used(
    client: redis.Redis, other: Server, rstream_json: RstreamJson, rstream: Rstream
) -> None:
    """Copy once, stop the producers, run the same command again: consumers of the target get nothing twice."""
    numbered(client, 20)
    client.xgroup_create("s", "g", "0")
    client.xgroup_create("s", b"end\xff", "$")
    read_all(client, 7)
    words = ("copy", "s", "t", "--to-url", other.url, "--groups")
    first = rstream_json(*words, "--yes")
    assert {group["state"] for group in first["groups"]} == {"new"}
    read_all(client, 9)
    client.xadd("s", {"n": 21}, id="21-1")
    client.xgroup_setid("s", b"end\xff", "21-1")
    planned, done = rstream_json(*words), rstream_json(*words, "--yes")
    assert planned["groups"] == done["groups"]
    assert {(g["group"], g["position"], g["target_position"], g["state"], g["exists"]) for g in done["groups"]} == {
        ("g", "16-1", "16-1", "moved", True),
        ("end\udcff", "21-1", "21-1", "moved", True),
    }
    target = other.client()
    groups = {group["name"]: group for group in target.xinfo_groups("t")}
    assert groups[b"g"]["last-delivered-id"] == b"16-1"
    assert (groups[b"g"]["entries-read"], groups[b"g"]["lag"], groups[b"end\xff"]["lag"]) == (16, 5, 0)
    reply: Any = target.xreadgroup("g", "reader", {"t": ">"})
    assert [entry for entry, _ in reply[0][1]] == [b"17-1", b"18-1", b"19-1", b"20-1", b"21-1"]
    again = rstream_json(*words, "--yes")["groups"]
    assert {(g["group"], g["state"]) for g in again} == {("g", "left"), ("end\udcff", "unchanged")}
    ran = rstream(*words)
    lines = [line.split() for line in ran.stdout.splitlines()]
    assert ["group", "source", "target", "pending", "(not", "copied)", "state"] in lines
    assert ["g", "16-1", "21-1", "0", "left"] in lines


def test_the_record_of_a_copied_group_is_deleted_with_it(client: redis.Redis, rstream_json: RstreamJson) -> None:
    numbered(client, 3)
    client.xgroup_create("s", "g", "0")
    rstream_json("copy", "s", "t", "--groups", "--yes")
    record = "rstream:copied:{t}:g"
    assert client.exists(record)
    [deleted] = rstream_json("groups", "delete", "t", "--group", "g", "--yes")["streams"]
    assert (deleted["keys"], client.exists(record)) == ([record], 0)


@pytest.mark.parametrize("use", ["consumer", "pending", "read and gone", "set back", "set forward", "of its own"])
def test_a_group_that_was_used_is_left_and_named(client: redis.Redis, rstream_json: RstreamJson, use: str) -> None:
    numbered(client, 20)
    client.xgroup_create("s", "g", "0")
    read_all(client, 7)
    words = ("copy", "s", "t", "--groups", "--yes")
    if use == "of its own":
        client.xgroup_create("t", "g", "5-1", mkstream=True)
        rstream_json(*words)
    else:
        rstream_json(*words)
    if use == "consumer":
        client.xgroup_createconsumer("t", "g", "c")
    elif use == "pending":
        client.xreadgroup("g", "c", {"t": ">"}, count=2)
    elif use == "read and gone":
        read_all(client, 2, "t")
        client.xgroup_delconsumer("t", "g", "reader")
    elif use != "of its own":
        client.xgroup_setid("t", "g", "3-1" if use == "set back" else "12-1")
    [before] = client.xinfo_groups("t")
    read_all(client, 9)
    report = rstream_json(*words)
    [after] = client.xinfo_groups("t")
    assert after == before
    [group] = report["groups"]
    assert (group["state"], group["position"]) == ("left", "16-1")
    assert group["target_position"] == before["last-delivered-id"].decode()
    [note] = [note for note in report["notes"] if "group 'g' of the target stays at" in note]
    assert group["reason"] in note
    assert "rstream groups seek t --group g --to 16-1 --yes" in note


def test_a_group_is_not_moved_back(client: redis.Redis, rstream_json: RstreamJson) -> None:
    numbered(client, 20)
    client.xgroup_create("s", "g", "15-1")
    rstream_json("copy", "s", "t", "--groups", "--yes")
    client.xgroup_setid("s", "g", "5-1")
    [group] = rstream_json("copy", "s", "t", "--groups", "--yes")["groups"]
    assert (group["state"], group["target_position"], group["reason"]) == (
        "left", "15-1", "a copy moves groups forward only",
    )  # fmt: skip


def test_a_copy_of_groups_that_is_killed_at_every_request_moves_them_once(client: redis.Redis, server: Server) -> None:
    def begin() -> None:
        client.flushall()
        numbered(client, 20)
        client.xgroup_create("s", "g", "0")
        client.xgroup_create("s", "h", "15-1")
        read_all(client, 7)
        copy()
        read_all(client, 9)
        client.xgroup_create("s", "new", "3-1")

    def copy() -> None:
        with connect(Address.parse(server.url)) as connected:
            if not client.exists("t"):
                fill_target()
            copy_groups(connected, "t", fetch_groups(connected, "s"))

    def fill_target() -> None:
        for entry, fields in content(client):
            client.execute_command("XADD", "t", entry, *fields)  # type: ignore[no-untyped-call]

    def check() -> None:
        positions = {group["name"]: group["last-delivered-id"] for group in client.xinfo_groups("t")}
        assert positions == {b"g": b"16-1", b"h": b"15-1", b"new": b"3-1"}

    assert at_each_point(begin, copy, check) > 5


def test_a_group_above_the_copied_entries_has_no_lag(client: redis.Redis, rstream_json: RstreamJson) -> None:
    numbered(client, 20)
    client.xgroup_create("s", "g", "15-1")
    rstream_json("copy", "s", "t", "--to", "10-1", "--groups", "--yes")
    [group] = client.xinfo_groups("t")
    assert group["last-delivered-id"] == b"15-1"
    assert group["lag"] == 0


def test_a_rate_limits_the_entries_per_second(client: redis.Redis, rstream_json: RstreamJson) -> None:
    numbered(client, 30)
    done = rstream_json("copy", "s", "t", "--rate", "50", "--yes")
    assert done["seconds"] >= 0.6
    assert done["source"] == done["target"]
    assert rstream_json("copy", "s", "u", "--rate", "1")["seconds"] < 10


def test_each_server_has_its_login_and_few_rights_are_needed(redis_server: Server, tmp_path: Path) -> None:
    """Those that docs/guide/copy.md lists."""
    source, target = "xrange xrevrange xinfo time", "xadd multi exec xrange xinfo xgroup|create"
    with redis_server.client() as client:
        client.flushall()
        numbered(client, 10)
        client.xgroup_create("s", "g", "5-1")
        for user, commands, key in (("reader", source, "s"), ("writer", target, "t")):
            rights = [f"+{command}" for command in f"{commands} echo".split()]
            client.execute_command("ACL", "SETUSER", user, "reset", "on", f">{user}-secret", f"~{key}", *rights)
            (tmp_path / user).write_text(f"{user}-secret")
    words = ["copy", "s", "t", "--url", redis_server.url, "--to-url", redis_server.url, "--groups", "--last", "8"]
    reader = ["--username", "reader", "--password-file", str(tmp_path / "reader")]
    writer = ["--to-username", "writer", "--to-password-file", str(tmp_path / "writer")]
    runner = CliRunner(**APART)  # type: ignore[arg-type]
    refused = runner.invoke(main, [*words, *reader, "--to-username", "writer", "--yes"])
    assert (refused.exit_code, "secret" in refused.output + refused.stderr) == (2, False)
    done = runner.invoke(main, [*words, *reader, *writer, "--yes", "--json"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["sent"] == 8
    environment = {"RSTREAM_PASSWORD": "reader-secret", "RSTREAM_USERNAME": "reader"}
    environment |= {"RSTREAM_TO_PASSWORD": "writer-secret", "RSTREAM_TO_USERNAME": "writer"}
    again = runner.invoke(main, [*words, "--yes", "--json"], env=environment)
    assert (again.exit_code, json.loads(again.stdout)["already"]) == (0, 8), again.stderr
    environment |= {"RSTREAM_TO_PASSWORD": "", "RSTREAM_TO_USERNAME": "", "XDG_RUNTIME_DIR": str(tmp_path)}
    into_engine = ["copy", "s", "t", "--url", redis_server.url, "--to-url", "embedded:", "--json"]
    planned = runner.invoke(main, into_engine, env=environment)
    assert (planned.exit_code, json.loads(planned.stdout)["sent"]) == (0, 10), planned.stderr


# -- strangers' data ------------------------------------------------------------------------------------------------


def test_names_of_strangers_never_reach_the_terminal_raw(client: redis.Redis, rstream: Rstream) -> None:
    name = "\x1b[2J\u202e\x9b"
    add(client, ODD, name)
    client.xgroup_create(name, b"\x1b]0;g\x07\xff", "0")
    outputs = [rstream("copy", name, f"{name}2", "--groups", *yes) for yes in ([], ["--yes"], ["--yes"], ["--json"])]
    client.xdel(f"{name}2", "1-1")
    outputs.append(rstream("copy", name, f"{name}2", "--yes"))
    outputs.append(rstream("copy", name, f"{name}2", "--from", "1-2", "--where", f"{name}=", "--yes"))
    outputs.append(rstream("export", name, "-"))
    assert [ran.exit_code for ran in outputs] == [0, 0, 0, 0, 1, 0, 0]
    for ran in outputs:
        assert (ran.stdout + ran.stderr).replace("\n", "").isprintable(), ran.stdout + ran.stderr


# -- faults ---------------------------------------------------------------------------------------------------------


def start(*words: str) -> subprocess.Popen[str]:
    """`rstream …` in a process of its own."""
    command = [sys.executable, "-m", "spark_streams.cli", *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill_and_finish(words: list[str], length: Callable[[], int], count: int, kills: int = 3) -> dict[str, Any]:
    """Kill the command at random numbers of entries up to half of them, and return the report of the last run."""
    for bound in sorted(random.sample(range(1, count // 2), kills)):
        run = start(*words)
        until(partial(_has, length, bound), f"the target has not {bound} entries", 120, interval=0.001)
        run.kill()
        run.communicate()
        assert run.returncode == -signal.SIGKILL
    with start(*words) as run:
        output, errors = run.communicate(timeout=300)
    assert run.returncode == 0, errors
    report: dict[str, Any] = json.loads(output)
    return report


def _has(length: Callable[[], int], bound: int) -> bool:
    return length() >= bound


@pytest.mark.in_turn
def test_a_copy_that_is_killed_three_times_continues_until_all_entries_are_there(
    client: redis.Redis, server: Server, other: Server
) -> None:
    numbered(client, 20_000)
    target = other.client()
    words = ["copy", "s", "t", "--url", server.url, "--to-url", other.url, "--rate", "10000", "--json", "--yes"]
    report = kill_and_finish(words, lambda: int(target.xlen("t")), 20_000)
    assert report["already"] > 0
    assert report["source"] == report["target"]
    assert content(target, "t") == content(client)


@pytest.mark.parametrize("direction", ["up", "down", "late"])
def test_a_lost_connection_loses_and_repeats_no_entry(server: Server, direction: str) -> None:
    """The cuts are before, within and after the transaction of a page."""
    size = 40
    pages = [[TransferEntry(StreamId(n, m), [b"n", b"%d" % n]) for m in range(size)] for n in range(1, 9)]
    with Proxy(server.url) as proxy, Session(Address.parse(proxy.url)) as session:
        appender = Appender(session, "t", StreamId(0, 0))
        for number, page in enumerate(pages):
            session.close()
            proxy.cut(direction, 60 + 400 * number)
            appender.append(page)
            proxy.forget_cuts()
        proxy.wait_for_late()
    assert [entry for entry, _ in content(server.client(), "t")] == [str(entry.id) for page in pages for entry in page]


def test_another_writer_of_the_target_is_named(client: redis.Redis, server: Server) -> None:
    with Session(Address.parse(server.url)) as session:
        appender = Appender(session, "t", StreamId(0, 0))
        appender.append([TransferEntry(StreamId(1, 1), [b"a", b"b"])])
        client.xadd("t", {"a": "c"}, id="9-1")
        with pytest.raises(CopyTargetError, match="another client adds entries"):
            appender.append([TransferEntry(StreamId(2, 1), [b"a", b"b"])])


def test_a_target_that_has_lost_entries_is_named(client: redis.Redis, server: Server) -> None:
    with Proxy(server.url) as proxy, Session(Address.parse(proxy.url)) as session:
        appender = Appender(session, "t", StreamId(0, 0))
        appender.append([TransferEntry(StreamId(n, 1), [b"a", b"b"]) for n in range(1, 4)])
        client.delete("t")
        proxy.cut_all()
        with pytest.raises(CopyTargetError, match="has lost the entries after 0-0"):
            appender.append([TransferEntry(StreamId(4, 1), [b"a", b"b"])])


def test_a_page_that_the_server_refuses_for_lack_of_memory_is_written_whole_later(
    client: redis.Redis, server: Server
) -> None:
    numbered(client, 2_000)
    client.config_set("maxmemory", 1)
    try:
        timer = threading.Timer(1, lambda: server.client().config_set("maxmemory", 0))
        timer.start()
        with Session(Address.parse(server.url), is_known=True) as session:
            Appender(session, "t", StreamId(0, 0)).append(
                [TransferEntry(StreamId.parse(entry), fields) for entry, fields in content(client)]
            )
        timer.join()
    finally:
        client.config_set("maxmemory", 0)
    assert content(client, "t") == content(client)


@pytest.mark.in_turn
def test_streams_of_any_slot_are_copied_into_a_cluster_and_out_of_it(
    client: redis.Redis, server: Server, cluster: RedisCluster, rstream_json: RstreamJson
) -> None:
    add(client, ODD)
    client.xgroup_create("s", "g", "1-2")
    for number in range(6):
        done = rstream_json("copy", "s", f"t-{number}", "--to-url", cluster.url, "--groups", "--yes")
        assert done["source"] == done["target"]
    for number in range(6):
        port = cluster.owner(f"t-{number}")
        with redis.Redis(port=port, protocol=2) as node:
            assert content(node, f"t-{number}") == ODD
            assert node.xinfo_groups(f"t-{number}")[0]["last-delivered-id"] == b"1-2"
    words = ["copy", "t-3", "back", "--last", "4", "--url", cluster.url, "--to-url", server.url, "--yes"]
    assert CliRunner().invoke(main, words).exit_code == 0
    assert content(client, "back") == ODD[1:]


@pytest.mark.in_turn
def test_entries_of_megabytes_are_copied_with_flat_memory(
    client: redis.Redis, server: Server, rstream_json: RstreamJson
) -> None:
    numbered(client, 3_000)
    for n in range(3_001, 3_071):
        client.xadd("s", {"blob": random.randbytes(4 << 20)}, id=f"{n}-1")
    program = (
        "import sys; from spark_streams.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0], file=sys.stderr)"
    )
    words = ["copy", "s", "t", "--url", server.url, "--yes", "--json"]
    ran = subprocess.run([sys.executable, "-c", program, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert (report["sent"], report["source"]) == (3_070, report["target"])
    assert int(ran.stderr.splitlines()[-1]) < 440 << 10  # KiB; all values together take 280 MiB, several times
