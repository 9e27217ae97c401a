"""`rstream …` as a person or a script meets it: what it prints, its exit codes, and that looking changes nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from spark_streams.cli import main
from spark_streams.connector.lag import survey
from tests.engine.server.test_processes import shut_down
from tests.runner import separate_runner
from tools.servers.server import Server, running_redis, skip_without_redis


def rstream(server: Server, *words: str, given: str | None = None) -> Result:
    """Run a command against the server."""
    return CliRunner().invoke(main, [*words, "--url", server.url], input=given, env={"COLUMNS": "200"})


@pytest.fixture
def orders(client: redis.Redis) -> list[str]:
    """Stream orders: ten entries of which group billing was given six; group audit was given none."""
    ids = [str(client.xadd("orders", {"n": n})) for n in range(10)]
    client.xgroup_create("orders", "billing", id="0")
    client.xgroup_create("orders", "audit", id="0")
    client.xreadgroup("billing", "ann", {"orders": ">"}, count=4)
    client.xreadgroup("billing", "bob", {"orders": ">"}, count=2)
    time.sleep(0.005)
    return ids


def state(client: redis.Redis) -> Any:
    """Everything that the server tells of stream orders, but for what changes with the clock."""
    told = client.xinfo_stream("orders", full=True)
    for group in told["groups"]:
        for consumer in group["consumers"]:
            assert consumer.pop("seen-time") > 0
    return told


def test_lag_for_people_and_for_programs(server: Server, orders: list[str]) -> None:
    table = rstream(server, "lag").output
    assert "orders  billing    4" in table
    assert orders[5] in table
    [audit, billing] = json.loads(rstream(server, "lag", "orders", "--json").output)
    assert (audit["group"], audit["lag"], audit["pending"]) == ("audit", 10, 0)
    assert (billing["lag"], billing["pending"], billing["last_delivered"]) == (4, 6, orders[5])
    assert [one["consumer"] for one in billing["consumers"]] == ["ann", "bob"]
    assert 0 <= billing["lag_ms"] < 60_000


@pytest.mark.parametrize("command", ["lag", "groups", "doctor"])
def test_entries_that_were_trimmed_before_a_group_has_read_them_are_named(
    server: Server, client: redis.Redis, orders: list[str], command: str
) -> None:
    """`billing` has read six of ten."""
    assert "were trimmed" not in rstream(server, command).output
    client.xtrim("orders", maxlen=1, approximate=False)
    told = " ".join(rstream(server, command).output.split())
    assert "3 entries of orders were trimmed before group billing read them, by the server's counts" in told


def test_groups_with_active_consumers_are_first(
    server: Server, orders: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has ever read from audit, which is further behind."""
    lines = rstream(server, "lag").output.splitlines()
    assert [line.split()[1] for line in lines[1:3]] == ["billing", "audit"]
    assert lines[3] == "1 group has no consumer; rstream groups prune --idle 1d finds abandoned groups"
    assert "kept: group 'audit' of stream 'orders'" in rstream(server, "groups", "prune", "--idle", "1d").output
    monkeypatch.setattr(survey, "ACTIVE_MS", 0)
    told = "1 group has no consumer, 1 group has not been read from in the last day; rstream groups prune --idle"
    assert told in rstream(server, "lag").output


