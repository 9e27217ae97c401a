"""A word that names a stream or a group means the one of that name first, and is a pattern only otherwise."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace

import pytest
import redis
from click.testing import CliRunner

from spark_streams.base.pattern import NamesAndPatterns, escape, matches
from spark_streams.cli import main
from spark_streams.connector.deadletter.input_streams import exclude_option
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.commit_mark import committed_key
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.operations.monitor.snapshots import StreamFilter
from tests.operations.groups.conftest import APART, Rstream, RstreamJson
from tools.servers.server import Server

# A stream whose name is also a pattern, and a stream that this pattern matches.
PAIRS = [("orders[1]", "orders1"), ("*", "any"), ("orders:*", "orders:1"), ("o?", "o1"), ("[", "x"), ("a\\b", "ab")]


@pytest.fixture(params=PAIRS, ids=lambda pair: pair[0])
def pair(request: pytest.FixtureRequest, client: redis.Redis) -> tuple[str, str]:
    """Both streams, with five entries; group g has read them, and two are pending for consumer bob."""
    for stream in request.param:
        ids = [str(client.xadd(stream, {"n": n}, id=f"{n + 1}-0")) for n in range(5)]
        client.xgroup_create(stream, "g", id="0")
        client.xreadgroup("g", "bob", {stream: ">"})
        client.xack(stream, "g", *ids[:3])
    name, other = request.param
    return name, other


def position(client: redis.Redis, stream: str) -> str:
    return str(client.xinfo_groups(stream)[0]["last-delivered-id"])


CHANGES = [
    ("groups", "seek", "--group", "g", "--to", "earliest", "--even-active"),
    ("groups", "ack", "--group", "g", "--all", "--even-active"),
    ("groups", "claim", "--group", "g", "--from", "bob", "--to", "ann", "--even-active"),
    ("groups", "delete", "--group", "g", "--even-active"),
    ("groups", "delete", "--group", "g", "--consumer", "bob", "--forget-pending", "--even-active"),
    ("groups", "create", "--group", "new"),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda words: " ".join(words[1:5]))
def test_the_stream_of_that_name_is_changed_and_no_other(
    client: redis.Redis, pair: tuple[str, str], rstream_json: RstreamJson, change: tuple[str, ...]
) -> None:
    name, other = pair
    before = client.xinfo_groups(other)
    planned = rstream_json(*change, name)
    assert [row["stream"] for row in planned["streams"]] == [name]
    done = rstream_json(*change, name, "--yes")
    assert [row["stream"] for row in done["streams"]] == [name]
    assert client.xinfo_groups(other) == before
    assert client.xpending(other, "g")["pending"] == 2


def test_released_entries(client: redis.Redis, pair: tuple[str, str], rstream: Rstream) -> None:
    name, other = pair
    ran = rstream("groups", "release", name, "--group", "g", "--consumer", "bob", "--yes", "--even-active")
    if "has no XNACK" in str(ran.stderr):
        # There is nothing to release without XNACK (Redis 8.8). The engine has it, and newer servers of --servers.
        pytest.skip("this server cannot release entries")
    assert ran.exit_code == 0, ran.output
    assert [held["name"] for held in client.xpending(other, "g")["consumers"]] == ["bob"]
    assert client.xpending(name, "g")["pending"] == 2


def test_commands_that_look(client: redis.Redis, pair: tuple[str, str], rstream: Rstream) -> None:
    """lag, groups, pending and tail take patterns, too."""
    name, _ = pair
    for words in (("lag",), ("groups", "list"), ("pending",)):
        shown = json.loads(rstream(*words, name, "--json").stdout)
        rows = shown if isinstance(shown, list) else shown["groups"]
        assert {row["stream"] for row in rows} == {name}, words
    tailed = [json.loads(line) for line in rstream("tail", name, "--json").stdout.splitlines()]
    assert {line["stream"] for line in tailed} == {name}


def test_without_that_stream_it_is_a_pattern(client: redis.Redis, rstream: Rstream, rstream_json: RstreamJson) -> None:
    for stream in ("orders1", "orders2"):
        client.xadd(stream, {"n": 1})
        client.xgroup_create(stream, "g", id="$")
    pattern = "orders[12]"
    for words in (("lag", pattern), ("groups", "list", pattern), ("pending", pattern)):
        shown = json.loads(rstream(*words, "--json").stdout)
        rows = shown if isinstance(shown, list) else shown["groups"]
        assert {row["stream"] for row in rows} == ({"orders1", "orders2"} if rows else set()), words
    planned = rstream_json("groups", "seek", pattern, "--group", "g", "--to", "earliest")
    assert [row["stream"] for row in planned["streams"]] == ["orders1", "orders2"]
    exact = rstream("groups", "seek", pattern, "--exact", "--group", "g", "--to", "earliest", "--yes")
    assert (exact.exit_code, f"no stream '{pattern}'" in str(exact.stderr)) == (1, True)
    assert {position(client, stream) for stream in ("orders1", "orders2")} != {"0-0"}
    nothing = rstream("groups", "seek", "x[12]", "--group", "g", "--to", "earliest")
    assert "is called 'x[12]' or matches it" in str(nothing.stderr)


def test_a_key_of_another_type_is_no_stream_of_that_name(client: redis.Redis, rstream_json: RstreamJson) -> None:
    client.set("orders[1]", "text")
    client.xadd("orders1", {"n": 1})
    planned = rstream_json("groups", "create", "orders[1]", "--group", "g")
    assert [row["stream"] for row in planned["streams"]] == ["orders1"]


def test_a_name_that_is_not_utf8_is_left_out_with_a_note(client: redis.Redis, rstream: Rstream) -> None:
    for stream in (b"o\xff", b"o1"):
        client.xadd(stream, {"n": 1})
        client.xgroup_create(stream, "g", id="$")
    ran = rstream("groups", "seek", "o*", "--group", "g", "--to", "earliest")
    assert "note: 1 stream of o* left out: no name in UTF-8; use redis-cli" in str(ran.stderr)
    assert "set 1 group:" in ran.stdout
    lagging = rstream("lag", "o*", "--json").stdout
    assert len(json.loads(lagging)) == 2


def test_groups_of_prune(client: redis.Redis, rstream_json: RstreamJson) -> None:
    client.xadd("s", {"n": 1}, id="1-0")
    for group in ("g[1]", "g1", "g2"):
        client.xgroup_create("s", group, id="0")
        client.execute_command("XGROUP", "CREATECONSUMER", "s", group, "c")
    words = ("groups", "prune", "--idle", "1m")

    def examined(*more: str) -> set[str]:
        shown = rstream_json(*words, *more)
        return {row["group"] for row in [*shown["streams"], *shown["kept"]]} | {f"{shown['in_use']} in use"}

    assert examined("--group", "g[1]") == {"1 in use"}
    assert examined("--group", "g[12]") == {"2 in use"}
    assert examined("--group", "g[12]", "--group", "g[1]") == {"3 in use"}
    assert examined("--group", "g[12]", "--exact") == {"0 in use"}


def test_the_exporter(server: Server, client: redis.Redis) -> None:
    client.xadd("orders1", {"n": 1})
    with connect(Address.parse(server.url)) as connection:
        assert list(StreamFilter(("orders[1]",)).streams(connection)) == ["orders1"]
        client.xadd("orders[1]", {"n": 1})
        assert list(StreamFilter(("orders[1]", "orders?")).streams(connection)) == ["orders1", "orders[1]"]
        assert list(StreamFilter(("orders[1]",)).streams(connection)) == ["orders[1]"]


def test_options_by_stream() -> None:
    options = SourceOptions.parse(
        {"url": "redis://h", "group": "g", "streams": "orders[1],orders1",
         "maxEntriesPerTrigger": '{"orders[1]": 5}', "startingOffsets": '{"orders[1]": "earliest", "*": "7-0"}'}
    )  # fmt: skip
    assert options.max_entries_per_trigger.value_for("orders[1]") == 5
    assert options.max_entries_per_trigger.value_for("orders1") is None
    assert options.starting_offsets.value_for("orders1") == "7-0"
    found = SourceOptions.parse(
        {"url": "redis://h", "group": "g", "streamsPattern": "o*", "maxEntriesPerTrigger": '{"orders[1]": 5}'}
    )
    assert found.max_entries_per_trigger.value_for("orders1") == 5


def test_excluded_streams() -> None:
    """For a query the word is both: a stranger who creates a stream of that name does not end what the pattern does."""
    options = SourceOptions.parse(
        {"url": "redis://h", "group": "g", "streamsPattern": "o*", "streamsExcept": "orders[1],o:*"}
    )
    assert options.without_excluded(["orders[1]", "orders1", "o:1", "o2"]) == ["o2"]
    escaped = replace(options, streams_except=(exclude_option("orders[1]"),))
    assert escaped.without_excluded(["orders[1]", "orders1"]) == ["orders1"]


@pytest.mark.parametrize("name", ["orders[1]", "*", "a\\b", "[", "a?\\*", "é*", "plain"])
def test_an_escaped_name_matches_itself_only(name: str) -> None:
    assert matches(escape(name), name)
    for other in ("orders1", "x", "ab", "a\\bc", "", "é1"):
        assert not matches(escape(name), other)


def test_words_are_divided() -> None:
    words = NamesAndPatterns.divide(("a*", "b*", "c", "c"), {"a*", "c"})
    assert (words.names, words.patterns) == ({"a*", "c"}, ("b*",))
    assert [name for name in ("a*", "ab", "b*", "bc", "c", "cc") if words.selects(name)] == ["a*", "b*", "bc", "c"]


REMEDIES = [
    (("groups", "seek", "--group", "none", "--to", "latest"), ["groups", "list"]),
    (("groups", "claim", "--group", "g", "--from", "nobody", "--to", "ann"), ["pending"]),
    (("groups", "delete", "--group", "g", "--consumer", "bob", "--even-active"), ["groups", "claim"]),
    (("groups", "delete", "--group", "g", "--consumer", "bob", "--even-active", "--yes"), ["groups", "claim"]),
    (("lag", "--group", "none", "--max", "1"), ["groups", "list"]),
    (("tail", "--group", "none"), ["groups", "list"]),
    (("replay", "--group", "g", "--from", "1-0"), ["groups", "seek"]),
    (("dead", "redrive"), ["dead", "redrive"]),
]


@pytest.mark.parametrize("stream", ["x; touch stolen #", "a b", "-x", "or\x1b[31mders", "it's", "seek"])
def test_a_shell_runs_each_remedy_on_the_stream_of_that_name(server: Server, client: redis.Redis, stream: str) -> None:
    """Any client may create a stream whose name is a command of the shell, or an option of ours."""
    client.xadd(stream, {"n": 1, "dl.stream": "s", "dl.id": "1-0", "dl.reason": "bad", "dl.group": "g"}, id="1-0")
    client.xgroup_create(stream, "g", id="0")
    client.xreadgroup("g", "bob", {stream: ">"})
    client.set(committed_key(stream, "g", "spark"), "1-0 1.5f1c9a0b-e37d41aa")
    for command, remedy in REMEDIES:
        ran = CliRunner(**APART).invoke(main, [*command, "--", stream], env={"RSTREAM_URL": server.url})
        said = f"{ran.stdout}{ran.stderr}"
        [found] = re.findall(rf"rstream ({' '.join(remedy)} .*?)(?:\), or|, or | lists|, instead|\n|$)", said)
        printed = subprocess.run(["bash", "-c", f"printf '%s\\0' {found}"], capture_output=True, check=True).stdout
        words = printed.decode().split("\0")[:-1]
        assert words[: len(remedy)] == remedy
        assert stream == (words[-1] if words[-2] == "--" else words[len(remedy)]), found
