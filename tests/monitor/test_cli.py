"""`rstream …` as a person or a script meets it: what it prints, its exit codes, and that looking changes nothing."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from spark_streams.cli import main
from tests.servers import Server


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


def test_what_is_not_there_is_said(server: Server, orders: list[str]) -> None:
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