@pytest.mark.parametrize(
    ("limits", "code", "line"),
    [
        (["--max", "10"], 0, "ok: 2 groups; "),
        (["--max", "9"], 3, "behind: audit of orders is 10 entries, "),
        (["--max", "3"], 3, " (1 more of 2 groups)"),
        (["--max", "4", "--group", "billing"], 0, "ok: 1 group; billing of orders is 4 entries, "),
        (["--max-seconds", "600"], 0, "ok: 2 groups; "),
        (["--max-seconds", "0"], 3, "behind: "),
    ],
)
def test_lag_as_an_alert_is_one_line_and_an_exit_code(
    server: Server, orders: list[str], limits: list[str], code: int, line: str
) -> None:
    said = rstream(server, "lag", *limits)
    assert said.exit_code == code, said.output
    assert line in said.output
    assert said.output.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--max 1000", "no group at URL"),
        ("--max-seconds 1000", "no group at URL"),
        ("--max 1000 --group billing", "no group 'billing' at URL"),
        ("orders --max 1000", "stream 'orders' has no group; rstream groups list orders"),
        ("orders --max 1000 --group billing", "stream 'orders' has no group 'billing'; rstream groups list orders"),
        ("gone --max 1000", "no stream 'gone'"),
        ("orders gone --max 1000 --group audit", "no stream 'gone'"),
        ("gone* --max 1000", "no stream that matches 'gone*' has a group"),
        ("orders* --max 1000 --group billing", "no stream that matches 'orders*' has a group 'billing'"),
        ("other orders --max 1000 --group audit", "stream 'orders' has no group 'audit'"),
    ],
)
def test_nothing_to_check_is_no_success(server: Server, client: redis.Redis, words: str, line: str) -> None:
    """The group was deleted, or the server has lost everything: cron must send its mail. Also if another stream of the
    same command has the group."""
    if "other" in words:
        client.xgroup_create("other", "audit", "0", mkstream=True)
    if line.startswith(("stream 'orders'", "no stream that matches 'orders*'")):
        client.xadd("orders", {"n": 1})
    for more in ((), ("--json",)):
        said = rstream(server, "lag", *words.split(), *more)
        assert said.exit_code == 3, said.output
        assert line.replace("URL", server.url) in said.output
    said = rstream(server, "lag", *words.split())
    assert said.output.startswith("not found: ")
    assert said.output.count("\n") == 1


def test_a_stream_without_the_group_does_not_hide_one_that_is_behind(server: Server, orders: list[str]) -> None:
    said = rstream(server, "lag", "orders", "gone", "--max", "1")
    assert (said.exit_code, said.output.count("\n")) == (3, 1)
    assert said.output.startswith("not found: no stream 'gone'")
    assert "; behind: audit of orders is 10 entries" in said.output


def test_without_a_limit_a_missing_group_is_the_error_that_it_was(server: Server, orders: list[str]) -> None:
    assert rstream(server, "lag", "orders", "--group", "nosuch").exit_code == 1
    assert "RSTREAM_STREAM_MISSING" in rstream(server, "lag", "gone").output


def test_a_lag_that_must_be_counted_is_held_against_a_limit_above_the_usual_one(
    server: Server, client: redis.Redis
) -> None:
    pipe = client.pipeline(transaction=False)
    for n in range(12_000):
        pipe.xadd("s", {"n": n}, id=f"{n + 1}-0")
    pipe.execute()
    client.xdel("s", "6000-0")
    client.xgroup_create("s", "g", id="1000-0")
    assert json.loads(rstream(server, "lag", "--json").output)[0]["at_least"] is True
    assert "10,000+" in rstream(server, "lag").output
    assert rstream(server, "lag", "--max", "10999").exit_code == 0
    assert rstream(server, "lag", "--max", "10998").exit_code == 3


def test_pending_by_consumer_and_by_entry(server: Server, orders: list[str]) -> None:
    told = json.loads(rstream(server, "pending", "--json").output)
    assert [(one["group"], one["consumer"], one["pending"]) for one in told] == [
        ("billing", "ann", 4),
        ("billing", "bob", 2),
    ]
    words = ("pending", "orders", "--group", "billing", "--entries", "3")
    entries = json.loads(rstream(server, *words, "--json").output)
    assert [(one["id"], one["consumer"], one["deliveries"]) for one in entries] == [
        (entry, "ann", 1) for entry in orders[:3]
    ]
    bobs = json.loads(rstream(server, *words, "--consumer", "bob", "--json").output)
    assert [one["id"] for one in bobs] == orders[4:6]
    assert json.loads(rstream(server, *words, "--idle", "1h", "--json").output) == []
    assert orders[0] in rstream(server, *words).output


def test_looking_changes_nothing(server: Server, client: redis.Redis, orders: list[str]) -> None:
    before = state(client)
    for words in (
        ("streams",),
        ("groups",),
        ("lag", "--max", "1"),
        ("pending",),
        ("pending", "orders", "--group", "billing", "--entries", "5", "--idle", "1ms"),
    ):
        assert rstream(server, *words).exit_code in (0, 3)
    assert state(client) == before


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which the bundled engine would be found, if it ran; one that was started is stopped at the end."""
    folder = tmp_path / "meet"
    monkeypatch.setenv("RSTREAM_EMBEDDED_DIR", str(folder))
    yield folder
    for path in (folder / "engine.sock", tmp_path / "kept" / "engine.sock"):
        if path.exists():
            shut_down(path)


def embedded(*words: str, url: str = "embedded:") -> Result:
    """Run a command against the bundled engine of this machine."""
    return CliRunner().invoke(main, [*words, "--url", url], env={"COLUMNS": "200"})


LOOKS = [
    ("streams",), ("groups",), ("lag", "--max", "1"), ("pending",), ("top", "--once"), ("url",),
    ("show", "s"), ("dead", "list"), ("dead", "list", "s"), ("dead", "show", "s"), ("dead", "export", "s"),
    ("dead", "redrive", "s"), ("dead", "purge", "s"),
]  # fmt: skip


@pytest.mark.parametrize("words", LOOKS, ids=" ".join)
@pytest.mark.parametrize("where", ["", "//{kept}?idle=30"], ids=["in memory", "in a directory"])
def test_looking_starts_no_engine_and_makes_no_folder(
    nobody: Path, tmp_path: Path, words: tuple[str, ...], where: str
) -> None:
    said = embedded(*words, url="embedded:" + where.format(kept=tmp_path / "kept"))
    assert said.exit_code == 1, said.output
    assert said.output.startswith("Error: [RSTREAM_SERVER_UNREACHABLE] no bundled engine is running at embedded:")
    assert "it has no stored streams; a query or `rstream url --start" in said.output
    assert said.output.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_for_streams_on_disk_the_command_that_starts_the_engine_is_printed(nobody: Path, tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/kept"
    added = separate_runner().invoke(main, ["add", "s", "a=1", "--url", url])
    assert added.exit_code == 0
    assert f"note: started the bundled engine of {tmp_path}/kept. All processes that name" in added.stderr
    assert separate_runner().invoke(main, ["add", "s", "a=1", "--maxlen", "1", "--url", url]).stderr == ""
    assert json.loads(embedded("streams", "--json", url=url).output)[0]["stream"] == "s"
    shut_down(tmp_path / "kept" / "engine.sock")
    said = embedded("streams", url=url)
    assert (said.exit_code, "its streams are on disk (" in said.output) == (1, True)
    assert f"`rstream url --start --url '{url}'` starts one" in said.output
    assert embedded("url", "--start", url=url).output == f"unix://{tmp_path}/kept/engine.sock\n"
    assert json.loads(embedded("show", "s", "--json", url=url).output)[0]["fields"] == {"a": "1"}


def test_other_clients_find_the_bundled_engine(nobody: Path) -> None:
    started = embedded("url", "--start")
    assert (started.exit_code, started.output) == (0, f"unix://{nobody}/engine.sock\n")
    with redis.Redis.from_url(started.output.strip()) as client:
        client.xadd("s", {"a": 1})
    assert embedded("url").output == started.output
    assert "s" in embedded("streams").output


def test_the_url_of_another_server_is_printed_unchanged(server: Server) -> None:
    assert rstream(server, "url").output == server.url + "\n"
    refused = rstream(server, "url", "--start")
    assert (refused.exit_code, "is another server; leave it out" in refused.output) == (2, True)


def test_show_entries_for_people_and_for_programs(server: Server, client: redis.Redis) -> None:
    for n in range(1, 13):
        client.xadd("s", {"n": n}, id=f"{n}-1")
    shown = rstream(server, "show", "s").output
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("entry")] == [
        f"{n}-1" for n in range(3, 13)
    ]
    assert "\n  n  12\n" in shown
    for words, ids in ((["--first", "2"], ["1-1", "2-1"]), (["--last", "1"], ["12-1"]), (["7"], ["7-1"])):
        told = json.loads(rstream(server, "show", "s", *words, "--json").output)
        assert [one["id"] for one in told] == ids
    assert told == [{"id": "7-1", "fields": {"n": "7"}}]
    before = client.xinfo_stream("s", full=True)
    rstream(server, "show", "s")
    assert client.xinfo_stream("s", full=True) == before


def test_show_escapes_what_is_no_text_and_cuts_what_is_long(server: Server) -> None:
    with server.client() as raw:
        fields = [b"name", b"\xff\x00", b"\xfe", "é\x1b[31m".encode(), b"lines", b"a\nb", b"long", b"x" * 5_000]
        raw.execute_command("XADD", "s", "*", *fields)
    shown = rstream(server, "show", "s").output
    assert "  name   \\xff\\x00\n  \\xfe   é\\x1b[31m\n  lines  a\\nb\n" in shown
    assert " ms ago" in shown.splitlines()[0]
    assert "x … (5,000 bytes; --json has all of them)" in shown
    assert len(shown) < 1_000
    [told] = json.loads(rstream(server, "show", "s", "--json").output)
    assert told["fields"][0] == ["name", {"base64": "/wA="}]
    assert told["fields"][3] == ["long", "x" * 5_000]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["show", "order"], 1, "no stream 'order' at {url}; did you mean 'orders'?"),
        (["groups", "ordres", "nothing like it"], 1, "'ordres', 'nothing like it' at {url}; did you mean 'orders'?"),
        (["show", "nothing"], 1, "no stream 'nothing' at {url}; rstream streams lists the streams"),
        (["show", "orders", "4-0"], 1, "no entry 4-0 in stream 'orders' at {url}; the entry before it is 3-1 and "),
        (["show", "orders", "9"], 1, "no entry 9 in stream 'orders' at {url}; the entry before it is 5-1\n"),
        (["show", "empty", "9"], 1, "the stream is empty"),
        (["show", "empty"], 0, "empty holds no entries"),
        (["show", "text"], 1, "[RSTREAM_WRONG_KEY_TYPE] key 'text'"),
        (["show", "orders", "x"], 2, "not an entry ID: 'x'"),
        (["show", "orders", "3-1", "--last", "2"], 2, "ID, --first and --last exclude each other"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_nearest_names(
    server: Server, client: redis.Redis, words: list[str], code: int, said: str
) -> None:
    client.xadd("orders", {"n": 1}, id="3-1")
    client.xadd("orders", {"n": 2}, id="5-1")
    client.xgroup_create("empty", "g", mkstream=True)
    client.set("text", "x")
    told = rstream(server, *words)
    assert told.exit_code == code, told.output
    assert said.format(url=server.url) in told.output


@pytest.mark.parametrize("words", [("a=1",), ("a=1", "--id", "5-1"), ("-",)])
def test_an_entry_for_a_stream_without_an_id_left(client: redis.Redis, server: Server, words: tuple[str, ...]) -> None:
    client.xadd("s", {"n": 1}, id="18446744073709551615-18446744073709551615")
    said = rstream(server, "add", "s", *words, given='{"a": 1}\n')
    assert said.exit_code == 1
    assert "RSTREAM_IDS_EXHAUSTED" in said.output
    assert "rename it (RENAME)" in " ".join(said.output.split())


def test_add_one_entry(server: Server, client: redis.Redis) -> None:
    said = rstream(server, "add", "s", "a=1", "b=x=y", "--id", "5-1")
    assert said.output == "5-1\n"
    assert client.xrange("s") == [("5-1", {"a": "1", "b": "x=y"})]
    again = rstream(server, "add", "s", "a=1", "--id", "5-1")
    assert again.exit_code == 1
    assert "equal or smaller" in again.output
    assert "does not exist" in rstream(server, "add", "t", "a=1", "--no-create").output
    assert client.exists("t") == 0


def test_add_json_lines(server: Server, client: redis.Redis) -> None:
    lines = [{"n": n} for n in range(2_500)]
    text = "\n".join(json.dumps(line) for line in lines) + "\n\n"
    text += '{"s": "é\\"", "i": 12345678901234567890123, "f": 1.10, "t": true, "none": null, '
    text += '"l": [1.0, null, {"a": "b"}]}\n'
    said = json.loads(rstream(server, "add", "s", "-", "--json", given=text).output)
    assert said["added"] == 2_501
    assert said["last"] == client.xinfo_stream("s")["last-generated-id"]
    entries = [fields for _, fields in client.xrange("s")]
    assert [fields["n"] for fields in entries[:-1]] == [str(n) for n in range(2_500)]
    nested = '[1.0,null,{"a":"b"}]'
    assert entries[-1] == {"s": 'é"', "i": "12345678901234567890123", "f": "1.10", "t": "true", "l": nested}


@pytest.mark.parametrize("bad", ["{", "[1]", "{}", '{"a": null}'])
def test_a_bad_line_is_named_and_what_came_before_it_is_there(server: Server, client: redis.Redis, bad: str) -> None:
    said = rstream(server, "add", "s", "-", given=f'{{"a": 1}}\n{bad}\n{{"a": 3}}\n')
    assert said.exit_code == 1
    assert "line 2 " in said.output
    assert "1 entries were added before" in said.output
    assert client.xlen("s") == 1


def test_a_missing_stream_or_group_is_an_error(server: Server, orders: list[str]) -> None:
    for words in (("groups", "nowhere"), ("lag", "nowhere"), ("pending", "nowhere"), ("lag", "--group", "nobody")):
        said = rstream(server, *words)
        assert said.exit_code == 1
        assert "no" in said.output
        assert said.output.count("\n") == 1


def test_usage_is_taught_and_wrong_usage_is_refused(server: Server) -> None:
    for command in main.commands:
        if command == "serve":
            continue
        told = CliRunner().invoke(main, [command, "--help"])
        assert told.exit_code == 0
        assert f"rstream {command} " in told.output, f"{command} has no example"
    assert rstream(server, "pending", "--idle", "5m").exit_code == 2
    assert rstream(server, "pending", "s", "--group", "g", "--entries", "3", "--idle", "soon").exit_code == 2
    assert rstream(server, "add", "s", "nonsense").exit_code == 2


def test_a_user_who_may_only_use_streams_can_look(redis_server: Server) -> None:
    with redis_server.client() as client:
        client.flushall()
        client.xadd("s", {"n": 1})
        client.xgroup_create("s", "g", id="0")
        client.execute_command(*["ACL", "SETUSER", "looker", "on", ">pw", "~*", "+@stream", "+@connection"])
    theirs = Server("redis", redis_server.url.replace("//", "//looker:pw@"))
    [group] = json.loads(rstream(theirs, "lag", "s", "--json").output)
    assert (group["lag"], 0 <= group["lag_ms"] < 60_000) == (1, True)
    assert "g" in rstream(theirs, "top", "s", "--once", "--every", "10ms").output
    assert rstream(theirs, "pending", "nowhere").exit_code == 1
    refused = rstream(theirs, "lag")
    assert refused.exit_code == 1
    assert "NOPERM" in refused.output
    assert "pw" not in refused.output


def test_streams_that_queries_keep_beside_a_stream_are_not_listed_as_streams(
    server: Server, client: redis.Redis
) -> None:
    for name in ("orders", "rstream:returned:{orders}:g", "rstream:retry:{orders}:g:1"):
        client.xgroup_create(name, "g", id="0", mkstream=True)
    for words in (("streams",), ("top", "--once"), ("streams", "--json")):
        printed = rstream(server, *words).output
        assert "orders" in printed
        assert "rstream:re" not in printed, words
    assert "rstream:returned:{orders}:g" in rstream(server, "lag").output  # what is behind is shown wherever it stands
    assert [one["stream"] for one in json.loads(rstream(server, "streams", "--json").output)] == ["orders"]


def test_add_names_the_limit_that_an_entry_exceeds() -> None:
    skip_without_redis()
    with running_redis("--client-query-buffer-limit", "1mb") as small:
        lines = "".join(json.dumps({"n": n, "v": "x" * n}) + "\n" for n in (1, 20, 2_000_000))
        ran = rstream(small, "add", "s", "-", given=lines)
    assert ran.exit_code == 1
    said = "an entry of 2,000,009 bytes for stream 's', its largest value 2,000,000: the server at"
    assert said in ran.output
    assert "takes 1048576 (client-query-buffer-limit). Raise this limit" in ran.output
